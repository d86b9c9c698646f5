/* From a piece of a row to the scales (and minima) of its sub-blocks, LANES of them at a time. Included after lanes_fit.h. */
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

/* Sub-blocks (of 16, 32, 256 weights) of a piece, and room for a last store of a pair of tiles. */
enum { BATCH = PAIR * LANES, MOST_16 = KQ_PIECE / 16 + BATCH, MOST_32 = KQ_PIECE / 32 + BATCH, MOST_256 = KQ_PIECE / 256 + BATCH };

/* How a search weighs errors. */
enum weighing { BY_SIZE, BY_SIZE_AND_MEAN, BY_SQUARE, BY_IMPORTANCE, BY_IMPORTANCE_AND_SIZE };

/* The weights of a piece as `count` sub-blocks. */
struct piece {
    const float *x, *importance;
    const float *sigma2; /* one a block of `block` weights; only with importance, and not for BY_IMPORTANCE */
    size_t block, count;
};

INLINE float sigma2_of(const struct piece *p, size_t block) { return p->importance && p->sigma2 ? p->sigma2[block] : 0; }
INLINE const float *columns_of(const float *importance, size_t at) { return importance ? importance + at : NULL; }

/* Lane r of a batch is sub-block first + r; the last one stands in for those that are missing. */
INLINE void load_columns(const struct piece *p, int n, const float *values, size_t first, vf *columns) {
    const float *rows[LANES];
    for (size_t r = 0; r < LANES; r++) rows[r] = values + (size_t)n * (first + r < p->count ? first + r : p->count - 1);
    for (int at = 0; at < n; at += LANES) transpose(rows, at, columns + at);
}

/* The tile of a batch; gives the sum of its weights. */
INLINE vf load_tile(const struct piece *p, int n, enum weighing by, size_t first, struct tile *t) {
    load_columns(p, n, p->x, first, t->x);
    vf sum = zero(), mean = zero(), sigma2 = zero();
    if (by == BY_IMPORTANCE || by == BY_IMPORTANCE_AND_SIZE) load_columns(p, n, p->importance, first, t->w);
    if (by == BY_IMPORTANCE_AND_SIZE) {
        float lanes[LANES];
        for (size_t r = 0; r < LANES; r++) {
            size_t s = first + r < p->count ? first + r : p->count - 1;
            lanes[r] = p->sigma2[s * (size_t)n / p->block];
        }
        sigma2 = load(lanes);
    }
    if (by == BY_SIZE_AND_MEAN) {
        for (int i = 0; i < n; i++) mean = mean + t->x[i] * t->x[i];
        mean = root(mean / splat((float)n));
    }
    for (int i = 0; i < n; i++) {
        vf x = t->x[i];
        if (by == BY_SIZE) t->w[i] = magnitude(x);
        if (by == BY_SIZE_AND_MEAN) t->w[i] = mean + magnitude(x);
        if (by == BY_SQUARE) t->w[i] = x * x;
        if (by == BY_IMPORTANCE_AND_SIZE) t->w[i] = t->w[i] * root(sigma2 + x * x);
        sum = sum + t->w[i];
    }
    return sum;
}

/* Sum of squares of each block of 256, in index order. */
INLINE void square_sums(const float *x, size_t n_blocks, float *sums) {
    for (size_t first = 0; first < n_blocks; first += LANES) {
        const float *rows[LANES];
        vf sum = zero();
        for (size_t r = 0; r < LANES; r++) rows[r] = x + 256 * (first + r < n_blocks ? first + r : n_blocks - 1);
        for (int at = 0; at < 256; at += LANES) {
            vf columns[LANES];
            transpose(rows, at, columns);
            for (int c = 0; c < LANES; c++) sum = sum + columns[c] * columns[c];
        }
        store(sums + first, sum);
    }
}

/* kq_requantise, but that sub-blocks whose step is zero get any codes. */
INLINE void requantise(int n, const float *x, const struct kq_steps *steps, int lo, int hi, uint8_t *codes) {
    for (int at = 0; at < 256; at += 32) {
        vi v[32 / LANES];
        for (int i = 0; i < 32; i += LANES) {
            int s = (at + i) / n;
            v[i / LANES] = round_clamp((load(x + at + i) + splat(steps->minimum[s])) / splat(steps->scale[s]), lo, hi, lo);
        }
        store_codes(codes + at, v);
    }
}

/* Scale S, minimum M and weight sum W of every sub-block. */
INLINE void fit_minima(const struct piece *p, int n, struct kq_grid grid, enum weighing by, kq_fit_fn *twin, float *S, float *M,
                       float *W) {
    uint8_t codes[32];
    for (size_t first = 0; first < p->count; first += BATCH) {
        struct tile t[PAIR];
        struct line found[PAIR];
        for (size_t k = 0; k < PAIR; k++) store(W + first + k * LANES, load_tile(p, n, by, first + k * LANES, &t[k]));
        fit_minimum(n, grid, t, found);
        for (size_t k = 0; k < PAIR; k++) {
            const size_t at = first + k * LANES;
            store(S + at, found[k].scale);
            store(M + at, -found[k].low);
            for (uint32_t redo = bits(found[k].redo); redo; redo &= redo - 1) {
                size_t s = at + (size_t)__builtin_ctz(redo), from = s * (size_t)n;
                if (s >= p->count) break;
                S[s] = twin(p->x + from, columns_of(p->importance, from), sigma2_of(p, from / p->block), &M[s], &W[s], codes);
            }
        }
    }
}

/* Scale S and weight sum W of every sub-block; `inverse` (may be NULL) gets what its codes are made with. */
INLINE void fit_scales(const struct piece *p, int n, int half, enum weighing by, float *S, float *W, float *inverse) {
    for (size_t first = 0; first < p->count; first += LANES) {
        struct tile t;
        vf chosen, sum = load_tile(p, n, by, first, &t);
        store(S + first, fit_scale(n, half, &t, &chosen));
        if (W) store(W + first, sum);
        if (inverse) store(inverse + first, chosen);
    }
}
