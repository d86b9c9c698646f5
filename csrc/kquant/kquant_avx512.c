/* Encoders and loops for AVX-512: sixteen lanes. */
#include "lanes_avx512.h"

#include "lanes_fit.h"
#include "lanes_piece.h"
#include "lanes_short.h"
#include "lanes_super.h"

#define LOOP_WIDE
#define LOOP_NAME(name) name##_avx512
#include "loops.h"
