// The draft alone, along a text that its target wrote before: greedy speculation is lossless, so what the target would
// accept is what the text has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/loop.hpp"

namespace dflash {

// A text of the target and what the draft reads of it. Owns nothing.
struct Recording {
    std::span<const int32_t> tokens;  // the prompt, then the new tokens
    int64_t prompt = 0;               // tokens of the prompt
    int64_t budget = 0;               // new tokens that the request allowed; the text may have ended earlier
    const float* features = nullptr;  // [tokens.size() - 1, feature_size], as e.features has them
};

// What the draft said behind each anchor.
struct Replay {
    std::vector<Round> rounds;       // what the loop's round would have been; drafted 0: none, or not finite
    // [anchors, q - 1], how probable the text's next tokens were to the draft, each given those before it; NaN where
    // nothing was drafted or the text has ended.
    Buffer<float> chosen;            // among what could have been chosen: all tokens, or the selector's candidates
    Buffer<float> log_probability;   // natural logarithm, among all tokens, by the head alone
};

// Runs the draft of `e` behind every anchor: ascending indices of new tokens, the last new token excluded. A round is
// the loop's, at most n_max tokens. The sequence is reset before, and means nothing afterwards. Throws Fault Usage where
// a size or an anchor does not fit.
Replay replay(Engine& e, const Recording& text, std::span<const int32_t> anchors, int64_t n_max);

}  // namespace dflash
