// The kernels for any register width: include one vec_*.hpp before. docs/numerics.md says what each computes; how it is
// cut into registers changes nothing, because a register holds neighbouring lanes and every lane goes its own way.
// Anonymous and free of standard inline code on purpose: see kernels.hpp.
#pragma once

namespace dflash {
namespace {

constexpr float kInfinity = __builtin_inff();

inline int64_t less_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t more_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Calls body(i) for the whole registers of `count` floats, then rest(i, n) for the n < W that are left.
template <class Body, class Rest>
inline void each(int64_t count, const Body& body, const Rest& rest) {
    int64_t i = 0;
    for (; i + W <= count; i += W) body(i);
    if (i < count) rest(i, count - i);
}

// y = f(x) over a row.
template <class Function>
inline void map(const float* x, int64_t count, float* y, const Function& f) {
    each(
        count, [&](int64_t i) { store(y + i, f(load(x + i))); },
        [&](int64_t i, int64_t n) { store_n(y + i, f(load_n(x + i, n)), n); });
}

// y = f(a, b) over two rows.
template <class Function>
inline void map(const float* a, const float* b, int64_t count, float* y, const Function& f) {
    each(
        count, [&](int64_t i) { store(y + i, f(load(a + i), load(b + i))); },
        [&](int64_t i, int64_t n) { store_n(y + i, f(load_n(a + i, n), load_n(b + i, n)), n); });
}

// ---- functions ----

inline F exp_(F x) {
    const F shifted = fma(x, set(num::kLog2e), set(num::kRound));
    const F n = sub(shifted, set(num::kRound));
    const F r = fnma(n, set(num::kLn2Lo), fnma(n, set(num::kLn2Hi), x));
    F p = fma(set(num::kE6), r, set(num::kE5));
    p = fma(p, r, set(num::kE4));
    p = fma(p, r, set(num::kE3));
    p = fma(p, r, set(num::kE2));
    p = fma(p, r, set(1.0f));
    p = fma(p, r, set(1.0f));
    F y = add_exponent(p, n);
    y = select(greater(x, set(num::kExpMax)), set(kInfinity), y);
    y = select(greater(set(num::kExpMin), x), set(0.0f), y);
    return select(nan(x), x, y);
}

inline F tanh_(F x) {
    const F a = magnitude(x), t = mul(x, x);
    F p = fma(set(num::kT4), t, set(num::kT3));
    p = fma(p, t, set(num::kT2));
    p = fma(p, t, set(num::kT1));
    p = fma(p, t, set(num::kT0));
    const F small = fma(mul(x, t), p, x);
    const F large = sub(set(1.0f), div(set(2.0f), add(set(1.0f), exp_(mul(set(2.0f), a)))));
    return select(greater(set(num::kTanhSmall), a), small, with_sign_of(large, x));
}

inline F minus(F x) { return sub(set(-0.0f), x); }  // -0 - x is -x, of zeros too

inline F silu(F x) { return div(x, add(set(1.0f), exp_(minus(x)))); }

inline F gelu_tanh(F x) {
    const F u = mul(mul(set(num::kGeluA), x), fma(mul(set(num::kGeluB), x), x, set(1.0f)));
    return div(x, add(set(1.0f), exp_(minus(u))));
}

inline F gelu(F x) {
    const F t = div(set(1.0f), fma(set(num::kGeluC), magnitude(x), set(1.0f)));
    F p = fma(set(num::kG7), t, set(num::kG6));
    p = fma(p, t, set(num::kG5));
    p = fma(p, t, set(num::kG4));
    p = fma(p, t, set(num::kG3));
    p = fma(p, t, set(num::kG2));
    p = fma(p, t, set(num::kG1));
    p = fma(p, t, set(num::kG0));
    const F tail = mul(mul(t, p), exp_(mul(mul(set(-0.5f), x), x)));
    return mul(x, select(greater(set(0.0f), x), tail, sub(set(1.0f), tail)));
}

void exp_row(const float* x, int64_t count, float* y) {
    map(x, count, y, [](F v) { return exp_(v); });
}

// ---- sums by lanes ----

struct Lanes {
    F r[P];
    Lanes() {
        for (F& v : r) v = set(0.0f);
    }
    float sum() const { return _mm_cvtss_f32(sums(r, r, r, r)); }
};

// Sum by lanes: term(i, acc) adds the terms of a whole register, rest(i, acc, n) those of the last one (others are dropped).
template <class Term, class Rest>
inline float lane_sum(int64_t count, const Term& term, const Rest& rest) {
    Lanes acc;
    int64_t i = 0;
    for (; i + W * P <= count; i += W * P)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc.r[p] = term(i + p * W, acc.r[p]);
    for (int p = 0; p < P && i < count; ++p, i += W) {
        if (i + W <= count) acc.r[p] = term(i, acc.r[p]);
        else acc.r[p] = select_n(count - i, rest(i, acc.r[p], count - i), acc.r[p]);
    }
    return acc.sum();
}

// ---- matrix products ----

inline void load_half_n(const std::byte* p, int64_t n, std::byte (&out)[2 * W]) {
    memset(out, 0, sizeof out);
    memcpy(out, p, static_cast<size_t>(2 * n));
}

struct Plain {
    using Piece = F;
    static int64_t terms(int64_t cols) { return cols; }
    static F apply(F w, const std::byte* x, int64_t i, F acc, int64_t) { return fma(w, load(x + 4 * W * i), acc); }
    static F apply_n(F w, const std::byte* x, int64_t i, F acc, int64_t, int64_t n) {
        return select_n(n, fma(w, load_n(x + 4 * W * i, n), acc), acc);
    }
};

struct WeightF32 : Plain {
    static F piece(const std::byte* row, int64_t i) { return load(row + 4 * W * i); }
    static F piece_n(const std::byte* row, int64_t i, int64_t n) { return load_n(row + 4 * W * i, n); }
};

struct WeightF16 : Plain {
    static F piece(const std::byte* row, int64_t i) { return load_f16(row + 2 * W * i); }
    static F piece_n(const std::byte* row, int64_t i, int64_t n) {
        std::byte half[2 * W];
        load_half_n(row + 2 * W * i, n, half);
        return load_f16(half);
    }
};

struct WeightBF16 : Plain {
    static F piece(const std::byte* row, int64_t i) { return load_bf16(row + 2 * W * i); }
    static F piece_n(const std::byte* row, int64_t i, int64_t n) {
        std::byte half[2 * W];
        load_half_n(row + 2 * W * i, n, half);
        return load_bf16(half);
    }
};

// kOuts weight rows from r on times kRows activation rows from t0 on: each piece of a weight row is decoded once for all.
template <class Weight, int kRows, int kOuts>
inline void tile(const MatmulTask& task, int64_t r, int64_t t0) {
    const std::byte *w[kOuts], *x[kRows];
    for (int o = 0; o < kOuts; ++o) w[o] = task.w + (r + o) * task.w_stride;
    for (int t = 0; t < kRows; ++t) x[t] = task.x + (t0 + t) * task.x_stride;
    F acc[kRows * kOuts][P];
#pragma GCC unroll 64
    for (int a = 0; a < kRows * kOuts; ++a)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[a][p] = set(0.0f);

    const int64_t terms = Weight::terms(task.cols), full = terms / W, cols = task.cols;
    int64_t i = 0;
    for (; i + P <= full; i += P)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            typename Weight::Piece piece[kOuts];
#pragma GCC unroll 8
            for (int o = 0; o < kOuts; ++o) piece[o] = Weight::piece(w[o], i + p);
#pragma GCC unroll 8
            for (int t = 0; t < kRows; ++t)
#pragma GCC unroll 8
                for (int o = 0; o < kOuts; ++o)
                    acc[t * kOuts + o][p] = Weight::apply(piece[o], x[t], i + p, acc[t * kOuts + o][p], cols);
        }
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

    constexpr int kSums = kRows * kOuts;
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
void tiles(const MatmulTask& task, int64_t begin, int64_t end, int64_t t0) {
    constexpr int kOuts = kTileOuts[kRows];
    int64_t r = begin;
    for (; r + kOuts <= end; r += kOuts) tile<Weight, kRows, kOuts>(task, r, t0);
    for (; r < end; ++r) tile<Weight, kRows, 1>(task, r, t0);
}

// The tile function of 1 .. kTileRows activation rows.
template <class Weight, int kRows = 1>
inline void tiles_of(int64_t rows, const MatmulTask& task, int64_t begin, int64_t end, int64_t t0) {
    if (rows == kRows) tiles<Weight, kRows>(task, begin, end, t0);
    else if constexpr (kRows < kTileRows) tiles_of<Weight, kRows + 1>(rows, task, begin, end, t0);
}

constexpr int64_t kOutBlock = 16;  // weight rows that stay in the cache while all activation rows pass

template <class Weight>
void matmul(const MatmulTask& task, int64_t begin, int64_t end) {
    const int64_t passes = (task.n + kTileRows - 1) / kTileRows;
    const int64_t block = passes == 1 ? end - begin : kOutBlock;
    for (int64_t r = begin; r < end; r += block)
        for (int64_t pass = 0; pass < passes; ++pass) {
            const int64_t t0 = task.n * pass / passes, t1 = task.n * (pass + 1) / passes;
            tiles_of<Weight>(t1 - t0, task, r, less_of(end, r + block), t0);
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

// ---- norms, rotary positions, cache ----

void rms_norm(const float* x, const float* w, float eps, int64_t width, float* y) {
    const float sum = lane_sum(
        width,
        [&](int64_t i, F acc) {
            const F v = load(x + i);
            return fma(v, v, acc);
        },
        [&](int64_t i, F acc, int64_t n) {
            const F v = load_n(x + i, n);
            return fma(v, v, acc);
        });
    const F factor = set(1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + eps));
    map(x, w, width, y, [&](F a, F b) { return mul(mul(a, factor), b); });
}

void norm_rope(float* x, const float* w, float eps, int64_t hd, const float* cos, const float* sin, int64_t n_rot) {
    if (w) rms_norm(x, w, eps, hd, x);
    float* const y = x + n_rot / 2;
    each(
        n_rot / 2,
        [&](int64_t i) {
            const F a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
            store(x + i, fms(a, c, mul(b, s)));
            store(y + i, fma(a, s, mul(b, c)));
        },
        [&](int64_t i, int64_t n) {
            const F a = load_n(x + i, n), b = load_n(y + i, n), c = load_n(cos + i, n), s = load_n(sin + i, n);
            store_n(x + i, fms(a, c, mul(b, s)), n);
            store_n(y + i, fma(a, s, mul(b, c)), n);
        });
}

void store_kv(const float* x, int64_t width, KvType type, std::byte* out) {
    if (type == KvType::F32) {
        memcpy(out, x, static_cast<size_t>(4 * width));
        return;
    }
    each(
        width, [&](int64_t i) { store_f16(out + 2 * i, load(x + i)); },
        [&](int64_t i, int64_t n) {
            std::byte half[2 * W];
            store_f16(half, load_n(x + i, n));
            memcpy(out + 2 * i, half, static_cast<size_t>(2 * n));
        });
}

// ---- attention ----
// A chunk of K and V is widened once for all query rows and heads that read this KV head. What a row sees of a chunk is
// a 64-bit mask. Scratch: K and V of a chunk, then M, L and the sum of values of each row and head.

int64_t attention_floats(int64_t group, int64_t hd) { return 2 * kChunk * hd + kMaxRows * group * (hd + 2); }

inline uint64_t range_bits(int64_t begin, int64_t end) {  // [begin, end) cut to 0..64
    begin = more_of(begin, 0);
    end = less_of(end, 64);
    if (begin >= end) return 0;
    return (end - begin == 64 ? ~uint64_t{0} : (uint64_t{1} << (end - begin)) - 1) << begin;
}

inline uint64_t seen_bits(const Visible& see, int64_t base) {
    return range_bits(see.ctx_begin - base, see.ctx_end - base) |
           range_bits(see.block_pos + see.blk_begin - base, see.block_pos + see.blk_end - base);
}

inline void widen_kv(const KvRows& kv, int64_t row, int64_t first, int64_t hd, float* out) {
    if (kv.type == KvType::F16) widen_plain<WeightF16>(kv.data + (row * kv.width + first) * 2, hd, 1.0f, out);
    else memcpy(out, kv.data + (row * kv.width + first) * 4, static_cast<size_t>(4 * hd));
}

// Four scores: q against the K rows at k, k + hd, ...
inline __m128 dots(const float* q, const float* k, int64_t hd) {
    Lanes a, b, c, d;
    int64_t i = 0;
    for (; i + W * P <= hd; i += W * P)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const int64_t at = i + p * W;
            const F v = load(q + at);
            a.r[p] = fma(v, load(k + at), a.r[p]);
            b.r[p] = fma(v, load(k + hd + at), b.r[p]);
            c.r[p] = fma(v, load(k + 2 * hd + at), c.r[p]);
            d.r[p] = fma(v, load(k + 3 * hd + at), d.r[p]);
        }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
        const int64_t at = i + p * W, n = less_of(W, hd - at);
        if (n <= 0) break;
        const F v = load_n(q + at, n);
        a.r[p] = select_n(n, fma(v, load_n(k + at, n), a.r[p]), a.r[p]);
        b.r[p] = select_n(n, fma(v, load_n(k + hd + at, n), b.r[p]), b.r[p]);
        c.r[p] = select_n(n, fma(v, load_n(k + 2 * hd + at, n), c.r[p]), c.r[p]);
        d.r[p] = select_n(n, fma(v, load_n(k + 3 * hd + at, n), d.r[p]), d.r[p]);
    }
    return sums(a.r, b.r, c.r, d.r);
}

// a += p v over the positions of `seen`, ascending, for kRegs registers of values at once.
template <int kRegs>
inline void add_values(const float* p, const float* v, int64_t hd, uint64_t seen, F (&a)[kRegs]) {
    for (uint64_t left = seen; left; left &= left - 1) {
        const int j = __builtin_ctzll(left);
        const F weight = set(p[j]);
#pragma GCC unroll 8
        for (int r = 0; r < kRegs; ++r) a[r] = fma(weight, load(v + j * hd + r * W), a[r]);
    }
}

// total = fma(part, take, total * keep), part = sum of p v
template <int kRegs>
inline void merge_values(const float* p, const float* v, int64_t hd, uint64_t seen, float keep, float take, float* total) {
    F a[kRegs];
    for (F& x : a) x = set(0.0f);
    add_values(p, v, hd, seen, a);
    for (int r = 0; r < kRegs; ++r) store(total + r * W, fma(a[r], set(take), mul(load(total + r * W), set(keep))));
}

inline void merge_values_n(const float* p, const float* v, int64_t hd, uint64_t seen, float keep, float take, float* total, int64_t n) {
    F a = set(0.0f);
    for (uint64_t left = seen; left; left &= left - 1) {
        const int j = __builtin_ctzll(left);
        a = fma(set(p[j]), load_n(v + j * hd, n), a);
    }
    store_n(total, fma(a, set(take), mul(load_n(total, n), set(keep))), n);
}

// One chunk of one query row and head. state: M, L, then hd sums.
inline void attend_chunk(const float* q, const float* k, const float* v, int64_t hd, float scale, uint64_t seen, float* state) {
    alignas(64) float s[kChunk];
    F most = set(-kInfinity);
    for (int64_t i = 0; i < kChunk; i += W) store(s + i, most);
    for (int64_t i = 0; i < kChunk; i += 4)  // four scores at once; those of unseen positions are overwritten below
        if (seen >> i & 15) _mm_store_ps(s + i, _mm_mul_ps(dots(q, k + i * hd, hd), _mm_set1_ps(scale)));
    for (int64_t i = 0; i < kChunk; i += W) {
        F score = load(s + i);
        const uint32_t here = static_cast<uint32_t>(seen >> i) & ((1u << W) - 1);
        if (here != (1u << W) - 1) score = select(mask_of(here), score, set(-kInfinity));
        store(s + i, score);
        most = max_or_second(score, most);
    }
    const float m = largest(most), M0 = state[0], M1 = m > M0 ? m : M0;
    Lanes weights;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kChunk / W; ++i) {
        const F p = exp_(sub(load(s + i * W), set(m)));
        store(s + i * W, p);
        weights.r[i % P] = add(weights.r[i % P], p);
    }
    alignas(64) float factor[W] = {M0 - M1, m - M1};
    store(factor, exp_(load(factor)));
    const float keep = factor[0], take = factor[1];
    state[0] = M1;
    state[1] = __builtin_fmaf(weights.sum(), take, state[1] * keep);
    float* const total = state + 2;
    int64_t d = 0;
    for (; d + 8 * W <= hd; d += 8 * W) merge_values<8>(s, v + d, hd, seen, keep, take, total + d);
    if (d + 4 * W <= hd) merge_values<4>(s, v + d, hd, seen, keep, take, total + d), d += 4 * W;
    for (; d + W <= hd; d += W) merge_values<1>(s, v + d, hd, seen, keep, take, total + d);
    if (d < hd) merge_values_n(s, v + d, hd, seen, keep, take, total + d, hd - d);
}

void attention(const AttentionTask& task, int64_t kv_head, int64_t begin, int64_t end, float* scratch) {
    const int64_t hd = task.hd, group = task.heads / task.kv_heads, size = hd + 2, none = -1;
    float *const k = scratch, *const v = k + kChunk * hd, *const states = v + kChunk * hd;
    int64_t first = INT64_MAX, last = 0, block_pos = none;
    for (int64_t row = begin; row < end; ++row) {
        const Visible& see = task.visible[row];
        if (see.ctx_begin < see.ctx_end) first = less_of(first, see.ctx_begin), last = more_of(last, see.ctx_end);
        if (see.blk_begin < see.blk_end) {
            if (block_pos != none && block_pos != see.block_pos) {  // rows of different blocks share no chunk
                attention(task, kv_head, begin, row, scratch);
                attention(task, kv_head, row, end, scratch);
                return;
            }
            block_pos = see.block_pos;
            first = less_of(first, block_pos + see.blk_begin);
            last = more_of(last, block_pos + see.blk_end);
        }
    }
    for (int64_t i = 0; i < (end - begin) * group; ++i) {
        float* const state = states + i * size;
        memset(state, 0, static_cast<size_t>(4 * size));
        state[0] = -kInfinity;
    }
    for (int64_t base = first / kChunk * kChunk; base < last; base += kChunk) {
        uint64_t any = 0;
        for (int64_t row = begin; row < end; ++row) any |= seen_bits(task.visible[row], base);
        for (uint64_t left = any; left; left &= left - 1) {
            const int64_t j = __builtin_ctzll(left), p = base + j;
            const bool in_block = block_pos != none && p >= block_pos;
            widen_kv(task.k, in_block ? task.k.block_row + p - block_pos : p % task.k.cap, kv_head * hd, hd, k + j * hd);
            widen_kv(task.v, in_block ? task.v.block_row + p - block_pos : p % task.v.cap, kv_head * hd, hd, v + j * hd);
        }
        for (int64_t row = begin; row < end; ++row) {
            const uint64_t seen = seen_bits(task.visible[row], base);
            if (!seen) continue;
            for (int64_t h = 0; h < group; ++h)
                attend_chunk(task.q + (row * task.heads + kv_head * group + h) * hd, k, v, hd, task.scale, seen,
                             states + ((row - begin) * group + h) * size);
        }
    }
    for (int64_t row = begin; row < end; ++row)
        for (int64_t h = 0; h < group; ++h) {
            const float* state = states + ((row - begin) * group + h) * size;
            const bool some = task.visible[row].ctx_begin < task.visible[row].ctx_end || task.visible[row].blk_begin < task.visible[row].blk_end;
            map(state + 2, hd, task.out + (row * task.heads + kv_head * group + h) * hd,
                [&](F x) { return some ? div(x, set(state[1])) : set(0.0f); });
        }
}

// ---- element by element ----

void gated(Act act, const float* gate, const float* up, int64_t count, float* y) {
    switch (act) {
        case Act::Silu: return map(gate, up, count, y, [](F g, F u) { return mul(silu(g), u); });
        case Act::GeluTanh: return map(gate, up, count, y, [](F g, F u) { return mul(gelu_tanh(g), u); });
        case Act::Gelu: return map(gate, up, count, y, [](F g, F u) { return mul(gelu(g), u); });
    }
}

void add_row(const float* x, int64_t count, float* y) {
    map(y, x, count, y, [](F a, F b) { return add(a, b); });
}

void scale_row(float s, int64_t count, float* y) {
    map(y, count, y, [&](F a) { return mul(a, set(s)); });
}

void softcap(float cap, int64_t count, float* y) {
    map(y, count, y, [&](F a) { return mul(set(cap), tanh_(div(a, set(cap)))); });
}

void conv(const float* base, const float* dyn, const float* u, int64_t t, int64_t H, int64_t K, int64_t group, int side, float* y) {
    const int64_t G = H / group, taps = less_of(K, t + 1);
    const float* const mine = dyn + t * 2 * K * G + side * K * G;
    const float* const taps_base = base + H * K * side;
    for (int64_t g = 0; g < G; ++g)
        each(
            group,
            [&](int64_t i) {
                const int64_t ch = g * group + i;
                F acc = set(0.0f);
                for (int64_t tap = 0; tap < taps; ++tap)
                    acc = fma(add(load(taps_base + H * tap + ch), set(mine[tap * G + g])), load(u + (t - tap) * H + ch), acc);
                store(y + t * H + ch, acc);
            },
            [&](int64_t i, int64_t n) {
                const int64_t ch = g * group + i;
                F acc = set(0.0f);
                for (int64_t tap = 0; tap < taps; ++tap)
                    acc = fma(add(load_n(taps_base + H * tap + ch, n), set(mine[tap * G + g])), load_n(u + (t - tap) * H + ch, n), acc);
                store_n(y + t * H + ch, acc, n);
            });
}

float pair_score(const float* a, const float* b, const float* c, int64_t R) {
    return lane_sum(
        R, [&](int64_t i, F acc) { return fma(mul(load(a + i), load(b + i)), load(c + i), acc); },
        [&](int64_t i, F acc, int64_t n) { return fma(mul(load_n(a + i, n), load_n(b + i, n)), load_n(c + i, n), acc); });
}

// ---- choices ----

inline bool is_nan(float v) { return v != v; }

Best best(const float* x, int64_t width) {
    F value = set(-kInfinity), poison = set(0.0f);
    I id = ints(0), here = ascending();
    int64_t i = 0;
    for (; i + W <= width; i += W, here = add(here, ints(W))) {
        const F v = load(x + i);
        const M more = greater(v, value);
        value = select(more, v, value);
        id = select(more, here, id);
        poison = select(nan(v), v, poison);
    }
    float values[W];
    int32_t ids[W];
    store(values, value);
    store(ids, id);
    Best b{-kInfinity, 0, bits(nan(poison)) != 0, false};
    for (int lane = 0; lane < W; ++lane)
        if (values[lane] > b.value || (values[lane] == b.value && ids[lane] < b.id)) b.value = values[lane], b.id = ids[lane];
    for (; i < width; ++i) {
        b.nan = b.nan || is_nan(x[i]);
        if (x[i] > b.value) b.value = x[i], b.id = static_cast<int32_t>(i);
    }
    b.finite = b.value > -kInfinity && b.value < kInfinity;
    if (b.value == kInfinity)
        for (i = 0; i < width && !b.finite; ++i) b.finite = x[i] > -kInfinity && x[i] < kInfinity;
    return b;
}

void top_k(const float* x, int64_t width, int64_t k, int32_t* ids, float* values) {
    int64_t held = 0;
    bool poisoned = false;
    const auto see = [&](int64_t i) {
        poisoned = poisoned || is_nan(x[i]);
        if (held == k && !(x[i] > values[k - 1])) return;
        int64_t at = held < k ? held++ : k - 1;
        for (; at > 0 && x[i] > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = x[i];
        ids[at] = static_cast<int32_t>(i);
    };
    int64_t i = 0;
    for (; i < width && held < k; ++i) see(i);
    for (; i + W <= width && !poisoned; i += W) {  // look closer only where something is larger than the k-th
        const F v = load(x + i);
        for (uint32_t left = bits(greater(v, set(values[k - 1]))) | bits(nan(v)); left; left &= left - 1) see(i + __builtin_ctz(left));
    }
    for (; i < width; ++i) see(i);
    for (i = 0; poisoned && i < k; ++i) values[i] = __builtin_nanf(""), ids[i] = -1;
}

constexpr Kernels make_kernels(const char* name) {
    return {
        .name = name,
        .quantised_bytes = quantised_bytes,
        .quantise = quantise,
        .f32 = matmul<WeightF32>,
        .f16 = matmul<WeightF16>,
        .bf16 = matmul<WeightBF16>,
        .q8_0 = matmul<WeightQ8_0>,
        .q4_0 = matmul<WeightQ4_0>,
        .widen_row = widen_row,
        .rms_norm = rms_norm,
        .norm_rope = norm_rope,
        .store_kv = store_kv,
        .attention_floats = attention_floats,
        .attention = attention,
        .gated = gated,
        .add = add_row,
        .scale = scale_row,
        .softcap = softcap,
        .conv = conv,
        .best = best,
        .top_k = top_k,
        .pair_score = pair_score,
        .exp = exp_row,
    };
}

}  // namespace
}  // namespace dflash
