/* The loops for every machine, and the choice among instruction sets. */
#define FL_LOOP(name) name##_scalar
#include "floats_loops.h"

size_t fl_find_avx2(enum fl_type type, const void *x, size_t n);
struct fl_losses fl_convert_avx2(enum fl_type from, const void *x, enum fl_type to, void *y, size_t n);

size_t fl_bytes(enum fl_type type) {
    return type == FL_F32 ? 4 : type == FL_F16 || type == FL_BF16 ? 2 : 0;
}

int fl_isa_usable(enum fl_isa isa) {
#if defined(__x86_64__)
    return isa == FL_ISA_AUTO || isa == FL_ISA_SCALAR || (isa == FL_ISA_AVX2 && __builtin_cpu_supports("avx2"));
#else
    return isa == FL_ISA_AUTO || isa == FL_ISA_SCALAR;
#endif
}

static int wants_avx2(enum fl_isa isa) { return isa != FL_ISA_SCALAR && fl_isa_usable(FL_ISA_AVX2); }

size_t fl_find_nonfinite(enum fl_type type, const void *x, size_t n, enum fl_isa isa) {
#if defined(__x86_64__)
    if (wants_avx2(isa)) return fl_find_avx2(type, x, n);
#endif
    return fl_find_scalar(type, x, n);
}

struct fl_losses fl_convert(enum fl_type from, const void *x, enum fl_type to, void *y, size_t n, enum fl_isa isa) {
#if defined(__x86_64__)
    if (wants_avx2(isa)) return fl_convert_avx2(from, x, to, y, n);
#endif
    return fl_convert_scalar(from, x, to, y, n);
}
