/* The encoders of the K-quants, a batch of sub-blocks at a time. Included after lanes_piece.h.
 *
 * The searches give scales (and minima) only. The codes are made from the scales as they were stored, in weight order;
 * where a stored scale is zero the format wants the search's own codes, and the plain twin is asked for that sub-block.
 */
/* What the searches found for a piece; sigma2, one a block, is what error weights start from with importance. */
struct found {
    float S[MOST_16], M[MOST_16], W[MOST_16], sigma2[MOST_256];
};

/* The piece as sub-blocks of n weights; sigma2 is `factor` times the mean square of each block. */
INLINE struct piece begin(int n, const float *x, const float *importance, float factor, size_t n_blocks, struct found *f) {
    if (importance) {
        square_sums(x, n_blocks, f->sigma2);
        for (size_t i = 0; i < n_blocks; i++) f->sigma2[i] = factor * f->sigma2[i] / 256;
    }
    return (struct piece){x, importance, f->sigma2, 256, n_blocks * 256 / (size_t)n};
}

/* The codes of block i: kq_requantise, and the twin's where a step is zero. */
INLINE void block_codes(int n, const struct piece *p, size_t i, const struct kq_steps *steps, int lo, int hi, kq_fit_fn *twin,
                        uint8_t *codes) {
    const float *x = p->x + 256 * i, *importance = columns_of(p->importance, 256 * i);
    requantise(n, x, steps, lo, hi, codes);
    for (int s = 0, at = 0; at < 256; s++, at += n) {
        float unused[2];
        if (steps->scale[s] == 0) twin(x + at, columns_of(importance, (size_t)at), sigma2_of(p, i), &unused[0], &unused[1], codes + at);
    }
}

void KQ_LANE_NAME(kq_encode_q2_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    struct found f;
    const struct piece p = begin(16, x, importance, 1, n_blocks, &f);
    if (importance) fit_minima(&p, 16, KQ_GRID_WEIGHTED_3, BY_IMPORTANCE_AND_SIZE, kq_q2_k_fit, f.S, f.M, f.W);
    else fit_minima(&p, 16, KQ_GRID_Q2_K, BY_SIZE, kq_q2_k_fit, f.S, f.M, f.W);
    struct kq_q2_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        struct kq_steps steps;
        kq_q2_k_header(f.S + 16 * i, f.M + 16 * i, importance ? f.W + 16 * i : NULL, b, &steps);
        block_codes(16, &p, i, &steps, 0, 3, kq_q2_k_fit, codes);
        kq_pack_pairs(codes, b->qs);
    }
}

/* Scales of the sub-blocks index[0..count-1] of Q3_K without importance, tiles * LANES at a time. Gives the number of
 * those that still moved in the last sweep, their numbers in `restless`. */
INLINE size_t fit_descents(int tiles, int sweeps, const float *x, const uint16_t *index, size_t count, float *S, uint16_t *restless) {
    size_t found = 0;
    for (size_t first = 0; first < count; first += (size_t)tiles * LANES) {
        struct tile t[TILES];
        vf scale[TILES];
        uint32_t moved[TILES];
        float lanes[TILES * LANES];
        for (size_t k = 0; k < (size_t)tiles; k++) {
            const float *rows[LANES];
            for (size_t r = 0, at = first + k * LANES; r < LANES; r++, at++) rows[r] = x + 16 * index[at < count ? at : count - 1];
            for (int at = 0; at < 16; at += LANES) transpose(rows, at, t[k].x + at);
        }
        fit_scale_descent(tiles, sweeps, t, scale, moved);
        for (size_t k = 0; k < (size_t)tiles; k++) store(lanes + k * LANES, scale[k]);
        for (size_t r = 0; r < (size_t)tiles * LANES && first + r < count; r++) {
            S[index[first + r]] = lanes[r];
            if (moved[r / LANES] >> r % LANES & 1) restless[found++] = index[first + r];
        }
    }
    return found;
}

/* Four of five sub-blocks rest after one sweep; the others are gathered and start again. */
INLINE void fit_all_descents(const float *x, size_t count, float *S) {
    uint16_t all[KQ_PIECE / 16], restless[KQ_PIECE / 16], unused[KQ_PIECE / 16];
    for (size_t s = 0; s < count; s++) all[s] = (uint16_t)s;
    size_t left = fit_descents(TILES, 1, x, all, count, S, restless);
    fit_descents(TILES, 5, x, restless, left, S, unused);
}

void KQ_LANE_NAME(kq_encode_q3_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    struct found f;
    const struct piece p = begin(16, x, importance, 2, n_blocks, &f);
    if (importance) fit_scales(&p, 16, 4, BY_IMPORTANCE_AND_SIZE, f.S, f.W, NULL);
    else fit_all_descents(x, p.count, f.S);
    struct kq_q3_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        struct kq_steps steps;
        kq_q3_k_header(f.S + 16 * i, importance ? f.W + 16 * i : NULL, b, &steps);
        block_codes(16, &p, i, &steps, -4, 3, kq_q3_k_fit, codes);
        kq_pack_bit(codes, 2, b->hmask);
        kq_pack_pairs(codes, b->qs);
    }
}

/* The searches of Q4_K and Q5_K, which differ in the grids. */
INLINE void fit_k4(const struct piece *p, struct kq_grid plain, struct kq_grid weighted, kq_fit_fn *twin, struct found *f) {
    if (p->importance) fit_minima(p, 32, weighted, BY_IMPORTANCE_AND_SIZE, twin, f->S, f->M, f->W);
    else fit_minima(p, 32, plain, BY_SIZE_AND_MEAN, twin, f->S, f->M, f->W);
}

void KQ_LANE_NAME(kq_encode_q4_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    struct found f;
    const struct piece p = begin(32, x, importance, 2, n_blocks, &f);
    fit_k4(&p, KQ_GRID_Q4_K, KQ_GRID_WEIGHTED_15, kq_q4_k_fit, &f);
    struct kq_q4_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        struct kq_steps steps;
        kq_k4_header(f.S + 8 * i, f.M + 8 * i, importance ? f.W + 8 * i : NULL, &b->d, &b->dmin, b->scales, &steps);
        block_codes(32, &p, i, &steps, 0, 15, kq_q4_k_fit, codes);
        kq_pack_nibble_groups(codes, b->qs);
    }
}

void KQ_LANE_NAME(kq_encode_q5_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    struct found f;
    const struct piece p = begin(32, x, importance, 2, n_blocks, &f);
    fit_k4(&p, KQ_GRID_Q5_K, KQ_GRID_WEIGHTED_31, kq_q5_k_fit, &f);
    struct kq_q5_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        struct kq_steps steps;
        kq_k4_header(f.S + 8 * i, f.M + 8 * i, importance ? f.W + 8 * i : NULL, &b->d, &b->dmin, b->scales, &steps);
        block_codes(32, &p, i, &steps, 0, 31, kq_q5_k_fit, codes);
        kq_pack_bit(codes, 4, b->qh);
        kq_pack_nibble_groups(codes, b->qs);
    }
}

void KQ_LANE_NAME(kq_encode_q6_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    struct found f;
    const struct piece p = {x, importance, NULL, 256, 16 * n_blocks};
    if (importance) fit_scales(&p, 16, 32, BY_IMPORTANCE, f.S, NULL, NULL);
    else fit_scales(&p, 16, 32, BY_SQUARE, f.S, NULL, NULL);
    struct kq_q6_k *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, b++) {
        uint8_t codes[256];
        struct kq_steps steps;
        if (!kq_q6_k_header(f.S + 16 * i, b, &steps)) continue;
        block_codes(16, &p, i, &steps, -32, 31, kq_q6_k_fit, codes);
        kq_pack_six_bits(codes, b->ql, b->qh);
    }
}
