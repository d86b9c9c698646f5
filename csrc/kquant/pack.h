/* Codes to bytes and back, for every layout: one code a byte, in weight order. Plain code: eight bytes of a word at a time, or
 * loops that compilers vectorise. */
#ifndef KQ_PACK_H
#define KQ_PACK_H

#include <string.h>

#include "kquant.h"

/* Eight bytes as a word, the first the lowest: on any machine. */
static inline uint64_t kq_word(uint64_t native) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(native);
#else
    return native;
#endif
}

static inline uint64_t kq_load_word(const uint8_t *p) {
    uint64_t native;
    memcpy(&native, p, 8);
    return kq_word(native);
}

static inline void kq_store_word(uint8_t *p, uint64_t word) {
    word = kq_word(word);
    memcpy(p, &word, 8);
}

#define KQ_EACH_BYTE(value) ((value) * 0x0101010101010101u)

/* 32 codes of 4 bits: weight j in the low, weight j + 16 in the high nibble of byte j. */
static inline void kq_pack_nibbles(const uint8_t *restrict codes, uint8_t *restrict qs) {
    for (int j = 0; j < 16; j += 8) {
        uint64_t low = kq_load_word(codes + j) & KQ_EACH_BYTE(15), high = kq_load_word(codes + j + 16) & KQ_EACH_BYTE(15);
        kq_store_word(qs + j, low | high << 4);
    }
}

static inline void kq_unpack_nibbles(const uint8_t *restrict qs, uint8_t *restrict codes) {
    for (int j = 0; j < 16; j += 8) {
        uint64_t word = kq_load_word(qs + j);
        kq_store_word(codes + j, word & KQ_EACH_BYTE(15));
        kq_store_word(codes + j + 16, word >> 4 & KQ_EACH_BYTE(15));
    }
}

/* The fifth bit of 32 codes, bit i of a little-endian word: weight i. Bit 8i of a word reaches bit 56 + i by the 2^(56 - 7i) of
 * the factor, and no two bits meet. */
static inline void kq_pack_fifth_bits(const uint8_t *restrict codes, uint8_t *restrict qh) {
    for (int k = 0; k < 4; k++)
        qh[k] = (uint8_t)((kq_load_word(codes + 8 * k) >> 4 & KQ_EACH_BYTE(1)) * 0x0102040810204080u >> 56);
}

/* The fifth bits into 32 codes that have their nibbles: bit i of a byte is found in byte i of eight copies of it. */
static inline void kq_unpack_fifth_bits(const uint8_t *restrict qh, uint8_t *restrict codes) {
    for (int k = 0; k < 4; k++) {
        uint64_t bit = KQ_EACH_BYTE(qh[k]) & 0x8040201008040201u, one = (bit + KQ_EACH_BYTE(127)) >> 7 & KQ_EACH_BYTE(1);
        kq_store_word(codes + 8 * k, kq_load_word(codes + 8 * k) | one << 4);
    }
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

/* One bit of each of 256 codes: byte l, bit k: bit `bit` of weight 32k + l. (No shift: machines have none for bytes.) */
static inline void kq_pack_bit(const uint8_t *restrict codes, int bit, uint8_t *restrict bytes) {
    const uint8_t mask = (uint8_t)(1 << bit);
    for (int l = 0; l < 32; l++) bytes[l] = 0;
    for (int k = 0; k < 8; k++) {
        for (int l = 0; l < 32; l++) bytes[l] |= (uint8_t)((codes[32 * k + l] & mask) != 0 ? 1 << k : 0);
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
