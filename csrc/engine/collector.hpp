// Sums of squares of what the matrices of a draft are multiplied with: an importance matrix in the making.
//
// A matrix is known by the address of its bytes, so the call sites name nothing, and the target's matrices, which run
// through the same code, are not counted. A square of an F32 is exact in F64 and every column is summed alone, row after
// row, by the calling thread: no bit depends on threads, instruction set or micro-batch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/tensor.hpp"

namespace dflash {

struct InputSquares {
    std::string name;          // the tensor
    std::vector<double> sums;  // [cols]
    int64_t rows = 0;          // rows that were summed
};

class Collector {
   public:
    // Counts the inputs of `m` from now on, under `name`.
    void watch(const std::string& name, const Matrix& m);

    // The rows x are multiplied with m. x: [n, m.cols]. Nothing happens where m is not watched.
    void see(const Matrix& m, const float* x, int64_t n);

    // Every watched matrix that saw a row, by name.
    std::vector<InputSquares> seen() const;

   private:
    std::map<const std::byte*, InputSquares> inputs_;
};

}  // namespace dflash
