/* The super-block header that Q4_K and Q5_K share: 8 scales and 8 minima of six bits, packed as super.h draws. */
#include "fit.h"
#include "number.h"
#include "super.h"

/* Six-bit codes of 8 values; their step. */
static float quantise_six_bits(const float v[8], const float *W, uint8_t codes[8]) {
    if (W) return kq_fit_positive(8, 63, v, W, codes);
    float largest = 0;
    for (int s = 0; s < 8; s++) largest = v[s] > largest ? v[s] : largest;
    float inverse = largest > 0 ? 63.0f / largest : 0;
    for (int s = 0; s < 8; s++) {
        uint8_t code = (uint8_t)kq_round(inverse * v[s]); /* modulo 256: a negative scale becomes 63 */
        codes[s] = code < 63 ? code : 63;
    }
    return largest / 63.0f;
}

void kq_k4_header(const float S[8], const float M[8], const float *W, kq_half *d, kq_half *dmin, uint8_t scales[12]) {
    uint8_t scale[8], minimum[8];
    *d = kq_put(quantise_six_bits(S, W, scale));
    *dmin = kq_put(quantise_six_bits(M, W, minimum));
    for (int s = 0; s < 4; s++) {
        scales[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        scales[s + 4] = (uint8_t)(minimum[s] | minimum[s + 4] >> 4 << 6);
        scales[s + 8] = (uint8_t)((scale[s + 4] & 15) | minimum[s + 4] << 4);
    }
}

int kq_largest(int n, const float *v) {
    int index = -1;
    float magnitude = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(v[i]) > magnitude) magnitude = fabsf(v[i]), index = i;
    }
    return index;
}
