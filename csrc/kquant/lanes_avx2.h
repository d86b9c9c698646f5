/* Eight lanes of AVX2: the vocabulary of the other lanes_*.h. */
#ifndef KQ_LANES_H
#define KQ_LANES_H

#include <immintrin.h>

#include "kquant.h"

enum { LANES = 8 };
#define INLINE static inline __attribute__((always_inline))
#define KQ_LANE_NAME(name) name##_avx2

typedef __m256 vf;  /* a float a lane; + - * / are the compiler's */
typedef __m256i vi; /* an int32 a lane */
typedef __m256 vm;  /* a truth a lane: all bits or none */

INLINE vf splat(float f) { return _mm256_set1_ps(f); }
INLINE vf load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store(float *p, vf v) { _mm256_storeu_ps(p, v); }
/* a < b ? a : b, so that the second wins a tie of zeros: as the plain code is written. */
INLINE vf least(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf most(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf magnitude(vf v) { return _mm256_andnot_ps(splat(-0.0f), v); }
INLINE vf root(vf v) { return _mm256_sqrt_ps(v); }
INLINE vm more(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
INLINE vm at_least(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
INLINE vm not_less(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
INLINE vm equal(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
INLINE vm both(vm a, vm b) { return _mm256_and_ps(a, b); }
INLINE vm either(vm a, vm b) { return _mm256_or_ps(a, b); }
INLINE vm but_not(vm a, vm b) { return _mm256_andnot_ps(b, a); }
INLINE vm never(void) { return _mm256_setzero_ps(); }
INLINE uint32_t bits(vm m) { return (uint32_t)_mm256_movemask_ps(m); }
INLINE vf pick(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }

/* Nearest integer, ties to even. */
INLINE vf nearest(vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/* kq_round, then a clamp, less `zero`: exact for every float, NaN included. */
INLINE vi round_clamp(vf v, int lo, int hi, int zero) {
    vi i = _mm256_and_si256(_mm256_castps_si256(v + splat(12582912.0f)), _mm256_set1_epi32(0x7fffff));
    i = _mm256_max_epi32(i, _mm256_set1_epi32(lo + 0x400000));
    i = _mm256_min_epi32(i, _mm256_set1_epi32(hi + 0x400000));
    return _mm256_sub_epi32(i, _mm256_set1_epi32(zero + 0x400000));
}

INLINE vf floats(vi v) { return _mm256_cvtepi32_ps(v); }
INLINE vi truncate(vf v) { return _mm256_cvttps_epi32(v); }
INLINE vi least_int(vi a, int b) { return _mm256_min_epi32(a, _mm256_set1_epi32(b)); }
/* magnitude with the sign of v. */
INLINE vf signed_as(vf v, float magnitude) { return _mm256_or_ps(_mm256_and_ps(v, splat(-0.0f)), splat(magnitude)); }

/* 32 integers of -128..127 as bytes. */
INLINE void store_codes(void *p, const vi v[32 / LANES]) {
    vi b = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* packing goes by 128-bit halves */
    _mm256_storeu_si256(p, b);
}

INLINE float widest(vf v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE float narrowest(vf v) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

/* table[i], 16 floats. */
INLINE vf look_up(const float *table, vi i) {
    vf low = _mm256_permutevar8x32_ps(load(table), i), high = _mm256_permutevar8x32_ps(load(table + 8), i);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
/* index + weight where the mask holds. */
INLINE vi step(vi index, vm m, int weight) {
    return _mm256_add_epi32(index, _mm256_and_si256(_mm256_castps_si256(m), _mm256_set1_epi32(weight)));
}
INLINE vi no_steps(void) { return _mm256_setzero_si256(); }

/* columns[j] lane r = rows[r][j], j < 8. */
INLINE void transpose(const float *const rows[LANES], int at, vf columns[LANES]) {
    vf a[8], b[8];
    for (int r = 0; r < 8; r++) a[r] = load(rows[r] + at);
    for (int r = 0; r < 8; r += 4) {
        vf p = _mm256_unpacklo_ps(a[r], a[r + 1]), q = _mm256_unpackhi_ps(a[r], a[r + 1]);
        vf s = _mm256_unpacklo_ps(a[r + 2], a[r + 3]), t = _mm256_unpackhi_ps(a[r + 2], a[r + 3]);
        b[r] = _mm256_shuffle_ps(p, s, 0x44);
        b[r + 1] = _mm256_shuffle_ps(p, s, 0xee);
        b[r + 2] = _mm256_shuffle_ps(q, t, 0x44);
        b[r + 3] = _mm256_shuffle_ps(q, t, 0xee);
    }
    for (int c = 0; c < 4; c++) { /* b[4g + c]: rows 4g..4g+3 of columns c and c + 4 */
        columns[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        columns[c + 4] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

#endif
