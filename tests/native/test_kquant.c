/* What Python cannot see of kquant: number conversions over their whole domain, the status codes, the midpoints of the
 * IQ4 code book, damaged blocks, and (under sanitizers) that no format touches a byte outside its buffers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kquant/iq4.h"
#include "kquant/kquant.h"
#include "kquant/number.h"

static const enum kq_type TYPES[] = {KQ_Q4_0, KQ_Q4_1, KQ_Q5_0, KQ_Q5_1, KQ_Q8_0, KQ_Q2_K,
                                     KQ_Q3_K, KQ_Q4_K, KQ_Q5_K, KQ_Q6_K, KQ_IQ4_NL, KQ_IQ4_XS};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

static int failures;

#define EXPECT(ok) \
    do { \
        if (!(ok)) failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #ok); \
    } while (0)

static uint32_t state = 1;

static uint32_t random_bits(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static float random_float(void) { return (float)((int)random_bits() - 8388608) * 0x1p-23f; }

/* Every binary16 value survives the round trip, and every rounding boundary between two of them goes to even. */
static void half_is_exact_and_rounds_to_even(void) {
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float here = kq_f32_from_f16((uint16_t)h), next = kq_f32_from_f16((uint16_t)(h + 1));
        if (h + 1 == 0x7c00) next = 65536.0f;
        float middle = (here + next) / 2;
        uint32_t even = h & 1 ? h + 1 : h;
        EXPECT(kq_f16_from_f32(here) == h && kq_f16_from_f32(-here) == (h | 0x8000));
        EXPECT(kq_f16_from_f32(middle) == even && kq_f16_from_f32(-middle) == (even | 0x8000));
        EXPECT(kq_f16_from_f32(nextafterf(middle, 0)) == h && kq_f16_from_f32(nextafterf(middle, INFINITY)) == h + 1);
    }
    EXPECT(kq_f16_from_f32(INFINITY) == 0x7c00 && kq_f16_from_f32(65520.0f) == 0x7c00);
    EXPECT(kq_f16_from_f32(NAN) == 0x7e00 && kq_f16_from_f32(-NAN) == 0xfe00);
    EXPECT(isinf(kq_f32_from_f16(0xfc00)) && isnan(kq_f32_from_f16(0x7c01)));
}

/* kq_round is rintf wherever searches use it. */
static void rounding_is_to_even_in_its_range(void) {
    for (int i = -4194303 * 4; i <= 4194303 * 4; i++) {
        float x = (float)i / 4;
        if (kq_round(x) != (int)rintf(x)) {
            EXPECT(!"kq_round is rintf");
            return;
        }
    }
    EXPECT(kq_truncate(INFINITY) == 0 && kq_truncate(NAN) == 0 && kq_truncate(-3.9f) == -3 && kq_truncate(0x1p31f) == 0);
    EXPECT(kq_round_away(2.5f) == 3 && kq_round_away(-2.5f) == -3 && kq_round_away(0.49999997f) == 0);
}

/* Nearest entry by distance, ties to the upper one: the definition. */
static int nearest_by_distance(float x) {
    const int8_t *book = KQ_IQ4_CODEBOOK;
    if (x <= book[0]) return 0;
    if (x >= book[15]) return 15;
    int u = 1;
    while (x >= book[u]) u++;
    return x - (float)book[u - 1] < (float)book[u] - x ? u - 1 : u;
}

static void midpoints_decide_as_distances_do(void) {
    for (int k = 0; k < 15; k++) {
        float x = KQ_IQ4_MIDPOINT[k];
        EXPECT(2 * x == (float)(KQ_IQ4_CODEBOOK[k] + KQ_IQ4_CODEBOOK[k + 1]));
        for (int step = 0; step < 1000; step++) x = nextafterf(x, -INFINITY);
        for (int step = 0; step < 2000; step++, x = nextafterf(x, INFINITY)) {
            int code = 0;
            for (int j = 0; j < 15; j++) code += x >= KQ_IQ4_MIDPOINT[j];
            EXPECT(code == nearest_by_distance(x));
        }
    }
}

static void status_codes_say_what_is_wrong(void) {
    float x[256] = {0};
    uint8_t blocks[512];
    struct kq_error error;
    EXPECT(kq_quantize_rows((enum kq_type)99, KQ_F32, x, 1, 256, NULL, blocks, KQ_ISA_AUTO) == KQ_BAD_TYPE);
    EXPECT(kq_quantize_rows(KQ_F16, KQ_F32, x, 1, 256, NULL, blocks, KQ_ISA_AUTO) == KQ_BAD_TYPE);
    EXPECT(kq_quantize_rows(KQ_Q4_K, KQ_Q8_0, x, 1, 256, NULL, blocks, KQ_ISA_AUTO) == KQ_BAD_TYPE);
    EXPECT(kq_quantize_rows(KQ_Q4_K, KQ_F32, x, 1, 128, NULL, blocks, KQ_ISA_AUTO) == KQ_BAD_COLS);
    EXPECT(kq_quantize_rows(KQ_Q8_0, KQ_F32, x, 1, 0, NULL, blocks, KQ_ISA_AUTO) == KQ_BAD_COLS);
    EXPECT(kq_quantize_rows(KQ_Q8_0, KQ_F32, x, SIZE_MAX / 64, 256, NULL, blocks, KQ_ISA_AUTO) == KQ_BAD_COLS);
    EXPECT(kq_quantize_rows(KQ_Q8_0, KQ_F32, x, 1, 256, NULL, blocks, (enum kq_isa)4) == KQ_BAD_ISA);
    EXPECT(kq_dequantize_rows(KQ_Q2_K, blocks, 1, 255, x) == KQ_BAD_COLS);
    EXPECT(kq_dequantize_rows((enum kq_type)5, blocks, 1, 256, x) == KQ_BAD_TYPE);
    EXPECT(kq_measure_rows(KQ_Q2_K, KQ_F32, x, blocks, 1, 255, &error) == KQ_BAD_COLS);
    EXPECT(kq_row_bytes(KQ_Q6_K, SIZE_MAX / 256 * 256) == SIZE_MAX / 256 * 210 && kq_row_bytes(KQ_F32, SIZE_MAX) == 0);
    EXPECT(kq_isa_usable(KQ_ISA_SCALAR) && !kq_isa_usable((enum kq_isa)-1) && !kq_isa_usable((enum kq_isa)4));
}

/* Exact-size heap buffers: a sanitizer sees one byte too many. All isas agree; odd addresses for blocks are fine. */
static void formats_stay_inside_their_buffers(enum kq_type type, size_t cols) {
    size_t bytes = kq_row_bytes(type, cols), rows = 2;
    float *x = malloc(rows * cols * sizeof *x), *importance = malloc(cols * sizeof *importance), *y = malloc(rows * cols * sizeof *y);
    uint8_t *storage = malloc(rows * bytes + 1), *blocks = storage + 1, *twin = malloc(rows * bytes);
    if (!x || !importance || !y || !storage || !twin) exit(2);
    for (size_t i = 0; i < rows * cols; i++) x[i] = random_float() * random_float();
    for (size_t i = 0; i < cols; i++) importance[i] = fabsf(random_float());
    for (int weighted = 0; weighted < 2; weighted++) {
        const float *w = weighted ? importance : NULL;
        EXPECT(kq_quantize_rows(type, KQ_F32, x, rows, cols, w, twin, KQ_ISA_SCALAR) == KQ_OK);
        for (int isa = KQ_ISA_AUTO; isa <= (int)kq_best_isa(); isa++) {
            memset(blocks, 0xcc, rows * bytes);
            EXPECT(kq_quantize_rows(type, KQ_F32, x, rows, cols, w, blocks, (enum kq_isa)isa) == KQ_OK);
            EXPECT(memcmp(blocks, twin, rows * bytes) == 0);
        }
    }
    EXPECT(kq_dequantize_rows(type, blocks, rows, cols, y) == KQ_OK);
    struct kq_error error;
    EXPECT(kq_measure_rows(type, KQ_F32, x, blocks, rows, cols, &error) == KQ_OK);
    double xx = 0, ee = 0;
    for (size_t i = 0; i < rows * cols; i++) xx += (double)x[i] * x[i], ee += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    EXPECT(fabs(error.xx - xx) <= 1e-12 * xx && fabs(error.ee - ee) <= 1e-9 * ee);
    EXPECT(kq_find_bad_block(type, blocks, rows * bytes / kq_block_bytes(type)) == rows * bytes / kq_block_bytes(type));
    free(x), free(importance), free(y), free(storage), free(twin);
}

/* Blocks of random bytes decode without a stray access; poisoned scales are found. */
static void damaged_blocks_are_harmless(enum kq_type type) {
    size_t bytes = kq_block_bytes(type), weights = kq_block_weights(type);
    uint8_t *block = malloc(bytes);
    float *y = malloc(weights * sizeof *y);
    if (!block || !y) exit(2);
    for (int round = 0; round < 2000; round++) {
        for (size_t i = 0; i < bytes; i++) block[i] = (uint8_t)random_bits();
        EXPECT(kq_dequantize_rows(type, block, 1, weights, y) == KQ_OK);
        int finite = 1;
        for (size_t i = 0; i < weights; i++) finite &= isfinite(y[i]) != 0;
        if (!finite) EXPECT(kq_find_bad_block(type, block, 1) == 0);
    }
    free(block), free(y);
}

static void nonfinite_is_found_where_it_stands(void) {
    static uint16_t h[5000];
    static float f[5000];
    const size_t places[] = {0, 1, 2047, 2048, 4999};
    EXPECT(kq_find_nonfinite(KQ_F32, f, 5000) == 5000 && kq_find_nonfinite(KQ_F16, h, 5000) == 5000);
    for (int k = 4; k >= 0; k--) {
        f[places[k]] = k % 2 ? NAN : -INFINITY;
        h[places[k]] = k % 2 ? 0x7f81 : 0xff80; /* NaN and -Inf as BF16, and NaN as F16 */
        EXPECT(kq_find_nonfinite(KQ_F32, f, 5000) == places[k]);
        EXPECT(kq_find_nonfinite(KQ_BF16, h, 5000) == places[k]);
        EXPECT(kq_find_nonfinite(KQ_F16, h, 5000) == places[k]);
    }
    EXPECT(kq_find_nonfinite(KQ_F32, f, 0) == 0);
}

int main(void) {
    half_is_exact_and_rounds_to_even();
    rounding_is_to_even_in_its_range();
    midpoints_decide_as_distances_do();
    status_codes_say_what_is_wrong();
    nonfinite_is_found_where_it_stands();
    for (int t = 0; t < N_TYPES; t++) {
        const size_t cols[] = {256, 768, 2048, 2304};
        for (int c = 0; c < 4; c++) formats_stay_inside_their_buffers(TYPES[t], cols[c]);
        damaged_blocks_are_harmless(TYPES[t]);
    }
    if (failures) printf("%d failures\n", failures);
    return failures != 0;
}
