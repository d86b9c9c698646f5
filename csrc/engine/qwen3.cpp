#include "engine/qwen3.hpp"

#include <cassert>
#include <cstring>

namespace dflash {
namespace {

void bind_weights(Target& t) {
    const TargetConfig& c = t.config;
    const int64_t hidden = c.dims.hidden;
    t.token_embd = take_matrix(t.weights, "token_embd.weight", hidden, c.vocab_size);
    t.output = has(t.weights, "output.weight") ? take_matrix(t.weights, "output.weight", hidden, c.vocab_size)
                                               : t.token_embd;
    t.output_norm = take_floats(t.weights, "output_norm.weight", {hidden});
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) t.layers.push_back(take_layer(t.weights, i, c.dims));
    refuse_unused(t.weights);
}

// Copies the residual stream of n rows into every feature column that wants the state after `layer`.
void capture(const Target& t, int64_t layer, int64_t n, float* features) {
    const int64_t hidden = t.config.dims.hidden, width = t.feature_size();
    for (size_t k = 0; k < t.captured.size(); ++k)
        if (t.captured[k] == layer)
            for (int64_t r = 0; r < n; ++r)
                std::memcpy(features + r * width + static_cast<int64_t>(k) * hidden, t.act.h.data() + r * hidden,
                            static_cast<size_t>(hidden) * sizeof(float));
}

}  // namespace

Target make_target(const std::string& path, const std::vector<TensorInfo>& table,
                   const TargetConfig& config, const RunConfig& run, std::vector<int64_t> captured, int64_t rows) {
    Target t;
    t.config = config;
    t.weights = open_weights(std::make_shared<const Mapping>(path), table);
    bind_weights(t);
    t.max_context = run.max_context > 0 ? run.max_context : config.context_length;
    t.kv = make_kv_cache(config.num_hidden_layers, run.kv_type, config.dims.kv_width(), t.max_context, t.max_context);
    t.captured = std::move(captured);
    t.act = make_activations(config.dims, rows);
    return t;
}

void target_forward(const Backend& b, Target& t, std::span<const int32_t> tokens, float* features) {
    const LayerDims& d = t.config.dims;
    Activations& act = t.act;
    const auto n = static_cast<int64_t>(tokens.size());
    assert(n >= 1 && n <= act.rows && t.length + n <= t.max_context);
    for (size_t r = 0; r < tokens.size(); ++r) {
        const int64_t p = t.length + static_cast<int64_t>(r);
        act.positions[r] = act.kv_rows[r] = p;
        act.visible[r] = Visible{.ctx_begin = 0, .ctx_end = p + 1};
    }
    rope_table({act.positions.data(), tokens.size()}, d.rope_dimension_count, t.config.rope_theta, nullptr,
               act.cos.data(), act.sin.data());
    b.ops->embed(b.ctx(), t.token_embd, tokens, 1.0F, act.h.data());
    for (int64_t l = 0; l < t.config.num_hidden_layers; ++l) {
        const Layer& layer = t.layers[static_cast<size_t>(l)];
        b.ops->rms_norm(b.ctx(), act.h.data(), layer.attn_norm, d.eps, n, d.hidden, act.x.data());
        project_qkv(b, layer, d, n, act);
        attend(b, layer, d, n, k_rows(t.kv, l), v_rows(t.kv, l), act);
        b.ops->add(b.ctx(), act.a.data(), n * d.hidden, act.h.data());
        b.ops->rms_norm(b.ctx(), act.h.data(), layer.ffn_norm, d.eps, n, d.hidden, act.x.data());
        feed_forward(b, layer, d, Act::Silu, n, act);
        b.ops->add(b.ctx(), act.a.data(), n * d.hidden, act.h.data());
        if (features) capture(t, l, n, features);
    }
}

void target_logits(const Backend& b, Target& t, int64_t first, int64_t n, float* logits) {
    const LayerDims& d = t.config.dims;
    const float* h = t.act.h.data() + first * d.hidden;
    b.ops->rms_norm(b.ctx(), h, t.output_norm, d.eps, n, d.hidden, t.act.x.data());
    project(b, {t.output}, t.act.x.data(), n, {logits});
}

}  // namespace dflash
