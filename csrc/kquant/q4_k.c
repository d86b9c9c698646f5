/* Q4_K: 256 weights in 144 bytes, 4.5 bits per weight. w = (d * scale) * q - dmin * min
 *   offset size field   meaning
 *        0    2 d       binary16, of the scales
 *        2    2 dmin    binary16, of the minima
 *        4   12 scales  sub-block s of 32 weights: (scale, min), six bits each, packed as super.h draws
 *       16  128 qs      byte 32g + l: low nibble weight 64g + l, high nibble weight 64g + 32 + l
 */
#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

float kq_q4_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes) {
    float w[32];
    if (!importance) {
        float average = sqrtf(kq_square_sum(32, x) / 32);
        for (int i = 0; i < 32; i++) w[i] = average + fabsf(x[i]);
        return kq_fit_minimum(32, KQ_GRID_Q4_K, x, w, minimum, codes);
    }
    *weight = kq_error_weights(32, sigma2, x, importance, w);
    return kq_fit_minimum(32, KQ_GRID_WEIGHTED_15, x, w, minimum, codes);
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q4_k *restrict b) {
    uint8_t codes[256];
    float S[8], M[8], W[8];
    float sigma2 = importance ? 2 * kq_square_sum(256, x) / 256 : 0;
    for (int s = 0; s < 8; s++)
        S[s] = kq_q4_k_fit(x + 32 * s, importance ? importance + 32 * s : NULL, sigma2, &M[s], &W[s], codes + 32 * s);
    kq_k4_header(S, M, importance ? W : NULL, &b->d, &b->dmin, b->scales);
    float d = kq_get(b->d), dmin = kq_get(b->dmin);
    for (int s = 0; s < 8; s++) {
        int scale, minimum;
        kq_k4_get(b->scales, s, &scale, &minimum);
        float step = d * (float)scale, low = dmin * (float)minimum;
        if (step == 0) continue; /* the search's codes stay */
        for (int i = 32 * s; i < 32 * s + 32; i++) codes[i] = (uint8_t)kq_clamp(kq_round((x[i] + low) / step), 0, 15);
    }
    kq_pack_nibble_groups(codes, b->qs);
}

void kq_encode_q4_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q4_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}
