/* The encoders of the K-quants, LANES sub-blocks at a time. Included after lanes_piece.h.
 *
 * The searches give scales (and minima) only. The codes are made from the scales as they were stored, in weight order;
 * where a stored scale is zero the format wants the search's own codes, and the plain twin is asked for that sub-block.
 */
/* Mean squares of the blocks, `factor` times: what the searches with importance start from. */
INLINE void block_sigmas(const float *x, size_t n_blocks, float factor, float *sigma2) {
    square_sums(x, n_blocks, sigma2);
    for (size_t i = 0; i < n_blocks; i++) sigma2[i] = factor * sigma2[i] / 256;
}

void KQ_LANE_NAME(kq_encode_q2_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_16], M[MOST_16], W[MOST_16], sigma2[MOST_256] = {0};
    if (importance) block_sigmas(x, n_blocks, 1, sigma2);
    const struct piece p = {x, importance, sigma2, 256, 16 * n_blocks};
    if (importance) fit_minima(&p, 16, KQ_GRID_WEIGHTED_3, BY_IMPORTANCE_AND_SIZE, kq_q2_k_fit, S, M, W);
    else fit_minima(&p, 16, KQ_GRID_Q2_K, BY_SIZE, kq_q2_k_fit, S, M, W);
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
    fit_descents(TILES / 2, 5, x, restless, left, S, unused);
}

void KQ_LANE_NAME(kq_encode_q3_k)(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                                  void *restrict blocks) {
    (void)row_sigma2;
    float S[MOST_16], W[MOST_16], sigma2[MOST_256] = {0}, unused;
    if (importance) block_sigmas(x, n_blocks, 2, sigma2);
    const struct piece p = {x, importance, sigma2, 256, 16 * n_blocks};
    if (importance) fit_scales(&p, 16, 4, BY_IMPORTANCE_AND_SIZE, S, W, NULL);
    else fit_all_descents(x, 16 * n_blocks, S);
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
INLINE void requantise_k4(const float *x, const float *importance, float sigma2, kq_half d_stored, kq_half dmin_stored,
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
    const struct piece p = {x, importance, sigma2, 256, 8 * n_blocks};
    if (importance) fit_minima(&p, 32, KQ_GRID_WEIGHTED_15, BY_IMPORTANCE_AND_SIZE, kq_q4_k_fit, S, M, W);
    else fit_minima(&p, 32, KQ_GRID_Q4_K, BY_SIZE_AND_MEAN, kq_q4_k_fit, S, M, W);
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
    const struct piece p = {x, importance, sigma2, 256, 8 * n_blocks};
    if (importance) fit_minima(&p, 32, KQ_GRID_WEIGHTED_31, BY_IMPORTANCE_AND_SIZE, kq_q5_k_fit, S, M, W);
    else fit_minima(&p, 32, KQ_GRID_Q5_K, BY_SIZE_AND_MEAN, kq_q5_k_fit, S, M, W);
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
    const struct piece p = {x, importance, NULL, 256, 16 * n_blocks};
    if (importance) fit_scales(&p, 16, 32, BY_IMPORTANCE, S, NULL, NULL);
    else fit_scales(&p, 16, 32, BY_SQUARE, S, NULL, NULL);
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
