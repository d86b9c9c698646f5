// Views of weights: what a tensor is, where its bytes lie. Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dflash {

// Type ids as in GGUF files (spec-quant 0.5). Only those the runtime computes with.
enum class Type : int32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, BF16 = 30 };

// Values in a block and bytes a block takes; a row of `cols` values is cols / block_len blocks.
constexpr int64_t block_len(Type t) { return t == Type::Q4_0 || t == Type::Q8_0 ? 32 : 1; }
constexpr int64_t block_bytes(Type t) {
    switch (t) {
        case Type::F32: return 4;
        case Type::F16:
        case Type::BF16: return 2;
        case Type::Q4_0: return 2 + 16;  // f16 scale, 32 nibbles
        case Type::Q8_0: return 2 + 32;  // f16 scale, 32 int8
    }
    return 0;
}
constexpr int64_t row_bytes(Type t, int64_t cols) { return cols / block_len(t) * block_bytes(t); }

// A weight matrix in GGUF order [cols, rows]: `rows` rows of `cols` contiguous values, y = M x has `rows` values.
// The bytes belong to the file mapping (or buffer) that must outlive the view.
struct Matrix {
    const std::byte* data = nullptr;
    Type type = Type::F32;
    int64_t cols = 0;  // input size, ne0
    int64_t rows = 0;  // output size, ne1
    explicit operator bool() const { return data != nullptr; }
    const std::byte* row(int64_t r) const { return data + r * row_bytes(type, cols); }
};

}  // namespace dflash
