/* The searches of fit.h, one sub-block a lane. Included after lanes_avx2.h or lanes_avx512.h.
 *
 * Within a lane every sum runs in the order of fit.c, and nothing is fused, so a lane's result is the plain twin's, bit
 * for bit. Rounding by adding 1.5 * 2^23 is exact only where the twin's is too; lanes in which a value could leave that
 * range are given back in `redo`, and the caller asks the twin (rows of denormals get there, trained weights do not).
 */
#include <math.h>

#include "fit.h"
#include "iq4.h"

/* A tile: value i of LANES sub-blocks, and their error weights. */
struct tile {
    vf x[32];
    vf w[32];
};

static const float ROUNDABLE = 4194303.0f;

/* Nearest integer, ties to even, where |v| <= ROUNDABLE. */
INLINE vf round_near(vf v) { return (v + splat(12582912.0f)) - splat(12582912.0f); }
INLINE vf clamp(vf v, float lo, float hi) { return least(most(v, splat(lo)), splat(hi)); }
INLINE vf zero(void) { return splat(0); }

/* Signed element of largest magnitude, the first of equals; 1 in lanes where all count as zero, which `null` marks. */
INLINE vf extremes(int n, const vf *x, vm *null) {
    vf largest = zero(), extreme = zero();
    for (int i = 0; i < n; i++) {
        vf a = magnitude(x[i]);
        vm m = more(a, largest);
        largest = pick(m, a, largest);
        extreme = pick(m, x[i], extreme);
    }
    *null = more(splat(KQ_EPSILON), largest);
    return pick(*null, splat(1), extreme);
}

/* The two sums of a least-squares scale, with codes -half..half-1. */
INLINE void symmetric_sums(int n, int half, vf inverse, const struct tile *t, const vf *wx, vf *wxl, vf *wll) {
    *wxl = *wll = zero();
    for (int i = 0; i < n; i++) {
        vf l = clamp(round_near(inverse * t->x[i]), (float)-half, (float)(half - 1));
        *wxl = *wxl + wx[i] * l;
        *wll = *wll + t->w[i] * l * l;
    }
}

/* kq_fit_scale; *chosen gets the inverse scale that gives the codes, 0 in lanes where all count as zero. */
INLINE vf fit_scale(int n, int half, const struct tile *t, vf *chosen) {
    vm null;
    vf extreme = extremes(n, t->x, &null), wx[32], wxl, wll;
    for (int i = 0; i < n; i++) wx[i] = t->w[i] * t->x[i];
    vf best_inverse = splat((float)-half) / extreme;
    symmetric_sums(n, half, best_inverse, t, wx, &wxl, &wll);
    vf scale = pick(equal(wll, zero()), zero(), wxl / wll), best = scale * wxl;
    for (int k = -9; k <= 9; k++) {
        if (k == 0) continue;
        vf inverse = splat(-((float)half + 0.1f * (float)k)) / extreme;
        symmetric_sums(n, half, inverse, t, wx, &wxl, &wll);
        vm better = both(more(wll, zero()), more(wxl * wxl, best * wll));
        scale = pick(better, wxl / wll, scale);
        best = pick(better, scale * wxl, best);
        best_inverse = pick(better, inverse, best_inverse);
    }
    *chosen = pick(null, zero(), best_inverse);
    return pick(null, zero(), scale);
}

/* kq_fit_scale_descent for n = 16, half = 4, over several tiles at once: each step waits for a division, so the tiles take
 * turns. At most `sweeps` sweeps; moved[k] marks the lanes that still moved in the last one. A lane that has come to rest
 * stays there, so all may sweep until the last one rests. */
enum { TILES = 4 };

INLINE void fit_scale_descent(int tiles, int sweeps, const struct tile *t, vf *scale, uint32_t *moved) {
    vf l[TILES][16], wxl[TILES], wll[TILES];
    vm null[TILES], moves[TILES];
    for (int k = 0; k < tiles; k++) {
        vf inverse = splat(-4) / extremes(16, t[k].x, &null[k]);
        wxl[k] = wll[k] = zero();
        for (int i = 0; i < 16; i++) {
            vf x = t[k].x[i], w = x * x;
            l[k][i] = clamp(round_near(inverse * x), -4, 3);
            wxl[k] = wxl[k] + w * x * l[k][i];
            wll[k] = wll[k] + w * l[k][i] * l[k][i];
        }
    }
    uint32_t moving = 1;
    for (int sweep = 0; sweep < sweeps && moving; sweep++) {
        for (int k = 0; k < tiles; k++) moves[k] = never();
        for (int i = 0; i < 16; i++) {
#pragma GCC unroll 4
            for (int k = 0; k < tiles; k++) {
                vf x = t[k].x[i], w = x * x, wx = w * x, old = l[k][i];
                vf new_wxl = wxl[k] - wx * old, new_wll = wll[k] - w * old * old;
                vm move = more(new_wxl, zero());
                vf code = floats(round_clamp(x * new_wll / new_wxl, -4, 3));
                move = but_not(move, equal(code, old));
                new_wxl = new_wxl + wx * code;
                new_wll = new_wll + w * code * code;
                move = both(move, more(new_wll, zero()));
                move = both(move, more(new_wxl * new_wxl * wll[k], wxl[k] * wxl[k] * new_wll));
                l[k][i] = pick(move, code, old);
                wxl[k] = pick(move, new_wxl, wxl[k]);
                wll[k] = pick(move, new_wll, wll[k]);
                moves[k] = either(moves[k], move);
            }
        }
        moving = 0;
        for (int k = 0; k < tiles; k++) moving |= moved[k] = bits(but_not(moves[k], null[k]));
    }
    for (int k = 0; k < tiles; k++) {
        vm some = but_not(more(wll[k], zero()), null[k]);
        scale[k] = pick(some, wxl[k] / wll[k], zero());
    }
}

/* Weighted error of x ~ s * l + low. */
INLINE vf line_errors(int n, const vf *l, vf s, vf low, const struct tile *t, int absolute) {
    vf sum = zero();
    for (int i = 0; i < n; i++) {
        vf e = s * l[i] + low - t->x[i], square = e * e;
        sum = sum + t->w[i] * (absolute ? magnitude(e) : square);
    }
    return sum;
}

/* Lanes in which inverse * (x - low) may not be rounded: x lies in floor..high. */
INLINE vm unroundable(vf inverse, vf floor, vf high, vf low, int guarded) {
    if (guarded) return but_not(equal(zero(), zero()), more(splat(INFINITY), magnitude(inverse)));
    vf reach = most(magnitude(inverse * (floor - low)), magnitude(inverse * (high - low)));
    return but_not(equal(zero(), zero()), at_least(splat(ROUNDABLE), reach));
}

/* What kq_fit_minimum finds; the codes are round_near(inverse * (x - base)), clamped. */
struct line {
    vf scale, low, inverse, base;
    vm redo;
};

/* kq_fit_minimum. */
INLINE struct line fit_minimum(int n, struct kq_grid grid, const struct tile *t) {
    const float top = (float)grid.max_code;
    vf low = t->x[0], high = t->x[0], sum_w = t->w[0], sum_wx = t->w[0] * t->x[0], l[32];
    for (int i = 1; i < n; i++) {
        low = least(t->x[i], low);
        high = most(t->x[i], high);
        sum_w = sum_w + t->w[i];
        sum_wx = sum_wx + t->w[i] * t->x[i];
    }
    vf floor = low;
    low = least(zero(), low);
    vf low_of_flat = low;
    vm flat = grid.guarded ? at_least(low, high) : equal(high, low);
    high = pick(flat, low + splat(1), high);
    struct line found = {.redo = never()};
    vf inverse = splat(top) / (high - low), scale = splat(1) / inverse;
    found.inverse = inverse, found.base = low;
    found.redo = either(found.redo, unroundable(inverse, floor, high, low, 0));
    for (int i = 0; i < n; i++) l[i] = clamp(round_near(inverse * (t->x[i] - low)), 0, top);
    vf best = line_errors(n, l, scale, low, t, grid.absolute);
    for (int k = 0; k <= grid.steps; k++) {
        inverse = splat(grid.first + grid.step * (float)k + top) / (high - low);
        found.redo = either(found.redo, unroundable(inverse, floor, high, low, grid.guarded));
        vf wl = zero(), wll = zero(), wlx = zero();
        for (int i = 0; i < n; i++) {
            vf v = inverse * (t->x[i] - low);
            /* Both rules cap before rounding here: for values that can be rounded it is the same. */
            l[i] = round_near(most(least(v, splat(top)), zero()));
            vf p = t->w[i] * l[i];
            wl = wl + p;
            wll = wll + p * l[i];
            wlx = wlx + p * t->x[i];
        }
        vf determinant = sum_w * wll - wl * wl;
        vf new_scale = (sum_w * wlx - sum_wx * wl) / determinant;
        vf new_low = (wll * sum_wx - wl * wlx) / determinant;
        vm above = more(new_low, zero());
        new_scale = pick(above, wlx / wll, new_scale);
        new_low = pick(above, zero(), new_low);
        vf error = line_errors(n, l, new_scale, new_low, t, grid.absolute);
        vm better = both(more(determinant, zero()), more(best, error));
        best = pick(better, error, best);
        scale = pick(better, new_scale, scale);
        found.inverse = pick(better, inverse, found.inverse);
        found.base = pick(better, low, found.base);
        low = pick(better, new_low, low);
    }
    found.scale = pick(flat, zero(), scale);
    found.low = pick(flat, low_of_flat, low);
    found.redo = but_not(found.redo, flat);
    return found;
}

/* Code book index of each lane's value: four halvings of the midpoints. */
INLINE vi nearest_codes(vf x) {
    static const float quarter[16] = {[0] = -57, [8] = 45.5f};
    static const float eighth[16] = {[0] = -93.5f, [4] = -28.5f, [8] = 19, [12] = 79};
    static const float last[16] = {[0] = -115.5f, [2] = -74, [4] = -42, [6] = -16, [8] = 7, [10] = 31.5f, [12] = 61, [14] = 101};
    vi code = step(no_steps(), at_least(x, splat(-4.5f)), 8);
    code = step(code, at_least(x, look_up(quarter, code)), 4);
    code = step(code, at_least(x, look_up(eighth, code)), 2);
    return step(code, at_least(x, look_up(last, code)), 1);
}

INLINE void codebook_sums(vf inverse, const struct tile *t, vf *wxg, vf *wgg) {
    static const float book[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    *wxg = *wgg = zero();
    for (int i = 0; i < 32; i++) {
        vf g = look_up(book, nearest_codes(inverse * t->x[i])), wg = t->w[i] * g;
        *wxg = *wxg + wg * t->x[i];
        *wgg = *wgg + wg * g;
    }
}

/* kq_iq4_fit. */
INLINE vf fit_codebook(const struct tile *t) {
    vm null;
    vf extreme = extremes(32, t->x, &null), wxg, wgg;
    codebook_sums(splat(1) / (-extreme / splat(-127)), t, &wxg, &wgg);
    vf scale = pick(more(wgg, zero()), wxg / wgg, zero()), best = scale * wxg;
    for (int k = -KQ_IQ4_TRIES; k <= KQ_IQ4_TRIES; k++) {
        codebook_sums(splat((float)(k - 127)) / extreme, t, &wxg, &wgg);
        vm better = both(more(wgg, zero()), more(wxg * wxg, best * wgg));
        scale = pick(better, wxg / wgg, scale);
        best = pick(better, scale * wxg, best);
    }
    return pick(null, zero(), scale);
}
