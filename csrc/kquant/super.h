/* Steps of the 256-weight formats, shared by the plain encoders and their vector twins: the search of one sub-block,
 * and from the sub-blocks' scales S, minima M and weight sums W to the header of a super-block. */
#ifndef KQ_SUPER_H
#define KQ_SUPER_H

#include "kquant.h"

/* The search of one sub-block: its scale, *minimum, *weight (the sum of its error weights; only with importance) and its
 * codes. sigma2 is the super-block's, as its file defines it. */
float kq_q2_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes);
float kq_q3_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict weight,
                  uint8_t *restrict codes);
float kq_q4_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes);
float kq_q5_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes);
float kq_q6_k_fit(const float *restrict x, const float *restrict importance, uint8_t *restrict codes);

/* q2_k.c: d, dmin and the 16 scale bytes; W is NULL without importance. */
void kq_q2_k_header(const float S[16], const float M[16], const float *W, struct kq_q2_k *b);

/* q3_k.c: d and the 12 scale bytes; W is NULL without importance. scale[s] is the signed 6-bit scale. */
void kq_q3_k_header(const float S[16], const float *W, struct kq_q3_k *b, int scale[16]);

/* q6_k.c: d and the 16 scales. Gives 0 when the whole block is to be zero bytes. */
int kq_q6_k_header(const float S[16], struct kq_q6_k *b);

/* iq4.c: d and the scales; dl[s] is the unrounded step of sub-block s. */
void kq_iq4_xs_header(const float S[8], struct kq_iq4_xs *b, float dl[8]);

/* k4.c: d, dmin and the 12 scale bytes of Q4_K and Q5_K; W is NULL without importance. */
void kq_k4_header(const float S[8], const float M[8], const float *W, kq_half *d, kq_half *dmin, uint8_t scales[12]);

/* Eight pairs (scale, minimum) of six bits in 12 bytes:
 *   byte 0..3   scale s (s = byte) | high two bits of scale 4 + s at bits 6..7
 *   byte 4..7   min   s (s = byte - 4) | high two bits of min 4 + s at bits 6..7
 *   byte 8..11  low nibble: low bits of scale 4 + s, high nibble: low bits of min 4 + s (s = byte - 8) */
static inline void kq_k4_get(const uint8_t scales[12], int s, int *scale, int *minimum) {
    if (s < 4) {
        *scale = scales[s] & 63;
        *minimum = scales[s + 4] & 63;
    } else {
        *scale = (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4;
        *minimum = scales[s + 4] >> 4 | scales[s] >> 6 << 4;
    }
}

/* q3_k.c's packing: low nibbles of scales 0..7 and 8..15 share bytes 0..7, two high bits in bytes 8..11. */
static inline int kq_q3_k_scale(const uint8_t scales[12], int s) {
    int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    return (low | (scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32;
}

/* Index of the first element of largest magnitude, -1 when all are zero. */
int kq_largest(int n, const float *v);

#endif
