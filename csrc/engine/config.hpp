// What the engine must know of the two models and of the run; filled by Python from TargetSpec, DraftSpec and
// EngineOptions, with their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops.hpp"

namespace dflash {

// Sizes of one transformer layer, the same for target and draft.
struct LayerDims {
    int64_t hidden = 0;    // H
    int64_t ff = 0;        // width of the feed-forward
    int64_t heads = 0;     // query heads
    int64_t kv_heads = 0;
    int64_t head_dim = 0;  // hd
    int64_t rope_dimension_count = 0;  // rotated dims of a head
    float eps = 0;                     // of every RMS norm
    int64_t q_width() const { return heads * head_dim; }
    int64_t kv_width() const { return kv_heads * head_dim; }
};

struct TargetConfig {
    LayerDims dims;
    int64_t num_hidden_layers = 0;
    int64_t vocab_size = 0;
    int64_t context_length = 0;
    double rope_theta = 0;
};

struct DraftConfig {
    LayerDims dims;
    int64_t num_hidden_layers = 0;
    int64_t vocab_size = 0;
    double rope_theta = 0;
    double rope_factor = 1;  // linear scaling: positions are divided by it
    int64_t block_size = 0;  // q
    int32_t mask_token_id = -1;
    std::vector<int64_t> target_layer_ids;  // 0-based, state after the layer, in file order
    int64_t target_hidden_size = 0;
    int64_t sliding_window = 0;  // W
    std::vector<bool> sliding_layers, causal_layers;
    Act hidden_act = Act::Silu;
    int64_t conv_kernel_size = 0, conv_group_size = 0;  // 0: no convolution (v1)
    int64_t selector_rank = 0, selector_top_k = 0;      // 0: no selector (v1)
    float embedding_scale = 1, logit_scale = 1, attention_value_scale = 1;
    float final_logit_softcapping = 0;
    int64_t feature_size() const { return static_cast<int64_t>(target_layer_ids.size()) * target_hidden_size; }
};

// Sizes that the forward passes rely on beyond the tensors' shapes. Throws Fault Input naming the field; `where` is the
// file.
void check_config(const TargetConfig& c, const std::string& where);
void check_config(const DraftConfig& c, const std::string& where);

// Which window the sliding layers of the draft use (spec-runtime 1.4): every row its own, as the reference does, or
// one anchored at the last committed token for all rows, as Lucebox does.
enum class Window { PerRow, Anchored };

struct RunConfig {
    bool kv_full = false;        // the draft keeps the whole context instead of a ring
    int64_t ring = 0;            // ring capacity, 0 for the default
    KvType kv_type = KvType::F16;
    int threads = 2;
    std::string isa = "auto";
    Window window = Window::PerRow;
    int64_t max_context = 0;     // positions, 0 for the target's context_length
    int64_t micro_batch = 64;    // rows of the target's prefill at a time
};

}  // namespace dflash
