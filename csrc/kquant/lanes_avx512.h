/* Sixteen lanes of AVX-512: the vocabulary of the other lanes_*.h. */
#ifndef KQ_LANES_H
#define KQ_LANES_H

#include <immintrin.h>

#include "kquant.h"

enum { LANES = 16 };
#define INLINE static inline __attribute__((always_inline))
#define KQ_LANE_NAME(name) name##_avx512

typedef __m512 vf;    /* a float a lane; + - * / are the compiler's */
typedef __m512i vi;   /* an int32 a lane */
typedef __mmask16 vm; /* a truth a lane */

INLINE vf splat(float f) { return _mm512_set1_ps(f); }
INLINE vf load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, vf v) { _mm512_storeu_ps(p, v); }
/* a < b ? a : b, so that the second wins a tie of zeros: as the plain code is written. */
INLINE vf least(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf most(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf magnitude(vf v) { return _mm512_abs_ps(v); }
INLINE vf root(vf v) { return _mm512_sqrt_ps(v); }
INLINE vm more(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE vm at_least(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
INLINE vm not_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
INLINE vm equal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE vm both(vm a, vm b) { return (vm)(a & b); }
INLINE vm either(vm a, vm b) { return (vm)(a | b); }
INLINE vm but_not(vm a, vm b) { return (vm)(a & ~b); }
INLINE vm never(void) { return 0; }
INLINE uint32_t bits(vm m) { return m; }
INLINE vf pick(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }

/* Nearest integer, ties to even. */
INLINE vf nearest(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/* kq_round, then a clamp, less `zero`: exact for every float, NaN included. */
INLINE vi round_clamp(vf v, int lo, int hi, int zero) {
    vi i = _mm512_and_si512(_mm512_castps_si512(v + splat(12582912.0f)), _mm512_set1_epi32(0x7fffff));
    i = _mm512_max_epi32(i, _mm512_set1_epi32(lo + 0x400000));
    i = _mm512_min_epi32(i, _mm512_set1_epi32(hi + 0x400000));
    return _mm512_sub_epi32(i, _mm512_set1_epi32(zero + 0x400000));
}

INLINE vf floats(vi v) { return _mm512_cvtepi32_ps(v); }
INLINE vi truncate(vf v) { return _mm512_cvttps_epi32(v); }
INLINE vi least_int(vi a, int b) { return _mm512_min_epi32(a, _mm512_set1_epi32(b)); }
/* magnitude with the sign of v. */
INLINE vf signed_as(vf v, float magnitude) { return _mm512_or_ps(_mm512_and_ps(v, splat(-0.0f)), splat(magnitude)); }

/* 32 integers of -128..127 as bytes. */
INLINE void store_codes(void *p, const vi v[32 / LANES]) {
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v[0]));
    _mm_storeu_si128((__m128i *)p + 1, _mm512_cvtepi32_epi8(v[1]));
}

INLINE float widest(vf v) { return _mm512_reduce_max_ps(v); }
INLINE float narrowest(vf v) { return _mm512_reduce_min_ps(v); }

/* table[i], 16 floats. */
INLINE vf look_up(const float *table, vi i) { return _mm512_permutexvar_ps(i, load(table)); }
/* index + weight where the mask holds. */
INLINE vi step(vi index, vm m, int weight) { return _mm512_mask_add_epi32(index, m, index, _mm512_set1_epi32(weight)); }
INLINE vi no_steps(void) { return _mm512_setzero_si512(); }

/* columns[j] lane r = rows[r][j], j < 16. */
INLINE void transpose(const float *const rows[LANES], int at, vf columns[LANES]) {
    vf a[16], b[16];
    for (int r = 0; r < 16; r++) a[r] = load(rows[r] + at);
    for (int r = 0; r < 16; r += 4) {
        vf p = _mm512_unpacklo_ps(a[r], a[r + 1]), q = _mm512_unpackhi_ps(a[r], a[r + 1]);
        vf s = _mm512_unpacklo_ps(a[r + 2], a[r + 3]), t = _mm512_unpackhi_ps(a[r + 2], a[r + 3]);
        b[r] = _mm512_shuffle_ps(p, s, 0x44);
        b[r + 1] = _mm512_shuffle_ps(p, s, 0xee);
        b[r + 2] = _mm512_shuffle_ps(q, t, 0x44);
        b[r + 3] = _mm512_shuffle_ps(q, t, 0xee);
    }
    for (int c = 0; c < 4; c++) { /* b[4g + c]: rows 4g..4g+3 of columns c, c + 4, c + 8, c + 12 */
        vf p = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88), q = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        vf s = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd), t = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        columns[c] = _mm512_shuffle_f32x4(p, q, 0x88);
        columns[c + 8] = _mm512_shuffle_f32x4(p, q, 0xdd);
        columns[c + 4] = _mm512_shuffle_f32x4(s, t, 0x88);
        columns[c + 12] = _mm512_shuffle_f32x4(s, t, 0xdd);
    }
}

#endif
