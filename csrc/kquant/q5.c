/* Q5_0: 32 weights in 22 bytes, 5.5 bits per weight. w = d * (q - 16)
 *   offset size field  meaning
 *        0    2 d      binary16
 *        2    4 qh     little-endian word, bit i: bit 4 of weight i
 *        6   16 qs     byte j: low nibble weight j, high nibble weight j + 16
 * Q5_1: 32 weights in 24 bytes, 6 bits per weight. w = d * q + m
 *   offset size field  meaning
 *        0    2 d      binary16
 *        2    2 m      binary16, the minimum
 *        4    4 qh     as Q5_0
 *        8   16 qs     as Q5_0
 * Chosen as Q4_0 and Q4_1 choose, with one bit more.
 */
#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"

static void pack(const uint8_t *restrict codes, uint8_t *restrict qh, uint8_t *restrict qs) {
    kq_pack_fifth_bits(codes, qh);
    kq_pack_nibbles(codes, qs);
}

static void encode_q5_0_plain(const float *restrict x, struct kq_q5_0 *restrict b) {
    uint8_t codes[32];
    float d = kq_extreme(32, x) / -16, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < 32; j++) {
        int code = kq_truncate(x[j] * inverse + 16.5f);
        codes[j] = (uint8_t)(code < 31 ? code : 31);
    }
    b->d = kq_put(d);
    pack(codes, b->qh, b->qs);
}

static void encode_q5_0_weighted(const float *restrict x, const float *restrict importance, float sigma2,
                                 struct kq_q5_0 *restrict b) {
    uint8_t codes[32];
    float w[32];
    kq_error_weights(32, sigma2, x, importance, w);
    b->d = kq_put(kq_fit_scale(32, 16, x, w, codes));
    pack(codes, b->qh, b->qs);
}

void kq_encode_q5_0(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    struct kq_q5_0 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        if (importance) encode_q5_0_weighted(x, importance + 32 * i, row_sigma2, &b[i]);
        else encode_q5_0_plain(x, &b[i]);
    }
}

static void encode_q5_1_plain(const float *restrict x, struct kq_q5_1 *restrict b) {
    uint8_t codes[32];
    float low = x[0], high = x[0];
    for (int j = 1; j < 32; j++) {
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    float d = (high - low) / 31, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < 32; j++) codes[j] = (uint8_t)kq_truncate((x[j] - low) * inverse + 0.5f);
    b->d = kq_put(d);
    b->m = kq_put(low);
    pack(codes, b->qh, b->qs);
}

static void encode_q5_1_weighted(const float *restrict x, const float *restrict importance, float sigma2,
                                 struct kq_q5_1 *restrict b) {
    uint8_t codes[32];
    float w[32], minimum;
    kq_error_weights(32, sigma2, x, importance, w);
    b->d = kq_put(kq_fit_minimum(32, KQ_GRID_WEIGHTED_31, x, w, &minimum, codes));
    b->m = kq_put(-minimum);
    pack(codes, b->qh, b->qs);
}

void kq_encode_q5_1(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                    void *restrict blocks) {
    struct kq_q5_1 *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        if (importance) encode_q5_1_weighted(x, importance + 32 * i, row_sigma2, &b[i]);
        else encode_q5_1_plain(x, &b[i]);
    }
}
