/* Steps of the 256-weight formats, shared by the plain encoders and their vector twins: the search of one sub-block, from the
 * sub-blocks' scales S, minima M and weight sums W to the header of a super-block, and from the header to the codes. */
#ifndef KQ_SUPER_H
#define KQ_SUPER_H

#include "fit.h"
#include "kquant.h"

/* The search of one sub-block: its scale, *minimum (where the format has one), *weight (the sum of its error weights; only with
 * importance, and not for Q6_K) and its codes. sigma2 is what the error weights start from; see kq_fit_block. */
typedef float kq_fit_fn(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                        float *restrict weight, uint8_t *restrict codes);
kq_fit_fn kq_q2_k_fit, kq_q3_k_fit, kq_q4_k_fit, kq_q5_k_fit, kq_q6_k_fit;

/* What the searches found for the sub-blocks of one super-block. */
struct kq_fits {
    float S[16], M[16], W[16];
    uint8_t codes[256];
};

/* All sub-blocks of n weights. sigma2 is `factor` times the mean square of the super-block; only with importance. */
void kq_fit_block(kq_fit_fn *fit, int n, float factor, const float *restrict x, const float *restrict importance, struct kq_fits *restrict f);

/* The scale and the minimum of each sub-block as they were stored: a weight is scale * code - minimum. */
struct kq_steps {
    float scale[16], minimum[16];
};

/* From S, M and W (NULL without importance) to the stored header and what it stands for. Q6_K: 0 when the whole block is to be
 * zero bytes, and is. */
void kq_q2_k_header(const float S[16], const float M[16], const float *W, struct kq_q2_k *b, struct kq_steps *steps);
void kq_q3_k_header(const float S[16], const float *W, struct kq_q3_k *b, struct kq_steps *steps);
int kq_q6_k_header(const float S[16], struct kq_q6_k *b, struct kq_steps *steps);
/* IQ4_XS: dl[s] is the unrounded step of sub-block s. */
void kq_iq4_xs_header(const float S[8], struct kq_iq4_xs *b, float dl[8]);

/* Codes lo..hi for the steps, shifted to start at 0; where a step is zero the search's codes stay. */
void kq_requantise(int n, const float *restrict x, const struct kq_steps *restrict steps, int lo, int hi, uint8_t *restrict codes);

/* k4.c: the search and the header that Q4_K and Q5_K share; the grids are those without and with importance. */
float kq_k4_fit(struct kq_grid plain, struct kq_grid weighted, const float *restrict x, const float *restrict importance, float sigma2,
                float *restrict minimum, float *restrict weight, uint8_t *restrict codes);
void kq_k4_header(const float S[8], const float M[8], const float *W, kq_half *d, kq_half *dmin, uint8_t scales[12],
                  struct kq_steps *steps);

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
