/* libFuzzer on csrc/kquant, two targets: any bytes as rows and importance (quantise) and as blocks (dequantise, with FUZZ_BLOCKS).
 * Finite rows must give the same blocks on every instruction set; any blocks must decode, to finite weights unless a bad block is
 * reported. All buffers have exactly the promised size, on odd addresses where the manual allows it. Run: fuzz/kquant.sh. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kquant/kquant.h"

static const enum kq_type TYPES[] = {KQ_Q4_0, KQ_Q4_1, KQ_Q5_0, KQ_Q5_1, KQ_Q8_0, KQ_Q2_K,
                                     KQ_Q3_K, KQ_Q4_K, KQ_Q5_K, KQ_Q6_K, KQ_IQ4_NL, KQ_IQ4_XS};
enum { MOST_WEIGHTS = 4608 };

/* n bytes for blocks, which need no alignment: on an odd address, and their end is the end of the allocation. */
static uint8_t *odd_bytes(size_t n, uint8_t **allocation) {
    *allocation = malloc(n + 1);
    if (!*allocation) abort();
    return *allocation + 1;
}

#ifdef FUZZ_BLOCKS

static void check_blocks(enum kq_type type, const uint8_t *data, size_t size) {
    size_t cols = kq_block_weights(type), n = size / kq_block_bytes(type);
    if (n > MOST_WEIGHTS / cols) n = MOST_WEIGHTS / cols;
    uint8_t *allocation, *blocks = odd_bytes(n * kq_block_bytes(type), &allocation);
    memcpy(blocks, data, n * kq_block_bytes(type));
    float *y = malloc(n * cols * sizeof *y + 1), *one = malloc(cols * sizeof *one);
    if (!y || !one || kq_dequantize_rows(type, blocks, n, cols, y) != KQ_OK) abort();
    size_t bad = kq_find_bad_block(type, blocks, n);
    if (bad > n) abort();
    for (size_t i = 0; i < bad * cols; i++) if (!isfinite(y[i])) abort();
    for (size_t i = 0; i < n; i++) { /* a block by itself gives the same weights */
        if (kq_dequantize_rows(type, blocks + i * kq_block_bytes(type), 1, cols, one) != KQ_OK) abort();
        if (memcmp(one, y + i * cols, cols * sizeof *one)) abort();
    }
    struct kq_error error;
    if (n && kq_measure_rows(type, KQ_F32, y, blocks, n, cols, &error) != KQ_OK) abort();
    if (n && bad == n && !(error.ee == 0)) abort();
    free(allocation), free(y), free(one);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size) check_blocks(TYPES[data[0] % 12], data + 1, size - 1);
    return 0;
}

#else

static const enum kq_type SOURCES[] = {KQ_F32, KQ_F16, KQ_BF16};

static void *copy_of(const void *data, size_t n) {
    void *copy = malloc(n ? n : 1);
    if (!copy) abort();
    memcpy(copy, data, n);
    return copy;
}

/* Any bytes as a row, after as many as importance wants. */
static void encode(enum kq_type type, enum kq_type source, int weighted, const uint8_t *data, size_t size) {
    size_t width = kq_block_bytes(source), each = width + (weighted ? sizeof(float) : 0), block = kq_block_weights(type);
    size_t cols = size / each / block * block;
    if (!cols) return;
    if (cols > MOST_WEIGHTS) cols = MOST_WEIGHTS;
    float *importance = weighted ? copy_of(data, cols * sizeof *importance) : NULL;
    void *x = copy_of(data + (weighted ? cols * sizeof(float) : 0), cols * width);
    int usable = kq_find_nonfinite(source, x, cols) == cols, some = 0;
    for (size_t i = 0; weighted && i < cols; i++) {
        importance[i] = fabsf(importance[i]);
        if (!(importance[i] < 1e30f)) importance[i] = 1;
        some |= importance[i] > 0;
    }
    size_t bytes = kq_row_bytes(type, cols);
    uint8_t *allocations[2], *twin = odd_bytes(bytes, &allocations[0]), *blocks = odd_bytes(bytes, &allocations[1]);
    for (int isa = KQ_ISA_SCALAR; isa <= (int)kq_best_isa(); isa++) {
        if (kq_quantize_rows(type, source, x, 1, cols, importance, isa == KQ_ISA_SCALAR ? twin : blocks, (enum kq_isa)isa) != KQ_OK) abort();
        if (isa != KQ_ISA_SCALAR && usable && (some || !weighted) && memcmp(twin, blocks, bytes)) abort();
    }
    struct kq_error error;
    if (kq_measure_rows(type, source, x, twin, 1, cols, &error) != KQ_OK) abort();
    free(importance), free(x), free(allocations[0]), free(allocations[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    encode(TYPES[data[0] % 12], SOURCES[data[1] / 2 % 3], data[1] & 1, data + 2, size - 2);
    return 0;
}

#endif
