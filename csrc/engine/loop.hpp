// Greedy generation, with chain speculation where there is a draft (spec-runtime 6).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.hpp"

namespace dflash {

struct Request {
    std::vector<int32_t> prompt;
    int64_t max_new = 0;
    int64_t n_max = 0;  // most tokens drafted a round; 0: plain decoding
    std::vector<int32_t> eos;
};

enum class Stop { Eos, Length, Context };

// d tokens drafted and verified, the leading a of them accepted.
struct Round {
    int32_t drafted = 0, accepted = 0;
};

struct Generation {
    std::vector<int32_t> tokens;
    std::vector<Round> rounds;   // steps that verified a draft
    std::vector<float> margins;  // of every token: top-1 minus top-2 logit of the target
    int64_t steps = 0;           // target passes after the prefill, with a draft or without
    int64_t bad_drafts = 0;      // proposals thrown away because they were not finite
    Stop stop = Stop::Length;
    double prefill_s = 0, draft_s = 0, verify_s = 0, total_s = 0;  // steady clock
};

// Starts from nothing: the engine's sequence is reset first. Throws Fault Usage when the prompt is empty or leaves no
// room in the context.
Generation generate(Engine& e, const Request& request);

}  // namespace dflash
