#include "engine/engine.hpp"

#include <algorithm>
#include <cmath>

namespace dflash {
namespace {

void check_run(const RunConfig& run) {
    const auto refuse = [](const std::string& what, const std::string& found, const std::string& expected) {
        throw Fault{.kind = FaultKind::Usage, .what = what, .found = found, .expected = expected};
    };
    if (run.threads < 1 || run.threads > 1024)
        refuse("the thread count is not usable", "threads = " + std::to_string(run.threads), "1 to 1024");
    if (run.micro_batch < 1 || run.micro_batch > 4096)
        refuse("the micro-batch is not usable", "micro_batch = " + std::to_string(run.micro_batch), "1 to 4096 rows");
    if (run.max_context < 0 || run.max_context > (int64_t{1} << 24))
        refuse("the context is not usable", "max_context = " + std::to_string(run.max_context), "0 to 2^24 positions");
    if (run.ring < 0 || run.ring > (int64_t{1} << 24))
        refuse("the ring is not usable", "ring = " + std::to_string(run.ring), "0 to 2^24 rows");
}

void check_pair(const ModelFile& draft, const TargetConfig& t, const DraftConfig& d) {
    const auto refuse = [&](const std::string& what, const std::string& found, const std::string& expected) {
        throw Fault{.kind = FaultKind::Input,
                    .what = what,
                    .found = found,
                    .where = draft.path,
                    .expected = expected,
                    .fix = "use the target this draft was trained for"};
    };
    if (d.target_hidden_size != t.dims.hidden)
        refuse("the draft reads states of another size than the target has", std::to_string(d.target_hidden_size),
               std::to_string(t.dims.hidden) + ", the target's hidden_size");
    if (d.vocab_size != t.vocab_size)
        refuse("draft and target have different vocabularies", std::to_string(d.vocab_size),
               std::to_string(t.vocab_size) + ", the target's vocab_size");
    for (const int64_t id : d.target_layer_ids)
        if (id < 0 || id >= t.num_hidden_layers)
            refuse("a target layer id is out of range", std::to_string(id),
                   "0 to " + std::to_string(t.num_hidden_layers - 1));
    if (d.mask_token_id < 0 || d.mask_token_id >= d.vocab_size)
        refuse("the mask token is outside the vocabulary", std::to_string(d.mask_token_id),
               "0 to " + std::to_string(d.vocab_size - 1));
}

Engine start(const ModelFile& target, const TargetConfig& config, const RunConfig& run, std::vector<int64_t> captured,
             int64_t block) {
    check_run(run);
    check_config(config, target.path);
    const int64_t rows = std::max(run.micro_batch, block);
    Engine e;
    e.run = run;
    e.backend = make_backend(run.isa, run.threads);
    e.target = make_target(target.path, target.tensors, config, run, std::move(captured), rows);
    e.features = Buffer<float>(rows * e.target.feature_size());
    const int64_t wide = std::max<int64_t>(block, 1);
    e.logits = Buffer<float>(wide * config.vocab_size);
    e.top_ids = Buffer<int32_t>(2 * wide);
    e.top_values = Buffer<float>(2 * wide);
    return e;
}

}  // namespace

Engine make_engine(const ModelFile& target, const TargetConfig& config, const RunConfig& run) {
    return start(target, config, run, {}, 0);
}

Engine make_engine(const ModelFile& target, const TargetConfig& config, const ModelFile& draft,
                   const DraftConfig& draft_config, const RunConfig& run) {
    check_config(draft_config, draft.path);
    check_pair(draft, config, draft_config);
    Engine e = start(target, config, run, draft_config.target_layer_ids, draft_config.block_size);
    e.draft = make_draft(std::make_shared<const Mapping>(draft.path), draft.tensors, draft_config, run, e.target.max_context,
                         e.target.token_embd, e.target.output);
    return e;
}

void replace_tensors(Engine& e, const std::vector<TensorInfo>& table) {
    const Draft& old = *e.draft;
    e.draft = make_draft(old.weights.file, table, old.config, e.run, e.target.max_context, e.target.token_embd,
                         e.target.output);
    e.backend.collector.reset();
    reset(e);
}

void collect_inputs(Engine& e) {
    e.backend.collector = std::make_unique<Collector>();
    for (const auto& [name, matrix] : e.draft->weights.matrices) e.backend.collector->watch(name, matrix);
}

void reset(Engine& e) {
    e.target.length = 0;
    if (e.draft) ring_reset(e.draft->ring);
}

void check_tokens(const Engine& e, std::span<const int32_t> tokens) {
    const Target& t = e.target;
    const auto n = static_cast<int64_t>(tokens.size());
    if (n > t.max_context - t.length)
        throw Fault{.kind = FaultKind::Usage,
                    .what = "the text does not fit the context",
                    .found = std::to_string(t.length + n) + " tokens",
                    .expected = "at most " + std::to_string(t.max_context),
                    .fix = "raise the maximum context, or shorten the prompt"};
    for (const int32_t token : tokens)
        if (token < 0 || token >= t.config.vocab_size)
            throw Fault{.kind = FaultKind::Usage,
                        .what = "a token is outside the vocabulary",
                        .found = std::to_string(token),
                        .expected = "0 to " + std::to_string(t.config.vocab_size - 1)};
}

void extend(Engine& e, std::span<const int32_t> tokens, bool feed) {
    const auto total = static_cast<int64_t>(tokens.size());
    extend_with(e, tokens, feed, [&](int64_t first, int64_t count) {
        if (first + count == total) target_logits(e.backend, e.target, count - 1, 1, e.logits.data());
    });
}

void extend_with(Engine& e, std::span<const int32_t> tokens, bool feed,
                 const std::function<void(int64_t first, int64_t count)>& seen) {
    check_tokens(e, tokens);
    const auto total = static_cast<int64_t>(tokens.size());
    for (int64_t at = 0; at < total; at += e.run.micro_batch) {
        if (e.poll) e.poll();
        const int64_t n = std::min(e.run.micro_batch, total - at);
        target_forward(e.backend, e.target, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
                       feed ? e.features.data() : nullptr);
        commit(e, n, feed);
        seen(at, n);
    }
}

void choose(Engine& e, std::span<Choice> out) {
    const int64_t vocab = e.target.config.vocab_size;
    const auto n = static_cast<int64_t>(out.size());
    e.backend.ops->top_k(e.backend.ctx(), e.logits.data(), n, vocab, 2, e.top_ids.data(), e.top_values.data());
    for (int64_t i = 0; i < n; ++i) {
        const int32_t token = e.top_ids[2 * i];
        const float first = e.top_values[2 * i], second = e.top_values[2 * i + 1];
        if (token < 0 || token >= vocab || !std::isfinite(first))
            throw Fault{.kind = FaultKind::Input,
                        .what = "the target's logits are not finite",
                        .found = "row " + std::to_string(i) + " of a pass, position " + std::to_string(e.target.length),
                        .where = e.target.weights.file->path(),
                        .expected = "finite logits",
                        .fix = "check the target's weights"};
        out[static_cast<size_t>(i)] = {token, first - second};
    }
}

void verify(Engine& e, std::span<const int32_t> tokens, bool feed) {
    check_tokens(e, tokens);
    target_forward(e.backend, e.target, tokens, feed ? e.features.data() : nullptr);
    target_logits(e.backend, e.target, 0, static_cast<int64_t>(tokens.size()), e.logits.data());
}

void commit(Engine& e, int64_t rows, bool feed) {
    if (feed && e.draft) append_context(e.backend, *e.draft, e.features.data(), rows);
    e.target.length += rows;
}

void rewind(Engine& e, int64_t length) {
    if (length < 0)
        throw Fault{.kind = FaultKind::Usage,
                    .what = "a sequence cannot be rewound to before its start",
                    .found = "length = " + std::to_string(length),
                    .expected = "0 or more"};
    e.target.length = std::min(e.target.length, length);
    if (e.draft) ring_rewind(e.draft->ring, length);
}

bool propose(Engine& e, int32_t anchor, int64_t n, int32_t* tokens) {
    run_block(e.backend, *e.draft, anchor);
    block_logits(e.backend, *e.draft, 1, n);
    return block_tokens(e.backend, *e.draft, anchor, n, tokens);
}

}  // namespace dflash
