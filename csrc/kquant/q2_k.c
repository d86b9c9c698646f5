/* Q2_K: 256 weights in 84 bytes, 2.625 bits per weight. w = (d * scale) * q - dmin * min
 *   offset size field   meaning
 *        0   16 scales  sub-block s of 16 weights: low nibble scale, high nibble min
 *       16   64 qs      byte 32h + l, bits 2p..2p+1: weight 128h + 32p + l
 *       80    2 d       binary16, of the scales
 *       82    2 dmin    binary16, of the minima
 */
#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

/* Four-bit codes of 16 non-negative values, their step in *d. */
static void quantise_nibbles(const float v[16], const float *W, kq_half *d, uint8_t codes[16]) {
    if (W) {
        *d = kq_put(kq_fit_positive(16, 15, v, W, codes));
        return;
    }
    float largest = 0;
    for (int s = 0; s < 16; s++) largest = v[s] > largest ? v[s] : largest;
    float inverse = largest > 0 ? 15.0f / largest : 0;
    for (int s = 0; s < 16; s++) codes[s] = largest > 0 ? (uint8_t)kq_round(inverse * v[s]) : 0;
    *d = kq_put(largest > 0 ? largest / 15.0f : 0);
}

void kq_q2_k_header(const float S[16], const float M[16], const float *W, struct kq_q2_k *b, struct kq_steps *steps) {
    uint8_t scale[16], minimum[16];
    quantise_nibbles(S, W, &b->d, scale);
    quantise_nibbles(M, W, &b->dmin, minimum);
    float d = kq_get(b->d), dmin = kq_get(b->dmin);
    for (int s = 0; s < 16; s++) {
        b->scales[s] = (uint8_t)(scale[s] | minimum[s] << 4);
        steps->scale[s] = d * (float)(b->scales[s] & 15);
        steps->minimum[s] = dmin * (float)(b->scales[s] >> 4);
    }
}

float kq_q2_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes) {
    float w[16];
    if (!importance) {
        for (int i = 0; i < 16; i++) w[i] = fabsf(x[i]);
        return kq_fit_minimum(16, KQ_GRID_Q2_K, x, w, minimum, codes);
    }
    *weight = kq_error_weights(16, sigma2, x, importance, w);
    return kq_fit_minimum(16, KQ_GRID_WEIGHTED_3, x, w, minimum, codes);
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q2_k *restrict b) {
    struct kq_fits f;
    struct kq_steps steps;
    kq_fit_block(kq_q2_k_fit, 16, 1, x, importance, &f);
    kq_q2_k_header(f.S, f.M, importance ? f.W : NULL, b, &steps);
    kq_requantise(16, x, &steps, 0, 3, f.codes);
    kq_pack_pairs(f.codes, b->qs);
}

void kq_encode_q2_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q2_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}
