/* Q3_K: 256 weights in 110 bytes, 3.4375 bits per weight. w = (d * (scale - 32)) * (q - 4)
 *   offset size field   meaning
 *        0   32 hmask   byte l, bit k: bit 2 of weight 32k + l
 *       32   64 qs      byte 32h + l, bits 2p..2p+1: low bits of weight 128h + 32p + l
 *       96   12 scales  sub-block s of 16 weights: bits 0..3 in the low (s < 8) or high nibble of byte s mod 8,
 *                       bits 4..5 at bits 2(s/4) of byte 8 + s mod 4
 *      108    2 d       binary16, of the scales
 */
#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

void kq_q3_k_header(const float S[16], const float *W, struct kq_q3_k *b, struct kq_steps *steps) {
    uint8_t codes[16] = {0}; /* all zero where there is nothing to scale; that spells -32 */
    float d = 0;
    if (W) {
        d = kq_fit_scale(16, 32, S, W, codes);
    } else {
        int largest = kq_largest(16, S);
        float inverse = largest >= 0 ? -32.0f / S[largest] : 0;
        if (largest >= 0) d = 1 / inverse;
        for (int s = 0; largest >= 0 && s < 16; s++)
            codes[s] = (uint8_t)(kq_clamp((int8_t)kq_round(inverse * S[s]), -32, 31) + 32);
    }
    b->d = kq_put(d);
    d = kq_get(b->d);
    for (int k = 0; k < 12; k++) b->scales[k] = 0;
    for (int s = 0; s < 16; s++) {
        b->scales[s % 8] |= (uint8_t)((codes[s] & 15) << (s < 8 ? 0 : 4));
        b->scales[8 + s % 4] |= (uint8_t)(codes[s] >> 4 << 2 * (s / 4));
        steps->scale[s] = d * (float)(codes[s] - 32);
        steps->minimum[s] = 0;
    }
}

float kq_q3_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes) {
    (void)minimum;
    float w[16];
    if (!importance) return kq_fit_scale_descent(16, 4, x, codes);
    *weight = kq_error_weights(16, sigma2, x, importance, w);
    return kq_fit_scale(16, 4, x, w, codes);
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q3_k *restrict b) {
    struct kq_fits f;
    struct kq_steps steps;
    kq_fit_block(kq_q3_k_fit, 16, 2, x, importance, &f);
    kq_q3_k_header(f.S, importance ? f.W : NULL, b, &steps);
    kq_requantise(16, x, &steps, -4, 3, f.codes);
    kq_pack_bit(f.codes, 2, b->hmask);
    kq_pack_pairs(f.codes, b->qs);
}

void kq_encode_q3_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q3_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}
