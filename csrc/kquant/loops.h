/* Plain loops that compilers vectorise: widening, decoding, and the sums of kq_measure_rows. Each element (or, in the
 * sums, each of eight running sums) is computed on its own, so the width of the machine changes no bit. Included by
 * kquant_scalar.c, kquant_avx2.c and kquant_avx512.c, which say LOOP_NAME(name); the last two say LOOP_WIDE. */
#include "format.h"
#include "iq4.h"
#include "number.h"
#include "pack.h"
#include "super.h"
#ifdef LOOP_WIDE
#include <immintrin.h>
#endif

void LOOP_NAME(kq_widen)(enum kq_type source, const uint16_t *restrict h, size_t n, float *restrict y) {
    size_t i = 0;
    if (source == KQ_BF16) {
        for (; i < n; i++) y[i] = kq_f32_from_bf16(h[i]);
        return;
    }
#ifdef LOOP_WIDE
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
#endif
    for (; i < n; i++) y[i] = kq_f32_from_f16(h[i]);
}

void LOOP_NAME(kq_sum_errors)(const float *restrict x, const float *restrict y, size_t n, double sums[restrict 4][8]) {
    for (size_t i = 0; i < n; i += 8) {
        for (size_t k = 0; k < 8; k++) {
            double a = (double)x[i + k], b = (double)y[i + k], e = a - b;
            sums[0][k] += a * a;
            sums[1][k] += b * b;
            sums[2][k] += a * b;
            sums[3][k] += e * e;
        }
    }
}

void LOOP_NAME(kq_decode_q8_0)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q8_0 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, y += 32) {
        float d = kq_get(b[i].d);
        for (int j = 0; j < 32; j++) y[j] = (float)b[i].qs[j] * d;
    }
}

/* 32 weights of two nibbles a byte, weight j low and weight j + 16 high. Unrolled, gcc would make a hash of the loops. */
static void decode_nibbles(const uint8_t *restrict qs, int offset, float d, float m, float *restrict y) {
#pragma GCC unroll 1
    for (int j = 0; j < 16; j++) y[j] = (float)((qs[j] & 15) - offset) * d + m;
#pragma GCC unroll 1
    for (int j = 0; j < 16; j++) y[j + 16] = (float)((qs[j] >> 4) - offset) * d + m;
}

void LOOP_NAME(kq_decode_q4_0)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q4_0 *b = blocks; /* -0 is the number that adds nothing, not even its sign */
    for (size_t i = 0; i < n_blocks; i++, y += 32) decode_nibbles(b[i].qs, 8, kq_get(b[i].d), -0.0f, y);
}

void LOOP_NAME(kq_decode_q4_1)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q4_1 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, y += 32) decode_nibbles(b[i].qs, 0, kq_get(b[i].d), kq_get(b[i].m), y);
}

void LOOP_NAME(kq_decode_q5_0)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q5_0 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, y += 32) {
        uint8_t codes[32];
        float d = kq_get(b[i].d);
        kq_unpack_nibbles(b[i].qs, codes);
        kq_unpack_fifth_bits(b[i].qh, codes);
        for (int j = 0; j < 32; j++) y[j] = (float)(codes[j] - 16) * d;
    }
}

void LOOP_NAME(kq_decode_q5_1)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q5_1 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, y += 32) {
        uint8_t codes[32];
        float d = kq_get(b[i].d), m = kq_get(b[i].m);
        kq_unpack_nibbles(b[i].qs, codes);
        kq_unpack_fifth_bits(b[i].qh, codes);
        for (int j = 0; j < 32; j++) y[j] = (float)codes[j] * d + m;
    }
}

void LOOP_NAME(kq_decode_q2_k)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q2_k *b = blocks;
    for (size_t n = 0; n < n_blocks; n++, b++, y += 256) {
        float d = kq_get(b->d), dmin = kq_get(b->dmin);
        for (int s = 0; s < 16; s++) {
            float step = d * (float)(b->scales[s] & 15), minimum = dmin * (float)(b->scales[s] >> 4);
            const uint8_t *qs = b->qs + 32 * (s / 8) + 16 * (s % 2);
            const int shift = 2 * (s / 2 % 4);
#pragma GCC unroll 1
            for (int l = 0; l < 16; l++) y[16 * s + l] = step * (float)(qs[l] >> shift & 3) - minimum;
        }
    }
}

void LOOP_NAME(kq_decode_q3_k)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q3_k *b = blocks;
    for (size_t n = 0; n < n_blocks; n++, b++, y += 256) {
        float d = kq_get(b->d);
        for (int s = 0; s < 16; s++) {
            float step = d * (float)kq_q3_k_scale(b->scales, s);
            const uint8_t *qs = b->qs + 32 * (s / 8) + 16 * (s % 2), *high = b->hmask + 16 * (s % 2);
            const int shift = 2 * (s / 2 % 4), bit = s / 2;
            for (int l = 0; l < 16; l++) {
                int code = (qs[l] >> shift & 3) + (high[l] >> bit & 1) * 4 - 4;
                y[16 * s + l] = step * (float)code;
            }
        }
    }
}

void LOOP_NAME(kq_decode_q4_k)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q4_k *b = blocks;
    for (size_t n = 0; n < n_blocks; n++, b++, y += 256) {
        float d = kq_get(b->d), dmin = kq_get(b->dmin);
        for (int s = 0; s < 8; s++) {
            int scale, minimum;
            kq_k4_get(b->scales, s, &scale, &minimum);
            float step = d * (float)scale, low = dmin * (float)minimum;
            const uint8_t *qs = b->qs + 32 * (s / 2);
            if (s % 2 == 0) for (int l = 0; l < 32; l++) y[32 * s + l] = step * (float)(qs[l] & 15) - low;
            else for (int l = 0; l < 32; l++) y[32 * s + l] = step * (float)(qs[l] >> 4) - low;
        }
    }
}

void LOOP_NAME(kq_decode_q5_k)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q5_k *b = blocks;
    for (size_t n = 0; n < n_blocks; n++, b++, y += 256) {
        float d = kq_get(b->d), dmin = kq_get(b->dmin);
        for (int s = 0; s < 8; s++) {
            int scale, minimum;
            kq_k4_get(b->scales, s, &scale, &minimum);
            float step = d * (float)scale, low = dmin * (float)minimum;
            const uint8_t *qs = b->qs + 32 * (s / 2);
            const int shift = 4 * (s % 2);
            for (int l = 0; l < 32; l++) {
                int code = (qs[l] >> shift & 15) + (b->qh[l] >> s & 1) * 16;
                y[32 * s + l] = step * (float)code - low;
            }
        }
    }
}

void LOOP_NAME(kq_decode_q6_k)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q6_k *b = blocks;
    for (size_t n = 0; n < n_blocks; n++, b++, y += 256) {
        float d = kq_get(b->d);
        for (int s = 0; s < 16; s++) {
            float step = d * (float)b->scales[s];
            const int h = s / 8, p = s / 2 % 4, at = 16 * (s % 2);
            const uint8_t *low = b->ql + 64 * h + 32 * (p % 2) + at, *high = b->qh + 32 * h + at;
            const int low_shift = 4 * (p / 2), high_shift = 2 * p;
            for (int l = 0; l < 16; l++) {
                int code = (low[l] >> low_shift & 15) + (high[l] >> high_shift & 3) * 16 - 32;
                y[16 * s + l] = step * (float)code;
            }
        }
    }
}

static void decode_codebook(float step, const uint8_t *restrict qs, float *restrict y) {
    int8_t values[32];
#ifdef LOOP_WIDE
    const __m128i book = _mm_loadu_si128((const __m128i *)KQ_IQ4_CODEBOOK), low = _mm_set1_epi8(15);
    const __m128i codes = _mm_loadu_si128((const __m128i *)qs);
    _mm_storeu_si128((__m128i *)values, _mm_shuffle_epi8(book, _mm_and_si128(codes, low)));
    _mm_storeu_si128((__m128i *)(values + 16), _mm_shuffle_epi8(book, _mm_and_si128(_mm_srli_epi16(codes, 4), low)));
#else
    uint8_t codes[32];
    kq_unpack_nibbles(qs, codes);
    for (int j = 0; j < 32; j++) values[j] = KQ_IQ4_CODEBOOK[codes[j]];
#endif
    for (int j = 0; j < 32; j++) y[j] = step * (float)values[j];
}

void LOOP_NAME(kq_decode_iq4_nl)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_iq4_nl *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, y += 32) decode_codebook(kq_get(b[i].d), b[i].qs, y);
}

void LOOP_NAME(kq_decode_iq4_xs)(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_iq4_xs *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) {
        float d = kq_get(b[i].d);
        int high = kq_load_u16(b[i].scales_h);
        for (int s = 0; s < 8; s++, y += 32) {
            int scale = (b[i].scales_l[s / 2] >> 4 * (s % 2) & 15) | (high >> 2 * s & 3) << 4;
            decode_codebook(d * (float)(scale - 32), b[i].qs + 16 * s, y);
        }
    }
}
