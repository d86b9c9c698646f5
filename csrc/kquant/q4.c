/* Q4_0: 32 weights in 18 bytes, 4.5 bits per weight. w = d * (q - 8)
 *   offset size field  meaning
 *        0    2 d      binary16
 *        2   16 qs     byte j: low nibble weight j, high nibble weight j + 16
 * Q4_1: 32 weights in 20 bytes, 5 bits per weight. w = d * q + m
 *   offset size field  meaning
 *        0    2 d      binary16
 *        2    2 m      binary16, the minimum
 *        4   16 qs     as Q4_0
 * Without importance the range alone decides: Q4_0 gives the extreme weight code 0 (d is negative when it is
 * positive), Q4_1 spreads minimum..maximum over 0..15. With importance a search decides, and its codes are final.
 */
#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"

static void encode_q4_0_plain(const float *restrict x, struct kq_q4_0 *restrict b) {
    uint8_t codes[32];
    float d = kq_extreme(32, x) / -8, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < 32; j++) {
        int code = kq_truncate(x[j] * inverse + 8.5f);
        codes[j] = (uint8_t)(code < 15 ? code : 15);
    }
    b->d = kq_put(d);
    kq_pack_nibbles(codes, b->qs);
}

static void encode_q4_0_weighted(const float *restrict x, const float *restrict importance, float sigma2,
                                 struct kq_q4_0 *restrict b) {
    uint8_t codes[32];
    float w[32];
    kq_error_weights(32, sigma2, x, importance, w);
    b->d = kq_put(kq_fit_scale(32, 8, x, w, codes));
    kq_pack_nibbles(codes, b->qs);
}

void kq_encode_q4_0(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    struct kq_q4_0 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        if (importance) encode_q4_0_weighted(x, importance + 32 * i, row_sigma2, &b[i]);
        else encode_q4_0_plain(x, &b[i]);
    }
}

static void encode_q4_1_plain(const float *restrict x, struct kq_q4_1 *restrict b) {
    uint8_t codes[32];
    float low = x[0], high = x[0];
    for (int j = 1; j < 32; j++) {
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    float d = (high - low) / 15, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < 32; j++) {
        int code = kq_truncate((x[j] - low) * inverse + 0.5f);
        codes[j] = (uint8_t)(code < 15 ? code : 15);
    }
    b->d = kq_put(d);
    b->m = kq_put(low);
    kq_pack_nibbles(codes, b->qs);
}

static void encode_q4_1_weighted(const float *restrict x, const float *restrict importance, float sigma2,
                                 struct kq_q4_1 *restrict b) {
    uint8_t codes[32];
    float w[32], minimum;
    kq_error_weights(32, sigma2, x, importance, w);
    b->d = kq_put(kq_fit_minimum(32, KQ_GRID_WEIGHTED_15, x, w, &minimum, codes));
    b->m = kq_put(-minimum);
    kq_pack_nibbles(codes, b->qs);
}

void kq_encode_q4_1(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    struct kq_q4_1 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        if (importance) encode_q4_1_weighted(x, importance + 32 * i, row_sigma2, &b[i]);
        else encode_q4_1_plain(x, &b[i]);
    }
}
