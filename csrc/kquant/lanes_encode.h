/* The encoders of the super-block formats and of the importance-weighted 32-weight formats, LANES sub-blocks at a time.
 * Included after lanes_fit.h by kquant_avx2.c and kquant_avx512.c.
 *
 * A search gives scales (and minima) only. The codes are made from the scales as they were stored, in weight order; where
 * a stored scale is zero the format wants the search's own codes, and the plain twin is asked for that sub-block.
 */
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

/* Sub-blocks (of 16, 32, 256 weights) of a piece, and room for a last store of LANES. */
enum { MOST_16 = KQ_PIECE / 16 + LANES, MOST_32 = KQ_PIECE / 32 + LANES, MOST_256 = KQ_PIECE / 256 + LANES };

/* How a search weighs errors. */
enum weighing { BY_SIZE, BY_SIZE_AND_MEAN, BY_SQUARE, BY_IMPORTANCE, BY_IMPORTANCE_AND_SIZE };

/* The weights of a piece as sub-blocks of n. */
struct piece {
    int n;
    const float *x, *importance;
    const float *sigma2; /* one a block of `block` weights; only for BY_IMPORTANCE_AND_SIZE */
    size_t block, count;
};

/* Lane r of a batch is sub-block first + r; the last one stands in for those that are missing. */
static inline void load_columns(const struct piece *p, const float *values, size_t first, vf *columns) {
    const float *rows[LANES];
    for (size_t r = 0; r < LANES; r++) rows[r] = values + (size_t)p->n * (first + r < p->count ? first + r : p->count - 1);
    for (int at = 0; at < p->n; at += LANES) transpose(rows, at, columns + at);
}

/* The tile of a batch; gives the sum of its weights. */
static inline vf load_tile(const struct piece *p, enum weighing by, size_t first, struct tile *t) {
    load_columns(p, p->x, first, t->x);
    vf sum = zero(), mean = zero(), sigma2 = zero();
    if (by == BY_IMPORTANCE || by == BY_IMPORTANCE_AND_SIZE) load_columns(p, p->importance, first, t->w);
    if (by == BY_IMPORTANCE_AND_SIZE) {
        float lanes[LANES];
        for (size_t r = 0; r < LANES; r++) {
            size_t s = first + r < p->count ? first + r : p->count - 1;
            lanes[r] = p->sigma2[s * (size_t)p->n / p->block];
        }
        sigma2 = load(lanes);
    }
    if (by == BY_SIZE_AND_MEAN) {
        for (int i = 0; i < p->n; i++) mean = mean + t->x[i] * t->x[i];
        mean = root(mean / splat((float)p->n));
    }
    for (int i = 0; i < p->n; i++) {
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
static inline void square_sums(const float *x, size_t n_blocks, float *sums) {
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

/* Codes lo..hi of n weights for a stored scale, shifted to start at 0. */
static inline void requantise(int n, const float *x, float minimum, float scale, int lo, int hi, uint8_t *codes) {
    for (int i = 0; i < n; i += LANES) {
        vf v = (load(x + i) + splat(minimum)) / splat(scale);
        store_bytes(codes + i, add(round_clamp(v, lo, hi), -lo));
    }
}

typedef float fit_twin(const float *restrict x, const float *restrict importance, float sigma2, float *restrict minimum,
                       float *restrict weight, uint8_t *restrict codes);

static inline const float *columns_of(const float *importance, size_t at) { return importance ? importance + at : NULL; }

/* Scale S, minimum M and weight sum W of every sub-block. */
static inline void fit_minima(const struct piece *p, struct kq_grid grid, enum weighing by, fit_twin *twin, float *S, float *M,
                              float *W) {
    uint8_t codes[32];
    for (size_t first = 0; first < p->count; first += LANES) {
        struct tile t;
        store(W + first, load_tile(p, by, first, &t));
        struct line found = fit_minimum(p->n, grid, &t);
        store(S + first, found.scale);
        store(M + first, -found.low);
        for (uint32_t redo = bits(found.redo); redo; redo &= redo - 1) {
            size_t s = first + (size_t)__builtin_ctz(redo), at = s * (size_t)p->n;
            if (s >= p->count) break;
            float sigma2 = p->sigma2 ? p->sigma2[at / p->block] : 0;
            S[s] = twin(p->x + at, columns_of(p->importance, at), sigma2, &M[s], &W[s], codes);
        }
    }
}

/* Mean squares of the blocks, `factor` times: what the searches with importance start from. */
static inline void block_sigmas(const float *x, size_t n_blocks, float factor, float *sigma2) {
    square_sums(x, n_blocks, sigma2);
    for (size_t i = 0; i < n_blocks; i++) sigma2[i] = factor * sigma2[i] / 256;
}

void KQ_LANE_NAME(kq_encode_q2_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_16], M[MOST_16], W[MOST_16], sigma2[MOST_256] = {0};
    if (importance) block_sigmas(x, n_blocks, 1, sigma2);
    const struct piece p = {16, x, importance, sigma2, 256, 16 * n_blocks};
    if (importance) fit_minima(&p, KQ_GRID_WEIGHTED_3, BY_IMPORTANCE_AND_SIZE, kq_q2_k_fit, S, M, W);
    else fit_minima(&p, KQ_GRID_Q2_K, BY_SIZE, kq_q2_k_fit, S, M, W);
    struct kq_q2_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        kq_q2_k_header(S + 16 * i, M + 16 * i, importance ? W + 16 * i : NULL, b);
        float d = kq_get(b->d), dmin = kq_get(b->dmin), unused[2];
        for (size_t s = 0; s < 16; s++) {
            size_t at = 256 * i + 16 * s;
            float scale = d * (float)(b->scales[s] & 15), minimum = dmin * (float)(b->scales[s] >> 4);
            if (scale != 0) requantise(16, x + at, minimum, scale, 0, 3, codes + 16 * s);
            else kq_q2_k_fit(x + at, columns_of(importance, at), sigma2[i], &unused[0], &unused[1], codes + 16 * s);
        }
        kq_pack_pairs(codes, b->qs);
    }
}

/* Scales of all sub-blocks of Q3_K without importance, TILES batches at a time. */
static inline void fit_descents(const struct piece *p, float *S) {
    for (size_t first = 0; first < p->count; first += TILES * LANES) {
        struct tile t[TILES];
        vf scale[TILES];
        float lanes[TILES * LANES];
        for (size_t k = 0; k < TILES; k++) load_columns(p, p->x, first + k * LANES, t[k].x);
        fit_scale_descent(t, scale);
        for (size_t k = 0; k < TILES; k++) store(lanes + k * LANES, scale[k]);
        for (size_t r = 0; r < TILES * LANES && first + r < p->count; r++) S[first + r] = lanes[r];
    }
}

/* Scale S and weight sum W of every sub-block; `inverse` (may be NULL) gets what its codes are made with. */
static inline void fit_scales(const struct piece *p, int half, enum weighing by, float *S, float *W, float *inverse) {
    for (size_t first = 0; first < p->count; first += LANES) {
        struct tile t;
        vf chosen, sum = load_tile(p, by, first, &t);
        store(S + first, fit_scale(p->n, half, &t, &chosen));
        if (W) store(W + first, sum);
        if (inverse) store(inverse + first, chosen);
    }
}

void KQ_LANE_NAME(kq_encode_q3_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_16], W[MOST_16], sigma2[MOST_256] = {0}, unused;
    if (importance) block_sigmas(x, n_blocks, 2, sigma2);
    const struct piece p = {16, x, importance, sigma2, 256, 16 * n_blocks};
    if (importance) fit_scales(&p, 4, BY_IMPORTANCE_AND_SIZE, S, W, NULL);
    else fit_descents(&p, S);
    struct kq_q3_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        int scales[16];
        kq_q3_k_header(S + 16 * i, importance ? W + 16 * i : NULL, b, scales);
        float d = kq_get(b->d);
        for (size_t s = 0; s < 16; s++) {
            size_t at = 256 * i + 16 * s;
            float scale = d * (float)scales[s];
            if (scale != 0) requantise(16, x + at, 0, scale, -4, 3, codes + 16 * s);
            else kq_q3_k_fit(x + at, columns_of(importance, at), sigma2[i], &unused, codes + 16 * s);
        }
        kq_pack_bit(codes, 2, b->hmask);
        kq_pack_pairs(codes, b->qs);
    }
}

/* The codes of a Q4_K or Q5_K block from its header. */
static inline void requantise_k4(const float *x, const float *importance, float sigma2, kq_half d_stored, kq_half dmin_stored,
                                 const uint8_t *packed, int top, fit_twin *twin, uint8_t *codes) {
    float d = kq_get(d_stored), dmin = kq_get(dmin_stored), unused[2];
    for (int s = 0; s < 8; s++, x += 32, codes += 32) {
        int scale, minimum;
        kq_k4_get(packed, s, &scale, &minimum);
        float step_size = d * (float)scale, low = dmin * (float)minimum;
        if (step_size != 0) requantise(32, x, low, step_size, 0, top, codes);
        else twin(x, columns_of(importance, 32 * (size_t)s), sigma2, &unused[0], &unused[1], codes);
    }
}

void KQ_LANE_NAME(kq_encode_q4_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_32], M[MOST_32], W[MOST_32], sigma2[MOST_256] = {0};
    if (importance) block_sigmas(x, n_blocks, 2, sigma2);
    const struct piece p = {32, x, importance, sigma2, 256, 8 * n_blocks};
    if (importance) fit_minima(&p, KQ_GRID_WEIGHTED_15, BY_IMPORTANCE_AND_SIZE, kq_q4_k_fit, S, M, W);
    else fit_minima(&p, KQ_GRID_Q4_K, BY_SIZE_AND_MEAN, kq_q4_k_fit, S, M, W);
    struct kq_q4_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        kq_k4_header(S + 8 * i, M + 8 * i, importance ? W + 8 * i : NULL, &b->d, &b->dmin, b->scales);
        requantise_k4(x + 256 * i, columns_of(importance, 256 * i), sigma2[i], b->d, b->dmin, b->scales, 15, kq_q4_k_fit, codes);
        kq_pack_nibble_groups(codes, b->qs);
    }
}

void KQ_LANE_NAME(kq_encode_q5_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_32], M[MOST_32], W[MOST_32], sigma2[MOST_256] = {0};
    if (importance) block_sigmas(x, n_blocks, 2, sigma2);
    const struct piece p = {32, x, importance, sigma2, 256, 8 * n_blocks};
    if (importance) fit_minima(&p, KQ_GRID_WEIGHTED_31, BY_IMPORTANCE_AND_SIZE, kq_q5_k_fit, S, M, W);
    else fit_minima(&p, KQ_GRID_Q5_K, BY_SIZE_AND_MEAN, kq_q5_k_fit, S, M, W);
    struct kq_q5_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        kq_k4_header(S + 8 * i, M + 8 * i, importance ? W + 8 * i : NULL, &b->d, &b->dmin, b->scales);
        requantise_k4(x + 256 * i, columns_of(importance, 256 * i), sigma2[i], b->d, b->dmin, b->scales, 31, kq_q5_k_fit, codes);
        kq_pack_bit(codes, 4, b->qh);
        kq_pack_nibble_groups(codes, b->qs);
    }
}

void KQ_LANE_NAME(kq_encode_q6_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_16];
    const struct piece p = {16, x, importance, NULL, 256, 16 * n_blocks};
    if (importance) fit_scales(&p, 32, BY_IMPORTANCE, S, NULL, NULL);
    else fit_scales(&p, 32, BY_SQUARE, S, NULL, NULL);
    struct kq_q6_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        if (!kq_q6_k_header(S + 16 * i, b)) continue;
        float d = kq_get(b->d);
        for (size_t s = 0; s < 16; s++) {
            size_t at = 256 * i + 16 * s;
            float scale = d * (float)b->scales[s];
            if (scale != 0) requantise(16, x + at, 0, scale, -32, 31, codes + 16 * s);
            else kq_q6_k_fit(x + at, columns_of(importance, at), codes + 16 * s);
        }
        kq_pack_six_bits(codes, b->ql, b->qh);
    }
}

/* ---- formats of 32 weights ------------------------------------------------------------------------------- */

/* Scales of the importance-weighted Q4_0 and Q5_0, and the inverse that gives the codes. */
static inline void fit_symmetric(int half, const float *x, const float *importance, float row_sigma2, size_t n_blocks, float *S,
                                 float *inverse) {
    const struct piece p = {32, x, importance, &row_sigma2, KQ_PIECE, n_blocks};
    fit_scales(&p, half, BY_IMPORTANCE_AND_SIZE, S, NULL, inverse);
}

/* Codes of 32 weights for an inverse scale; an inverse of 0 marks a block of zeros, whose codes are 0. */
static inline void symmetric_codes(const float *x, float inverse, int half, uint8_t *codes) {
    for (int i = 0; i < 32; i += LANES) {
        vi l = round_clamp(load(x + i) * splat(inverse), -half, half - 1);
        store_bytes(codes + i, add(l, inverse != 0 ? half : 0));
    }
}

/* What an importance-weighted Q4_1 or Q5_1 block is made of. */
struct lines {
    float scale[MOST_32], low[MOST_32], inverse[MOST_32], base[MOST_32];
    uint32_t redo[MOST_32 / LANES + 1];
};

static inline void fit_lines(struct kq_grid grid, const float *x, const float *importance, float row_sigma2, size_t n_blocks,
                             struct lines *out) {
    const struct piece p = {32, x, importance, &row_sigma2, KQ_PIECE, n_blocks};
    for (size_t first = 0; first < n_blocks; first += LANES) {
        struct tile t;
        load_tile(&p, BY_IMPORTANCE_AND_SIZE, first, &t);
        struct line found = fit_minimum(32, grid, &t);
        store(out->scale + first, found.scale);
        store(out->low + first, found.low);
        store(out->inverse + first, found.inverse);
        store(out->base + first, found.base);
        out->redo[first / LANES] = bits(found.redo);
    }
}

static inline void line_codes(const float *x, float inverse, float base, int top, uint8_t *codes) {
    for (int i = 0; i < 32; i += LANES) store_bytes(codes + i, round_clamp((load(x + i) - splat(base)) * splat(inverse), 0, top));
}

/* Index of the first of 32 weights that equals `value`. */
static inline int first_equal(const float *x, float value) {
    for (int i = 0; i < 32; i += LANES) {
        uint32_t m = bits(equal(load(x + i), splat(value)));
        if (m) return i + __builtin_ctz(m);
    }
    return 0;
}

static inline float largest_magnitude(const float *x) {
    vf m = zero();
    for (int i = 0; i < 32; i += LANES) m = most(magnitude(load(x + i)), m);
    return widest(m);
}

/* Signed weight of largest magnitude, the first of equals; +0 where all are zero. */
static inline float signed_extreme(const float *x) {
    float a = largest_magnitude(x);
    if (a == 0) return 0;
    for (int i = 0; i < 32; i += LANES) {
        uint32_t m = bits(equal(magnitude(load(x + i)), splat(a)));
        if (m) return x[i + __builtin_ctz(m)];
    }
    return 0;
}

/* First of the least and first of the greatest weights, so that zeros keep the sign the twin finds. */
static inline void range_of(const float *x, float *low, float *high) {
    vf lo = load(x), hi = lo;
    for (int i = LANES; i < 32; i += LANES) lo = least(load(x + i), lo), hi = most(load(x + i), hi);
    *low = x[first_equal(x, narrowest(lo))];
    *high = x[first_equal(x, widest(hi))];
}

/* Codes min(top, toward_zero((x - base) * inverse + half)) of 32 weights. */
static inline void plain_codes(const float *x, float base, float inverse, float half, int top, uint8_t *codes) {
    for (int i = 0; i < 32; i += LANES) {
        vf v = (load(x + i) - splat(base)) * splat(inverse) + splat(half);
        store_bytes(codes + i, least_int(truncate(v), top));
    }
}

void KQ_LANE_NAME(kq_encode_q4_0)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    struct kq_q4_0 *b = blocks;
    uint8_t codes[32];
    float S[MOST_32], inverse[MOST_32];
    if (importance) fit_symmetric(8, x, importance, row_sigma2, n_blocks, S, inverse);
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        if (importance) {
            b[i].d = kq_put(S[i]);
            symmetric_codes(x, inverse[i], 8, codes);
        } else {
            float d = signed_extreme(x) / -8, id = d != 0 ? 1 / d : 0;
            if (isinf(id)) {
                kq_encode_q4_0(x, NULL, 0, 1, &b[i]);
                continue;
            }
            b[i].d = kq_put(d);
            plain_codes(x, 0, id, 8.5f, 15, codes);
        }
        kq_pack_nibbles(codes, b[i].qs);
    }
}

void KQ_LANE_NAME(kq_encode_q5_0)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    struct kq_q5_0 *b = blocks;
    uint8_t codes[32];
    float S[MOST_32], inverse[MOST_32];
    if (importance) fit_symmetric(16, x, importance, row_sigma2, n_blocks, S, inverse);
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        if (importance) {
            b[i].d = kq_put(S[i]);
            symmetric_codes(x, inverse[i], 16, codes);
        } else {
            float d = signed_extreme(x) / -16, id = d != 0 ? 1 / d : 0;
            if (isinf(id)) {
                kq_encode_q5_0(x, NULL, 0, 1, &b[i]);
                continue;
            }
            b[i].d = kq_put(d);
            plain_codes(x, 0, id, 16.5f, 31, codes);
        }
        kq_pack_fifth_bits(codes, b[i].qh);
        kq_pack_nibbles(codes, b[i].qs);
    }
}

void KQ_LANE_NAME(kq_encode_q4_1)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    struct kq_q4_1 *b = blocks;
    uint8_t codes[32];
    struct lines l;
    if (importance) fit_lines(KQ_GRID_WEIGHTED_15, x, importance, row_sigma2, n_blocks, &l);
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        float low, high;
        range_of(x, &low, &high);
        float d = (high - low) / 15, id = d != 0 ? 1 / d : 0;
        if (importance ? l.redo[i / LANES] >> i % LANES & 1 : isinf(id)) {
            kq_encode_q4_1(x, columns_of(importance, 32 * i), row_sigma2, 1, &b[i]);
            continue;
        }
        b[i].d = kq_put(importance ? l.scale[i] : d);
        b[i].m = kq_put(importance ? l.low[i] : low);
        if (importance) line_codes(x, l.inverse[i], l.base[i], 15, codes);
        else plain_codes(x, low, id, 0.5f, 15, codes);
        kq_pack_nibbles(codes, b[i].qs);
    }
}

void KQ_LANE_NAME(kq_encode_q5_1)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    struct kq_q5_1 *b = blocks;
    uint8_t codes[32];
    struct lines l;
    if (importance) fit_lines(KQ_GRID_WEIGHTED_31, x, importance, row_sigma2, n_blocks, &l);
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        float low, high;
        range_of(x, &low, &high);
        float d = (high - low) / 31, id = d != 0 ? 1 / d : 0;
        if (importance ? l.redo[i / LANES] >> i % LANES & 1 : isinf(id)) {
            kq_encode_q5_1(x, columns_of(importance, 32 * i), row_sigma2, 1, &b[i]);
            continue;
        }
        b[i].d = kq_put(importance ? l.scale[i] : d);
        b[i].m = kq_put(importance ? l.low[i] : low);
        if (importance) line_codes(x, l.inverse[i], l.base[i], 31, codes);
        else plain_codes(x, low, id, 0.5f, 255, codes);
        kq_pack_fifth_bits(codes, b[i].qh);
        kq_pack_nibbles(codes, b[i].qs);
    }
}

void KQ_LANE_NAME(kq_encode_q8_0)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)importance, (void)row_sigma2;
    struct kq_q8_0 *b = blocks;
    for (size_t k = 0; k < n_blocks; k++, x += 32) {
        float d = largest_magnitude(x) / 127.0f, id = d != 0 ? 1 / d : 0;
        if (isinf(id)) {
            kq_encode_q8_0(x, NULL, 0, 1, &b[k]);
            continue;
        }
        b[k].d = kq_put(d);
        for (int i = 0; i < 32; i += LANES) {
            vf v = load(x + i) * splat(id), whole = floats(truncate(v)), rest = v - whole;
            vf up = pick(at_least(rest, splat(0.5f)), splat(1), zero()); /* ties away from zero */
            vf down = pick(at_least(splat(-0.5f), rest), splat(-1), zero());
            store_bytes(b[k].qs + i, truncate(whole + up + down));
        }
    }
}

/* Nearest code book codes of 32 weights, packed. */
static inline void store_codebook(const float *x, float scale, uint8_t *qs) {
    uint8_t codes[32];
    float inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < 32; i += LANES) store_bytes(codes + i, nearest_codes(load(x + i) * splat(inverse)));
    kq_pack_nibbles(codes, qs);
}

/* Code book scales of every 32 weights. */
static inline void fit_codebooks(const struct piece *p, float *S) {
    for (size_t first = 0; first < p->count; first += LANES) {
        struct tile t;
        load_tile(p, p->importance ? BY_IMPORTANCE_AND_SIZE : BY_SQUARE, first, &t);
        store(S + first, fit_codebook(&t));
    }
}

void KQ_LANE_NAME(kq_encode_iq4_nl)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                    void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_32], sigma2[MOST_32];
    const struct piece p = {32, x, importance, sigma2, 32, n_blocks};
    if (importance) {
        for (size_t i = 0; i < n_blocks; i++) sigma2[i] = kq_square_sum(32, x + 32 * i) * (2.0f / 32);
    }
    fit_codebooks(&p, S);
    struct kq_iq4_nl *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) {
        b[i].d = kq_put(S[i]);
        store_codebook(x + 32 * i, S[i], b[i].qs);
    }
}

void KQ_LANE_NAME(kq_encode_iq4_xs)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                    void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_32], sigma2[MOST_256], dl[8];
    if (importance) {
        square_sums(x, n_blocks, sigma2);
        for (size_t i = 0; i < n_blocks; i++) sigma2[i] = sigma2[i] * (2.0f / 256);
    }
    const struct piece p = {32, x, importance, sigma2, 256, 8 * n_blocks};
    fit_codebooks(&p, S);
    struct kq_iq4_xs *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) {
        kq_iq4_xs_header(S + 8 * i, &b[i], dl);
        for (size_t s = 0; s < 8; s++) store_codebook(x + 256 * i + 32 * s, dl[s], b[i].qs + 16 * s);
    }
}
