/* Encoders and loops for AVX2: eight lanes. */
#include "lanes_avx2.h"

#include "lanes_fit.h"
#include "lanes_piece.h"
#include "lanes_short.h"
#include "lanes_super.h"

#define LOOP_WIDE
#define LOOP_NAME(name) name##_avx2
#include "loops.h"
