// AVX2 registers for vec_kernels.hpp: 8 floats, four registers to the 32 lanes. Anonymous on purpose: see kernels.hpp.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "cpu/kernels.hpp"
#include "engine/numerics.hpp"

namespace dflash {
namespace {

using F = __m256;
using I = __m256i;
struct M {
    __m256 lanes;  // all bits set where true
};
constexpr int W = 8;             // floats in a register
constexpr int P = 4;             // registers to the 32 lanes
// Weight rows of a matmul tile, by its activation rows: as many sums as registers hold.
constexpr int kPlainTile[] = {0, 2, 1, 1};
constexpr int kQuantisedTile[] = {0, 2, 1, 1};

inline I first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F set(float v) { return _mm256_set1_ps(v); }
inline F load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
inline F load_n(const void* p, int64_t n) { return _mm256_maskload_ps(static_cast<const float*>(p), first(n)); }
inline void store(void* p, F v) { _mm256_storeu_ps(static_cast<float*>(p), v); }
inline void store_n(void* p, F v, int64_t n) { _mm256_maskstore_ps(static_cast<float*>(p), first(n), v); }

inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
inline F max_or_second(F a, F b) { return _mm256_max_ps(a, b); }  // b if a is a NaN
inline float largest(F v) {                                       // of no NaNs
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_permute_ps(m, 0x4e));
    return _mm_cvtss_f32(_mm_max_ps(m, _mm_permute_ps(m, 0xb1)));
}
inline F magnitude(F v) { return _mm256_andnot_ps(set(-0.0f), v); }
inline F with_sign_of(F v, F s) { return _mm256_or_ps(magnitude(v), _mm256_and_ps(set(-0.0f), s)); }
// p * 2^n by adding the integer n to the exponent
inline F add_exponent(F p, F n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}

inline M greater(F a, F b) { return {_mm256_cmp_ps(a, b, _CMP_GT_OQ)}; }
inline M nan(F a) { return {_mm256_cmp_ps(a, a, _CMP_UNORD_Q)}; }
inline uint32_t bits(M m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.lanes)); }
inline M mask_of(uint32_t b) {
    const I each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(b)), each), each))};
}
inline F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m.lanes); }
inline F select_n(int64_t n, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(first(n))); }

inline I ints(int32_t v) { return _mm256_set1_epi32(v); }
inline I ascending() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline I add(I a, I b) { return _mm256_add_epi32(a, b); }
inline I select(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m.lanes)); }
inline void store(int32_t* p, I v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

inline F load_f16(const std::byte* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline F load_bf16(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline void store_f16(std::byte* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The sums of four sets of 32 lanes, by the butterfly.
inline __m128 sums(const F (&a)[P], const F (&b)[P], const F (&c)[P], const F (&d)[P]) {
    const F a8 = add(add(a[0], a[2]), add(a[1], a[3])), b8 = add(add(b[0], b[2]), add(b[1], b[3]));
    const F c8 = add(add(c[0], c[2]), add(c[1], c[3])), d8 = add(add(d[0], d[2]), add(d[1], d[3]));
    const F ab = add(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));  // a: 4 lanes, b: 4
    const F cd = add(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));
    F v = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));  // a, c, b, d: 2 lanes each
    v = add(v, _mm256_permute_ps(v, 0xb1));                                       // a a c c b b d d
    return _mm_unpacklo_ps(_mm_permute_ps(_mm256_castps256_ps128(v), 0x08), _mm_permute_ps(_mm256_extractf128_ps(v, 1), 0x08));
}

// ---- quantised rows ----
// A piece is one block of 32 values. The row holds all codes (signed bytes), then a scale a block.

inline int64_t quantised_bytes(int64_t cols) { return (cols + cols / 8 + 63) / 64 * 64; }

inline void quantise(const float* x, int64_t cols, std::byte* out) {
    for (int64_t b = 0; b < cols / 32; ++b) {
        const float* v = x + 32 * b;
        I most = _mm256_setzero_si256();
        for (int i = 0; i < 4; ++i) most = _mm256_max_epi32(most, _mm256_castps_si256(magnitude(load(v + 8 * i))));
        __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
        const int32_t top = _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
        float amax, d = 0.0f;
        memcpy(&amax, &top, sizeof amax);
        I codes = _mm256_setzero_si256();
        if (top >= 0x7f800000) d = __builtin_nanf("");
        else if (amax >= num::kTiny) {
            d = amax / num::kCodes;
            const F inv = set(1.0f / d);
            const auto round = [&](int i) { return _mm256_cvtps_epi32(mul(load(v + 8 * i), inv)); };
            codes = _mm256_packs_epi16(_mm256_packs_epi32(round(0), round(1)), _mm256_packs_epi32(round(2), round(3)));
            codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * b), codes);
        memcpy(out + cols + 4 * b, &d, sizeof d);
    }
}

struct Quantised {
    I codes, magnitudes;
    F scale;
};

inline __m256i codes_q8_0(const std::byte* block) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2)); }
inline __m256i codes_q4_0(const std::byte* block) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
    return _mm256_sub_epi8(_mm256_and_si256(both, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
}

template <__m256i (*decode)(const std::byte*), int kBytes>
struct QuantisedWeight {
    using Piece = Quantised;
    static constexpr auto& kTile = kQuantisedTile;
    static constexpr int kPieceBytes = kBytes;
    static int64_t terms(int64_t cols) { return cols / 4; }
    static Piece piece(const std::byte* row, int64_t i) {
        const std::byte* p = row + i * kBytes;
        int16_t h;
        memcpy(&h, p, sizeof h);
        const I codes = decode(p);
        return {codes, _mm256_abs_epi8(codes), _mm256_cvtph_ps(_mm_set1_epi16(h))};
    }
    static Piece piece_n(const std::byte* row, int64_t i, int64_t) { return piece(row, i); }  // a block is never cut
    // |w| <= 128 and |x| <= 127, so two products fit 16 bits; -128 as a magnitude is the unsigned byte 128.
    static F apply(const Piece& w, const std::byte* x, int64_t i, F acc, int64_t cols) {
        const I codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 32 * i));
        const I pairs = _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(codes, w.codes));
        const I units = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        const F scale = _mm256_broadcast_ss(reinterpret_cast<const float*>(x + cols + 4 * i));
        return fma(mul(w.scale, scale), _mm256_cvtepi32_ps(units), acc);
    }
    static F apply_n(const Piece& w, const std::byte* x, int64_t i, F acc, int64_t cols, int64_t) { return apply(w, x, i, acc, cols); }
};

using WeightQ8_0 = QuantisedWeight<codes_q8_0, 34>;
using WeightQ4_0 = QuantisedWeight<codes_q4_0, 18>;

inline void widen_block(__m256i codes, float d, float scale, float* out) {
    alignas(32) int8_t code[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(code), codes);
    for (int i = 0; i < 4; ++i) {
        const I wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(code + 8 * i)));
        store(out + 8 * i, mul(mul(set(d), _mm256_cvtepi32_ps(wide)), set(scale)));
    }
}

}  // namespace
}  // namespace dflash
