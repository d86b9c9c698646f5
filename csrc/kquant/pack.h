/* Codes to bytes, for every layout: one code a byte in, in weight order. Plain loops that compilers vectorise. */
#ifndef KQ_PACK_H
#define KQ_PACK_H

#include "kquant.h"

/* 32 codes of 4 bits: weight j in the low, weight j + 16 in the high nibble of byte j. */
static inline void kq_pack_nibbles(const uint8_t *restrict codes, uint8_t *restrict qs) {
    for (int j = 0; j < 16; j++) qs[j] = (uint8_t)((codes[j] & 15) | codes[j + 16] << 4);
}

/* The fifth bit of 32 codes, bit i of a little-endian word: weight i. */
static inline void kq_pack_fifth_bits(const uint8_t *restrict codes, uint8_t *restrict qh) {
    uint32_t word = 0;
    for (int j = 0; j < 32; j++) word |= (uint32_t)(codes[j] >> 4 & 1) << j;
    for (int k = 0; k < 4; k++) qh[k] = (uint8_t)(word >> 8 * k);
}

/* 256 codes of 2 bits (higher bits are ignored): byte 32h + l, bits 2p..2p+1: weight 128h + 32p + l. */
static inline void kq_pack_pairs(const uint8_t *restrict codes, uint8_t *restrict qs) {
    for (int h = 0; h < 2; h++) {
        for (int l = 0; l < 32; l++) {
            const uint8_t *c = codes + 128 * h + l;
            qs[32 * h + l] = (uint8_t)((c[0] & 3) | (c[32] & 3) << 2 | (c[64] & 3) << 4 | (c[96] & 3) << 6);
        }
    }
}

/* One bit of each of 256 codes: byte l, bit k: bit `bit` of weight 32k + l. */
static inline void kq_pack_bit(const uint8_t *restrict codes, int bit, uint8_t *restrict bytes) {
    for (int l = 0; l < 32; l++) bytes[l] = 0;
    for (int k = 0; k < 8; k++) {
        for (int l = 0; l < 32; l++) bytes[l] |= (uint8_t)((codes[32 * k + l] >> bit & 1) << k);
    }
}

/* Low nibbles of 256 codes: byte 32g + l: weight 64g + l low, weight 64g + 32 + l high. */
static inline void kq_pack_nibble_groups(const uint8_t *restrict codes, uint8_t *restrict qs) {
    for (int g = 0; g < 4; g++) {
        for (int l = 0; l < 32; l++) {
            const uint8_t *c = codes + 64 * g + l;
            qs[32 * g + l] = (uint8_t)((c[0] & 15) | c[32] << 4);
        }
    }
}

/* 256 codes of 6 bits, as struct kq_q6_k draws ql and qh. */
static inline void kq_pack_six_bits(const uint8_t *restrict codes, uint8_t *restrict ql, uint8_t *restrict qh) {
    for (int h = 0; h < 2; h++) {
        const uint8_t *c = codes + 128 * h;
        for (int l = 0; l < 64; l++) ql[64 * h + l] = (uint8_t)((c[l] & 15) | c[l + 64] << 4);
        for (int l = 0; l < 32; l++)
            qh[32 * h + l] = (uint8_t)(c[l] >> 4 | c[l + 32] >> 4 << 2 | c[l + 64] >> 4 << 4 | c[l + 96] >> 4 << 6);
    }
}

#endif
