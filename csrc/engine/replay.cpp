#include "engine/replay.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dflash {
namespace {

void check(const Engine& e, const Recording& text, std::span<const int32_t> anchors) {
    const auto refuse = [](const std::string& what, const std::string& found, const std::string& expected) {
        throw Fault{.kind = FaultKind::Usage, .what = what, .found = found, .expected = expected};
    };
    const int64_t total = std::ssize(text.tokens), fresh = total - text.prompt;
    if (text.prompt < 1 || fresh < 1 || text.budget < fresh)
        refuse("the recording is not a text", std::to_string(text.prompt) + " tokens of prompt, " +
               std::to_string(fresh) + " new, " + std::to_string(text.budget) + " allowed",
               "at least one of each, and no more than allowed");
    check_tokens(e, text.tokens);
    int64_t least = 0;
    for (const int32_t anchor : anchors) {
        if (anchor < least || anchor > fresh - 2)
            refuse("an anchor is out of place", std::to_string(anchor),
                   "ascending, " + std::to_string(least) + " to " + std::to_string(fresh - 2));
        least = anchor + 1;
    }
}

// ln of the sum of exp(x), in F64; terms below e^-40 of the largest are left out.
double log_sum_exp(const float* x, int64_t n) {
    const double most = *std::max_element(x, x + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i)
        if (x[i] - most > -40.0) sum += std::exp(x[i] - most);
    return most + std::log(sum);
}

// How probable `token` is among the candidates that the selector scored last.
double among_candidates(const Selector& s, int64_t row, int32_t token) {
    const int32_t* ids = s.ids.data() + row * s.top_k;
    const auto at = std::find(ids, ids + s.top_k, token) - ids;
    return at == s.top_k ? 0.0 : std::exp(s.scores.data()[at] - log_sum_exp(s.scores.data(), s.top_k));
}

// One block behind `anchor`, compared with what follows it in the text.
void replay_block(const Backend& b, Draft& d, int32_t anchor, std::span<const int32_t> truth, Replay& out, size_t at) {
    Round& round = out.rounds[at];
    std::vector<int32_t> tokens(static_cast<size_t>(round.drafted));
    run_block(b, d, anchor);
    block_logits(b, d, 1, round.drafted);
    if (!block_tokens(b, d, anchor, round.drafted, tokens.data())) {
        round.drafted = 0;
        return;
    }
    const size_t known = std::min(truth.size(), tokens.size());
    round.accepted = static_cast<int32_t>(
        std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(known), truth.begin()).first -
        tokens.begin());
    const int64_t width = d.config.block_size - 1, vocab = d.config.vocab_size;
    float* chosen = out.chosen.row(static_cast<int64_t>(at), width);
    float* log_probability = out.log_probability.row(static_cast<int64_t>(at), width);
    int32_t before = anchor;
    for (size_t i = 0; i < known; before = truth[i++]) {
        const float* logits = d.logits.row(static_cast<int64_t>(i) + 1, vocab);
        const double p = static_cast<double>(logits[truth[i]]) - log_sum_exp(logits, vocab);
        log_probability[i] = static_cast<float>(p);
        chosen[i] = static_cast<float>(std::exp(p));
        if (!d.selector) continue;
        score_row(b, *d.selector, static_cast<int64_t>(i), before);
        chosen[i] = static_cast<float>(among_candidates(*d.selector, static_cast<int64_t>(i), truth[i]));
    }
}

}  // namespace

Replay replay(Engine& e, const Recording& text, std::span<const int32_t> anchors, int64_t n_max) {
    Draft& d = *e.draft;
    reset(e);
    check(e, text, anchors);
    const int64_t width = d.config.block_size - 1, count = std::ssize(anchors);
    Replay out{.rounds = std::vector<Round>(anchors.size()),
               .chosen = Buffer<float>(count * width),
               .log_probability = Buffer<float>(count * width)};
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(out.chosen.data(), count * width, kNone);
    std::fill_n(out.log_probability.data(), count * width, kNone);
    for (size_t at = 0; at < anchors.size(); ++at) {
        if (e.poll) e.poll();
        const int64_t position = text.prompt + anchors[at];
        append_context(e.backend, d, text.features + d.ring.next * d.config.feature_size(), position - d.ring.next);
        const int64_t m = std::min({width, n_max, text.budget - anchors[at] - 2});
        out.rounds[at].drafted = static_cast<int32_t>(std::max<int64_t>(m, 0));
        if (m < 1) continue;
        const auto here = static_cast<size_t>(position);
        replay_block(e.backend, d, text.tokens[here], text.tokens.subspan(here + 1), out, at);
    }
    return out;
}

}  // namespace dflash
