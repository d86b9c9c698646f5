#include "engine/config.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "engine/error.hpp"

namespace dflash {
namespace {

void require(bool ok, const std::string& where, const char* field, const std::string& found,
             const std::string& expected) {
    if (ok) return;
    throw Fault{.kind = FaultKind::Input,
                .what = "a setting of the model is not usable",
                .found = std::string(field) + " = " + found,
                .where = where,
                .expected = expected};
}

void require_size(int64_t value, const std::string& where, const char* field, int64_t most) {
    require(value >= 1 && value <= most, where, field, std::to_string(value), "1 to " + std::to_string(most));
}

void check_layer(const LayerDims& d, double theta, const std::string& where) {
    const int64_t n_rot = d.rope_dimension_count;
    constexpr int64_t kMost = int64_t{1} << 24;  // of any width: products of two stay far from overflow
    const std::array<std::pair<const char*, int64_t>, 5> sizes = {{{"hidden_size", d.hidden},
                                                                   {"intermediate_size", d.ff},
                                                                   {"num_attention_heads", d.heads},
                                                                   {"num_key_value_heads", d.kv_heads},
                                                                   {"head_dim", d.head_dim}}};
    for (const auto& [field, value] : sizes) require_size(value, where, field, kMost);
    require(d.heads % d.kv_heads == 0, where, "num_attention_heads", std::to_string(d.heads),
            "a multiple of num_key_value_heads = " + std::to_string(d.kv_heads));
    require(n_rot >= 2 && n_rot <= d.head_dim && n_rot % 2 == 0, where, "rope_dimension_count", std::to_string(n_rot),
            "even, 2 to head_dim = " + std::to_string(d.head_dim));
    require(d.eps > 0 && d.eps < 1, where, "rms_norm_eps", std::to_string(d.eps), "between 0 and 1");
    require(std::isfinite(theta) && theta > 1, where, "rope_theta", std::to_string(theta), "finite and above 1");
}

}  // namespace

void check_config(const TargetConfig& c, const std::string& where) {
    check_layer(c.dims, c.rope_theta, where);
    require_size(c.num_hidden_layers, where, "num_hidden_layers", 1 << 16);
    require_size(c.vocab_size - 1, where, "vocab_size - 1", INT32_MAX - 1);  // a margin needs two tokens
    require_size(c.context_length, where, "context_length", INT32_MAX);
}

void check_config(const DraftConfig& c, const std::string& where) {
    check_layer(c.dims, c.rope_theta, where);
    require_size(c.num_hidden_layers, where, "num_hidden_layers", 1 << 16);
    require_size(c.vocab_size, where, "vocab_size", INT32_MAX);
    require(c.rope_factor > 0 && std::isfinite(c.rope_factor), where, "rope_factor", std::to_string(c.rope_factor),
            "finite and above 0");
    require(c.block_size >= 2 && c.block_size <= 1024, where, "block_size", std::to_string(c.block_size), "2 to 1024");
    const auto layers = static_cast<size_t>(c.num_hidden_layers);
    require(c.sliding_layers.size() == layers && c.causal_layers.size() == layers, where, "sliding and causal layers",
            std::to_string(c.sliding_layers.size()) + " and " + std::to_string(c.causal_layers.size()),
            "one flag a layer");
    require(!c.target_layer_ids.empty() && c.target_layer_ids.size() <= 512, where, "target_layer_ids",
            std::to_string(c.target_layer_ids.size()) + " ids", "1 to 512");
    for (const bool slides : c.sliding_layers)
        if (slides) require_size(c.sliding_window, where, "sliding_window", INT32_MAX);
    if (c.conv_kernel_size != 0) {
        require_size(c.conv_kernel_size, where, "conv_kernel_size", c.block_size);
        require_size(c.conv_group_size, where, "conv_group_size", c.dims.hidden);
        require(c.dims.hidden % c.conv_group_size == 0, where, "conv_group_size", std::to_string(c.conv_group_size),
                "a divisor of hidden_size = " + std::to_string(c.dims.hidden));
    }
    if (c.selector_rank != 0) {
        require_size(c.selector_rank, where, "selector_rank", 1 << 20);
        require_size(c.selector_top_k, where, "selector_top_k", c.vocab_size);
    }
}

}  // namespace dflash
