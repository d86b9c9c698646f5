// The draft: DFlash v1 and DFlash 2 (spec-runtime 1, 2). It turns target features into context K/V, and an anchor into
// a block of proposed tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/layer.hpp"
#include "engine/masks.hpp"
#include "engine/ring.hpp"
#include "engine/selector.hpp"

namespace dflash {

// One grouped dynamic convolution; a DFlash 2 layer has one around attention and one around the feed-forward.
struct DraftConv {
    const float* base = nullptr;  // [2, K, H]
    Matrix proj;                  // [H, 2*K*G]
};

struct DraftLayer {
    Layer layer;
    DraftConv attn_conv, ffn_conv;  // empty in v1
    LayerMask mask;
};

struct Draft {
    DraftConfig config;
    Weights weights;
    Matrix fc;                           // [feature_size, H]
    const float* hidden_norm = nullptr;  // [H], on the fused features
    const float* output_norm = nullptr;  // [H]
    Matrix token_embd, output;           // its own, or the target's
    std::vector<DraftLayer> layers;
    std::optional<Selector> selector;
    std::vector<float> rope_factors;     // [n_rot/2] divisors of the frequencies; empty: none
    DraftRing ring;
    KvCache kv;
    // Scratch, made once.
    Activations act;
    Buffer<float> fused;                      // [kMaxRows, H]: g of the rows being appended
    std::vector<Buffer<float>> ctx_k, ctx_v;  // per layer [kMaxRows, nkv*hd]
    std::vector<Matrix> ctx_weights;          // wk, wv of every layer: one matmul call for all of them
    std::vector<float*> ctx_out;
    Buffer<float> conv_out;                   // [max(q, kMaxRows), H]: a side's output, swapped with its input
    Buffer<float> dyn;                        // [q, 2*K*G]
    Buffer<float> z;                          // [q, H] final-normed states
    Buffer<float> logits;                     // [q, V]
    std::vector<int32_t> block;               // [q] anchor, mask, mask, ...
};

// Binds the file's tensors; `token_embd` and `output` are the target's, used where the draft has none of its own.
// Throws Fault Input by tensor name, Usage when the ring cannot hold a block.
Draft make_draft(std::shared_ptr<const Mapping> file, const std::vector<TensorInfo>& table,
                 const DraftConfig& config, const RunConfig& run, int64_t max_context, const Matrix& token_embd,
                 const Matrix& output);

// Bytes of the context and noise K/V of all layers.
int64_t draft_kv_bytes(const Draft& d);

// Appends the features of committed positions [ring.next, ring.next + n). features: [n, feature_size]
void append_context(const Backend& b, Draft& d, const float* features, int64_t n);

// Runs one block of q rows, anchor first, at position ring.next; leaves the final-normed states of all rows in d.z.
void run_block(const Backend& b, Draft& d, int32_t anchor);

// Logits of rows [first, first + n) of the last block, scaled and capped, into d.logits at the same rows.
void block_logits(const Backend& b, Draft& d, int64_t first, int64_t n);

// The tokens that rows 1 .. n of the last block propose. False when a row is not finite: then there is no proposal.
bool block_tokens(const Backend& b, Draft& d, int32_t anchor, int64_t n, int32_t* tokens);

}  // namespace dflash
