/* The non-linear code book of IQ4_NL and IQ4_XS, and its search. */
#ifndef KQ_IQ4_H
#define KQ_IQ4_H

#include <stdint.h>

static const int8_t KQ_IQ4_CODEBOOK[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Code = how many midpoints x is not below. Ties go up. A midpoint and its two distances are exact in binary32, so this is
 * the same function as comparing the distances (tests/native/test_kquant.c proves it around every midpoint). */
static const float KQ_IQ4_MIDPOINT[15] = {-115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f, 7, 19, 31.5f, 45.5f, 61, 79, 101};

/* Candidate scales on either side of the first. */
enum { KQ_IQ4_TRIES = 7 };

/* The scale of 32 weights, 0 when all are (as good as) zero. */
float kq_iq4_fit(const float *restrict x, const float *restrict w);

#endif
