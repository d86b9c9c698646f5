// Norms, rotary positions, the cache, element-wise ops and choices for any register width.
#pragma once

#include "cpu/vec_matmul.hpp"

namespace dflash {
namespace {

// ---- norms, rotary positions, cache ----

void rms_norm(const float* x, const float* w, float eps, int64_t width, float* y) {
    const float sum = lane_sum(
        width,
        [&](int64_t i, F acc) {
            const F v = load(x + i);
            return fma(v, v, acc);
        },
        [&](int64_t i, F acc, int64_t n) {
            const F v = load_n(x + i, n);
            return fma(v, v, acc);
        });
    const F factor = set(1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + eps));
    map(x, w, width, y, [&](F a, F b) { return mul(mul(a, factor), b); });
}

void norm_rope(float* x, const float* w, float eps, int64_t hd, const float* cos, const float* sin, int64_t n_rot) {
    if (w) rms_norm(x, w, eps, hd, x);
    float* const y = x + n_rot / 2;
    each(
        n_rot / 2,
        [&](int64_t i) {
            const F a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
            store(x + i, fms(a, c, mul(b, s)));
            store(y + i, fma(a, s, mul(b, c)));
        },
        [&](int64_t i, int64_t n) {
            const F a = load_n(x + i, n), b = load_n(y + i, n), c = load_n(cos + i, n), s = load_n(sin + i, n);
            store_n(x + i, fms(a, c, mul(b, s)), n);
            store_n(y + i, fma(a, s, mul(b, c)), n);
        });
}

void store_kv(const float* x, int64_t width, KvType type, std::byte* out) {
    if (type == KvType::F32) {
        memcpy(out, x, static_cast<size_t>(4 * width));
        return;
    }
    each(
        width, [&](int64_t i) { store_f16(out + 2 * i, load(x + i)); },
        [&](int64_t i, int64_t n) {
            std::byte half[2 * W];
            store_f16(half, load_n(x + i, n));
            memcpy(out + 2 * i, half, static_cast<size_t>(2 * n));
        });
}

// ---- element by element ----

void gated(Act act, const float* gate, const float* up, int64_t count, float* y) {
    switch (act) {
        case Act::Silu: return map(gate, up, count, y, [](F g, F u) { return mul(silu(g), u); });
        case Act::GeluTanh: return map(gate, up, count, y, [](F g, F u) { return mul(gelu_tanh(g), u); });
        case Act::Gelu: return map(gate, up, count, y, [](F g, F u) { return mul(gelu(g), u); });
    }
}

void add_row(const float* x, int64_t count, float* y) {
    map(y, x, count, y, [](F a, F b) { return add(a, b); });
}

void scale_row(float s, int64_t count, float* y) {
    map(y, count, y, [&](F a) { return mul(a, set(s)); });
}

void softcap(float cap, int64_t count, float* y) {
    map(y, count, y, [&](F a) { return mul(set(cap), tanh_(div(a, set(cap)))); });
}

void conv(const float* base, const float* dyn, const float* u, int64_t t, int64_t H, int64_t K, int64_t group, int side, float* y) {
    const int64_t G = H / group, taps = less_of(K, t + 1);
    const float* const mine = dyn + t * 2 * K * G + side * K * G;
    const float* const taps_base = base + H * K * side;
    for (int64_t g = 0; g < G; ++g)
        each(
            group,
            [&](int64_t i) {
                const int64_t ch = g * group + i;
                F acc = set(0.0f);
                for (int64_t tap = 0; tap < taps; ++tap)
                    acc = fma(add(load(taps_base + H * tap + ch), set(mine[tap * G + g])), load(u + (t - tap) * H + ch), acc);
                store(y + t * H + ch, acc);
            },
            [&](int64_t i, int64_t n) {
                const int64_t ch = g * group + i;
                F acc = set(0.0f);
                for (int64_t tap = 0; tap < taps; ++tap)
                    acc = fma(add(load_n(taps_base + H * tap + ch, n), set(mine[tap * G + g])), load_n(u + (t - tap) * H + ch, n), acc);
                store_n(y + t * H + ch, acc, n);
            });
}

float pair_score(const float* a, const float* b, const float* c, int64_t R) {
    return lane_sum(
        R, [&](int64_t i, F acc) { return fma(mul(load(a + i), load(b + i)), load(c + i), acc); },
        [&](int64_t i, F acc, int64_t n) { return fma(mul(load_n(a + i, n), load_n(b + i, n)), load_n(c + i, n), acc); });
}

// ---- choices ----

inline bool is_nan(float v) { return v != v; }

Best best(const float* x, int64_t width) {
    F value = set(-kInfinity), poison = set(0.0f);
    I id = ints(0), here = ascending();
    int64_t i = 0;
    for (; i + W <= width; i += W, here = add(here, ints(W))) {
        const F v = load(x + i);
        const M more = greater(v, value);
        value = select(more, v, value);
        id = select(more, here, id);
        poison = select(nan(v), v, poison);
    }
    float values[W];
    int32_t ids[W];
    store(values, value);
    store(ids, id);
    Best b{-kInfinity, 0, bits(nan(poison)) != 0, false};
    for (int lane = 0; lane < W; ++lane)
        if (values[lane] > b.value || (values[lane] == b.value && ids[lane] < b.id)) b.value = values[lane], b.id = ids[lane];
    for (; i < width; ++i) {
        b.nan = b.nan || is_nan(x[i]);
        if (x[i] > b.value) b.value = x[i], b.id = static_cast<int32_t>(i);
    }
    b.finite = b.value > -kInfinity && b.value < kInfinity;
    if (b.value == kInfinity)
        for (i = 0; i < width && !b.finite; ++i) b.finite = x[i] > -kInfinity && x[i] < kInfinity;
    return b;
}

void top_k(const float* x, int64_t width, int64_t k, int32_t* ids, float* values) {
    int64_t held = 0;
    bool poisoned = false;
    const auto see = [&](int64_t i) {
        poisoned = poisoned || is_nan(x[i]);
        if (held == k && !(x[i] > values[k - 1])) return;
        int64_t at = held < k ? held++ : k - 1;
        for (; at > 0 && x[i] > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = x[i];
        ids[at] = static_cast<int32_t>(i);
    };
    int64_t i = 0;
    for (; i < width && held < k; ++i) see(i);
    for (; i + W <= width && !poisoned; i += W) {  // look closer only where something is larger than the k-th
        const F v = load(x + i);
        for (uint32_t left = bits(greater(v, set(values[k - 1]))) | bits(nan(v)); left; left &= left - 1) see(i + __builtin_ctz(left));
    }
    for (; i < width; ++i) see(i);
    for (i = 0; poisoned && i < k; ++i) values[i] = __builtin_nanf(""), ids[i] = -1;
}

}  // namespace
}  // namespace dflash
