// The whole engine without Python, so that the sanitizers see it: a tiny random target and draft are written to files
// and opened through tensor tables, generation with a draft must equal plain decoding, and bad tables are refused.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "engine/replay.hpp"

using namespace dflash;

namespace {

int failures = 0;
void expect(bool ok, const char* what) {
    if (ok) return;
    std::printf("FAIL %s\n", what);
    ++failures;
}

constexpr LayerDims kDims{
    .hidden = 64, .ff = 96, .heads = 4, .kv_heads = 2, .head_dim = 16, .rope_dimension_count = 16, .eps = 1e-6F};
constexpr int64_t kVocab = 12, kBlock = 4;

// A file of random F32 tensors and its table; removed at the end.
struct RandomModel {
    ModelFile file;
    std::ofstream out;
    std::mt19937 random;
    uint64_t offset = 0;
    RandomModel(const std::string& path, uint32_t seed) : out(path, std::ios::binary), random(seed) {
        file.path = path;
    }
    RandomModel(const RandomModel&) = delete;
    RandomModel& operator=(const RandomModel&) = delete;
    ~RandomModel() { std::remove(file.path.c_str()); }
    void add(const std::string& name, std::vector<int64_t> shape, float size) {
        std::normal_distribution<float> normal(shape.size() == 1 ? 1.0F : 0.0F, size);
        int64_t count = 1;
        for (const int64_t d : shape) count *= d;
        std::vector<float> values(static_cast<size_t>(count));
        for (float& v : values) v = normal(random);
        const uint64_t bytes = values.size() * sizeof(float);
        out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(bytes));
        file.tensors.push_back({name, 0, std::move(shape), offset, bytes});
        offset += bytes;
    }
    void add_layer(int64_t i) {
        const std::string p = "blk." + std::to_string(i) + ".";
        for (const char* norm : {"attn_norm.weight", "ffn_norm.weight"}) add(p + norm, {kDims.hidden}, 0.2F);
        for (const char* norm : {"attn_q_norm.weight", "attn_k_norm.weight"}) add(p + norm, {kDims.head_dim}, 0.2F);
        add(p + "attn_q.weight", {kDims.hidden, kDims.q_width()}, 0.12F);
        for (const char* kv : {"attn_k.weight", "attn_v.weight"}) add(p + kv, {kDims.hidden, kDims.kv_width()}, 0.12F);
        add(p + "attn_output.weight", {kDims.q_width(), kDims.hidden}, 0.12F);
        for (const char* up : {"ffn_gate.weight", "ffn_up.weight"}) add(p + up, {kDims.hidden, kDims.ff}, 0.12F);
        add(p + "ffn_down.weight", {kDims.ff, kDims.hidden}, 0.1F);
    }
};

TargetConfig target_config() {
    return {.dims = kDims, .num_hidden_layers = 3, .vocab_size = kVocab, .context_length = 128, .rope_theta = 1e4};
}

DraftConfig draft_config() {
    DraftConfig c;
    c.dims = kDims;
    c.num_hidden_layers = 2;
    c.vocab_size = kVocab;
    c.rope_theta = 1e4;
    c.block_size = kBlock;
    c.mask_token_id = kVocab - 1;
    c.target_layer_ids = {2, 0};
    c.target_hidden_size = kDims.hidden;
    c.sliding_window = 6;
    c.sliding_layers = {true, false};
    c.causal_layers = {true, false};
    c.conv_kernel_size = 2;
    c.conv_group_size = 16;
    c.selector_rank = 8;
    c.selector_top_k = 4;
    return c;
}

void write_target(RandomModel& m) {
    m.add("token_embd.weight", {kDims.hidden, kVocab}, 1.0F);
    m.add("output.weight", {kDims.hidden, kVocab}, 0.12F);
    m.add("output_norm.weight", {kDims.hidden}, 0.2F);
    for (int64_t i = 0; i < 3; ++i) m.add_layer(i);
    m.out.close();
}

void write_draft(RandomModel& m) {
    m.add("fc.weight", {2 * kDims.hidden, kDims.hidden}, 0.09F);
    m.add("enc.output_norm.weight", {kDims.hidden}, 0.2F);
    m.add("output_norm.weight", {kDims.hidden}, 0.2F);
    for (int64_t i = 0; i < 2; ++i) {
        m.add_layer(i);
        for (const char* part : {"attn", "ffn"}) {
            const std::string p = "blk." + std::to_string(i) + "." + part;
            m.add(p + "_conv_base", {kDims.hidden, 2, 2}, 0.5F);
            m.add(p + "_conv_proj.weight", {kDims.hidden, 2 * 2 * 4}, 0.1F);
        }
    }
    m.add("selector_hidden.weight", {kDims.hidden, 8}, 0.1F);
    for (const char* book : {"selector_predecessor.weight", "selector_successor.weight"})
        m.add(book, {8, kVocab}, 0.3F);
    m.out.close();
}

void generate_with_and_without(const ModelFile& target, const ModelFile& draft) {
    int64_t accepted = 0;
    for (const int64_t ring : {4, 9, 64}) {
        RunConfig run;
        run.ring = ring;
        run.threads = ring == 9 ? 2 : 1;
        run.kv_type = ring == 9 ? KvType::F32 : KvType::F16;
        run.micro_batch = 3;
        Engine e = make_engine(target, target_config(), draft, draft_config(), run);
        for (const int32_t first : {0, 3, 6, 9}) {
            const Request plain{.prompt = {first, 5, 2, 8, 3, 3, 7}, .max_new = 60, .n_max = 0, .eos = {}};
            Request drafted = plain;
            drafted.n_max = kBlock - 1;
            const Generation expected = generate(e, plain), found = generate(e, drafted);
            expect(expected.tokens.size() == 60 && found.tokens == expected.tokens, "drafting changes no token");
            expect(found.bad_drafts == 0 && !found.rounds.empty(), "rounds were drafted");
            for (const Round& r : found.rounds) accepted += r.accepted;
        }
    }
    expect(accepted > 0, "no draft was ever accepted: the case did not occur");
}

// The text's rounds come from the draft alone, also while inputs are collected and after a tensor was replaced by its own
// values; other values, and values of the wrong size, are seen.
void replay_a_text(const ModelFile& target, const ModelFile& draft) {
    RunConfig run;
    run.ring = 9;
    Engine e = make_engine(target, target_config(), draft, draft_config(), run);
    const Request request{.prompt = {0, 5, 2, 8, 3, 3, 7}, .max_new = 40, .n_max = kBlock - 1, .eos = {}};
    collect_inputs(e);
    const Generation g = generate(e, request);
    std::vector<int32_t> tokens = request.prompt, anchors;
    tokens.insert(tokens.end(), g.tokens.begin(), g.tokens.end());
    int64_t rows = 0;
    for (const InputSquares& input : e.backend.collector->seen())
        if (input.name == "blk.1.ffn_down.weight") rows = input.rows;
    expect(rows == kBlock * std::ssize(g.rounds), "every row of every block was counted");
    int32_t at = 0;
    for (const Round& r : g.rounds) {
        anchors.push_back(at);
        at += r.accepted + 1;
    }
    std::vector<float> features;
    reset(e);
    extend_with(e, tokens, true, [&](int64_t, int64_t count) {
        features.insert(features.end(), e.features.data(), e.features.data() + count * e.target.feature_size());
    });
    const Recording text{.tokens = tokens, .prompt = std::ssize(request.prompt), .budget = 40, .features = features.data()};
    const auto same = [&](const Replay& found) {
        for (size_t i = 0; i < g.rounds.size(); ++i)
            if (found.rounds[i].drafted != g.rounds[i].drafted || found.rounds[i].accepted != g.rounds[i].accepted)
                return false;
        return true;
    };
    expect(same(replay(e, text, anchors, request.n_max)), "a replay gives the loop's rounds");
    std::vector<TensorInfo> table = draft.tensors;
    const std::byte* fc = e.draft->fc.data;
    auto data = std::vector<std::byte>(fc, fc + table[0].nbytes);
    table[0].data = std::make_shared<const std::vector<std::byte>>(data);
    replace_tensors(e, table);
    expect(same(replay(e, text, anchors, request.n_max)), "a tensor of the same values changes nothing");
    std::reverse(data.begin(), data.end());
    for (auto& byte : data) byte &= std::byte{0x3e};  // finite floats
    table[0].data = std::make_shared<const std::vector<std::byte>>(data);
    replace_tensors(e, table);
    expect(!same(replay(e, text, anchors, request.n_max)), "other values change rounds");
    table[0].data = std::make_shared<const std::vector<std::byte>>(data.begin(), data.end() - 1);
    bool refused = false;
    try {
        replace_tensors(e, table);
    } catch (const Fault& f) {
        refused = f.kind == FaultKind::Input;
    }
    expect(refused, "data of another size than the shape is refused");
}

// Every way to damage one row of the table is a Fault Input that says where, and nothing is read outside the file.
void refuse_bad_tables(const ModelFile& target) {
    const auto damaged = [&](auto&& change) {
        ModelFile file = target;
        change(file.tensors[1]);
        try {
            make_engine(file, target_config(), RunConfig{});
        } catch (const Fault& f) {
            return f.kind == FaultKind::Input && f.where.find(file.path) == 0;
        }
        return false;
    };
    expect(damaged([](TensorInfo& t) { t.offset = UINT64_MAX - 3; }), "offset that wraps");
    expect(damaged([](TensorInfo& t) { t.offset = uint64_t{1} << 40; }), "offset past the end");
    expect(damaged([](TensorInfo& t) { t.offset += 2; }), "offset not aligned");
    expect(damaged([](TensorInfo& t) { t.nbytes -= 4; }), "size that contradicts the shape");
    expect(damaged([](TensorInfo& t) { t.shape = {0}; }), "a dim of zero");
    expect(damaged([](TensorInfo& t) { t.shape = {-64}; }), "a negative dim");
    expect(damaged([](TensorInfo& t) { t.shape = {INT64_MAX, INT64_MAX}; }), "a product that overflows");
    expect(damaged([](TensorInfo& t) { t.shape = {}; }), "no dims");
    expect(damaged([](TensorInfo& t) { t.type = 999; }), "an unknown type");
    expect(damaged([](TensorInfo& t) { t.type = -1; }), "a negative type");
    expect(damaged([](TensorInfo& t) { t.type = 12; }), "rows that are not whole blocks");
    expect(damaged([](TensorInfo& t) { t.name = "other"; }), "a name that is not part of the model");
    expect(damaged([](TensorInfo& t) { t.name = "token_embd.weight"; }), "a name that appears twice");
}

// Rows come from a file's window or context, so their product with a row's bytes is checked: a wrapped one would be small.
void refuse_a_cache_that_wraps() {
    const auto refused = [](int64_t width, int64_t rows) {
        try {
            make_kv_cache(1, KvType::F32, width, rows, rows);
        } catch (const Fault& f) {
            return f.kind == FaultKind::Environment && f.found.find(std::to_string(rows)) == 0;
        }
        return false;
    };
    expect(refused(32, int64_t{1} << 57), "a cache of 2^64 bytes");
    expect(refused(int64_t{1} << 31, int64_t{1} << 31), "a cache of 2^64 bytes of wide rows");
    expect(refused(int64_t{1} << 31, int64_t{1} << 32), "a cache whose values wrap before its bytes do");
    expect(!refused(32, 64), "a small cache");
}

}  // namespace

int main() {
    const std::string base = "test_engine_run." + std::to_string(getpid());
    RandomModel target(base + ".target", 1), draft(base + ".draft", 2);
    write_target(target);
    write_draft(draft);
    generate_with_and_without(target.file, draft.file);
    replay_a_text(target.file, draft.file);
    refuse_bad_tables(target.file);
    refuse_a_cache_that_wraps();
    std::printf("%d failures\n", failures);
    return failures != 0;
}
