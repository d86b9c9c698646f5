/* The type table and the row loops. */
#include "kquant.h"

#include <math.h>
#include <string.h>

#include "fit.h"
#include "format.h"
#include "number.h"

#if defined(__x86_64__) && !defined(KQ_SCALAR_ONLY)
#define EACH_ISA(scalar, name) {NULL, scalar, name##_avx2, name##_avx512}
#else
#define EACH_ISA(scalar, name) {NULL, scalar, NULL, NULL}
#endif
#define KERNELS(name) \
    EACH_ISA(kq_encode_##name, kq_encode_##name), EACH_ISA(kq_decode_##name##_scalar, kq_decode_##name)

static const struct kq_format FORMATS[] = {
    {KQ_Q4_0, 32, 18, 1, {0}, 1, KERNELS(q4_0)},
    {KQ_Q4_1, 32, 20, 2, {0, 2}, 1, KERNELS(q4_1)},
    {KQ_Q5_0, 32, 22, 1, {0}, 1, KERNELS(q5_0)},
    {KQ_Q5_1, 32, 24, 2, {0, 2}, 1, KERNELS(q5_1)},
    {KQ_Q8_0, 32, 34, 1, {0}, 0, KERNELS(q8_0)},
    {KQ_Q2_K, 256, 84, 2, {80, 82}, 0, KERNELS(q2_k)},
    {KQ_Q3_K, 256, 110, 1, {108}, 0, KERNELS(q3_k)},
    {KQ_Q4_K, 256, 144, 2, {0, 2}, 0, KERNELS(q4_k)},
    {KQ_Q5_K, 256, 176, 2, {0, 2}, 0, KERNELS(q5_k)},
    {KQ_Q6_K, 256, 210, 1, {208}, 0, KERNELS(q6_k)},
    {KQ_IQ4_NL, 32, 18, 1, {0}, 0, KERNELS(iq4_nl)},
    {KQ_IQ4_XS, 256, 136, 1, {0}, 0, KERNELS(iq4_xs)},
};

static kq_widen_fn *const WIDEN[KQ_ISAS] = EACH_ISA(kq_widen_scalar, kq_widen);
static kq_sum_errors_fn *const SUM_ERRORS[KQ_ISAS] = EACH_ISA(kq_sum_errors_scalar, kq_sum_errors);

static const struct kq_format *find_format(enum kq_type type) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (FORMATS[i].type == type) return &FORMATS[i];
    }
    return NULL;
}

static size_t float_bytes(enum kq_type type) { return type == KQ_F32 ? 4 : type == KQ_F16 || type == KQ_BF16 ? 2 : 0; }

size_t kq_block_weights(enum kq_type type) {
    const struct kq_format *format = find_format(type);
    return format ? format->weights : float_bytes(type) ? 1 : 0;
}

size_t kq_block_bytes(enum kq_type type) {
    const struct kq_format *format = find_format(type);
    return format ? format->bytes : float_bytes(type);
}

size_t kq_row_bytes(enum kq_type type, size_t cols) {
    size_t weights = kq_block_weights(type), bytes = kq_block_bytes(type);
    if (!weights || !cols || cols % weights || cols / weights > SIZE_MAX / bytes) return 0;
    return cols / weights * bytes;
}

enum kq_isa kq_best_isa(void) {
#if defined(__x86_64__) && !defined(KQ_SCALAR_ONLY)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return KQ_ISA_SCALAR;
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    return wide ? KQ_ISA_AVX512 : KQ_ISA_AVX2;
#else
    return KQ_ISA_SCALAR;
#endif
}

int kq_isa_usable(enum kq_isa isa) { return (int)isa >= KQ_ISA_AUTO && isa <= kq_best_isa(); }

static enum kq_isa level_of(enum kq_isa isa) { return isa == KQ_ISA_AUTO ? kq_best_isa() : isa; }

/* n elements of a float type as F32: x itself where it is F32 already, else widened into `piece`. */
static const float *load_floats(enum kq_type source, const void *x, size_t at, size_t n, enum kq_isa level, float *piece) {
    if (source == KQ_F32) return (const float *)x + at;
    WIDEN[level](source, (const uint16_t *)x + at, n, piece);
    return piece;
}

static size_t piece_length(size_t at, size_t cols) { return cols - at < KQ_PIECE ? cols - at : KQ_PIECE; }

/* Mean square of a row, summed in index order. */
static float mean_square(enum kq_type source, const void *x, size_t begin, size_t cols, enum kq_isa level) {
    float piece[KQ_PIECE], sum = 0;
    for (size_t at = 0; at < cols; at += KQ_PIECE) {
        size_t n = piece_length(at, cols);
        const float *v = load_floats(source, x, begin + at, n, level, piece);
        for (size_t i = 0; i < n; i++) sum += v[i] * v[i];
    }
    return sum / (float)cols;
}

float kq_error_weights(int n, float sigma2, const float *restrict x, const float *restrict importance, float *restrict w) {
    float sum = 0;
    for (int i = 0; i < n; i++) {
        w[i] = importance[i] * sqrtf(sigma2 + x[i] * x[i]);
        sum += w[i];
    }
    return sum;
}

/* The checks that quantising and measuring share. */
static enum kq_status check(enum kq_type type, enum kq_type source, size_t rows, size_t cols) {
    if (!find_format(type) || !float_bytes(source)) return KQ_BAD_TYPE;
    size_t bytes = kq_row_bytes(type, cols);
    if (!bytes || (rows && (cols > SIZE_MAX / 4 / rows || bytes > SIZE_MAX / rows))) return KQ_BAD_COLS;
    return KQ_OK;
}

enum kq_status kq_quantize_rows(enum kq_type type, enum kq_type source, const void *x, size_t rows, size_t cols,
                                const float *importance, void *blocks, enum kq_isa isa) {
    enum kq_status status = check(type, source, rows, cols);
    if (status != KQ_OK) return status;
    if (!kq_isa_usable(isa)) return KQ_BAD_ISA;
    const struct kq_format *format = find_format(type);
    const enum kq_isa level = level_of(isa);
    uint8_t *out = blocks;
    if (!importance && rows) cols *= rows, rows = 1; /* a block then knows nothing of its row: short rows fill the lanes too */
    for (size_t row = 0; row < rows; row++) {
        float piece[KQ_PIECE];
        size_t begin = row * cols;
        float sigma2 = importance && format->wants_row_sigma2 ? mean_square(source, x, begin, cols, level) : 0;
        for (size_t at = 0; at < cols; at += KQ_PIECE) {
            size_t n = piece_length(at, cols), n_blocks = n / format->weights;
            const float *v = load_floats(source, x, begin + at, n, level, piece);
            format->encode[level](v, importance ? importance + at : NULL, sigma2, n_blocks, out);
            out += n_blocks * format->bytes;
        }
    }
    return KQ_OK;
}

/* A piece of a row as floats, from blocks or from a float type. */
static void decode_piece(const struct kq_format *format, enum kq_type type, const void *row, size_t at, size_t n, enum kq_isa level,
                         float *y) {
    if (format) {
        format->decode[level]((const uint8_t *)row + at / format->weights * format->bytes, n / format->weights, y);
        return;
    }
    const float *v = load_floats(type, row, at, n, level, y);
    if (v != y) memcpy(y, v, n * sizeof *y);
}

enum kq_status kq_dequantize_rows(enum kq_type type, const void *blocks, size_t rows, size_t cols, float *y) {
    const struct kq_format *format = find_format(type);
    if (!format && !float_bytes(type)) return KQ_BAD_TYPE;
    size_t bytes = kq_row_bytes(type, cols);
    if (!bytes || (rows && (cols > SIZE_MAX / 4 / rows || bytes > SIZE_MAX / rows))) return KQ_BAD_COLS;
    const enum kq_isa level = kq_best_isa();
    for (size_t row = 0; row < rows; row++) decode_piece(format, type, (const uint8_t *)blocks + row * bytes, 0, cols, level, y + row * cols);
    return KQ_OK;
}

/* Non-finite elements have all exponent bits set. A branch-free pass finds the piece, a second one the place. */
size_t kq_find_nonfinite(enum kq_type source, const void *x, size_t n) {
    uint32_t wide = 0x7f800000u;
    uint16_t narrow = source == KQ_F16 ? 0x7c00 : 0x7f80;
    for (size_t at = 0; at < n; at += KQ_PIECE) {
        size_t length = piece_length(at, n);
        const uint32_t *u = (const uint32_t *)x + at;
        const uint16_t *h = (const uint16_t *)x + at;
        uint32_t bad = 0;
        if (source == KQ_F32) for (size_t i = 0; i < length; i++) bad |= (u[i] & wide) == wide;
        else for (size_t i = 0; i < length; i++) bad |= (h[i] & narrow) == narrow;
        for (size_t i = 0; bad && i < length; i++) {
            if (source == KQ_F32 ? (u[i] & wide) == wide : (h[i] & narrow) == narrow) return at + i;
        }
    }
    return n;
}

size_t kq_find_bad_block(enum kq_type type, const void *blocks, size_t n) {
    const struct kq_format *format = find_format(type);
    if (!format) return n;
    const uint8_t *block = blocks;
    for (size_t i = 0; i < n; i++, block += format->bytes) {
        for (int k = 0; k < format->halves; k++) {
            if ((kq_load_u16(block + format->half_offset[k]) & 0x7c00) == 0x7c00) return i;
        }
    }
    return n;
}

enum kq_status kq_measure_rows(enum kq_type type, enum kq_type source, const void *x, const void *blocks, size_t rows,
                               size_t cols, struct kq_error *error) {
    enum kq_status status = check(type, source, rows, cols);
    if (status != KQ_OK) return status;
    const struct kq_format *format = find_format(type);
    size_t bytes = kq_row_bytes(type, cols);
    const enum kq_isa level = kq_best_isa();
    double total[4] = {0};
    for (size_t row = 0; row < rows; row++) {
        double sums[4][8] = {{0}};
        for (size_t at = 0; at < cols; at += KQ_PIECE) {
            float piece[KQ_PIECE], y[KQ_PIECE];
            size_t n = piece_length(at, cols);
            decode_piece(format, type, (const uint8_t *)blocks + row * bytes, at, n, level, y);
            SUM_ERRORS[level](load_floats(source, x, row * cols + at, n, level, piece), y, n, sums);
        }
        for (int f = 0; f < 4; f++) {
            for (int k = 0; k < 8; k++) total[f] += sums[f][k];
        }
    }
    *error = (struct kq_error){total[0], total[1], total[2], total[3]};
    return KQ_OK;
}
