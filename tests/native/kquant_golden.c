/* Every format of csrc/kquant on rows from stdin, everything it gives to stdout: tests/test_compilers.py builds this with each
 * compiler and compares with ggml's golden bytes. No Python, so that it runs where only a cross compiler reaches.
 *   in:  rows * cols floats, cols floats of importance; argv: rows cols
 *   out: for each type, in the order of TYPES: for each instruction set, from the best down to plain C, the blocks with and without
 *        importance; then the last of these blocks as floats. The best instruction set goes to stderr, as its number. */
#include <stdio.h>
#include <stdlib.h>

#include "kquant/kquant.h"

static const enum kq_type TYPES[] = {KQ_Q4_0, KQ_Q4_1, KQ_Q5_0, KQ_Q5_1, KQ_Q8_0, KQ_Q2_K,
                                     KQ_Q3_K, KQ_Q4_K, KQ_Q5_K, KQ_Q6_K, KQ_IQ4_NL, KQ_IQ4_XS};

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const size_t rows = strtoull(argv[1], NULL, 10), cols = strtoull(argv[2], NULL, 10), n = rows * cols;
    float *x = malloc(n * sizeof *x), *importance = malloc(cols * sizeof *importance), *y = malloc(n * sizeof *y);
    uint8_t *blocks = malloc(n * sizeof *x); /* no format is larger than its source */
    if (!x || !importance || !y || !blocks) return 2;
    if (fread(x, sizeof *x, n, stdin) != n || fread(importance, sizeof *importance, cols, stdin) != cols) return 2;
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        const size_t bytes = rows * kq_row_bytes(TYPES[t], cols);
        for (int isa = (int)kq_best_isa(); isa >= KQ_ISA_SCALAR; isa--) { /* plain C last: its blocks are decoded */
            for (int weighted = 1; weighted >= 0; weighted--) {
                if (kq_quantize_rows(TYPES[t], KQ_F32, x, rows, cols, weighted ? importance : NULL, blocks, (enum kq_isa)isa)) return 1;
                fwrite(blocks, 1, bytes, stdout);
            }
        }
        if (kq_dequantize_rows(TYPES[t], blocks, rows, cols, y)) return 1;
        fwrite(y, sizeof *y, n, stdout);
    }
    fprintf(stderr, "%d\n", (int)kq_best_isa());
    free(x), free(importance), free(y), free(blocks);
    return ferror(stdout) != 0;
}
