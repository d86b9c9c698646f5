/* Q8_0: 32 weights in 34 bytes, 8.5 bits per weight. w = d * q
 *   offset size field  meaning
 *        0    2 d      binary16
 *        2   32 qs     signed codes
 * d is the largest magnitude / 127. The codes use the unrounded d; importance has no say.
 */
#include "format.h"
#include "number.h"

void kq_encode_q8_0(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    (void)importance, (void)row_sigma2;
    struct kq_q8_0 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        float magnitude = 0;
        for (int j = 0; j < 32; j++) magnitude = fabsf(x[j]) > magnitude ? fabsf(x[j]) : magnitude;
        float d = magnitude / 127.0f, inverse = d != 0 ? 1 / d : 0;
        b[i].d = kq_put(d);
        for (int j = 0; j < 32; j++) b[i].qs[j] = (int8_t)kq_round_away(x[j] * inverse);
    }
}
