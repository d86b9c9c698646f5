// The transformer layer that target and draft share: its weights, its activations, and its three steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend.hpp"
#include "engine/buffer.hpp"
#include "engine/config.hpp"
#include "engine/rope.hpp"
#include "engine/weights.hpp"

namespace dflash {

struct Layer {
    const float* attn_norm = nullptr;               // [H]
    const float *q_norm = nullptr, *k_norm = nullptr;  // [hd]
    const float* ffn_norm = nullptr;                // [H]
    Matrix wq, wk, wv;                              // [H, nh*hd], [H, nkv*hd] twice
    Matrix wo;                                      // [nh*hd, H]
    Matrix gate, up, down;                          // [H, ff] twice, [ff, H]
};

// Layer `index` under upstream's tensor names, every shape checked.
Layer take_layer(Weights& w, int64_t index, const LayerDims& dims);

// Activations of up to `rows` rows; made once, so that no step allocates.
struct Activations {
    int64_t rows = 0;
    Buffer<float> h, x, a;    // [rows, H]: residual stream, normed input, sub-layer output
    Buffer<float> q, o;       // [rows, nh*hd]
    Buffer<float> k, v;       // [rows, nkv*hd]
    Buffer<float> gate, up;   // [rows, ff]
    Buffer<float> cos, sin;   // [rows, n_rot/2]
    std::vector<int64_t> positions;   // [rows]
    std::vector<int64_t> kv_rows;     // [rows] cache rows that k and v go to
    std::vector<Visible> visible;     // [rows]
};
Activations make_activations(const LayerDims& dims, int64_t rows);

// One K or V cache per layer, owned.
struct KvCache {
    std::vector<Buffer<std::byte>> k, v;
    KvRows shape;  // of each, without data
};
KvCache make_kv_cache(int64_t layers, KvType type, int64_t width, int64_t cap, int64_t total_rows);
KvRows k_rows(KvCache& cache, int64_t layer);
KvRows v_rows(KvCache& cache, int64_t layer);

// Per-head norm and RoPE in place of n rows of `heads` heads, by the tables act.cos and act.sin.
void rotate(const Backend& b, const LayerDims& dims, int64_t n, const float* norm, int64_t heads,
            const Activations& act, float* x);

// q, k, v = projections of x, with norms and RoPE on q and k.
void project_qkv(const Backend& b, const Layer& layer, const LayerDims& dims, int64_t n, Activations& act);

// Stores k, v to act.kv_rows; a = wo * attention over what act.visible allows.
void attend(const Backend& b, const Layer& layer, const LayerDims& dims, int64_t n, const KvRows& k, const KvRows& v,
            Activations& act);

// a = down * (activation(gate * x) * (up * x)).
void feed_forward(const Backend& b, const Layer& layer, const LayerDims& dims, Act kind, int64_t n, Activations& act);

}  // namespace dflash
