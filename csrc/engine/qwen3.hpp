// The target: Qwen3 dense (spec-runtime 11.1). Its forward pass, its KV cache, and the states that a draft reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/layer.hpp"

namespace dflash {

struct Target {
    TargetConfig config;
    Weights weights;
    Matrix token_embd, output;           // output is token_embd where the file ties them
    const float* output_norm = nullptr;  // [H]
    std::vector<Layer> layers;
    KvCache kv;             // rows 0 .. length-1 are committed
    int64_t max_context = 0;
    int64_t length = 0;
    std::vector<int64_t> captured;       // target_layer_ids; feature k is the state after layer captured[k]
    Activations act;
    int64_t feature_size() const { return static_cast<int64_t>(captured.size()) * config.dims.hidden; }
};

// Binds the file's tensors. `rows` is the most rows a forward pass will take. Throws Fault Input by tensor name.
Target make_target(const std::string& path, const std::vector<TensorInfo>& table,
                   const TargetConfig& config, const RunConfig& run, std::vector<int64_t> captured, int64_t rows);

// Runs `tokens` at positions length, length+1, ... and leaves the length alone: the rows are the caller's to commit
// (length += k) or to forget. Earlier rows are read, later ones overwritten. `features` may be null; otherwise it
// receives [tokens.size(), feature_size()], captures in the order of the ids, side by side.
// Needs 1 <= tokens.size() <= act.rows and length + tokens.size() <= max_context.
void target_forward(const Backend& b, Target& t, std::span<const int32_t> tokens, float* features);

// Logits of rows [first, first + n) of the last forward pass. logits: [n, V]
void target_logits(const Backend& b, Target& t, int64_t first, int64_t n, float* logits);

}  // namespace dflash
