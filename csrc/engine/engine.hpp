// A target, perhaps a draft, and the state of one sequence: what has been committed, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft.hpp"
#include "engine/qwen3.hpp"

namespace dflash {

struct Engine {
    Backend backend;
    RunConfig run;
    Target target;
    std::optional<Draft> draft;
    Buffer<float> features;      // [rows, feature_size]: captures of the last forward pass, not yet appended
    Buffer<float> logits;        // [rows, V]
    Buffer<int32_t> top_ids;     // [rows, 2]
    Buffer<float> top_values;    // [rows, 2]
    std::function<void()> poll;  // called once a micro-batch and once a step; may throw to stop
};

struct ModelFile {
    std::string path;
    std::vector<TensorInfo> tensors;
};

// Throws Fault Input when a file is not what it claims or the two do not fit, Usage for settings that cannot be meant.
Engine make_engine(const ModelFile& target, const TargetConfig& target_config, const RunConfig& run);
Engine make_engine(const ModelFile& target, const TargetConfig& target_config, const ModelFile& draft,
                   const DraftConfig& draft_config, const RunConfig& run);

// A token the target chose, and how clearly: its logit minus the next one's.
struct Choice {
    int32_t token = -1;
    float margin = 0;
};

// Gives the draft the tensors of `table`, of the file it was opened from or with data of their own; resets the sequence
// and ends a collection. Throws Fault Input as make_engine does, and leaves the old draft.
void replace_tensors(Engine& e, const std::vector<TensorInfo>& table);

// Counts from now on, and from nothing, what every matrix of the draft is multiplied with, in e.backend.collector.
void collect_inputs(Engine& e);

// Forgets the sequence. Every request starts with it; a longer prompt alone would not show that the old one is gone.
void reset(Engine& e);

// Throws Fault Usage when `tokens` do not fit the context behind the committed ones, or one is outside the vocabulary.
void check_tokens(const Engine& e, std::span<const int32_t> tokens);

// Commits `tokens`, text that is known, in micro-batches, and appends their features to the draft where `feed`.
// The last row's logits are in e.logits row 0 afterwards. Throws as check_tokens.
void extend(Engine& e, std::span<const int32_t> tokens, bool feed);

// The same without logits; calls seen(first, count) after each micro-batch, while its activations and e.features
// still stand.
void extend_with(Engine& e, std::span<const int32_t> tokens, bool feed,
                 const std::function<void(int64_t first, int64_t count)>& seen);

// What the target chooses after each of the first out.size() rows of e.logits. Throws Fault Input when one of them is
// not finite: a broken target has no text.
void choose(Engine& e, std::span<Choice> out);

// Runs `tokens` behind the committed ones without committing them: logits of every row in e.logits, captures in
// e.features. At most a block of rows (one without a draft).
void verify(Engine& e, std::span<const int32_t> tokens, bool feed);

// Commits the first `rows` rows of the last verify and appends their features; the others leave no trace.
void commit(Engine& e, int64_t rows, bool feed);

// Takes back everything from position `length` on.
void rewind(Engine& e, int64_t length);

// Proposes n tokens (1 <= n < block size) to follow `anchor`. False when the draft is not finite.
bool propose(Engine& e, int32_t anchor, int64_t n, int32_t* tokens);

}  // namespace dflash
