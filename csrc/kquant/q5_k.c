/* Q5_K: 256 weights in 176 bytes, 5.5 bits per weight. w = (d * scale) * q - dmin * min
 *   offset size field   meaning
 *        0    2 d       binary16, of the scales
 *        2    2 dmin    binary16, of the minima
 *        4   12 scales  as Q4_K
 *       16   32 qh      byte l, bit k: bit 4 of weight 32k + l
 *       48  128 qs      low four bits, as Q4_K
 */
#include "format.h"
#include "pack.h"
#include "super.h"

float kq_q5_k_fit(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                  float *restrict weight, uint8_t *restrict codes) {
    return kq_k4_fit(KQ_GRID_Q5_K, KQ_GRID_WEIGHTED_31, x, importance, sigma2, minimum, weight, codes);
}

static void encode_block(const float *restrict x, const float *restrict importance, struct kq_q5_k *restrict b) {
    struct kq_fits f;
    struct kq_steps steps;
    kq_fit_block(kq_q5_k_fit, 32, 2, x, importance, &f);
    kq_k4_header(f.S, f.M, importance ? f.W : NULL, &b->d, &b->dmin, b->scales, &steps);
    kq_requantise(32, x, &steps, 0, 31, f.codes);
    kq_pack_bit(f.codes, 4, b->qh);
    kq_pack_nibble_groups(f.codes, b->qs);
}

void kq_encode_q5_k(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)row_sigma2;
    struct kq_q5_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) encode_block(x + 256 * i, importance ? importance + 256 * i : NULL, &b[i]);
}
