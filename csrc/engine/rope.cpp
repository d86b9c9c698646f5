#include "engine/rope.hpp"

#include <cmath>

namespace dflash {

void rope_table(std::span<const int64_t> positions, int64_t n_rot, double theta, const float* factors, float* cos,
                float* sin) {
    const int64_t half = n_rot / 2;
    for (int64_t i = 0; i < half; ++i) {
        double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(n_rot));
        if (factors) frequency /= static_cast<double>(factors[i]);
        for (size_t t = 0; t < positions.size(); ++t) {
            const double angle = static_cast<double>(positions[t]) * frequency;
            const int64_t at = static_cast<int64_t>(t) * half + i;
            cos[at] = static_cast<float>(std::cos(angle));
            sin[at] = static_cast<float>(std::sin(angle));
        }
    }
}

}  // namespace dflash
