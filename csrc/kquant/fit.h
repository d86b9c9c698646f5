/* The searches: how ggml chooses the scale (and minimum) of a sub-block. Plain twins, in fit.c.
 *
 * Every search takes n values x, their error weights w, and gives back the scale; codes L are unsigned. The order
 * of the sums and of the candidates, and every strict or non-strict comparison, decide bytes.
 */
#ifndef KQ_FIT_H
#define KQ_FIT_H

#include <stdbool.h>
#include <stdint.h>

/* Values this small count as zero. */
#define KQ_EPSILON 1e-15f

/* A search over scale and minimum: x ~ scale * L - minimum, L in 0..max_code. Candidate k = 0..steps divides the
 * range into max_code + (first + step * k) parts. */
struct kq_grid {
    int max_code;
    float first;
    float step;
    int steps;
    bool absolute; /* weigh |error| instead of its square */
    bool guarded;  /* the rules of the importance-weighted quantisers: see kq_fit_minimum */
};

static const struct kq_grid KQ_GRID_Q2_K = {3, -0.5f, 0.1f, 15, true, false};
static const struct kq_grid KQ_GRID_Q4_K = {15, -1.0f, 0.1f, 20, false, false};
static const struct kq_grid KQ_GRID_Q5_K = {31, -0.5f, 0.1f, 15, false, false};
static const struct kq_grid KQ_GRID_WEIGHTED_3 = {3, -0.9f, 0.05f, 36, false, true};
static const struct kq_grid KQ_GRID_WEIGHTED_15 = {15, -0.9f, 0.05f, 36, false, true};
static const struct kq_grid KQ_GRID_WEIGHTED_31 = {31, -0.9f, 0.05f, 36, false, true};

/* Scale alone: x ~ scale * (L - half), L in 0..2*half-1. All zero gives L = 0 and scale 0. */
float kq_fit_scale(int n, int half, const float *restrict x, const float *restrict w, uint8_t *restrict L);

/* Scale alone for Q3_K without importance (half 4, weights x*x): coordinate descent instead of candidates. */
float kq_fit_scale_descent(int n, int half, const float *restrict x, uint8_t *restrict L);

/* Scale and minimum; *minimum gets the value to subtract (>= 0). n <= 32. */
float kq_fit_minimum(int n, struct kq_grid grid, const float *restrict x, const float *restrict w, float *restrict minimum,
                     uint8_t *restrict L);

/* Scale of values >= 0: x ~ scale * L, L in 0..max_code. Quantises the scales of a super-block. n <= 16. */
float kq_fit_positive(int n, int max_code, const float *restrict x, const float *restrict w, uint8_t *restrict L);

/* The signed element of largest magnitude; the first wins. */
static inline float kq_extreme(int n, const float *x) {
    float magnitude = 0, extreme = 0;
    for (int i = 0; i < n; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > magnitude) magnitude = a, extreme = x[i];
    }
    return extreme;
}

/* Sum of squares in index order. */
static inline float kq_square_sum(int n, const float *x) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

#endif
