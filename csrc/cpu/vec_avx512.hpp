// AVX-512 registers for vec_kernels.hpp: 16 floats, two registers to the 32 lanes. Anonymous on purpose: see kernels.hpp.
#pragma once

// GCC 12 takes the "any value will do" operands of its own header for mistakes (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <string.h>

#include "cpu/kernels.hpp"
#include "engine/numerics.hpp"

namespace dflash {
namespace {

using F = __m512;
using I = __m512i;
using M = __mmask16;
constexpr int W = 16;            // floats in a register
constexpr int P = 2;             // registers to the 32 lanes
// Weight rows of a matmul tile, by its activation rows: as many sums as registers hold.
constexpr int kPlainTile[] = {0, 4, 4, 4, 3, 2, 2, 2, 1};
constexpr int kQuantisedTile[] = {0, 4, 4, 2, 2, 2, 2, 2, 1};

inline M first(int64_t n) { return static_cast<M>((1u << n) - 1); }

inline F set(float v) { return _mm512_set1_ps(v); }
inline F load(const void* p) { return _mm512_loadu_ps(p); }
inline F load_n(const void* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store(void* p, F v) { _mm512_storeu_ps(p, v); }
inline void store_n(void* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }

inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
inline F max_or_second(F a, F b) { return _mm512_max_ps(a, b); }  // b if a is a NaN
inline float largest(F v) { return _mm512_reduce_max_ps(v); }     // of no NaNs
inline F magnitude(F v) { return _mm512_abs_ps(v); }
inline F with_sign_of(F v, F s) {
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(v), _mm512_castps_si512(s), _mm512_set1_epi32(INT32_MIN), 0xd8));
}
// p * 2^n by adding the integer n to the exponent
inline F add_exponent(F p, F n) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}

inline M greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline M nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline uint32_t bits(M m) { return m; }
inline M mask_of(uint32_t b) { return static_cast<M>(b); }
inline F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
inline F select_n(int64_t n, F yes, F no) { return _mm512_mask_blend_ps(first(n), no, yes); }

inline I ints(int32_t v) { return _mm512_set1_epi32(v); }
inline I ascending() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I select(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }
inline void store(int32_t* p, I v) { _mm512_storeu_si512(p, v); }

inline F load_f16(const std::byte* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline F load_bf16(const std::byte* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline void store_f16(std::byte* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The sums of four sets of 32 lanes, by the butterfly.
inline __m128 sums(const F (&a)[P], const F (&b)[P], const F (&c)[P], const F (&d)[P]) {
    const F a16 = add(a[0], a[1]), b16 = add(b[0], b[1]), c16 = add(c[0], c[1]), d16 = add(d[0], d[1]);
    const F ab = add(_mm512_shuffle_f32x4(a16, b16, 0x44), _mm512_shuffle_f32x4(a16, b16, 0xee));  // a: 8 lanes, b: 8
    const F cd = add(_mm512_shuffle_f32x4(c16, d16, 0x44), _mm512_shuffle_f32x4(c16, d16, 0xee));
    F v = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));  // a, b, c, d: 4 lanes each
    v = add(v, _mm512_permute_ps(v, 0x4e));
    v = add(v, _mm512_permute_ps(v, 0xb1));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, v));
}

// ---- quantised rows ----
// A piece is 64 values, two blocks: 64 codes as unsigned bytes (code + 128), then the scale of each of its 16 units.

inline int64_t quantised_bytes(int64_t cols) { return (cols + 63) / 64 * 128; }

inline void quantise(const float* x, int64_t cols, std::byte* out) {
    for (int64_t b = 0; b < cols / 32; ++b) {
        const F lo = load(x + 32 * b), hi = load(x + 32 * b + 16);
        const int32_t most = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_castps_si512(magnitude(lo)), _mm512_castps_si512(magnitude(hi))));
        float amax, d = 0.0f;
        memcpy(&amax, &most, sizeof amax);
        __m128i code[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
        if (most >= 0x7f800000) d = __builtin_nanf("");
        else if (amax >= num::kTiny) {
            d = amax / num::kCodes;
            const F inv = set(1.0f / d);
            code[0] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(mul(lo, inv)));
            code[1] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(mul(hi, inv)));
        }
        std::byte* const piece = out + b / 2 * 128;
        for (int i = 0; i < 2; ++i)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(piece + b % 2 * 32 + 16 * i), _mm_xor_si128(code[i], _mm_set1_epi8(-128)));
        _mm256_storeu_ps(reinterpret_cast<float*>(piece + 64 + b % 2 * 32), _mm256_set1_ps(d));
    }
}

// 64 weights as signed bytes, -128 times the sum of each unit (to undo the +128 of the activations), 16 unit scales.
struct Quantised {
    I codes, correction;
    F scale;
};

inline __m256i load_32(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i load_16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

inline Quantised make_quantised(I codes, __m256i scales) {  // scales: 16 binary16
    const I zero = _mm512_setzero_si512();
    return {codes, _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(-128), codes)), _mm512_cvtph_ps(scales)};
}

inline __m256i scale_of(const std::byte* block) {
    int16_t h;
    memcpy(&h, block, sizeof h);
    return _mm256_set1_epi16(h);
}

inline __m256i codes_q8_0(const std::byte* block) { return load_32(block + 2); }
inline __m256i codes_q4_0(const std::byte* block) {
    const __m128i packed = load_16(block + 2);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
    return _mm256_sub_epi8(_mm256_and_si256(both, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
}

// Two blocks of 34 bytes: the scales are the 16-bit words 0 and 17.
inline Quantised two_q8_0(const std::byte* p) {
    const I words = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 17, 17, 17, 17, 17, 17, 17, 17));
    const I codes = _mm512_inserti64x4(_mm512_castsi256_si512(codes_q8_0(p)), codes_q8_0(p + 34), 1);
    return make_quantised(codes, _mm512_castsi512_si256(_mm512_permutexvar_epi16(words, _mm512_loadu_si512(p))));
}

// Two blocks of 18 bytes: the scales are the words 0 and 9; 16 bytes of nibbles each go to their low and high halves.
inline Quantised two_q4_0(const std::byte* p) {
    const __m256i words = _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9);
    const I packed = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(load_16(p + 2)), load_16(p + 20), 1));
    const I shifted = _mm512_srlv_epi64(_mm512_shuffle_i64x2(packed, packed, 0x50), _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    const I codes = _mm512_sub_epi8(_mm512_and_si512(shifted, _mm512_set1_epi8(15)), _mm512_set1_epi8(8));
    return make_quantised(codes, _mm256_permutexvar_epi16(words, load_32(p)));
}

template <Quantised (*two)(const std::byte*), __m256i (*codes)(const std::byte*), int kBytes>
struct QuantisedWeight {
    using Piece = Quantised;
    static constexpr auto& kTile = kQuantisedTile;
    static constexpr int kPieceBytes = 2 * kBytes;
    static int64_t terms(int64_t cols) { return cols / 4; }
    static Piece piece(const std::byte* row, int64_t i) { return two(row + i * 2 * kBytes); }
    static Piece piece_n(const std::byte* row, int64_t i, int64_t) {  // one block: half a piece
        const std::byte* p = row + i * 2 * kBytes;
        return make_quantised(_mm512_inserti64x4(_mm512_setzero_si512(), codes(p), 0), scale_of(p));
    }
    static F apply(const Piece& w, const std::byte* x, int64_t i, F acc, int64_t) {
        const I sum = _mm512_dpbusd_epi32(w.correction, _mm512_loadu_si512(x + 128 * i), w.codes);
        return fma(mul(w.scale, load(x + 128 * i + 64)), _mm512_cvtepi32_ps(sum), acc);
    }
    static F apply_n(const Piece& w, const std::byte* x, int64_t i, F acc, int64_t cols, int64_t n) {
        return select_n(n, apply(w, x, i, acc, cols), acc);
    }
};

using WeightQ8_0 = QuantisedWeight<two_q8_0, codes_q8_0, 34>;
using WeightQ4_0 = QuantisedWeight<two_q4_0, codes_q4_0, 18>;

inline void widen_block(__m256i codes, float d, float scale, float* out) {
    for (int half = 0; half < 2; ++half) {
        const __m128i c = half ? _mm256_extracti128_si256(codes, 1) : _mm256_castsi256_si128(codes);
        store(out + 16 * half, mul(mul(set(d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c))), set(scale)));
    }
}

}  // namespace
}  // namespace dflash
