/* The loops, written without branches so that a compiler turns them into vectors; included once an instruction set,
 * with FL_LOOP(name) giving the functions their names.
 */
#include <string.h>

#include "floats.h"

enum { FL_PIECE = 1024 /* elements looked at together: a piece is counted, and its place sought only when it is bad */ };

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* A choice by masks: a conditional around floating point would keep the loop from becoming vectors. */
static inline uint32_t choose(uint32_t condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - condition;
    return (yes & mask) | (no & ~mask);
}

static inline float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

/* A subnormal is its mantissa times 2^-24, which is exact. */
static inline float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t normal = (rest << 13) + choose(rest >= 0x7c00, 224u << 23, 112u << 23);
    uint32_t small = bits_of((float)(int32_t)(rest & 0x3ff) * 0x1p-24f);
    return float_of(sign | choose(rest < 0x400, small, normal));
}

static inline uint16_t to_bf16(float f) {
    uint32_t u = bits_of(f);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Below 2^-14 the sum with 0.5 rounds at the place of 2^-24; from 65520 on all is infinite. */
static inline uint16_t to_f16(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    uint32_t small = bits_of(float_of(a) + 0.5f) - 0x3f000000;
    uint32_t normal = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    return (uint16_t)(sign | choose(a >= 0x477ff000u, 0x7c00, choose(a < 0x38800000u, small, normal)));
}

static inline float from_f32(float f) { return f; }
static inline float to_f32(float f) { return f; }

/* The largest exponent of the piece is all ones exactly when an element is not finite. */
#define FIND(name, type, signed_type, mask)                                                                    \
    static size_t name(const void *data, size_t n) {                                                           \
        const type *x = data;                                                                                  \
        for (size_t at = 0; at < n; at += FL_PIECE) {                                                          \
            size_t end = n - at < FL_PIECE ? n : at + FL_PIECE;                                                \
            signed_type top = 0;                                                                               \
            for (size_t i = at; i < end; i++) {                                                                \
                signed_type e = (signed_type)(x[i] & (mask));                                                  \
                top = e > top ? e : top;                                                                       \
            }                                                                                                  \
            for (size_t i = at; top == (signed_type)(mask) && i < end; i++) {                                  \
                if ((x[i] & (mask)) == (mask)) return i;                                                       \
            }                                                                                                  \
        }                                                                                                      \
        return n;                                                                                              \
    }

FIND(find_f32, uint32_t, int32_t, 0x7f800000u)
FIND(find_f16, uint16_t, int16_t, 0x7c00u)
FIND(find_bf16, uint16_t, int16_t, 0x7f80u)

size_t FL_LOOP(fl_find)(enum fl_type type, const void *x, size_t n) {
    return type == FL_F32 ? find_f32(x, n) : type == FL_F16 ? find_f16(x, n) : find_bf16(x, n);
}

/* `tiny` is the smallest normal number of the type it goes to. Sums of a piece fit 32 bits, as wide as the lanes. */
#define CONVERT(from_name, from_type, to_name, to_type, tiny)                                                  \
    static struct fl_losses from_name##_##to_name(const void *data, void *out, size_t n) {                     \
        const from_type *restrict x = data;                                                                    \
        to_type *restrict y = out;                                                                             \
        struct fl_losses sum = {0, 0, 0};                                                                      \
        for (size_t at = 0; at < n; at += FL_PIECE) {                                                          \
            size_t end = n - at < FL_PIECE ? n : at + FL_PIECE;                                                \
            uint32_t over = 0, flushed = 0, sub = 0;                                                           \
            for (size_t i = at; i < end; i++) {                                                                \
                float v = from_##from_name(x[i]);                                                              \
                to_type h = to_##to_name(v);                                                                   \
                uint32_t a = bits_of(v) & 0x7fffffff, b = bits_of(from_##to_name(h)) & 0x7fffffff;             \
                y[i] = h;                                                                                      \
                over += b == 0x7f800000u;                                                                      \
                flushed += b == 0 && a != 0;                                                                   \
                sub += b != 0 && b < bits_of(tiny) && b != a;                                                  \
            }                                                                                                  \
            sum.overflows += over, sum.flushed += flushed, sum.subnormals += sub;                              \
        }                                                                                                      \
        return sum;                                                                                            \
    }

#define F16_TINY 0x1p-14f
#define F32_TINY 0x1p-126f

CONVERT(f32, float, f32, float, F32_TINY)
CONVERT(f32, float, f16, uint16_t, F16_TINY)
CONVERT(f32, float, bf16, uint16_t, F32_TINY)
CONVERT(f16, uint16_t, f32, float, F32_TINY)
CONVERT(f16, uint16_t, f16, uint16_t, F16_TINY)
CONVERT(f16, uint16_t, bf16, uint16_t, F32_TINY)
CONVERT(bf16, uint16_t, f32, float, F32_TINY)
CONVERT(bf16, uint16_t, f16, uint16_t, F16_TINY)
CONVERT(bf16, uint16_t, bf16, uint16_t, F32_TINY)

struct fl_losses FL_LOOP(fl_convert)(enum fl_type from, const void *x, enum fl_type to, void *y, size_t n) {
    typedef struct fl_losses convert_fn(const void *, void *, size_t);
    static convert_fn *const TABLE[3][3] = {
        {f32_f32, f32_f16, f32_bf16},
        {f16_f32, f16_f16, f16_bf16},
        {bf16_f32, bf16_f16, bf16_bf16},
    };
    int row = from == FL_BF16 ? 2 : (int)from, column = to == FL_BF16 ? 2 : (int)to;
    return TABLE[row][column](x, y, n);
}
