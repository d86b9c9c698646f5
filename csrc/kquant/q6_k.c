/* Q6_K: 256 weights in 210 bytes, 6.5625 bits per weight. w = (d * scale) * (q - 32)
 *   offset size field   meaning
 *        0  128 ql      byte 64h + l (l < 64): low nibble weight 128h + l, high nibble weight 128h + 64 + l
 *      128   64 qh      byte 32h + l, bits 2p..2p+1: bits 4..5 of weight 128h + 32p + l
 *      192   16 scales  signed, sub-block s of 16 weights
 *      208    2 d       binary16, of the scales
 */
#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

int kq_q6_k_header(const float S[16], struct kq_q6_k *b, struct kq_steps *steps) {
    int largest = kq_largest(16, S);
    if (largest < 0 || fabsf(S[largest]) < KQ_EPSILON) {
        memset(b, 0, sizeof *b);
        return 0;
    }
    float inverse = -128.0f / S[largest];
    b->d = kq_put(1 / inverse);
    float d = kq_get(b->d);
    for (int s = 0; s < 16; s++) {
        int scale = kq_round(inverse * S[s]);
        b->scales[s] = (int8_t)(scale < 127 ? scale : 127);
        steps->scale[s] = d * (float)b->scales[s];
        steps->minimum[s] = 0;
    }
    return 1;
}

float kq_q6_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes) {
    (void)sigma2, (void)minimum, (void)weight;
    float w[16];
    for (int i = 0; i < 16; i++) w[i] = importance ? importance[i] : x[i] * x[i];
    return kq_fit_scale(16, 32, x, w, codes);
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q6_k *restrict b) {
    struct kq_fits f;
    struct kq_steps steps;
    kq_fit_block(kq_q6_k_fit, 16, 0, x, importance, &f);
    if (!kq_q6_k_header(f.S, b, &steps)) return;
    kq_requantise(16, x, &steps, -32, 31, f.codes);
    kq_pack_six_bits(f.codes, b->ql, b->qh);
}

void kq_encode_q6_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q6_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}
