#include "engine/collector.hpp"

#include <algorithm>

namespace dflash {

void Collector::watch(const std::string& name, const Matrix& m) {
    inputs_[m.data] = {.name = name, .sums = std::vector<double>(static_cast<size_t>(m.cols)), .rows = 0};
}

void Collector::see(const Matrix& m, const float* x, int64_t n) {
    const auto it = inputs_.find(m.data);
    if (it == inputs_.end()) return;
    double* sums = it->second.sums.data();
    for (const float* end = x + n * m.cols; x != end; x += m.cols)
        for (int64_t c = 0; c < m.cols; ++c) sums[c] += static_cast<double>(x[c]) * static_cast<double>(x[c]);
    it->second.rows += n;
}

std::vector<InputSquares> Collector::seen() const {
    std::vector<InputSquares> out;
    for (const auto& [data, input] : inputs_)
        if (input.rows > 0) out.push_back(input);
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return out;
}

}  // namespace dflash
