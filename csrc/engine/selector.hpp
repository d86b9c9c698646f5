// The candidate selector of DFlash 2 (spec-runtime 2.2, 2.3): top-k candidates a row, scored given the token before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend.hpp"
#include "engine/buffer.hpp"
#include "engine/config.hpp"
#include "engine/weights.hpp"

namespace dflash {

struct Selector {
    Matrix gate;                    // selector_hidden [H, R]
    Matrix predecessor, successor;  // codebooks [R, V], rows by target token id
    int64_t rank = 0, top_k = 0;
    Buffer<float> gates;            // [rows, R]
    Buffer<int32_t> ids;            // [rows, top_k], sorted by (logit descending, id ascending)
    Buffer<float> values;           // [rows, top_k]
    Buffer<float> candidates;       // [top_k, R]
    Buffer<float> before;           // [R]
    Buffer<float> scores;           // [top_k]
};

Selector make_selector(Weights& w, int64_t hidden, int64_t vocab, int64_t rank, int64_t top_k,
                       int64_t rows);

// Scores the candidates of row i of the last select_chain for the predecessor `before`, into s.scores: the logit plus the
// pair's score, in the order of the candidates.
void score_row(const Backend& b, Selector& s, int64_t i, int32_t before);

// Walks n rows from `anchor`: each row takes its best-scored candidate, the first in candidate order on ties, and hands
// it to the next as predecessor. hidden: [n, H] final-normed states; logits: [n, V] after scale and cap.
// False when a row has no finite logit or score: then the tokens mean nothing.
bool select_chain(const Backend& b, Selector& s, const float* hidden, const float* logits, int64_t n, int64_t vocab,
                  int32_t anchor, int32_t* tokens);

}  // namespace dflash
