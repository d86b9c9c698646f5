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
// A user is one query row and head. All users of a KV head walk its chunks together: K of a chunk is widened once, every
// user scores it, then V takes its place. Users that see the same positions share the loads, four at a time. What a
// user sees of a chunk is a 64-bit mask. Scratch: the widened chunk, then for each user its state, laid out as User.

constexpr int kUsers = 4;

struct User {
    const float* q;
    uint64_t seen;          // of the current chunk
    float M, L, keep, take; // running maximum and sum; factors of the current merge
    float* total;           // hd sums of values
    alignas(64) float p[kChunk];
};

constexpr int64_t kUserFloats = sizeof(User) / 4;

int64_t attention_floats(int64_t group, int64_t hd) { return kChunk * hd + kMaxRows * group * (kUserFloats + hd) + 16; }

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

// The rows of a chunk that anyone sees, widened: position base + j to out + j*hd.
inline void widen_chunk(const KvRows& kv, int64_t base, int64_t block_pos, uint64_t seen, int64_t first, int64_t hd, float* out) {
    const int64_t slot = base % kv.cap;
    for (; seen; seen &= seen - 1) {
        const int64_t j = __builtin_ctzll(seen), p = base + j;
        int64_t row = slot + j;  // p % cap, without a division each
        if (block_pos >= 0 && p >= block_pos) row = kv.block_row + p - block_pos;
        else
            while (row >= kv.cap) row -= kv.cap;
        if (kv.type == KvType::F16) widen_plain<WeightF16>(kv.data + (row * kv.width + first) * 2, hd, 1.0f, out + j * hd);
        else memcpy(out + j * hd, kv.data + (row * kv.width + first) * 4, static_cast<size_t>(4 * hd));
    }
}

// Scores of two positions, k and k + hd, for each of n users: dot[2*u], dot[2*u + 1].
template <int n>
inline void score_pair(User* const* user, const float* k, int64_t hd, float* dot) {
    F acc[2 * kUsers][P];
    for (auto& a : acc)
        for (F& v : a) v = set(0.0f);
    int64_t i = 0;
    for (; i + W * P <= hd; i += W * P)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const F k0 = load(k + i + p * W), k1 = load(k + hd + i + p * W);
#pragma GCC unroll 4
            for (int u = 0; u < n; ++u) {
                const F q = load(user[u]->q + i + p * W);
                acc[2 * u][p] = fma(q, k0, acc[2 * u][p]);
                acc[2 * u + 1][p] = fma(q, k1, acc[2 * u + 1][p]);
            }
        }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
        const int64_t at = i + p * W, left = less_of(W, hd - at);
        if (left <= 0) break;
        const F k0 = load_n(k + at, left), k1 = load_n(k + hd + at, left);
#pragma GCC unroll 4
        for (int u = 0; u < n; ++u) {
            const F q = load_n(user[u]->q + at, left);
            acc[2 * u][p] = select_n(left, fma(q, k0, acc[2 * u][p]), acc[2 * u][p]);
            acc[2 * u + 1][p] = select_n(left, fma(q, k1, acc[2 * u + 1][p]), acc[2 * u + 1][p]);
        }
    }
    for (int u = 0; u < 2 * n; u += 4) _mm_store_ps(dot + u, sums(acc[u], acc[u + 1], acc[u + 2], acc[u + 3]));
}

template <int n>
inline void score_chunk(User* const* user, const float* k, int64_t hd, float scale) {
    for (int64_t j = 0; j < kChunk; j += 2) {  // what is scored but not seen is dropped by soften()
        if (!(user[0]->seen >> j & 3)) continue;
        alignas(16) float dot[2 * kUsers];
        score_pair<n>(user, k + j * hd, hd, dot);
        for (int u = 0; u < n; ++u) user[u]->p[j] = dot[2 * u] * scale, user[u]->p[j + 1] = dot[2 * u + 1] * scale;
    }
}

// Scores to weights: p = exp(s - m), and the factors and sum of the merge.
inline void soften(User& user) {
    F most = set(-kInfinity);
    for (int64_t i = 0; i < kChunk; i += W) {
        const uint32_t here = static_cast<uint32_t>(user.seen >> i) & ((1u << W) - 1);
        const F score = select(mask_of(here), load(user.p + i), set(-kInfinity));
        store(user.p + i, score);
        most = max_or_second(score, most);
    }
    const float m = largest(most), larger = m > user.M ? m : user.M;
    Lanes sum;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kChunk / W; ++i) {
        const F p = exp_(sub(load(user.p + i * W), set(m)));
        store(user.p + i * W, p);
        sum.r[i % P] = add(sum.r[i % P], p);
    }
    float factor[W] = {user.M - larger, m - larger};
    store(factor, exp_(load(factor)));
    user.keep = factor[0];
    user.take = factor[1];
    user.M = larger;
    user.L = __builtin_fmaf(sum.sum(), user.take, user.L * user.keep);
}

// total = fma(sum of p v, take, total * keep) for R registers of values from d on; V row j stands at v + j*hd.
template <int n, int R>
inline void merge_values(User* const* user, const float* v, int64_t hd, int64_t d) {
    F a[n][R];
#pragma GCC unroll 4
    for (int u = 0; u < n; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) a[u][r] = set(0.0f);
    for (uint64_t left = user[0]->seen; left; left &= left - 1) {
        const int j = __builtin_ctzll(left);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const F value = load(v + j * hd + d + r * W);
#pragma GCC unroll 4
            for (int u = 0; u < n; ++u) a[u][r] = fma(set(user[u]->p[j]), value, a[u][r]);
        }
    }
    for (int u = 0; u < n; ++u)
        for (int r = 0; r < R; ++r) {
            float* const total = user[u]->total + d + r * W;
            store(total, fma(a[u][r], set(user[u]->take), mul(load(total), set(user[u]->keep))));
        }
}

inline void merge_rest(User& user, const float* v, int64_t hd, int64_t d) {
    const int64_t n = hd - d;
    F a = set(0.0f);
    for (uint64_t left = user.seen; left; left &= left - 1) {
        const int j = __builtin_ctzll(left);
        a = fma(set(user.p[j]), load_n(v + j * hd + d, n), a);
    }
    store_n(user.total + d, fma(a, set(user.take), mul(load_n(user.total + d, n), set(user.keep))), n);
}

template <int n>
inline void merge_chunk(User* const* user, const float* v, int64_t hd) {
    constexpr int R = n * P > 8 ? 2 : 4;  // registers of sums: n * R
    int64_t d = 0;
    for (; d + R * W <= hd; d += R * W) merge_values<n, R>(user, v, hd, d);
    for (; d + W <= hd; d += W) merge_values<n, 1>(user, v, hd, d);
    for (int u = 0; d < hd && u < n; ++u) merge_rest(*user[u], v, hd, d);
}

// Calls one(n, users) for runs of up to four users that see the same, something, of the chunk.
template <class One>
inline void each_run(User* users, int64_t count, const One& one) {
    for (int64_t i = 0; i < count;) {
        User* run[kUsers];
        int n = 0;
        const uint64_t seen = users[i].seen;
        while (i < count && n < kUsers && users[i].seen == seen) run[n++] = &users[i++];
        if (seen) one(n, run);
    }
}

// What all rows [begin, end) see: positions [first, last), of which those from block_pos on lie in the block (-1: none).
struct Span {
    int64_t first, last, block_pos;
    bool one_block;  // no two rows have different blocks
};

inline Span span_of(const Visible* visible, int64_t begin, int64_t end) {
    Span span{INT64_MAX, 0, -1, true};
    for (int64_t row = begin; row < end; ++row) {
        const Visible& see = visible[row];
        if (see.ctx_begin < see.ctx_end) {
            span.first = less_of(span.first, see.ctx_begin);
            span.last = more_of(span.last, see.ctx_end);
        }
        if (see.blk_begin < see.blk_end) {
            span.one_block = span.one_block && (span.block_pos < 0 || span.block_pos == see.block_pos);
            span.block_pos = see.block_pos;
            span.first = less_of(span.first, see.block_pos + see.blk_begin);
            span.last = more_of(span.last, see.block_pos + see.blk_end);
        }
    }
    for (int64_t row = begin; row < end && span.block_pos >= 0; ++row)  // a context that reaches into the others' block
        span.one_block = span.one_block && visible[row].ctx_end <= span.block_pos;
    return span;
}

void attention(const AttentionTask& task, int64_t kv_head, int64_t begin, int64_t end, float* scratch) {
    const int64_t hd = task.hd, group = task.heads / task.kv_heads, count = (end - begin) * group;
    const Span span = span_of(task.visible, begin, end);
    if (!span.one_block && end - begin > 1) {  // positions mean different rows: one row at a time
        for (int64_t row = begin; row < end; ++row) attention(task, kv_head, row, row + 1, scratch);
        return;
    }
    User* const users = reinterpret_cast<User*>(scratch);
    float *const totals = scratch + count * kUserFloats, *const chunk = totals + count * hd;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t head = kv_head * group + i % group;
        users[i].q = task.q + ((begin + i / group) * task.heads + head) * hd;
        users[i].M = -kInfinity;
        users[i].L = 0.0f;
        users[i].total = totals + i * hd;
    }
    memset(totals, 0, static_cast<size_t>(4 * count * hd));
    for (int64_t base = span.first / kChunk * kChunk; base < span.last; base += kChunk) {
        uint64_t any = 0;
        for (int64_t i = 0; i < count; ++i) any |= users[i].seen = seen_bits(task.visible[begin + i / group], base);
        widen_chunk(task.k, base, span.block_pos, any, kv_head * hd, hd, chunk);
        each_run(users, count, [&](int n, User* const* run) {
            if (n == 4) score_chunk<4>(run, chunk, hd, task.scale);
            else if (n == 3) score_chunk<3>(run, chunk, hd, task.scale);
            else if (n == 2) score_chunk<2>(run, chunk, hd, task.scale);
            else score_chunk<1>(run, chunk, hd, task.scale);
            for (int u = 0; u < n; ++u) soften(*run[u]);
        });
        widen_chunk(task.v, base, span.block_pos, any, kv_head * hd, hd, chunk);
        each_run(users, count, [&](int n, User* const* run) {
            if (n == 4) merge_chunk<4>(run, chunk, hd);
            else if (n == 3) merge_chunk<3>(run, chunk, hd);
            else if (n == 2) merge_chunk<2>(run, chunk, hd);
            else merge_chunk<1>(run, chunk, hd);
        });
    }
    for (int64_t i = 0; i < count; ++i) {
        const Visible& see = task.visible[begin + i / group];
        const bool some = see.ctx_begin < see.ctx_end || see.blk_begin < see.blk_end;
        float* const out = task.out + ((begin + i / group) * task.heads + kv_head * group + i % group) * hd;
        map(users[i].total, hd, out, [&](F x) { return some ? div(x, set(users[i].L)) : set(0.0f); });
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
