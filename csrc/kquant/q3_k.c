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
#include "super.h"

void kq_q3_k_header(const float S[16], const float *W, struct kq_q3_k *b, int scale[16]) {
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
    for (int k = 0; k < 12; k++) b->scales[k] = 0;
    for (int s = 0; s < 16; s++) {
        b->scales[s % 8] |= (uint8_t)((codes[s] & 15) << (s < 8 ? 0 : 4));
        b->scales[8 + s % 4] |= (uint8_t)(codes[s] >> 4 << 2 * (s / 4));
        scale[s] = codes[s] - 32;
    }
}

static void pack(uint8_t *restrict codes, struct kq_q3_k *restrict b) {
    for (int l = 0; l < 32; l++) {
        b->hmask[l] = 0;
        for (int k = 0; k < 8; k++) b->hmask[l] |= (uint8_t)(codes[32 * k + l] >> 2 << k);
    }
    for (int i = 0; i < 256; i++) codes[i] &= 3;
    for (int j = 0; j < 64; j++) {
        const uint8_t *c = codes + 128 * (j / 32) + j % 32;
        b->qs[j] = (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
    }
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q3_k *restrict b) {
    uint8_t codes[256];
    float S[16], W[16], w[16];
    int scale[16];
    float sigma2 = importance ? 2 * kq_square_sum(256, x) / 256 : 0;
    for (int s = 0; s < 16; s++) {
        const float *v = x + 16 * s;
        if (importance) {
            W[s] = kq_error_weights(16, sigma2, v, importance + 16 * s, w);
            S[s] = kq_fit_scale(16, 4, v, w, codes + 16 * s);
        } else {
            S[s] = kq_fit_scale_descent(16, 4, v, codes + 16 * s);
        }
    }
    kq_q3_k_header(S, importance ? W : NULL, b, scale);
    float d = kq_get(b->d);
    for (int s = 0; s < 16; s++) {
        float step = d * (float)scale[s];
        if (step == 0) continue; /* the search's codes stay */
        for (int i = 16 * s; i < 16 * s + 16; i++) codes[i] = (uint8_t)(kq_clamp(kq_round(x[i] / step), -4, 3) + 4);
    }
    pack(codes, b);
}

void kq_encode_q3_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q3_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}

void kq_decode_q3_k(const void *restrict blocks, size_t n_blocks, float *restrict y) {
    const struct kq_q3_k *b = blocks;
    for (size_t n = 0; n < n_blocks; n++, b++, y += 256) {
        float d = kq_get(b->d);
        for (int s = 0; s < 16; s++) {
            float step = d * (float)kq_q3_k_scale(b->scales, s);
            const uint8_t *qs = b->qs + 32 * (s / 8) + 16 * (s % 2), *high = b->hmask + 16 * (s % 2);
            for (int l = 0; l < 16; l++) {
                int code = (qs[l] >> 2 * (s / 2 % 4) & 3) - (high[l] >> s / 2 & 1 ? 0 : 4);
                y[16 * s + l] = step * (float)code;
            }
        }
    }
}
