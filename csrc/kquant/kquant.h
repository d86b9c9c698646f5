/* kquant: the block formats of GGUF files, and the exact way ggml fills them.
 *
 * This header is the manual. A *row* is `cols` weights; it is stored as cols / B consecutive blocks, where B is
 * the block length of its type (32 or 256). Rows follow each other without a gap. All multi-byte fields are
 * little endian; a block has no padding.
 *
 *   type    B    bytes  bits per weight     one weight is
 *   Q8_0    32    34    8.5                 d * q
 *   Q4_0    32    18    4.5                 d * (q - 8)
 *   Q4_1    32    20    5.0                 d * q + m
 *   Q5_0    32    22    5.5                 d * (q - 16)
 *   Q5_1    32    24    6.0                 d * q + m
 *   IQ4_NL  32    18    4.5                 d * codebook[q]
 *   Q2_K    256   84    2.625               (d * scale) * q - dmin * min        16 sub-blocks of 16
 *   Q3_K    256  110    3.4375              (d * scale) * q                     16 sub-blocks of 16
 *   Q4_K    256  144    4.5                 (d * scale) * q - dmin * min         8 sub-blocks of 32
 *   Q5_K    256  176    5.5                 (d * scale) * q - dmin * min         8 sub-blocks of 32
 *   Q6_K    256  210    6.5625              (d * scale) * q                     16 sub-blocks of 16
 *   IQ4_XS  256  136    4.25                (d * scale) * codebook[q]            8 sub-blocks of 32
 *
 * Exactness. The bytes equal those of ggml on x86-64 (no fused multiply-add), with and without importance
 * weights, for every instruction set, thread count and compiler. That holds because every product and sum is
 * rounded to binary32 on its own and in the written order; the files must be compiled with -ffp-contract=off.
 *
 * Contract of all functions
 *   buffers    owned by the caller; sizes as stated at each function. x, y and importance need the natural
 *              alignment of their element type; blocks need none.
 *   aliasing   outputs must not overlap inputs; inputs may overlap each other.
 *   memory     nothing is allocated; at most 48 KiB of stack is used (80 KiB without optimisation).
 *   returns    KQ_OK, or another kq_status: then the output is untouched. Arguments are checked in the order type, cols,
 *              instruction set; NULL is not looked for where a buffer is asked for.
 *   threads    every function is reentrant and keeps no state; rows may be spread over threads in any way, and
 *              the bytes do not change.
 *   values     x must be finite, importance finite and not negative (kq_find_nonfinite tells). Other values do
 *              no harm to memory, but the bytes are then not defined. An importance vector of only zeros says
 *              nothing: pass NULL instead.
 *   blocks     dequantisation reads any bytes: a damaged block gives strange weights, never a stray access.
 */
#ifndef KQUANT_H
#define KQUANT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are ggml's, as tensor infos of a GGUF spell them. */
enum kq_type {
    KQ_F32 = 0,
    KQ_F16 = 1,
    KQ_Q4_0 = 2,
    KQ_Q4_1 = 3,
    KQ_Q5_0 = 6,
    KQ_Q5_1 = 7,
    KQ_Q8_0 = 8,
    KQ_Q2_K = 10,
    KQ_Q3_K = 11,
    KQ_Q4_K = 12,
    KQ_Q5_K = 13,
    KQ_Q6_K = 14,
    KQ_IQ4_NL = 20,
    KQ_IQ4_XS = 23,
    KQ_BF16 = 30
};

enum kq_isa {
    KQ_ISA_AUTO = 0,   /* the best this machine has */
    KQ_ISA_SCALAR = 1, /* plain C: the oracle of the others */
    KQ_ISA_AVX2 = 2,
    KQ_ISA_AVX512 = 3
};

enum kq_status {
    KQ_OK = 0,
    KQ_BAD_TYPE = 1, /* not a type this function handles */
    KQ_BAD_COLS = 2, /* cols is 0, not a multiple of the block length, or a size overflows */
    KQ_BAD_ISA = 3   /* this machine cannot run the instruction set asked for */
};

/* Weights in a block and bytes of a block; 0 for an unknown type. F32, F16 and BF16 have blocks of one weight. */
size_t kq_block_weights(enum kq_type type);
size_t kq_block_bytes(enum kq_type type);

/* Bytes of a row; 0 when the type is unknown, cols is 0 or not a multiple of the block length, or it overflows. */
size_t kq_row_bytes(enum kq_type type, size_t cols);

/* The instruction set that KQ_ISA_AUTO stands for on this machine, and whether `isa` can be asked for. */
enum kq_isa kq_best_isa(void);
int kq_isa_usable(enum kq_isa isa);

/* Quantise rows.
 *   x           rows * cols elements of type `source` (KQ_F32, KQ_F16 or KQ_BF16)
 *   importance  NULL, or cols floats: the weight of each column's squared error, the same for every row.
 *               Q8_0 has no search and ignores it.
 *   blocks      rows * kq_row_bytes(type, cols) bytes, written completely on KQ_OK, untouched otherwise
 */
enum kq_status kq_quantize_rows(enum kq_type type, enum kq_type source, const void *x, size_t rows, size_t cols,
                                const float *importance, void *blocks, enum kq_isa isa);

/* Dequantise rows: blocks as above (of any type, F32, F16 and BF16 too), y rows * cols floats. */
enum kq_status kq_dequantize_rows(enum kq_type type, const void *blocks, size_t rows, size_t cols, float *y);

/* Index of the first NaN or infinity among n elements of type `source` (KQ_F32, KQ_F16, KQ_BF16); n if none. */
size_t kq_find_nonfinite(enum kq_type source, const void *x, size_t n);

/* Index of the first block among n whose binary16 scale or minimum is NaN or infinite; n if none. */
size_t kq_find_bad_block(enum kq_type type, const void *blocks, size_t n);

/* What quantising did to the weights, in sums over `rows` rows: add the fields of two results to join them. */
struct kq_error {
    double xx; /* sum of x * x */
    double yy; /* sum of y * y, y the dequantised weight */
    double xy; /* sum of x * y */
    double ee; /* sum of (x - y) squared */
};

/* Sums for rows of x (type `source`) and their blocks; sizes as for kq_quantize_rows. The order of the sums is
 * fixed by cols, so the result depends on nothing else. */
enum kq_status kq_measure_rows(enum kq_type type, enum kq_type source, const void *x, const void *blocks, size_t rows,
                               size_t cols, struct kq_error *error);

/* ---- the blocks, byte by byte ---------------------------------------------------------------------------- */

/* A binary16 number without alignment. */
typedef struct {
    uint8_t byte[2];
} kq_half;

struct kq_q8_0 {
    kq_half d;
    int8_t qs[32];
};

struct kq_q4_0 {
    kq_half d;
    uint8_t qs[16]; /* low nibble of byte j: weight j; high nibble: weight j + 16 */
};

struct kq_q4_1 {
    kq_half d;
    kq_half m;
    uint8_t qs[16]; /* as Q4_0 */
};

struct kq_q5_0 {
    kq_half d;
    uint8_t qh[4];  /* bit i of the little-endian word: bit 4 of weight i */
    uint8_t qs[16]; /* low four bits, as Q4_0 */
};

struct kq_q5_1 {
    kq_half d;
    kq_half m;
    uint8_t qh[4];
    uint8_t qs[16];
};

struct kq_q2_k {
    uint8_t scales[16]; /* sub-block s: low nibble scale, high nibble min */
    uint8_t qs[64];     /* byte 32h + l, bits 2p..2p+1: weight 128h + 32p + l */
    kq_half d;
    kq_half dmin;
};

struct kq_q3_k {
    uint8_t hmask[32];  /* byte l, bit k: bit 2 of weight 32k + l */
    uint8_t qs[64];     /* as Q2_K */
    uint8_t scales[12]; /* 16 scales of 6 bits, offset 32, packed as q3_k.c says */
    kq_half d;
};

struct kq_q4_k {
    kq_half d;
    kq_half dmin;
    uint8_t scales[12]; /* 8 pairs (scale, min) of 6 bits, packed as super.h says */
    uint8_t qs[128];    /* byte 32g + l: low nibble weight 64g + l, high nibble weight 64g + 32 + l */
};

struct kq_q5_k {
    kq_half d;
    kq_half dmin;
    uint8_t scales[12];
    uint8_t qh[32];  /* byte l, bit k: bit 4 of weight 32k + l */
    uint8_t qs[128]; /* as Q4_K */
};

struct kq_q6_k {
    uint8_t ql[128];   /* byte 64h + l (l < 64): low nibble weight 128h + l, high nibble weight 128h + 64 + l */
    uint8_t qh[64];    /* byte 32h + l, bits 2p..2p+1: bits 4..5 of weight 128h + 32p + l */
    int8_t scales[16]; /* sub-block s */
    kq_half d;
};

struct kq_iq4_nl {
    kq_half d;
    uint8_t qs[16]; /* code book indices, as Q4_0 */
};

struct kq_iq4_xs {
    kq_half d;
    uint8_t scales_h[2]; /* little-endian word, bits 2b..2b+1: bits 4..5 of scale b */
    uint8_t scales_l[4]; /* nibble b (low first): bits 0..3 of scale b, offset 32 */
    uint8_t qs[128];     /* 16 bytes a sub-block, as Q4_0 */
};

#ifdef __cplusplus
#define KQ_ASSERT_BYTES(type, sum) static_assert(sizeof(struct type) == (sum), #type " has padding")
#else
#define KQ_ASSERT_BYTES(type, sum) _Static_assert(sizeof(struct type) == (sum), #type " has padding")
#endif
KQ_ASSERT_BYTES(kq_q8_0, 2 + 32);
KQ_ASSERT_BYTES(kq_q4_0, 2 + 16);
KQ_ASSERT_BYTES(kq_q4_1, 2 + 2 + 16);
KQ_ASSERT_BYTES(kq_q5_0, 2 + 4 + 16);
KQ_ASSERT_BYTES(kq_q5_1, 2 + 2 + 4 + 16);
KQ_ASSERT_BYTES(kq_q2_k, 16 + 64 + 2 + 2);
KQ_ASSERT_BYTES(kq_q3_k, 32 + 64 + 12 + 2);
KQ_ASSERT_BYTES(kq_q4_k, 2 + 2 + 12 + 128);
KQ_ASSERT_BYTES(kq_q5_k, 2 + 2 + 12 + 32 + 128);
KQ_ASSERT_BYTES(kq_q6_k, 128 + 64 + 16 + 2);
KQ_ASSERT_BYTES(kq_iq4_nl, 2 + 16);
KQ_ASSERT_BYTES(kq_iq4_xs, 2 + 2 + 4 + 128);

#ifdef __cplusplus
}
#endif
#endif
