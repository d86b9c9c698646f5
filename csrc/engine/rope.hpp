// Rotary position tables, computed on the host so that every backend reads the same bits (docs/numerics.md).
#pragma once

#include <cstdint>
#include <span>

namespace dflash {

// cos, sin: [positions.size(), n_rot/2]; entry (t, i) is that of the angle positions[t] * theta^(-2i/n_rot) / factors[i],
// computed in double and rounded to F32. factors: null, or n_rot/2 divisors (`rope_freqs.weight`).
void rope_table(std::span<const int64_t> positions, int64_t n_rot, double theta, const float* factors, float* cos,
                float* sin);

}  // namespace dflash
