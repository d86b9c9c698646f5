/* What a format is to the row loop: sizes, and an encoder and a decoder for each instruction set. */
#ifndef KQ_FORMAT_H
#define KQ_FORMAT_H

#include "kquant.h"

/* Rows reach encoders in pieces of at most this many weights. */
enum { KQ_PIECE = 2048 };

/* Encode n_blocks blocks, KQ_PIECE weights at most. `importance` is NULL or belongs to the same columns as x; row_sigma2 is the mean square
 * of the whole row, given only to formats that ask for it, and only with importance. */
typedef void kq_encode_fn(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                          void *restrict blocks);
typedef void kq_decode_fn(const void *restrict blocks, size_t n_blocks, float *restrict y);

/* n elements of F16 or BF16 as F32. */
typedef void kq_widen_fn(enum kq_type source, const uint16_t *restrict h, size_t n, float *restrict y);
/* Add n pairs (a multiple of 8) to eight running sums for each field of struct kq_error. */
typedef void kq_sum_errors_fn(const float *restrict x, const float *restrict y, size_t n, double sums[restrict 4][8]);

enum { KQ_ISAS = KQ_ISA_AVX512 + 1 };

struct kq_format {
    enum kq_type type;
    uint16_t weights, bytes;
    uint8_t halves, half_offset[2]; /* where a block's binary16 fields are */
    uint8_t wants_row_sigma2;
    kq_encode_fn *encode[KQ_ISAS]; /* by enum kq_isa; nothing at KQ_ISA_AUTO */
    kq_decode_fn *decode[KQ_ISAS];
};

#define KQ_DECLARE(name)                                                                                  \
    kq_encode_fn kq_encode_##name, kq_encode_##name##_avx2, kq_encode_##name##_avx512;                     \
    kq_decode_fn kq_decode_##name##_scalar, kq_decode_##name##_avx2, kq_decode_##name##_avx512
KQ_DECLARE(q8_0);
KQ_DECLARE(q4_0);
KQ_DECLARE(q4_1);
KQ_DECLARE(q5_0);
KQ_DECLARE(q5_1);
KQ_DECLARE(q2_k);
KQ_DECLARE(q3_k);
KQ_DECLARE(q4_k);
KQ_DECLARE(q5_k);
KQ_DECLARE(q6_k);
KQ_DECLARE(iq4_nl);
KQ_DECLARE(iq4_xs);
#undef KQ_DECLARE
kq_widen_fn kq_widen_scalar, kq_widen_avx2, kq_widen_avx512;
kq_sum_errors_fn kq_sum_errors_scalar, kq_sum_errors_avx2, kq_sum_errors_avx512;

/* Error weights of the importance-weighted searches: w = importance * sqrt(sigma2 + x * x). Gives their sum. */
float kq_error_weights(int n, float sigma2, const float *restrict x, const float *restrict importance, float *restrict w);

#endif
