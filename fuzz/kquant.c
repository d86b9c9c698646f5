/* libFuzzer on csrc/kquant: any bytes as rows, importance and blocks. Finite rows must give the same blocks on every
 * instruction set, in buffers of exactly the promised size; any blocks must decode. Build and run: fuzz/kquant.sh. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kquant/kquant.h"

static const enum kq_type TYPES[] = {KQ_Q4_0, KQ_Q4_1, KQ_Q5_0, KQ_Q5_1, KQ_Q8_0, KQ_Q2_K,
                                     KQ_Q3_K, KQ_Q4_K, KQ_Q5_K, KQ_Q6_K, KQ_IQ4_NL, KQ_IQ4_XS};
static const enum kq_type SOURCES[] = {KQ_F32, KQ_F16, KQ_BF16};
enum { MOST_WEIGHTS = 4608 };

static void *copy_of(const void *data, size_t n) {
    void *copy = malloc(n ? n : 1);
    if (!copy) abort();
    memcpy(copy, data, n);
    return copy;
}

/* Any bytes as blocks: decoding and the checks stay inside. */
static void decode(enum kq_type type, const uint8_t *data, size_t size) {
    size_t blocks = size / kq_block_bytes(type), cols = kq_block_weights(type);
    if (blocks > MOST_WEIGHTS / cols) blocks = MOST_WEIGHTS / cols;
    uint8_t *b = copy_of(data, blocks * kq_block_bytes(type));
    float *y = malloc(blocks * cols * sizeof *y + 1);
    if (!y || kq_dequantize_rows(type, b, blocks, cols, y) != KQ_OK) abort();
    if (kq_find_bad_block(type, b, blocks) > blocks) abort();
    free(b), free(y);
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
    uint8_t *twin = malloc(bytes), *blocks = malloc(bytes);
    if (!twin || !blocks) abort();
    for (int isa = KQ_ISA_SCALAR; isa <= (int)kq_best_isa(); isa++) {
        if (kq_quantize_rows(type, source, x, 1, cols, importance, isa == KQ_ISA_SCALAR ? twin : blocks, (enum kq_isa)isa) != KQ_OK) abort();
        if (isa != KQ_ISA_SCALAR && usable && (some || !weighted) && memcmp(twin, blocks, bytes)) abort();
    }
    struct kq_error error;
    if (kq_measure_rows(type, source, x, twin, 1, cols, &error) != KQ_OK) abort();
    free(importance), free(x), free(twin), free(blocks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    enum kq_type type = TYPES[data[0] % 12], source = SOURCES[data[1] / 2 % 3];
    int weighted = data[1] & 1, as_blocks = data[1] & 128;
    if (as_blocks) decode(type, data + 2, size - 2);
    else encode(type, source, weighted, data + 2, size - 2);
    return 0;
}
