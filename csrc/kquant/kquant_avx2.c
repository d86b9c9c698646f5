/* The encoders for AVX2, eight lanes. */
#include "lanes_avx2.h"

#include "lanes_fit.h"

#include "lanes_encode.h"
