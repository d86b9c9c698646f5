/* The plain steps that all K-quants share. */
#include "super.h"

#include <math.h>

#include "number.h"

int kq_largest(int n, const float *v) {
    int index = -1;
    float magnitude = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(v[i]) > magnitude) magnitude = fabsf(v[i]), index = i;
    }
    return index;
}

void kq_fit_block(kq_fit_fn *fit, int n, float factor, const float *restrict x, const float *restrict importance, struct kq_fits *restrict f) {
    float sigma2 = importance ? factor * kq_square_sum(256, x) / 256 : 0;
    for (int s = 0, at = 0; at < 256; s++, at += n)
        f->S[s] = fit(x + at, importance ? importance + at : NULL, sigma2, &f->M[s], &f->W[s], f->codes + at);
}

void kq_requantise(int n, const float *restrict x, const struct kq_steps *restrict steps, int lo, int hi, uint8_t *restrict codes) {
    for (int i = 0; i < 256; i++) {
        float scale = steps->scale[i / n], minimum = steps->minimum[i / n];
        if (scale != 0) codes[i] = (uint8_t)(kq_clamp(kq_round((x[i] + minimum) / scale), lo, hi) - lo);
    }
}
