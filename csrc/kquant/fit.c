/* The plain searches. Read beside fit.h; the vector twins (lanes_fit.h) must give the same bits. */
#include "fit.h"

#include <math.h>

#include "number.h"

/* Codes l = round(inverse * x) in -half..half-1 and the two sums that a least-squares scale needs. */
struct sums {
    float wxl, wll;
};

static int symmetric_code(float inverse, float x, int half) { return kq_clamp(kq_round(inverse * x), -half, half - 1); }

static struct sums symmetric_sums(int n, int half, float inverse, const float *x, const float *w) {
    struct sums s = {0, 0};
    for (int i = 0; i < n; i++) {
        float l = (float)symmetric_code(inverse, x[i], half);
        s.wxl += w[i] * x[i] * l;
        s.wll += w[i] * l * l;
    }
    return s;
}

static float zero_codes(int n, uint8_t *L) {
    for (int i = 0; i < n; i++) L[i] = 0;
    return 0;
}

float kq_fit_scale(int n, int half, const float *restrict x, const float *restrict w, uint8_t *restrict L) {
    float extreme = kq_extreme(n, x);
    if (fabsf(extreme) < KQ_EPSILON) return zero_codes(n, L);
    float chosen = -(float)half / extreme;
    struct sums s = symmetric_sums(n, half, chosen, x, w);
    float scale = s.wll != 0 ? s.wxl / s.wll : 0, best = scale * s.wxl;
    for (int k = -9; k <= 9; k++) {
        if (k == 0) continue;
        float inverse = -((float)half + 0.1f * (float)k) / extreme;
        s = symmetric_sums(n, half, inverse, x, w);
        if (s.wll > 0 && s.wxl * s.wxl > best * s.wll) {
            chosen = inverse;
            scale = s.wxl / s.wll;
            best = scale * s.wxl;
        }
    }
    for (int i = 0; i < n; i++) L[i] = (uint8_t)(symmetric_code(chosen, x[i], half) + half);
    return scale;
}

/* One sweep of the descent: move each code to the best value the others leave it. Gives the number of moves. */
static int descend(int n, int half, const float *x, int *l, struct sums *s) {
    int moves = 0;
    for (int i = 0; i < n; i++) {
        float w = x[i] * x[i], old = (float)l[i];
        float wxl = s->wxl - w * x[i] * old;
        if (!(wxl > 0)) continue;
        float wll = s->wll - w * old * old;
        int code = kq_clamp(kq_round(x[i] * wll / wxl), -half, half - 1);
        if (code == l[i]) continue;
        wxl += w * x[i] * (float)code;
        wll += w * (float)code * (float)code;
        if (wll > 0 && wxl * wxl * s->wll > s->wxl * s->wxl * wll) {
            l[i] = code;
            s->wxl = wxl;
            s->wll = wll;
            moves++;
        }
    }
    return moves;
}

float kq_fit_scale_descent(int n, int half, const float *restrict x, uint8_t *restrict L) {
    float extreme = kq_extreme(n, x);
    if (fabsf(extreme) < KQ_EPSILON) return zero_codes(n, L);
    float inverse = -(float)half / extreme;
    int l[16];
    struct sums s = {0, 0};
    for (int i = 0; i < n; i++) {
        float w = x[i] * x[i];
        l[i] = symmetric_code(inverse, x[i], half);
        s.wxl += w * x[i] * (float)l[i];
        s.wll += w * (float)l[i] * (float)l[i];
    }
    for (int sweep = 0; sweep < 5 && descend(n, half, x, l, &s) > 0; sweep++) {}
    for (int i = 0; i < n; i++) L[i] = (uint8_t)(l[i] + half);
    return s.wll > 0 ? s.wxl / s.wll : 0;
}

/* Weighted error of x ~ scale * l + low. */
static float line_error(int n, const uint8_t *l, float scale, float low, const float *x, const float *w, bool absolute) {
    float sum = 0;
    for (int i = 0; i < n; i++) {
        float e = scale * (float)l[i] + low - x[i];
        sum += w[i] * (absolute ? fabsf(e) : e * e);
    }
    return sum;
}

/* A candidate's code. The guarded rule caps before rounding: `low` may have reached the largest value, and then
 * the inverse step is infinite. */
static int candidate_code(float inverse, float x, float low, struct kq_grid grid) {
    float v = inverse * (x - low);
    if (!grid.guarded) return kq_clamp(kq_round(v), 0, grid.max_code);
    float top = (float)grid.max_code;
    return v > 0 ? kq_round(v < top ? v : top) : 0;
}

float kq_fit_minimum(int n, struct kq_grid grid, const float *restrict x, const float *restrict w, float *restrict minimum,
                     uint8_t *restrict L) {
    float low = x[0], high = x[0], sum_w = w[0], sum_wx = w[0] * x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
        sum_w += w[i];
        sum_wx += w[i] * x[i];
    }
    if (low > 0) low = 0;
    if (grid.guarded ? high <= low : high == low) {
        *minimum = -low;
        return zero_codes(n, L);
    }
    float top = (float)grid.max_code, inverse = top / (high - low), scale = 1 / inverse;
    for (int i = 0; i < n; i++) L[i] = (uint8_t)kq_clamp(kq_round(inverse * (x[i] - low)), 0, grid.max_code);
    float best = line_error(n, L, scale, low, x, w, grid.absolute);
    for (int k = 0; k <= grid.steps; k++) {
        inverse = (grid.first + grid.step * (float)k + top) / (high - low);
        uint8_t codes[32];
        float wl = 0, wll = 0, wlx = 0;
        for (int i = 0; i < n; i++) {
            codes[i] = (uint8_t)candidate_code(inverse, x[i], low, grid);
            float l = (float)codes[i];
            wl += w[i] * l;
            wll += w[i] * l * l;
            wlx += w[i] * l * x[i];
        }
        float determinant = sum_w * wll - wl * wl;
        if (!(determinant > 0)) continue;
        float new_scale = (sum_w * wlx - sum_wx * wl) / determinant;
        float new_low = (wll * sum_wx - wl * wlx) / determinant;
        if (new_low > 0) new_low = 0, new_scale = wlx / wll;
        float error = line_error(n, codes, new_scale, new_low, x, w, grid.absolute);
        if (error < best) {
            memcpy(L, codes, (size_t)n);
            best = error, scale = new_scale, low = new_low; /* later candidates start from the new low */
        }
    }
    *minimum = -low;
    return scale;
}

/* Weighted squared error of x ~ scale * l with l = round(inverse * x), capped. */
static float positive_error(int n, int max_code, float inverse, const float *x, const float *w) {
    float scale = 1 / inverse, sum = 0;
    for (int i = 0; i < n; i++) {
        int l = kq_round(inverse * x[i]);
        if (l > max_code) l = max_code;
        float e = x[i] - scale * (float)l;
        sum += w[i] * e * e;
    }
    return sum;
}

static int descend_positive(int n, int max_code, const float *x, const float *w, uint8_t *L, struct sums *s) {
    int moves = 0;
    for (int i = 0; i < n; i++) {
        float old = (float)L[i];
        float wxl = s->wxl - w[i] * x[i] * old, wll = s->wll - w[i] * old * old;
        if (!(wxl > 0 && wll > 0)) continue;
        int code = kq_round(x[i] * wll / wxl);
        if (code > max_code) code = max_code;
        if (code == L[i]) continue;
        wxl += w[i] * x[i] * (float)code;
        wll += w[i] * (float)code * (float)code;
        if (wxl * wxl * s->wll > s->wxl * s->wxl * wll) {
            L[i] = (uint8_t)code;
            s->wxl = wxl;
            s->wll = wll;
            moves++;
        }
    }
    return moves;
}

float kq_fit_positive(int n, int max_code, const float *restrict x, const float *restrict w, uint8_t *restrict L) {
    float largest = 0;
    for (int i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    if (largest < KQ_EPSILON) return zero_codes(n, L);
    float top = (float)max_code, inverse = top / largest;
    float best = positive_error(n, 1 << 22, inverse, x, w); /* the first candidate is not capped */
    for (int k = -4; k <= 4; k++) {
        if (k == 0) continue;
        float candidate = (0.1f * (float)k + top) / largest;
        float error = positive_error(n, max_code, candidate, x, w);
        if (error < best) best = error, inverse = candidate;
    }
    struct sums s = {0, 0};
    for (int i = 0; i < n; i++) {
        int l = kq_round(inverse * x[i]);
        L[i] = (uint8_t)(l < max_code ? l : max_code);
        s.wxl += w[i] * x[i] * (float)L[i];
        s.wll += w[i] * (float)L[i] * (float)L[i];
    }
    for (int sweep = 0; sweep < 5 && descend_positive(n, max_code, x, w, L, &s) > 0; sweep++) {}
    return s.wll > 0 ? s.wxl / s.wll : 0;
}
