// Greedy acceptance and block masks are host arithmetic; here against every case of a small world, by brute force.
#include <cstdio>
#include <vector>

#include "engine/accept.hpp"
#include "engine/masks.hpp"

using namespace dflash;

namespace {

int failures = 0;
void expect(bool ok, const char* what) {
    if (ok) return;
    std::printf("FAIL %s\n", what);
    ++failures;
}

// All drafts and choices of up to three tokens over {0, 1, 2}, token 2 ending the text: a token stands exactly when it
// and all before it were chosen, and none before it ended the text.
void accept_every_case() {
    const std::vector<int32_t> eos = {2};
    for (int code = 0; code < 729 * 3; ++code) {
        std::vector<int32_t> drafted, chosen;
        int rest = code;
        for (int i = 0; i < 3; ++i, rest /= 9) {
            drafted.push_back(rest % 3);
            chosen.push_back(rest / 3 % 3);
        }
        chosen.push_back(rest % 3);
        for (size_t m = 0; m <= 3; ++m) {
            int64_t stands = 0;
            for (size_t i = 0; i < m; ++i) {
                bool all = true;
                for (size_t j = 0; j <= i; ++j) all = all && drafted[j] == chosen[j] && (j == i || drafted[j] != 2);
                stands += all;
            }
            expect(accepted_run({drafted.data(), m}, chosen, eos) == stands, "the leading run that stands");
        }
    }
}

// Row i sees position p exactly when the words of spec-runtime 1.4 say so.
void mask_every_case() {
    constexpr int64_t q = 4;
    for (int64_t length = 1; length < 24; ++length)
        for (int64_t oldest = 0; oldest <= length; ++oldest)
            for (int64_t width = 1; width < 9; ++width)
                for (int kind = 0; kind < 8; ++kind) {
                    const LayerMask mask{.sliding = (kind & 1) != 0, .causal = (kind & 2) != 0,
                                         .window = kind & 4 ? Window::Anchored : Window::PerRow, .width = width};
                    std::vector<Visible> rows(q);
                    block_visible(mask, oldest, length, rows);
                    const bool anchored = mask.window == Window::Anchored;
                    for (int64_t i = 0; i < q; ++i) {
                        const Visible& see = rows[static_cast<size_t>(i)];
                        for (int64_t p = 0; p < length; ++p) {
                            const bool inside = anchored ? p >= length - width : length + i - p < width;
                            const bool near = !mask.sliding || inside;
                            expect((p >= see.ctx_begin && p < see.ctx_end) == (p >= oldest && near), "context");
                        }
                        for (int64_t j = 0; j < q; ++j) {
                            const bool near = !mask.sliding || anchored || (i - j < width && j - i < width);
                            const bool seen = near && (j <= i || !mask.causal);
                            expect((j >= see.blk_begin && j < see.blk_end) == seen, "block");
                        }
                        expect(see.block_pos == length, "the block stands behind the context");
                    }
                }
}

}  // namespace

int main() {
    accept_every_case();
    mask_every_case();
    std::printf("%d failures\n", failures);
    return failures != 0;
}
