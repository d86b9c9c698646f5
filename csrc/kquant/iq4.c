/* IQ4_NL: 32 weights in 18 bytes, 4.5 bits per weight. w = d * codebook[q]
 *   offset size field     meaning
 *        0    2 d         binary16
 *        2   16 qs        byte j: low nibble weight j, high nibble weight j + 16
 * IQ4_XS: 256 weights in 136 bytes, 4.25 bits per weight. w = (d * (scale - 32)) * codebook[q]
 *   offset size field     meaning
 *        0    2 d         binary16, of the scales
 *        2    2 scales_h  little-endian word, bits 2b..2b+1: bits 4..5 of scale b (sub-blocks of 32)
 *        4    4 scales_l  nibble b, low first: bits 0..3 of scale b
 *        8  128 qs        16 bytes a sub-block, nibbles as IQ4_NL
 */
#include "iq4.h"

#include "fit.h"
#include "format.h"
#include "number.h"
#include "pack.h"
#include "super.h"

static int nearest(float x) {
    int code = 0;
    for (int k = 0; k < 15; k++) code += !(x < KQ_IQ4_MIDPOINT[k]); /* NaN, where the weights' squares overflow, gives 15 */
    return code;
}

/* Weighted sums of x against the code book at one inverse scale. */
static void sums(float inverse, const float *x, const float *w, float *wxg, float *wgg) {
    *wxg = 0, *wgg = 0;
    for (int i = 0; i < 32; i++) {
        float g = (float)KQ_IQ4_CODEBOOK[nearest(inverse * x[i])];
        *wxg += w[i] * g * x[i];
        *wgg += w[i] * g * g;
    }
}

float kq_iq4_fit(const float *restrict x, const float *restrict w) {
    float extreme = kq_extreme(32, x), wxg, wgg;
    if (fabsf(extreme) < KQ_EPSILON) return 0;
    sums(1 / (-extreme / KQ_IQ4_CODEBOOK[0]), x, w, &wxg, &wgg);
    float scale = wgg > 0 ? wxg / wgg : 0, best = scale * wxg;
    for (int t = -KQ_IQ4_TRIES; t <= KQ_IQ4_TRIES; t++) {
        sums((float)(t + KQ_IQ4_CODEBOOK[0]) / extreme, x, w, &wxg, &wgg);
        if (wgg > 0 && wxg * wxg > best * wgg) {
            scale = wxg / wgg;
            best = scale * wxg;
        }
    }
    return scale;
}

/* The scale of every sub-block of a block of `n` weights (32 or 256). */
static void fit_block(int n, const float *restrict x, const float *restrict importance, float *restrict S) {
    float w[32], sigma2 = kq_square_sum(n, x) * (2.0f / (float)n);
    for (int b = 0; b < n / 32; b++, x += 32) {
        if (importance) kq_error_weights(32, sigma2, x, importance + 32 * b, w);
        else for (int i = 0; i < 32; i++) w[i] = x[i] * x[i];
        S[b] = kq_iq4_fit(x, w);
    }
}

static void store_codes(float step, const float *restrict x, uint8_t *restrict qs) {
    uint8_t codes[32];
    float inverse = step != 0 ? 1 / step : 0;
    for (int i = 0; i < 32; i++) codes[i] = (uint8_t)nearest(inverse * x[i]);
    kq_pack_nibbles(codes, qs);
}

void kq_encode_iq4_nl(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                      void *restrict blocks) {
    (void)row_sigma2;
    struct kq_iq4_nl *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 32) {
        float scale;
        fit_block(32, x, importance ? importance + 32 * i : NULL, &scale);
        b[i].d = kq_put(scale);
        store_codes(scale, x, b[i].qs);
    }
}

void kq_iq4_xs_header(const float S[8], struct kq_iq4_xs *b, float dl[8]) {
    int largest = kq_largest(8, S);
    float d = -(largest < 0 ? 0.0f : S[largest]) / 32, inverse = d != 0 ? 1 / d : 0;
    uint32_t high = 0;
    b->d = kq_put(d);
    memset(b->scales_l, 0, sizeof b->scales_l);
    for (int s = 0; s < 8; s++) {
        int scale = kq_clamp(kq_round(inverse * S[s]), -32, 31), code = scale + 32;
        dl[s] = d * (float)scale;
        b->scales_l[s / 2] |= (uint8_t)((code & 15) << 4 * (s % 2));
        high |= (uint32_t)(code >> 4) << 2 * s;
    }
    b->scales_h[0] = (uint8_t)high;
    b->scales_h[1] = (uint8_t)(high >> 8);
}

void kq_encode_iq4_xs(const float *restrict x, const float *restrict importance, float row_sigma2, size_t n_blocks,
                      void *restrict blocks) {
    (void)row_sigma2;
    struct kq_iq4_xs *b = blocks;
    for (size_t i = 0; i < n_blocks; i++, x += 256) {
        float S[8], dl[8];
        fit_block(256, x, importance ? importance + 256 * i : NULL, S);
        kq_iq4_xs_header(S, &b[i], dl);
        for (int s = 0; s < 8; s++) store_codes(dl[s], x + 32 * s, b[i].qs + 16 * s);
    }
}
