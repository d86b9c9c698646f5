/* The encoders of the formats of 32 weights, and of IQ4_XS. Included after lanes_piece.h.
 *
 * Without importance a block's range decides, and a block is encoded by itself; blocks of denormals, whose inverse scale is
 * infinite, go to the plain twin. With importance, LANES blocks are searched at a time, and the search's codes are final.
 */
/* The encoders below know a format by its highest code: 15 is Q4_0 or Q4_1, 31 is Q5_0 or Q5_1, whose blocks have the fifth
 * bits before the nibbles. A block begins with its scale (and minimum). */
INLINE void pack_codes(int top, const uint8_t *codes, uint8_t *bytes) {
    if (top == 31) kq_pack_fifth_bits(codes, bytes);
    kq_pack_nibbles(codes, bytes + (top == 31 ? 4 : 0));
}

/* ---- the range of a block decides ---- */

INLINE float largest_magnitude(const float *x) {
    vf m = zero();
    for (int i = 0; i < 32; i += LANES) m = most(magnitude(load(x + i)), m);
    return widest(m);
}

/* Index of the first of 32 weights that equals `value`, or its negative where `either_sign`. */
INLINE int first_equal(const float *x, float value, int either_sign) {
    for (int i = 0; i < 32; i += LANES) {
        vf v = load(x + i);
        uint32_t m = bits(equal(either_sign ? magnitude(v) : v, splat(value)));
        if (m) return i + __builtin_ctz(m);
    }
    return 0;
}

/* First of the least and first of the greatest weights: zeros keep the sign the twin finds. */
INLINE void range_of(const float *x, float *low, float *high) {
    vf lo = load(x), hi = lo;
    for (int i = LANES; i < 32; i += LANES) lo = least(load(x + i), lo), hi = most(load(x + i), hi);
    *low = narrowest(lo), *high = widest(hi);
    if (*low == 0) *low = x[first_equal(x, 0, 0)];
    if (*high == 0) *high = x[first_equal(x, 0, 0)];
}

/* Signed weight of largest magnitude, the first of equals; +0 where all are zero. */
INLINE float signed_extreme(const float *x) {
    float low, high;
    range_of(x, &low, &high);
    if (high == -low) return high > 0 ? x[first_equal(x, high, 1)] : 0;
    return high > -low ? high : low;
}

/* Codes min(top, toward_zero((x - base) * inverse + half)) of 32 weights. */
INLINE void plain_codes(const float *x, float base, float inverse, float half, int top, uint8_t *codes) {
    vi v[32 / LANES];
    for (int i = 0; i < 32; i += LANES)
        v[i / LANES] = least_int(truncate((load(x + i) - splat(base)) * splat(inverse) + splat(half)), top);
    store_codes(codes, v);
}

/* Q4_0 and Q5_0. */
INLINE void encode_extremes(int top, const float *x, size_t n_blocks, kq_encode_fn *twin, size_t block_bytes, uint8_t *block) {
    const int half = (top + 1) / 2;
    for (size_t i = 0; i < n_blocks; i++, x += 32, block += block_bytes) {
        uint8_t codes[32];
        float d = signed_extreme(x) / (float)-half, inverse = d != 0 ? 1 / d : 0;
        kq_half stored = kq_put(d);
        memcpy(block, &stored, 2);
        plain_codes(x, 0, inverse, (float)half + 0.5f, top, codes);
        pack_codes(top, codes, block + 2);
        if (isinf(inverse)) twin(x, NULL, 0, 1, block);
    }
}

/* Q4_1 and Q5_1. */
INLINE void encode_ranges(int top, const float *x, size_t n_blocks, kq_encode_fn *twin, size_t block_bytes, uint8_t *block) {
    for (size_t i = 0; i < n_blocks; i++, x += 32, block += block_bytes) {
        uint8_t codes[32];
        float low, high;
        range_of(x, &low, &high);
        float d = (high - low) / (float)top, inverse = d != 0 ? 1 / d : 0;
        kq_half stored[2] = {kq_put(d), kq_put(low)};
        memcpy(block, stored, 4);
        plain_codes(x, low, inverse, 0.5f, top, codes);
        pack_codes(top, codes, block + 4);
        if (isinf(inverse)) twin(x, NULL, 0, 1, block);
    }
}

void KQ_LANE_NAME(kq_encode_q8_0)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)importance, (void)row_sigma2;
    struct kq_q8_0 *b = blocks;
    for (size_t k = 0; k < n_blocks; k++, x += 32) {
        float d = largest_magnitude(x) / 127.0f, inverse = d != 0 ? 1 / d : 0;
        vi v[32 / LANES];
        for (int i = 0; i < 32; i += LANES) { /* the float below one half: ties go away from zero, all else to the nearest */
            vf whole = load(x + i) * splat(inverse);
            v[i / LANES] = truncate(whole + signed_as(whole, 0.49999997f));
        }
        b[k].d = kq_put(d);
        store_codes(b[k].qs, v);
        if (isinf(inverse)) kq_encode_q8_0(x, NULL, 0, 1, &b[k]);
    }
}

/* ---- a search decides ---- */

/* Q4_0 and Q5_0 with importance: kq_fit_scale. An inverse of 0 marks a block of zeros, whose codes are 0. */
INLINE void encode_weighted_scales(int top, const float *x, const float *importance, float row_sigma2, size_t n_blocks,
                                   size_t block_bytes, uint8_t *block) {
    const int half = (top + 1) / 2;
    const struct piece p = {x, importance, &row_sigma2, KQ_PIECE, n_blocks};
    float S[MOST_32], inverse[MOST_32];
    fit_scales(&p, 32, half, BY_IMPORTANCE_AND_SIZE, S, NULL, inverse);
    for (size_t k = 0; k < n_blocks; k++, x += 32, block += block_bytes) {
        uint8_t codes[32];
        vi v[32 / LANES];
        for (int i = 0; i < 32; i += LANES)
            v[i / LANES] = round_clamp(load(x + i) * splat(inverse[k]), -half, half - 1, inverse[k] != 0 ? -half : 0);
        kq_half stored = kq_put(S[k]);
        memcpy(block, &stored, 2);
        store_codes(codes, v);
        pack_codes(top, codes, block + 2);
    }
}

/* Q4_1 and Q5_1 with importance: kq_fit_minimum. Codes are capped before they are rounded, as the search does it: a weight far
 * below `base` is too far away to round. */
INLINE void encode_weighted_lines(int top, struct kq_grid grid, const float *x, const float *importance, float row_sigma2,
                                  size_t n_blocks, kq_encode_fn *twin, size_t block_bytes, uint8_t *block) {
    const struct piece p = {x, importance, &row_sigma2, KQ_PIECE, n_blocks};
    for (size_t first = 0; first < n_blocks; first += BATCH) {
        struct tile t[PAIR];
        struct line found[PAIR];
        for (size_t k = 0; k < PAIR; k++) load_tile(&p, 32, BY_IMPORTANCE_AND_SIZE, first + k * LANES, &t[k]);
        fit_minimum(32, grid, t, found);
        for (size_t k = 0; k < PAIR; k++) {
            float scale[LANES], low[LANES], inverse[LANES], base[LANES];
            store(scale, found[k].scale), store(low, found[k].low), store(inverse, found[k].inverse), store(base, found[k].base);
            const uint32_t redo = bits(found[k].redo);
            for (size_t r = 0, at = first + k * LANES; r < LANES && at < n_blocks; r++, at++, x += 32, block += block_bytes) {
                uint8_t codes[32];
                vi v[32 / LANES];
                for (int i = 0; i < 32; i += LANES) {
                    vf code = (load(x + i) - splat(base[r])) * splat(inverse[r]);
                    v[i / LANES] = round_clamp(most(least(code, splat((float)top)), zero()), 0, top, 0);
                }
                kq_half stored[2] = {kq_put(scale[r]), kq_put(low[r])};
                memcpy(block, stored, 4);
                store_codes(codes, v);
                pack_codes(top, codes, block + 4);
                if (redo >> r & 1) twin(x, importance + 32 * at, row_sigma2, 1, block);
            }
        }
    }
}

void KQ_LANE_NAME(kq_encode_q4_0)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    if (importance) encode_weighted_scales(15, x, importance, row_sigma2, n_blocks, sizeof(struct kq_q4_0), blocks);
    else encode_extremes(15, x, n_blocks, kq_encode_q4_0, sizeof(struct kq_q4_0), blocks);
}

void KQ_LANE_NAME(kq_encode_q5_0)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    if (importance) encode_weighted_scales(31, x, importance, row_sigma2, n_blocks, sizeof(struct kq_q5_0), blocks);
    else encode_extremes(31, x, n_blocks, kq_encode_q5_0, sizeof(struct kq_q5_0), blocks);
}

void KQ_LANE_NAME(kq_encode_q4_1)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    if (importance)
        encode_weighted_lines(15, KQ_GRID_WEIGHTED_15, x, importance, row_sigma2, n_blocks, kq_encode_q4_1, sizeof(struct kq_q4_1), blocks);
    else encode_ranges(15, x, n_blocks, kq_encode_q4_1, sizeof(struct kq_q4_1), blocks);
}

void KQ_LANE_NAME(kq_encode_q5_1)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    if (importance)
        encode_weighted_lines(31, KQ_GRID_WEIGHTED_31, x, importance, row_sigma2, n_blocks, kq_encode_q5_1, sizeof(struct kq_q5_1), blocks);
    else encode_ranges(31, x, n_blocks, kq_encode_q5_1, sizeof(struct kq_q5_1), blocks);
}

/* ---- IQ4_NL and IQ4_XS: a code book ---- */

/* Nearest code book codes of 32 weights, packed. */
INLINE void store_codebook(const float *x, float scale, uint8_t *qs) {
    uint8_t codes[32];
    vi v[32 / LANES];
    float inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < 32; i += LANES) v[i / LANES] = nearest_codes(load(x + i) * splat(inverse));
    store_codes(codes, v);
    kq_pack_nibbles(codes, qs);
}

/* Code book scales of every 32 weights. */
INLINE void fit_codebooks(const struct piece *p, float *S) {
    for (size_t first = 0; first < p->count; first += LANES) {
        struct tile t;
        load_tile(p, 32, p->importance ? BY_IMPORTANCE_AND_SIZE : BY_SQUARE, first, &t);
        store(S + first, fit_codebook(&t));
    }
}

void KQ_LANE_NAME(kq_encode_iq4_nl)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                    void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_32], sigma2[MOST_32];
    const struct piece p = {x, importance, sigma2, 32, n_blocks};
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
    const struct piece p = {x, importance, sigma2, 256, 8 * n_blocks};
    fit_codebooks(&p, S);
    struct kq_iq4_xs *b = blocks;
    for (size_t i = 0; i < n_blocks; i++) {
        kq_iq4_xs_header(S + 8 * i, &b[i], dl);
        for (size_t s = 0; s < 8; s++) store_codebook(x + 256 * i + 32 * s, dl[s], b[i].qs + 16 * s);
    }
}
