// Greedy acceptance of one round (spec-runtime 6.1, 6.6): host-only arithmetic on tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace dflash {

inline bool is_eos(std::span<const int32_t> eos, int32_t token) {
    return std::find(eos.begin(), eos.end(), token) != eos.end();
}

// How many of `drafted` stand: the longest run with drafted[i] == chosen[i], where chosen[i] is what the target chose
// after row i; an end-of-sequence token stands, and nothing behind it does.
inline int64_t accepted_run(std::span<const int32_t> drafted, std::span<const int32_t> chosen,
                            std::span<const int32_t> eos) {
    int64_t a = 0;
    for (const int32_t token : drafted) {
        if (token != chosen[static_cast<size_t>(a)]) break;
        ++a;
        if (is_eos(eos, token)) break;
    }
    return a;
}

}  // namespace dflash
