/* What Q4_K and Q5_K share: the search, and the header of 8 scales and 8 minima of six bits, packed as super.h draws. */
#include "format.h"
#include "number.h"
#include "super.h"

float kq_k4_fit(struct kq_grid plain, struct kq_grid weighted, const float *restrict x, const float *restrict importance, float sigma2,
                float *restrict minimum, float *restrict weight, uint8_t *restrict codes) {
    float w[32];
    if (!importance) {
        float average = sqrtf(kq_square_sum(32, x) / 32);
        for (int i = 0; i < 32; i++) w[i] = average + fabsf(x[i]);
        return kq_fit_minimum(32, plain, x, w, minimum, codes);
    }
    *weight = kq_error_weights(32, sigma2, x, importance, w);
    return kq_fit_minimum(32, weighted, x, w, minimum, codes);
}

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

void kq_k4_header(const float S[8], const float M[8], const float *W, kq_half *d, kq_half *dmin, uint8_t scales[12],
                  struct kq_steps *steps) {
    uint8_t scale[8], minimum[8];
    *d = kq_put(quantise_six_bits(S, W, scale));
    *dmin = kq_put(quantise_six_bits(M, W, minimum));
    for (int s = 0; s < 4; s++) {
        scales[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        scales[s + 4] = (uint8_t)(minimum[s] | minimum[s + 4] >> 4 << 6);
        scales[s + 8] = (uint8_t)((scale[s + 4] & 15) | minimum[s + 4] << 4);
    }
    for (int s = 0; s < 8; s++) {
        int stored_scale, stored_minimum;
        kq_k4_get(scales, s, &stored_scale, &stored_minimum);
        steps->scale[s] = kq_get(*d) * (float)stored_scale;
        steps->minimum[s] = kq_get(*dmin) * (float)stored_minimum;
    }
}
