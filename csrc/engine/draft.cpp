#include "engine/draft.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dflash {
namespace {

DraftConv take_conv(Weights& w, int64_t index, const std::string& part, const DraftConfig& c) {
    const std::string prefix = "blk." + std::to_string(index) + "." + part;
    const int64_t hidden = c.dims.hidden, taps = c.conv_kernel_size;
    return {.base = take_floats(w, prefix + "_conv_base", {hidden, taps, 2}),
            .proj = take_matrix(w, prefix + "_conv_proj.weight", hidden, 2 * taps * (hidden / c.conv_group_size))};
}

void bind_weights(Draft& d, const Matrix& token_embd, const Matrix& output, Window window) {
    const DraftConfig& c = d.config;
    const int64_t hidden = c.dims.hidden;
    d.fc = take_matrix(d.weights, "fc.weight", c.feature_size(), hidden);
    d.hidden_norm = take_floats(d.weights, "enc.output_norm.weight", {hidden});
    d.output_norm = take_floats(d.weights, "output_norm.weight", {hidden});
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
        DraftLayer layer{.layer = take_layer(d.weights, i, c.dims), .attn_conv = {}, .ffn_conv = {}, .mask = {}};
        if (c.conv_kernel_size) {
            layer.attn_conv = take_conv(d.weights, i, "attn", c);
            layer.ffn_conv = take_conv(d.weights, i, "ffn", c);
        }
        const auto at = static_cast<size_t>(i);
        layer.mask = {.sliding = c.sliding_layers[at],
                      .causal = c.causal_layers[at],
                      .window = window,
                      .width = c.sliding_window};
        d.ctx_weights.insert(d.ctx_weights.end(), {layer.layer.wk, layer.layer.wv});
        d.layers.push_back(layer);
    }
    if (c.selector_rank)
        d.selector = make_selector(d.weights, hidden, c.vocab_size, c.selector_rank, c.selector_top_k, c.block_size);
    const auto own_or = [&](const char* name, const Matrix& shared) {
        return has(d.weights, name) ? take_matrix(d.weights, name, hidden, c.vocab_size) : shared;
    };
    d.token_embd = own_or("token_embd.weight", token_embd);
    d.output = own_or("output.weight", output);
    for (const Matrix* m : {&d.token_embd, &d.output})
        if (m->cols != hidden || m->rows != c.vocab_size)
            throw Fault{.kind = FaultKind::Input,
                        .what = "the draft cannot share the target's embedding and head",
                        .found = "target [" + std::to_string(m->cols) + ", " + std::to_string(m->rows) + "]",
                        .where = d.weights.file->path(),
                        .expected = "[" + std::to_string(hidden) + ", " + std::to_string(c.vocab_size) + "], the draft's",
                        .fix = "use the target this draft was trained for"};
    refuse_unused(d.weights);
}

int64_t ring_capacity(const DraftConfig& c, const RunConfig& run, int64_t max_context) {
    constexpr int64_t kDefault = 2048;
    if (run.kv_full) return max_context;
    if (run.ring == 0) return std::max(kDefault, c.sliding_window);
    if (run.ring < c.block_size)
        throw Fault{.kind = FaultKind::Usage,
                    .what = "the ring is smaller than a block",
                    .found = "ring = " + std::to_string(run.ring),
                    .expected = "at least block_size = " + std::to_string(c.block_size)};
    return run.ring;
}

void make_scratch(Draft& d) {
    const DraftConfig& c = d.config;
    const int64_t hidden = c.dims.hidden, q = c.block_size;
    d.act = make_activations(c.dims, std::max(q, kMaxRows));
    d.fused = Buffer<float>(kMaxRows * hidden);
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
        d.ctx_k.emplace_back(kMaxRows * c.dims.kv_width());
        d.ctx_v.emplace_back(kMaxRows * c.dims.kv_width());
        d.ctx_out.insert(d.ctx_out.end(), {d.ctx_k.back().data(), d.ctx_v.back().data()});
    }
    if (c.conv_kernel_size) {
        d.conv_out = Buffer<float>(d.act.rows * hidden);
        d.dyn = Buffer<float>(q * 2 * c.conv_kernel_size * (hidden / c.conv_group_size));
    }
    d.z = Buffer<float>(q * hidden);
    d.logits = Buffer<float>(q * c.vocab_size);
    d.block.assign(static_cast<size_t>(q), c.mask_token_id);
}

// Fills the RoPE tables of n rows at positions ring.next, ring.next + 1, ...
void rotate_from(Draft& d, int64_t n) {
    std::iota(d.act.positions.begin(), d.act.positions.begin() + n, d.ring.next);
    const float* factors = d.rope_factors.empty() ? nullptr : d.rope_factors.data();
    rope_table({d.act.positions.data(), static_cast<size_t>(n)}, d.config.dims.rope_dimension_count,
               d.config.rope_theta, factors, d.act.cos.data(), d.act.sin.data());
}

// Appends at most kMaxRows rows: g once, then K and V of all layers from it.
void append_piece(const Backend& b, Draft& d, const float* features, int64_t n) {
    const LayerDims& dims = d.config.dims;
    project(b, {d.fc}, features, n, {d.fused.data()});
    b.ops->rms_norm(b.ctx(), d.fused.data(), d.hidden_norm, dims.eps, n, dims.hidden, d.fused.data());
    project(b, std::span<const Matrix>(d.ctx_weights), d.fused.data(), n, d.ctx_out);
    rotate_from(d, n);
    for (size_t r = 0; r < static_cast<size_t>(n); ++r) d.act.kv_rows[r] = ring_slot(d.ring, d.act.positions[r]);
    const std::span<const int64_t> slots(d.act.kv_rows.data(), static_cast<size_t>(n));
    for (int64_t l = 0; l < d.config.num_hidden_layers; ++l) {
        const auto at = static_cast<size_t>(l);
        rotate(b, dims, n, d.layers[at].layer.k_norm, dims.kv_heads, d.act, d.ctx_k[at].data());
        b.ops->store_kv(b.ctx(), d.ctx_k[at].data(), slots, k_rows(d.kv, l));
        b.ops->store_kv(b.ctx(), d.ctx_v[at].data(), slots, v_rows(d.kv, l));
    }
    ring_append(d.ring, n);
}

// Side 0 of a convolution: keeps the normed input's coefficients for side 1, and replaces act.x.
void convolve_input(const Backend& b, Draft& d, const DraftConv& conv) {
    const DraftConfig& c = d.config;
    if (!conv.base) return;
    project(b, {conv.proj}, d.act.x.data(), c.block_size, {d.dyn.data()});
    b.ops->conv(b.ctx(), conv.base, d.dyn.data(), d.act.x.data(), c.block_size, c.dims.hidden, c.conv_kernel_size,
                c.conv_group_size, 0, d.conv_out.data());
    std::swap(d.act.x, d.conv_out);
}

// Side 1: replaces the sub-layer's output act.a.
void convolve_output(const Backend& b, Draft& d, const DraftConv& conv) {
    const DraftConfig& c = d.config;
    if (!conv.base) return;
    b.ops->conv(b.ctx(), conv.base, d.dyn.data(), d.act.a.data(), c.block_size, c.dims.hidden, c.conv_kernel_size,
                c.conv_group_size, 1, d.conv_out.data());
    std::swap(d.act.a, d.conv_out);
}

void run_layer(const Backend& b, Draft& d, int64_t index) {
    const DraftConfig& c = d.config;
    const DraftLayer& l = d.layers[static_cast<size_t>(index)];
    Activations& act = d.act;
    const int64_t q = c.block_size, values = q * c.dims.hidden;
    block_visible(l.mask, ring_window(d.ring), d.ring.next, {act.visible.data(), static_cast<size_t>(q)});
    b.ops->rms_norm(b.ctx(), act.h.data(), l.layer.attn_norm, c.dims.eps, q, c.dims.hidden, act.x.data());
    convolve_input(b, d, l.attn_conv);
    project_qkv(b, l.layer, c.dims, q, act);
    attend(b, l.layer, c.dims, q, k_rows(d.kv, index), v_rows(d.kv, index), act);
    if (c.attention_value_scale != 1.0F) b.ops->scale(b.ctx(), c.attention_value_scale, values, act.a.data());
    convolve_output(b, d, l.attn_conv);
    b.ops->add(b.ctx(), act.a.data(), values, act.h.data());
    b.ops->rms_norm(b.ctx(), act.h.data(), l.layer.ffn_norm, c.dims.eps, q, c.dims.hidden, act.x.data());
    convolve_input(b, d, l.ffn_conv);
    feed_forward(b, l.layer, c.dims, c.hidden_act, q, act);
    convolve_output(b, d, l.ffn_conv);
    b.ops->add(b.ctx(), act.a.data(), values, act.h.data());
}

}  // namespace

Draft make_draft(std::shared_ptr<const Mapping> file, const std::vector<TensorInfo>& table,
                 const DraftConfig& config, const RunConfig& run, int64_t max_context, const Matrix& token_embd,
                 const Matrix& output) {
    Draft d;
    d.config = config;
    d.weights = open_weights(std::move(file), table);
    bind_weights(d, token_embd, output, run.window);
    if (config.rope_factor != 1.0)
        d.rope_factors.assign(static_cast<size_t>(config.dims.rope_dimension_count / 2),
                              static_cast<float>(config.rope_factor));
    d.ring = DraftRing{.cap = ring_capacity(config, run, max_context), .block = config.block_size};
    d.kv = make_kv_cache(config.num_hidden_layers, run.kv_type, config.dims.kv_width(), d.ring.cap,
                         kv_total(d.ring.cap, d.ring.block));
    make_scratch(d);
    return d;
}

int64_t draft_kv_bytes(const Draft& d) {
    return 2 * d.config.num_hidden_layers * kv_total(d.ring.cap, d.ring.block) * d.config.dims.kv_width() *
           kv_bytes(d.kv.shape.type);
}

void append_context(const Backend& b, Draft& d, const float* features, int64_t n) {
    const int64_t skip = std::max<int64_t>(0, n - d.ring.cap);  // a chunk longer than the ring evicts its own start
    if (skip > 0) ring_append(d.ring, skip);
    for (int64_t r = skip; r < n; r += kMaxRows)
        append_piece(b, d, features + r * d.config.feature_size(), std::min({kMaxRows, n - r, d.ring.cap}));
}

void run_block(const Backend& b, Draft& d, int32_t anchor) {
    const DraftConfig& c = d.config;
    const int64_t q = c.block_size;
    d.block[0] = anchor;
    rotate_from(d, q);
    std::iota(d.act.kv_rows.begin(), d.act.kv_rows.begin() + q, d.kv.shape.block_row);
    b.ops->embed(b.ctx(), d.token_embd, d.block, c.embedding_scale, d.act.h.data());
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) run_layer(b, d, l);
    b.ops->rms_norm(b.ctx(), d.act.h.data(), d.output_norm, c.dims.eps, q, c.dims.hidden, d.z.data());
}

void block_logits(const Backend& b, Draft& d, int64_t first, int64_t n) {
    const DraftConfig& c = d.config;
    float* out = d.logits.row(first, c.vocab_size);
    project(b, {d.output}, d.z.row(first, c.dims.hidden), n, {out});
    if (c.logit_scale != 1.0F) b.ops->scale(b.ctx(), c.logit_scale, n * c.vocab_size, out);
    if (c.final_logit_softcapping != 0.0F) b.ops->softcap(b.ctx(), c.final_logit_softcapping, n * c.vocab_size, out);
}

bool block_tokens(const Backend& b, Draft& d, int32_t anchor, int64_t n, int32_t* tokens) {
    const DraftConfig& c = d.config;
    const float* logits = d.logits.row(1, c.vocab_size);
    if (d.selector)
        return select_chain(b, *d.selector, d.z.row(1, c.dims.hidden), logits, n, c.vocab_size, anchor, tokens);
    b.ops->argmax(b.ctx(), logits, n, c.vocab_size, tokens);
    for (int64_t i = 0; i < n; ++i, logits += c.vocab_size)
        if (tokens[i] < 0 || tokens[i] >= c.vocab_size || !std::isfinite(logits[tokens[i]])) return false;
    return true;
}

}  // namespace dflash
