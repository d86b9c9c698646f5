#include "engine/selector.hpp"

#include <cmath>
#include <vector>

namespace dflash {
namespace {

// The codebooks' inputs in the scores of one row. A score is the sum over r of before[r] * gate[r] * candidate[r]: what
// multiplies a value of the successor's row is before * gate, and of the predecessor's gate * candidate.
void collect_scores(Collector& collector, const Selector& s, const float* gate) {
    const auto rank = static_cast<size_t>(s.rank);
    std::vector<float> x(rank);
    for (size_t r = 0; r < rank; ++r) x[r] = s.before.data()[r] * gate[r];
    collector.see(s.successor, x.data(), 1);
    for (int64_t j = 0; j < s.top_k; ++j) {
        for (size_t r = 0; r < rank; ++r) x[r] = gate[r] * s.candidates.data()[static_cast<size_t>(j) * rank + r];
        collector.see(s.predecessor, x.data(), 1);
    }
}

}  // namespace

Selector make_selector(Weights& w, int64_t hidden, int64_t vocab, int64_t rank, int64_t top_k,
                       int64_t rows) {
    Selector s;
    s.gate = take_matrix(w, "selector_hidden.weight", hidden, rank);
    s.predecessor = take_matrix(w, "selector_predecessor.weight", rank, vocab);
    s.successor = take_matrix(w, "selector_successor.weight", rank, vocab);
    s.rank = rank;
    s.top_k = top_k;
    s.gates = Buffer<float>(rows * rank);
    s.ids = Buffer<int32_t>(rows * top_k);
    s.values = Buffer<float>(rows * top_k);
    s.candidates = Buffer<float>(top_k * rank);
    s.before = Buffer<float>(rank);
    s.scores = Buffer<float>(top_k);
    return s;
}

void score_row(const Backend& b, Selector& s, int64_t i, int32_t before) {
    const auto k = static_cast<size_t>(s.top_k);
    b.ops->embed(b.ctx(), s.predecessor, {&before, 1}, 1.0F, s.before.data());
    b.ops->embed(b.ctx(), s.successor, {s.ids.row(i, s.top_k), k}, 1.0F, s.candidates.data());
    b.ops->pair_score(b.ctx(), s.before.data(), s.gates.row(i, s.rank), s.candidates.data(), s.top_k, s.rank,
                      s.scores.data());
    const float* values = s.values.row(i, s.top_k);
    for (size_t j = 0; j < k; ++j) s.scores.data()[j] += values[j];
}

bool select_chain(const Backend& b, Selector& s, const float* hidden, const float* logits, int64_t n, int64_t vocab,
                  int32_t anchor, int32_t* tokens) {
    const auto k = static_cast<size_t>(s.top_k);
    project(b, {s.gate}, hidden, n, {s.gates.data()});
    b.ops->top_k(b.ctx(), logits, n, vocab, s.top_k, s.ids.data(), s.values.data());
    int32_t before = anchor;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t* ids = s.ids.row(i, s.top_k);
        const float *values = s.values.row(i, s.top_k), *scores = s.scores.data();
        for (size_t j = 0; j < k; ++j)
            if (ids[j] < 0 || ids[j] >= vocab || !std::isfinite(values[j])) return false;
        score_row(b, s, i, before);
        if (b.collector) collect_scores(*b.collector, s, s.gates.row(i, s.rank));
        size_t best = 0;
        for (size_t j = 0; j < k; ++j) {
            if (!std::isfinite(scores[j])) return false;
            if (scores[j] > scores[best]) best = j;
        }
        tokens[i] = before = ids[best];
    }
    return true;
}

}  // namespace dflash
