// Rotary positions, the block convolution, selector scores, argmax and top-k: known answers and agreement by bits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/rope.hpp"
#include "ops_check.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rotating by p turns each pair (i, i + n_rot/2) by p * theta^(-2i/n_rot); dims from n_rot on stay.
void rope_turns_pairs(const Ops& ops) {
    Random random{1};
    const Threads one(1);
    const int64_t hd = 64, n_rot = 48, heads = 3;
    const std::vector<int64_t> positions = {0, 5, 100000};
    Floats cos(positions.size() * n_rot / 2), sin(cos.size());
    rope_table(positions, n_rot, 1e6, nullptr, cos.data(), sin.data());
    const Floats x = floats(random, 3 * heads * hd);
    Floats y = x;
    ops.norm_rope(one, y.data(), nullptr, 0, 3, heads, hd, cos.data(), sin.data(), n_rot);
    for (int64_t t = 0; t < 3; ++t)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < hd; ++i) {
                const int64_t at = (t * heads + h) * hd, pair = i % (n_rot / 2);
                const double angle = double(positions[t]) * std::pow(1e6, -2.0 * double(pair) / double(n_rot));
                const double a = x[at + pair], b = x[at + pair + n_rot / 2];
                double truth = x[at + i];
                if (i < n_rot / 2) truth = a * std::cos(angle) - b * std::sin(angle);
                else if (i < n_rot) truth = a * std::sin(angle) + b * std::cos(angle);
                check(std::fabs(y[at + i] - truth) < 1e-6, "%s: rope of position %d dim %d", ops.name, int(positions[t]), int(i));
            }
}

void norm_rope_agrees(const std::vector<const Ops*>& isas) {
    Random random{2};
    const Threads one(1), two(2);
    for (const int64_t hd : {32, 40, 64, 66, 128})
        for (const int64_t n_rot : {int64_t{0}, hd / 4 * 2, hd})
            for (const bool norm : {false, true})
                for (const int64_t n : {1, 40}) {
                    const int64_t heads = 8;
                    std::vector<int64_t> positions(static_cast<size_t>(n));
                    std::iota(positions.begin(), positions.end(), 1000);
                    Floats cos(static_cast<size_t>(n * n_rot / 2)), sin(cos.size());
                    rope_table(positions, n_rot, 1e4, nullptr, cos.data(), sin.data());
                    const Floats x = floats(random, n * heads * hd), w = floats(random, hd);
                    Floats expected;
                    for (const Ops* ops : isas)
                        for (const Threads* threads : {&one, &two}) {
                            Floats y = x;
                            ops->norm_rope(*threads, y.data(), norm ? w.data() : nullptr, 1e-6f, n, heads, hd, cos.data(), sin.data(), n_rot);
                            if (expected.empty()) expected = y;
                            check(difference(expected, y) < 0, "%s: norm_rope hd %d n_rot %d", ops->name, int(hd), int(n_rot));
                        }
                }
}

// Taps [1, 0] copy the row, [0, 1] the row before (zero before row 0); the two sides have their own taps.
void conv_known_answers(const Ops& ops) {
    const Threads one(1);
    const int64_t n = 4, H = 32, K = 2, group = 16;
    Floats u(n * H), y(n * H), base(2 * K * H), dyn(n * 2 * K * (H / group));
    for (int64_t i = 0; i < n * H; ++i) u[i] = static_cast<float>(i + 1);
    const auto set = [&](int side, float tap0, float tap1) {
        for (int64_t ch = 0; ch < H; ++ch) base[ch + H * (0 + K * side)] = tap0, base[ch + H * (1 + K * side)] = tap1;
    };
    set(0, 1, 0);
    set(1, 0, 1);
    ops.conv(one, base.data(), dyn.data(), u.data(), n, H, K, group, 0, y.data());
    check(difference(u, y) < 0, "%s: taps [1, 0] do not copy", ops.name);
    ops.conv(one, base.data(), dyn.data(), u.data(), n, H, K, group, 1, y.data());
    for (int64_t i = 0; i < n * H; ++i) check(y[i] == (i < H ? 0.0f : u[i - H]), "%s: taps [0, 1] do not shift at %d", ops.name, int(i));
    // dyn is read at the output row, side-major, then tap, then group: one entry moves one group of one row.
    set(1, 0, 0);
    dyn[2 * (2 * K * 2) + 1 * (K * 2) + 1 * 2 + 1] = 10;  // row 2, side 1, tap 1, group 1
    ops.conv(one, base.data(), dyn.data(), u.data(), n, H, K, group, 1, y.data());
    for (int64_t i = 0; i < n * H; ++i) {
        const bool moved = i / H == 2 && i % H >= group;
        check(y[i] == (moved ? 10 * u[i - H] : 0.0f), "%s: one dyn entry gives %g at %d", ops.name, y[i], int(i));
    }
}

void conv_and_pair_score_agree(const std::vector<const Ops*>& isas) {
    Random random{3};
    const Threads one(1), two(2);
    struct Shape {
        int H, K, group;
    };
    for (int kind = 0; kind < kKinds; ++kind)
        for (const auto& [H, K, group] : {Shape{64, 2, 16}, {256, 3, 16}, {60, 2, 20}, {33, 1, 11}, {4096, 4, 32}}) {
            const int64_t n = 8;
            const Floats u = floats(random, n * H, Kind(kind)), base = floats(random, 2 * K * H, Kind(kind));
            const Floats dyn = floats(random, n * 2 * K * (H / group), Kind(kind));
            for (const int side : {0, 1}) {
                Floats expected;
                for (const Ops* ops : isas)
                    for (const Threads* threads : {&one, &two}) {
                        Floats y(u.size());
                        ops->conv(*threads, base.data(), dyn.data(), u.data(), n, H, K, group, side, y.data());
                        if (expected.empty()) expected = y;
                        check(difference(expected, y) < 0, "%s: conv H %d K %d kind %d", ops->name, H, K, kind);
                    }
            }
        }
    for (const int64_t R : {5, 32, 48, 256}) {
        const int64_t k = 8;
        const Floats a = floats(random, R), b = floats(random, R), c = floats(random, k * R);
        Floats expected;
        for (const Ops* ops : isas) {
            Floats out(k);
            ops->pair_score(one, a.data(), b.data(), c.data(), k, R, out.data());
            if (expected.empty()) expected = out;
            check(difference(expected, out) < 0, "%s: pair_score R %d", ops->name, int(R));
            for (int64_t i = 0; i < k; ++i) {
                double sum = 0, size = 0;
                for (int64_t r = 0; r < R; ++r) {
                    const double term = double(a[r]) * b[r] * c[i * R + r];
                    sum += term;
                    size += std::fabs(term);
                }
                check(std::fabs(out[i] - sum) <= 1e-6 * size, "%s: pair_score is %g, not %g", ops->name, out[i], sum);
            }
        }
    }
}

int32_t argmax_of(const Ops& ops, Context& c, const Floats& x) {
    int32_t id = -7;
    ops.argmax(c, x.data(), 1, static_cast<int64_t>(x.size()), &id);
    return id;
}

void argmax_known_answers(const Ops& ops) {
    const Threads one(1), three(3);
    for (const Threads* threads : {&one, &three})
        for (const int64_t width : {1, 5, 16, 33, 1000, 50000}) {
            for (const int64_t first : {int64_t{0}, width / 3, width / 2, width - 1}) {
                Floats x(static_cast<size_t>(width), -3.0f);
                for (int64_t i = first; i < width; i += 7) x[i] = 2.0f;  // ties
                check(argmax_of(ops, *threads, x) == first, "%s: a tie goes to %d, not %d", ops.name, argmax_of(ops, *threads, x), int(first));
                x[width / 2] = kNaN;
                check(argmax_of(ops, *threads, x) == -1, "%s: a NaN at %d of %d is not seen", ops.name, int(width / 2), int(width));
            }
            check(argmax_of(ops, *threads, Floats(static_cast<size_t>(width), -kInfinity)) == -1, "%s: no finite value", ops.name);
            Floats x(static_cast<size_t>(width), -kInfinity);
            x[width - 1] = -3e38f;
            check(argmax_of(ops, *threads, x) == width - 1, "%s: the one finite value is not chosen", ops.name);
            Floats zeros(static_cast<size_t>(width), 0.0f);
            zeros[0] = -0.0f;
            check(argmax_of(ops, *threads, zeros) == 0, "%s: -0 and +0 are a tie", ops.name);
        }
}

void top_k_is_the_head_of_a_sort(const Ops& ops) {
    Random random{4};
    const Threads one(1), two(2);
    for (int kind = 0; kind < kKinds; ++kind)
        for (const int64_t width : {8, 9, 64, 1000, 5001})
            for (const int64_t k : {1, 2, 8})
                for (const Threads* threads : {&one, &two}) {
                    const int64_t n = 4;
                    Floats x = floats(random, n * width, Kind(kind)), values(static_cast<size_t>(n * k));
                    for (int64_t i = 0; i < width; ++i) x[width + i] = static_cast<float>(i);                            // rising
                    for (int64_t i = 0; i < width; ++i) x[2 * width + i] = i % 3 ? -kInfinity : static_cast<float>(-i);  // masked
                    x[3 * width + random.below(width)] = kNaN;
                    std::vector<int32_t> ids(static_cast<size_t>(n * k));
                    ops.top_k(*threads, x.data(), n, width, k, ids.data(), values.data());
                    for (int64_t t = 0; t < n; ++t) {
                        std::vector<int32_t> order(static_cast<size_t>(width));
                        std::iota(order.begin(), order.end(), 0);
                        const float* row = x.data() + t * width;
                        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return t < 3 && row[a] > row[b]; });
                        for (int64_t i = 0; i < k; ++i) {
                            const int32_t id = t == 3 ? -1 : order[i];
                            const float v = t == 3 ? kNaN : row[id];
                            check(ids[t * k + i] == id && same(values[t * k + i], v), "%s: top_k %d of %d, row %d: %d is not %d", ops.name,
                                  int(k), int(width), int(t), ids[t * k + i], id);
                        }
                    }
                }
}

}  // namespace

int main() {
    const auto isas = every_isa();
    norm_rope_agrees(isas);
    conv_and_pair_score_agree(isas);
    for (const Ops* ops : isas) {
        rope_turns_pairs(*ops);
        conv_known_answers(*ops);
        argmax_known_answers(*ops);
        top_k_is_the_head_of_a_sort(*ops);
    }
    return finish("test_ops_rows");
}
