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

/* The two sums of a least-squares scale, with codes -half..half-1, of several candidates at once: each sum waits for its last
 * addition, so the candidates take turns. */
INLINE void symmetric_sums(int n, int half, int candidates, const vf *inverse, const struct tile *t, const vf *wx, vf *wxl, vf *wll) {
    for (int c = 0; c < candidates; c++) wxl[c] = wll[c] = zero();
    for (int i = 0; i < n; i++) {
#pragma GCC unroll 3
        for (int c = 0; c < candidates; c++) {
            vf l = clamp(nearest(inverse[c] * t->x[i]), (float)-half, (float)(half - 1));
            wxl[c] = wxl[c] + wx[i] * l;
            wll[c] = wll[c] + t->w[i] * l * l;
        }
    }
}

/* kq_fit_scale; *chosen gets the inverse scale that gives the codes, 0 in lanes where all count as zero. */
INLINE vf fit_scale(int n, int half, const struct tile *t, vf *chosen) {
    enum { TURNS = 3 };
    vm null;
    vf extreme = extremes(n, t->x, &null), wx[32], inverse[TURNS], wxl[TURNS], wll[TURNS];
    for (int i = 0; i < n; i++) wx[i] = t->w[i] * t->x[i];
    vf best_inverse = splat((float)-half) / extreme;
    symmetric_sums(n, half, 1, &best_inverse, t, wx, wxl, wll);
    vf scale = pick(equal(wll[0], zero()), zero(), wxl[0] / wll[0]), best = scale * wxl[0];
    for (int first = 0; first < 18; first += TURNS) { /* -9..9 without 0 */
        for (int c = 0; c < TURNS; c++) {
            int k = first + c - 9 + (first + c >= 9);
            inverse[c] = splat(-((float)half + 0.1f * (float)k)) / extreme;
        }
        symmetric_sums(n, half, TURNS, inverse, t, wx, wxl, wll);
        for (int c = 0; c < TURNS; c++) {
            vm better = both(more(wll[c], zero()), more(wxl[c] * wxl[c], best * wll[c]));
            scale = pick(better, wxl[c] / wll[c], scale);
            best = pick(better, scale * wxl[c], best);
            best_inverse = pick(better, inverse[c], best_inverse);
        }
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
            l[k][i] = clamp(nearest(inverse * x), -4, 3);
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
                vf code = floats(round_clamp(x * new_wll / new_wxl, -4, 3, 0));
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

/* Scale and minimum are searched for a pair of tiles at once, for the same reason. */
enum { PAIR = 2 };

/* Weighted errors of x ~ s * l + low. */
INLINE void line_errors(int n, vf l[PAIR][32], const vf *scale, const vf *low, const struct tile *t, int absolute, vf *sum) {
    for (int k = 0; k < PAIR; k++) sum[k] = zero();
    for (int i = 0; i < n; i++) {
#pragma GCC unroll 2
        for (int k = 0; k < PAIR; k++) {
            vf e = scale[k] * l[k][i] + low[k] - t[k].x[i], square = e * e;
            sum[k] = sum[k] + t[k].w[i] * (absolute ? magnitude(e) : square);
        }
    }
}

/* Lanes in which inverse * (x - low) may not be rounded: x lies in floor..high. */
INLINE vm unroundable(vf inverse, vf floor, vf high, vf low, int guarded) {
    if (guarded) return but_not(equal(zero(), zero()), more(splat(INFINITY), magnitude(inverse)));
    vf reach = most(magnitude(inverse * (floor - low)), magnitude(inverse * (high - low)));
    return but_not(equal(zero(), zero()), at_least(splat(ROUNDABLE), reach));
}

/* The sums of a weighted line through the codes l = round_near(inverse * (x - low)), which are left in l. */
struct line_sums {
    vf wl[PAIR], wll[PAIR], wlx[PAIR];
};

INLINE void line_sums(int n, float top, const vf *inverse, const vf *low, const struct tile *t, vf l[PAIR][32], struct line_sums *s) {
    for (int k = 0; k < PAIR; k++) s->wl[k] = s->wll[k] = s->wlx[k] = zero();
    for (int i = 0; i < n; i++) {
#pragma GCC unroll 2
        for (int k = 0; k < PAIR; k++) {
            /* Both rules cap before rounding here: for values that can be rounded it is the same. */
            vf v = inverse[k] * (t[k].x[i] - low[k]), code = nearest(most(least(v, splat(top)), zero())), p = t[k].w[i] * code;
            l[k][i] = code;
            s->wl[k] = s->wl[k] + p;
            s->wll[k] = s->wll[k] + p * code;
            s->wlx[k] = s->wlx[k] + p * t[k].x[i];
        }
    }
}

/* What kq_fit_minimum finds; the codes are nearest(inverse * (x - base)), clamped. */
struct line {
    vf scale, low, inverse, base;
    vm redo;
};

/* kq_fit_minimum for each of a pair of tiles. */
INLINE void fit_minimum(int n, struct kq_grid grid, const struct tile *t, struct line *found) {
    const float top = (float)grid.max_code;
    vf low[PAIR], high[PAIR], floor[PAIR], sum_w[PAIR], sum_wx[PAIR], inverse[PAIR], scale[PAIR], best[PAIR], l[PAIR][32];
    vf low_of_flat[PAIR];
    vm flat[PAIR];
    for (int k = 0; k < PAIR; k++) {
        const vf *x = t[k].x, *w = t[k].w;
        low[k] = high[k] = x[0], sum_w[k] = w[0], sum_wx[k] = w[0] * x[0];
        for (int i = 1; i < n; i++) {
            low[k] = least(x[i], low[k]);
            high[k] = most(x[i], high[k]);
            sum_w[k] = sum_w[k] + w[i];
            sum_wx[k] = sum_wx[k] + w[i] * x[i];
        }
        floor[k] = low[k];
        low[k] = low_of_flat[k] = least(zero(), low[k]);
        flat[k] = grid.guarded ? at_least(low[k], high[k]) : equal(high[k], low[k]);
        high[k] = pick(flat[k], low[k] + splat(1), high[k]);
        inverse[k] = splat(top) / (high[k] - low[k]);
        scale[k] = splat(1) / inverse[k];
        found[k] = (struct line){.inverse = inverse[k], .base = low[k], .redo = unroundable(inverse[k], floor[k], high[k], low[k], 0)};
        for (int i = 0; i < n; i++) l[k][i] = clamp(nearest(inverse[k] * (x[i] - low[k])), 0, top);
    }
    line_errors(n, l, scale, low, t, grid.absolute, best);
    for (int candidate = 0; candidate <= grid.steps; candidate++) {
        struct line_sums s;
        vf new_scale[PAIR], new_low[PAIR], error[PAIR], determinant[PAIR];
        for (int k = 0; k < PAIR; k++) {
            inverse[k] = splat(grid.first + grid.step * (float)candidate + top) / (high[k] - low[k]);
            found[k].redo = either(found[k].redo, unroundable(inverse[k], floor[k], high[k], low[k], grid.guarded));
        }
        line_sums(n, top, inverse, low, t, l, &s);
        for (int k = 0; k < PAIR; k++) {
            determinant[k] = sum_w[k] * s.wll[k] - s.wl[k] * s.wl[k];
            new_scale[k] = (sum_w[k] * s.wlx[k] - sum_wx[k] * s.wl[k]) / determinant[k];
            new_low[k] = (s.wll[k] * sum_wx[k] - s.wl[k] * s.wlx[k]) / determinant[k];
            vm above = more(new_low[k], zero());
            new_scale[k] = pick(above, s.wlx[k] / s.wll[k], new_scale[k]);
            new_low[k] = pick(above, zero(), new_low[k]);
        }
        line_errors(n, l, new_scale, new_low, t, grid.absolute, error);
        for (int k = 0; k < PAIR; k++) {
            vm better = both(more(determinant[k], zero()), more(best[k], error[k]));
            best[k] = pick(better, error[k], best[k]);
            scale[k] = pick(better, new_scale[k], scale[k]);
            found[k].inverse = pick(better, inverse[k], found[k].inverse);
            found[k].base = pick(better, low[k], found[k].base);
            low[k] = pick(better, new_low[k], low[k]);
        }
    }
    for (int k = 0; k < PAIR; k++) {
        found[k].scale = pick(flat[k], zero(), scale[k]);
        found[k].low = pick(flat[k], low_of_flat[k], low[k]);
        found[k].inverse = pick(flat[k], zero(), found[k].inverse); /* all codes 0, also where low + 1 was low */
        found[k].redo = but_not(found[k].redo, flat[k]);
    }
}

/* Code book index of each lane's value: four halvings of the midpoints. */
INLINE vi nearest_codes(vf x) {
    static const float quarter[16] = {[0] = -57, [8] = 45.5f};
    static const float eighth[16] = {[0] = -93.5f, [4] = -28.5f, [8] = 19, [12] = 79};
    static const float last[16] = {[0] = -115.5f, [2] = -74, [4] = -42, [6] = -16, [8] = 7, [10] = 31.5f, [12] = 61, [14] = 101};
    vi code = step(no_steps(), not_less(x, splat(-4.5f)), 8);
    code = step(code, not_less(x, look_up(quarter, code)), 4);
    code = step(code, not_less(x, look_up(eighth, code)), 2);
    return step(code, not_less(x, look_up(last, code)), 1);
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
