/* Q4_K: 256 weights in 144 bytes, 4.5 bits per weight. w = (d * scale) * q - dmin * min
 *   offset size field   meaning
 *        0    2 d       binary16, of the scales
 *        2    2 dmin    binary16, of the minima
 *        4   12 scales  sub-block s of 32 weights: (scale, min), six bits each, packed as super.h draws
 *       16  128 qs      byte 32g + l: low nibble weight 64g + l, high nibble weight 64g + 32 + l
 */
#include "format.h"
#include "pack.h"
#include "super.h"

float kq_q4_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes) {
    return kq_k4_fit(KQ_GRID_Q4_K, KQ_GRID_WEIGHTED_15, x, importance, sigma2, minimum, weight, codes);
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q4_k *restrict b) {
    struct kq_fits f;
    struct kq_steps steps;
    kq_fit_block(kq_q4_k_fit, 32, 2, x, importance, &f);
    kq_k4_header(f.S, f.M, importance ? f.W : NULL, &b->d, &b->dmin, b->scales, &steps);
    kq_requantise(32, x, &steps, 0, 15, f.codes);
    kq_pack_nibble_groups(f.codes, b->qs);
}

void kq_encode_q4_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q4_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}
