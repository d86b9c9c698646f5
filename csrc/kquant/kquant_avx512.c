/* The encoders for AVX-512, sixteen lanes. */
#include "lanes_avx512.h"

#include "lanes_fit.h"

#include "lanes_encode.h"
