#include "engine/layer.hpp"

#include <cmath>

namespace dflash {

Layer take_layer(Weights& w, int64_t index, const LayerDims& d) {
    const auto name = [&](const char* part) { return "blk." + std::to_string(index) + "." + part + ".weight"; };
    Layer l;
    l.attn_norm = take_floats(w, name("attn_norm"), {d.hidden});
    l.q_norm = take_floats(w, name("attn_q_norm"), {d.head_dim});
    l.k_norm = take_floats(w, name("attn_k_norm"), {d.head_dim});
    l.ffn_norm = take_floats(w, name("ffn_norm"), {d.hidden});
    l.wq = take_matrix(w, name("attn_q"), d.hidden, d.q_width());
    l.wk = take_matrix(w, name("attn_k"), d.hidden, d.kv_width());
    l.wv = take_matrix(w, name("attn_v"), d.hidden, d.kv_width());
    l.wo = take_matrix(w, name("attn_output"), d.q_width(), d.hidden);
    l.gate = take_matrix(w, name("ffn_gate"), d.hidden, d.ff);
    l.up = take_matrix(w, name("ffn_up"), d.hidden, d.ff);
    l.down = take_matrix(w, name("ffn_down"), d.ff, d.hidden);
    return l;
}

Activations make_activations(const LayerDims& d, int64_t rows) {
    Activations act;
    act.rows = rows;
    for (auto* buffer : {&act.h, &act.x, &act.a}) *buffer = Buffer<float>(rows * d.hidden);
    for (auto* buffer : {&act.q, &act.o}) *buffer = Buffer<float>(rows * d.q_width());
    for (auto* buffer : {&act.k, &act.v}) *buffer = Buffer<float>(rows * d.kv_width());
    for (auto* buffer : {&act.gate, &act.up}) *buffer = Buffer<float>(rows * d.ff);
    for (auto* buffer : {&act.cos, &act.sin}) *buffer = Buffer<float>(rows * (d.rope_dimension_count / 2));
    act.positions.resize(static_cast<size_t>(rows));
    act.visible.resize(static_cast<size_t>(rows));
    act.kv_rows.resize(static_cast<size_t>(rows));
    return act;
}

KvCache make_kv_cache(int64_t layers, KvType type, int64_t width, int64_t cap, int64_t total_rows) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(total_rows, width, &bytes) || __builtin_mul_overflow(bytes, kv_bytes(type), &bytes))
        throw Fault{.kind = FaultKind::Environment,
                    .what = "a K/V cache would be larger than any memory",
                    .found = std::to_string(total_rows) + " rows of " + std::to_string(width) + " values",
                    .expected = "fewer than 2^63 bytes",
                    .fix = "lower the maximum context or the ring"};
    KvCache cache;
    cache.shape = KvRows{.data = nullptr, .type = type, .width = width, .cap = cap, .block_row = cap};
    for (int64_t l = 0; l < layers; ++l) {
        cache.k.emplace_back(bytes);
        cache.v.emplace_back(bytes);
    }
    return cache;
}

KvRows k_rows(KvCache& cache, int64_t layer) {
    KvRows rows = cache.shape;
    rows.data = cache.k[static_cast<size_t>(layer)].data();
    return rows;
}

KvRows v_rows(KvCache& cache, int64_t layer) {
    KvRows rows = cache.shape;
    rows.data = cache.v[static_cast<size_t>(layer)].data();
    return rows;
}

void rotate(const Backend& b, const LayerDims& d, int64_t n, const float* norm, int64_t heads, const Activations& act,
            float* x) {
    b.ops->norm_rope(b.ctx(), x, norm, d.eps, n, heads, d.head_dim, act.cos.data(), act.sin.data(),
                     d.rope_dimension_count);
}

void project_qkv(const Backend& b, const Layer& layer, const LayerDims& d, int64_t n, Activations& act) {
    project(b, {layer.wq, layer.wk, layer.wv}, act.x.data(), n, {act.q.data(), act.k.data(), act.v.data()});
    rotate(b, d, n, layer.q_norm, d.heads, act, act.q.data());
    rotate(b, d, n, layer.k_norm, d.kv_heads, act, act.k.data());
}

void attend(const Backend& b, const Layer& layer, const LayerDims& d, int64_t n, const KvRows& k, const KvRows& v,
            Activations& act) {
    const auto rows = static_cast<size_t>(n);
    b.ops->store_kv(b.ctx(), act.k.data(), {act.kv_rows.data(), rows}, k);
    b.ops->store_kv(b.ctx(), act.v.data(), {act.kv_rows.data(), rows}, v);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d.head_dim)));
    b.ops->attention(b.ctx(), act.q.data(), n, d.heads, d.kv_heads, d.head_dim, scale, k, v, {act.visible.data(), rows},
                     act.o.data());
    project(b, {layer.wo}, act.o.data(), n, {act.a.data()});
}

void feed_forward(const Backend& b, const Layer& layer, const LayerDims& d, Act kind, int64_t n, Activations& act) {
    project(b, {layer.gate, layer.up}, act.x.data(), n, {act.gate.data(), act.up.data()});
    b.ops->gated(b.ctx(), kind, act.gate.data(), act.up.data(), n * d.ff, act.gate.data());
    project(b, {layer.down}, act.gate.data(), n, {act.a.data()});
}

}  // namespace dflash
