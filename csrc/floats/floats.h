/* floats: the plain float formats of GGUF files, checked and converted element by element.
 *
 * Contract of all functions
 *   buffers    owned by the caller, n elements with the natural alignment of their type; outputs must not overlap inputs.
 *   rounding   to nearest, ties to even; what is too large becomes infinity; subnormals are kept. Widening is exact.
 *   values     fl_convert wants finite input (fl_find_nonfinite tells); other values do no harm to memory.
 *   threads    reentrant, no state, nothing allocated.
 *   exactness  every instruction set gives the same bytes: they are one source, compiled twice (floats_loops.h).
 */
#ifndef FLOATS_H
#define FLOATS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are ggml's. */
enum fl_type { FL_F32 = 0, FL_F16 = 1, FL_BF16 = 30 };

enum fl_isa {
    FL_ISA_AUTO = 0,   /* the best this machine has */
    FL_ISA_SCALAR = 1, /* the instructions every machine has */
    FL_ISA_AVX2 = 2
};

/* What a narrower type could not hold; a value is counted once. */
struct fl_losses {
    uint64_t overflows;  /* finite values that became infinite */
    uint64_t flushed;    /* values other than zero that became zero */
    uint64_t subnormals; /* values that became subnormal and lost digits by it */
};

/* Bytes of an element; 0 for a number that is no fl_type. */
size_t fl_bytes(enum fl_type type);

/* Whether this machine can run `isa`. */
int fl_isa_usable(enum fl_isa isa);

/* Index of the first NaN or infinity among n elements; n if there is none. */
size_t fl_find_nonfinite(enum fl_type type, const void *x, size_t n, enum fl_isa isa);

/* x as elements of type `to` in y, and what that lost. Both types must be fl_types, isa usable. */
struct fl_losses fl_convert(enum fl_type from, const void *x, enum fl_type to, void *y, size_t n, enum fl_isa isa);

#ifdef __cplusplus
}
#endif
#endif
