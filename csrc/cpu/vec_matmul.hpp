// Matrix products for any register width: tiles of weight rows times activation rows, and rows widened.
#pragma once

#include "cpu/vec_math.hpp"

namespace dflash {
namespace {

inline void load_half_n(const std::byte* p, int64_t n, std::byte (&out)[2 * W]) {
    memset(out, 0, sizeof out);
    memcpy(out, p, static_cast<size_t>(2 * n));
}

struct Plain {
    using Piece = F;
    static constexpr auto& kTile = kPlainTile;
    static int64_t terms(int64_t cols) { return cols; }
    static F apply(F w, const std::byte* x, int64_t i, F acc, int64_t) { return fma(w, load(x + 4 * W * i), acc); }
    static F apply_n(F w, const std::byte* x, int64_t i, F acc, int64_t, int64_t n) {
        return select_n(n, fma(w, load_n(x + 4 * W * i, n), acc), acc);
    }
};

struct WeightF32 : Plain {
    static constexpr int kPieceBytes = 4 * W;
    static F piece(const std::byte* row, int64_t i) { return load(row + 4 * W * i); }
    static F piece_n(const std::byte* row, int64_t i, int64_t n) { return load_n(row + 4 * W * i, n); }
};

struct WeightF16 : Plain {
    static constexpr int kPieceBytes = 2 * W;
    static F piece(const std::byte* row, int64_t i) { return load_f16(row + 2 * W * i); }
    static F piece_n(const std::byte* row, int64_t i, int64_t n) {
        std::byte half[2 * W];
        load_half_n(row + 2 * W * i, n, half);
        return load_f16(half);
    }
};

struct WeightBF16 : Plain {
    static constexpr int kPieceBytes = 2 * W;
    static F piece(const std::byte* row, int64_t i) { return load_bf16(row + 2 * W * i); }
    static F piece_n(const std::byte* row, int64_t i, int64_t n) {
        std::byte half[2 * W];
        load_half_n(row + 2 * W * i, n, half);
        return load_bf16(half);
    }
};

constexpr int64_t kOutBlock = 24;          // weight rows taken together while a slice of the activations stays near
constexpr int64_t kSliceBytes = 24 * 1024;  // of activations: half of a first-level cache

constexpr int64_t kNear = 1024;             // bytes ahead where the weights are read in one go

// The sums of one weight row and activation row, between two slices.
struct Carry {
    F r[P];
};

// A slice of the terms, in pieces of W. A long product is done slice by slice over a block of weight rows, so that the
// activations are read from the nearest cache; a lane's sum just goes on, so its order is the same.
struct Slice {
    int64_t begin, end;
    bool first, last;
    int64_t ahead;  // bytes from a weight to the one that will be needed next in its place: asked for in advance
};

// kOuts weight rows from r on times kRows activation rows from t0 on: each piece of a weight row is decoded once for all.
template <class Weight, int kRows, int kOuts>
inline void tile(const MatmulTask& task, int64_t r, int64_t t0, const Slice& slice, Carry* carry) {
    const std::byte *w[kOuts], *x[kRows];
    for (int o = 0; o < kOuts; ++o) w[o] = task.w + (r + o) * task.w_stride;
    for (int t = 0; t < kRows; ++t) x[t] = task.x + (t0 + t) * task.x_stride;
    constexpr int kSums = kRows * kOuts;
    F acc[kSums][P];
#pragma GCC unroll 64
    for (int a = 0; a < kSums; ++a)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[a][p] = slice.first ? set(0.0f) : carry[a].r[p];

    const int64_t cols = task.cols;
    int64_t i = slice.begin;
    for (; i + P <= slice.end; i += P)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            typename Weight::Piece piece[kOuts];
#pragma GCC unroll 8
            for (int o = 0; o < kOuts; ++o) {
                constexpr int kBytes = Weight::kPieceBytes;
                if (p * kBytes % 64 < kBytes) __builtin_prefetch(w[o] + (i + p) * kBytes + slice.ahead);
                piece[o] = Weight::piece(w[o], i + p);
            }
#pragma GCC unroll 8
            for (int t = 0; t < kRows; ++t)
#pragma GCC unroll 8
                for (int o = 0; o < kOuts; ++o)
                    acc[t * kOuts + o][p] = Weight::apply(piece[o], x[t], i + p, acc[t * kOuts + o][p], cols);
        }
    if (!slice.last) {
#pragma GCC unroll 64
        for (int a = 0; a < kSums; ++a)
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) carry[a].r[p] = acc[a][p];
        return;
    }
    const int64_t terms = Weight::terms(cols);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
        const int64_t n = less_of(W, terms - (i + p) * W);
        if (n <= 0) break;
#pragma GCC unroll 8
        for (int o = 0; o < kOuts; ++o) {
            const auto piece = n == W ? Weight::piece(w[o], i + p) : Weight::piece_n(w[o], i + p, n);
#pragma GCC unroll 8
            for (int t = 0; t < kRows; ++t) {
                F& a = acc[t * kOuts + o][p];
                a = n == W ? Weight::apply(piece, x[t], i + p, a, cols) : Weight::apply_n(piece, x[t], i + p, a, cols, n);
            }
        }
    }

    alignas(16) float y[(kSums + 3) / 4 * 4];
#pragma GCC unroll 16
    for (int a = 0; a < kSums; a += 4) {
        constexpr int last = kSums - 1;
        _mm_store_ps(y + a, sums(acc[a], acc[a + 1 < last ? a + 1 : last], acc[a + 2 < last ? a + 2 : last], acc[a + 3 < last ? a + 3 : last]));
    }
    for (int t = 0; t < kRows; ++t)
        for (int o = 0; o < kOuts; ++o) task.y[(t0 + t) * task.y_stride + r + o] = y[t * kOuts + o];
}

template <class Weight, int kRows>
void tiles(const MatmulTask& task, int64_t begin, int64_t end, int64_t t0, const Slice& slice, Carry* carry) {
    constexpr int kOuts = Weight::kTile[kRows];
    int64_t r = begin;
    for (; r + kOuts <= end; r += kOuts, carry += kRows * kOuts) tile<Weight, kRows, kOuts>(task, r, t0, slice, carry);
    for (; r < end; ++r, carry += kRows) tile<Weight, kRows, 1>(task, r, t0, slice, carry);
}

template <class Weight>
constexpr int kTileRows = sizeof Weight::kTile / sizeof Weight::kTile[0] - 1;

// The tile function of 1 .. kTileRows activation rows.
template <class Weight, int kRows = 1>
inline void tiles_of(int64_t rows, const MatmulTask& task, int64_t begin, int64_t end, int64_t t0, const Slice& slice, Carry* carry) {
    if (rows == kRows) tiles<Weight, kRows>(task, begin, end, t0, slice, carry);
    else if constexpr (kRows < kTileRows<Weight>) tiles_of<Weight, kRows + 1>(rows, task, begin, end, t0, slice, carry);
}

template <class Weight>
void matmul(const MatmulTask& task, int64_t begin, int64_t end) {
    constexpr int64_t kMost = kTileRows<Weight>;
    const int64_t passes = (task.n + kMost - 1) / kMost, rows = (task.n + passes - 1) / passes;
    const int64_t pieces = Weight::terms(task.cols) / W;
    // Two rows and fewer keep their place in the cache, and read the weights in one go.
    int64_t size = more_of(pieces, 1);
    if (rows > 2 && rows * task.x_stride > kSliceBytes) size = more_of(kSliceBytes * pieces / (rows * task.x_stride) / P, 1) * P;
    const bool whole = size >= pieces;
    const int64_t block = whole && passes == 1 ? end - begin : kOutBlock;
    Carry carry[kOutBlock * kMost];
    for (int64_t r = begin; r < end; r += block)
        for (int64_t pass = 0; pass < passes; ++pass) {
            const int64_t t0 = task.n * pass / passes, t1 = task.n * (pass + 1) / passes;
            for (int64_t i = 0; i == 0 || i < pieces; i += size) {
                const bool last = i + size >= pieces;
                const int64_t next = last ? kOutBlock * task.w_stride - i * Weight::kPieceBytes : size * Weight::kPieceBytes;
                tiles_of<Weight>(t1 - t0, task, r, less_of(end, r + block), t0,
                                 {i, less_of(pieces, i + size), i == 0, last, whole ? kNear : next}, carry);
            }
        }
}

float half_to_float(const std::byte* p) {
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16(h)));
}

template <class Weight>
inline void widen_plain(const std::byte* row, int64_t cols, float scale, float* out) {
    const F s = set(scale);
    each(
        cols, [&](int64_t i) { store(out + i, mul(Weight::piece(row, i / W), s)); },
        [&](int64_t i, int64_t n) { store_n(out + i, mul(Weight::piece_n(row, i / W, n), s), n); });
}

void widen_row(Type type, const std::byte* row, int64_t cols, float scale, float* out) {
    switch (type) {
        case Type::F32: return widen_plain<WeightF32>(row, cols, scale, out);
        case Type::F16: return widen_plain<WeightF16>(row, cols, scale, out);
        case Type::BF16: return widen_plain<WeightBF16>(row, cols, scale, out);
        case Type::Q8_0:
            for (int64_t b = 0; b < cols / 32; ++b) widen_block(codes_q8_0(row + 34 * b), half_to_float(row + 34 * b), scale, out + 32 * b);
            return;
        case Type::Q4_0:
            for (int64_t b = 0; b < cols / 32; ++b) widen_block(codes_q4_0(row + 18 * b), half_to_float(row + 18 * b), scale, out + 32 * b);
            return;
    }
}

}  // namespace
}  // namespace dflash
