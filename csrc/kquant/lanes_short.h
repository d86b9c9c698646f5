/* The encoders of the formats of 32 weights, and of IQ4_XS. Included after lanes_piece.h.
 *
 * Without importance a block's range decides, and a block is encoded by itself; blocks of denormals, whose inverse scale is
 * infinite, go to the plain twin. With importance, LANES blocks are searched at a time, and the search's codes are final.
 */
/* Scales of the importance-weighted Q4_0 and Q5_0, and the inverse that gives the codes. */
INLINE void fit_symmetric(int half, const float *x, const float *importance, float row_sigma2, size_t n_blocks, float *S,
                                 float *inverse) {
    const struct piece p = {x, importance, &row_sigma2, KQ_PIECE, n_blocks};
    fit_scales(&p, 32, half, BY_IMPORTANCE_AND_SIZE, S, NULL, inverse);
}

/* Codes of 32 weights for an inverse scale; an inverse of 0 marks a block of zeros, whose codes are 0. */
INLINE void symmetric_codes(const float *x, float inverse, int half, uint8_t *codes) {
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

INLINE void fit_lines(struct kq_grid grid, const float *x, const float *importance, float row_sigma2, size_t n_blocks,
                             struct lines *out) {
    const struct piece p = {x, importance, &row_sigma2, KQ_PIECE, n_blocks};
    for (size_t first = 0; first < n_blocks; first += LANES) {
        struct tile t;
        load_tile(&p, 32, BY_IMPORTANCE_AND_SIZE, first, &t);
        struct line found = fit_minimum(32, grid, &t);
        store(out->scale + first, found.scale);
        store(out->low + first, found.low);
        store(out->inverse + first, found.inverse);
        store(out->base + first, found.base);
        out->redo[first / LANES] = bits(found.redo);
    }
}

/* Capped before they are rounded, as the search does it: a weight far below `base` is too far away to round. */
INLINE void line_codes(const float *x, float inverse, float base, int top, uint8_t *codes) {
    for (int i = 0; i < 32; i += LANES) {
        vf v = (load(x + i) - splat(base)) * splat(inverse);
        store_bytes(codes + i, round_clamp(most(least(v, splat((float)top)), zero()), 0, top));
    }
}

/* Index of the first of 32 weights that equals `value`. */
INLINE int first_equal(const float *x, float value) {
    for (int i = 0; i < 32; i += LANES) {
        uint32_t m = bits(equal(load(x + i), splat(value)));
        if (m) return i + __builtin_ctz(m);
    }
    return 0;
}

INLINE float largest_magnitude(const float *x) {
    vf m = zero();
    for (int i = 0; i < 32; i += LANES) m = most(magnitude(load(x + i)), m);
    return widest(m);
}

/* Signed weight of largest magnitude, the first of equals; +0 where all are zero. */
INLINE float signed_extreme(const float *x) {
    float a = largest_magnitude(x);
    if (a == 0) return 0;
    for (int i = 0; i < 32; i += LANES) {
        uint32_t m = bits(equal(magnitude(load(x + i)), splat(a)));
        if (m) return x[i + __builtin_ctz(m)];
    }
    return 0;
}

/* First of the least and first of the greatest weights, so that zeros keep the sign the twin finds. */
INLINE void range_of(const float *x, float *low, float *high) {
    vf lo = load(x), hi = lo;
    for (int i = LANES; i < 32; i += LANES) lo = least(load(x + i), lo), hi = most(load(x + i), hi);
    *low = x[first_equal(x, narrowest(lo))];
    *high = x[first_equal(x, widest(hi))];
}

/* Codes min(top, toward_zero((x - base) * inverse + half)) of 32 weights. */
INLINE void plain_codes(const float *x, float base, float inverse, float half, int top, uint8_t *codes) {
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
INLINE void store_codebook(const float *x, float scale, uint8_t *qs) {
    uint8_t codes[32];
    float inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < 32; i += LANES) store_bytes(codes + i, nearest_codes(load(x + i) * splat(inverse)));
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
