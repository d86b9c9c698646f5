// Rows, shared functions and sums by lanes for any register width; after a vec_*.hpp of an instruction set.
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

}  // namespace
}  // namespace dflash
