/* The same loops in AVX2 registers. */
#define FL_LOOP(name) name##_avx2
#include "floats_loops.h"
