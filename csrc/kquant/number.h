/* Numbers as the formats round them: binary16, bfloat16, and the three ways to an integer. */
#ifndef KQ_NUMBER_H
#define KQ_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kquant.h"

static inline uint32_t kq_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float kq_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float kq_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 0) return kq_float(sign | kq_bits((float)mantissa * 0x1p-24f)); /* zero and subnormals */
    if (exponent == 31) return kq_float(sign | 0x7f800000u | mantissa << 13);
    return kq_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Nearest, ties to even; 65520 and above become infinity; every NaN becomes sign | 0x7e00. */
static inline uint16_t kq_f16_from_f32(float f) {
    uint32_t bits = kq_bits(f), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u) /* below 2^-14: the last bit of 0.5 is worth 2^-24, so the adder rounds for us */
        return (uint16_t)(sign | (kq_bits(kq_float(a) + 0.5f) - kq_bits(0.5f)));
    a -= 112u << 23;
    return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1)) >> 13);
}

static inline float kq_f32_from_bf16(uint16_t b) { return kq_float((uint32_t)b << 16); }

static inline uint16_t kq_load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static inline float kq_get(kq_half h) { return kq_f32_from_f16(kq_load_u16(h.byte)); }

static inline kq_half kq_put(float f) {
    uint16_t u = kq_f16_from_f32(f);
    kq_half h = {{(uint8_t)u, (uint8_t)(u >> 8)}};
    return h;
}

/* Nearest integer, ties to even, for |x| <= 4194303. The addition leaves the integer in the low mantissa bits.
 * What it gives outside that range is part of the formats: rows of denormals get there. */
static inline int kq_round(float x) {
    return (int)(kq_bits(x + 12582912.0f) & 0x7fffff) - 0x400000;
}

/* Toward zero to 8 bits, as x86 converts: whatever does not fit in 32 bits, NaN too, gives 0. */
static inline int kq_truncate(float x) {
    return fabsf(x) < 0x1p31f ? (int8_t)(int32_t)x : 0;
}

/* Nearest integer to 8 bits, ties away from zero: not floor(x + 0.5), which is wrong just below one half. */
static inline int kq_round_away(float x) { return kq_truncate(roundf(x)); }

static inline int kq_clamp(int v, int lo, int hi) { return v < lo ? lo : v > hi ? hi : v; }

#endif
