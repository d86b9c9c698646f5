// Python bindings of csrc/engine: settings as typed structs, token lists and float arrays as numpy, faults as the
// DflashError they name. Compute runs without the GIL; one lock an engine keeps its calls apart.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "engine/replay.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace dflash {
namespace {

using TableRow = std::tuple<std::string, int32_t, std::vector<int64_t>, uint64_t, uint64_t>;
using Tokens = std::vector<int32_t>;
template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::c_contig>;

// Text that may hold a path, which need not be UTF-8: decoded as os.fsdecode does.
nb::object text(const std::string& s) {
    return nb::steal(PyUnicode_DecodeFSDefaultAndSize(s.data(), static_cast<Py_ssize_t>(s.size())));
}

// The DflashError class of a fault, raised with its parts.
void raise_fault(const Fault& f) {
    constexpr const char* kClasses[] = {"DflashError", "UsageError", "InputError", "EnvironmentFault"};
    const nb::object type = nb::module_::import_("dflash_gguf.convert.errors").attr(kClasses[static_cast<int>(f.kind)]);
    const nb::object error =
        type(text(f.what), "found"_a = text(f.found), "where"_a = text(f.where), "expected"_a = text(f.expected),
             "fix"_a = text(f.fix));
    PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& p, void*) {
    try {
        std::rethrow_exception(p);
    } catch (const Fault& f) {
        raise_fault(f);
    }
}

// An array that owns `values`.
template <typename T>
Array<T> to_numpy(Buffer<T> values, std::vector<size_t> shape) {
    auto* kept = new Buffer<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Buffer<T>*>(p); });
    return Array<T>(kept->data(), shape.size(), shape.data(), owner);
}

std::vector<TensorInfo> tensor_table(const std::vector<TableRow>& table) {
    std::vector<TensorInfo> tensors;
    for (const auto& [name, type, shape, offset, nbytes] : table)
        tensors.push_back({name, type, shape, offset, nbytes});
    return tensors;
}

ModelFile model_file(const nb::bytes& path, const std::vector<TableRow>& table) {
    return {std::string(path.c_str(), path.size()), tensor_table(table)};
}

void check_signals() {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// The engine as Python holds it.
struct Handle {
    Engine engine;
    std::mutex busy;
    explicit Handle(Engine e) : engine(std::move(e)) { engine.poll = check_signals; }
    int64_t vocab() const { return engine.target.config.vocab_size; }
    const Draft& draft() const {
        if (!engine.draft)
            throw Fault{.kind = FaultKind::Usage, .what = "there is no draft", .fix = "open the engine with a draft"};
        return *engine.draft;
    }
};

// Runs body without the GIL and alone on its engine.
template <typename Body>
auto alone(Handle& h, Body&& body) {
    const nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> lock(h.busy);
    return body(h.engine);
}

std::unique_ptr<Handle> open_engine(const nb::bytes& path, const std::vector<TableRow>& table,
                                    const TargetConfig& config, const RunConfig& run) {
    const ModelFile target = model_file(path, table);
    const nb::gil_scoped_release unlocked;
    return std::make_unique<Handle>(make_engine(target, config, run));
}

std::unique_ptr<Handle> open_pair(const nb::bytes& path, const std::vector<TableRow>& table, const TargetConfig& config,
                                  const nb::bytes& draft_path, const std::vector<TableRow>& draft_table,
                                  const DraftConfig& draft_config, const RunConfig& run) {
    const ModelFile target = model_file(path, table), draft = model_file(draft_path, draft_table);
    const nb::gil_scoped_release unlocked;
    return std::make_unique<Handle>(make_engine(target, config, draft, draft_config, run));
}

Generation run_generate(Handle& h, Tokens prompt, int64_t max_new, int64_t n_max, Tokens eos) {
    const Request request{.prompt = std::move(prompt), .max_new = max_new, .n_max = n_max, .eos = std::move(eos)};
    return alone(h, [&](Engine& e) { return generate(e, request); });
}

// Logits of every position of `tokens`, from an empty sequence. [n, V]
Array<float> run_logits(Handle& h, const Tokens& tokens) {
    const auto n = static_cast<int64_t>(tokens.size());
    Buffer<float> out = alone(h, [&](Engine& e) {
        Buffer<float> rows(n * h.vocab());
        reset(e);
        extend_with(e, tokens, false, [&](int64_t at, int64_t count) {
            target_logits(e.backend, e.target, 0, count, rows.row(at, h.vocab()));
        });
        return rows;
    });
    return to_numpy(std::move(out), {tokens.size(), static_cast<size_t>(h.vocab())});
}

// Captured states of every position of `tokens`, from an empty sequence. [n, len(ids)*H]
Array<float> run_features(Handle& h, const Tokens& tokens) {
    const int64_t width = h.draft().config.feature_size();
    Buffer<float> out = alone(h, [&](Engine& e) {
        Buffer<float> rows(static_cast<int64_t>(tokens.size()) * width);
        reset(e);
        extend_with(e, tokens, true, [&](int64_t at, int64_t count) {
            std::copy_n(e.features.data(), count * width, rows.row(at, width));
        });
        return rows;
    });
    return to_numpy(std::move(out), {tokens.size(), static_cast<size_t>(width)});
}

void run_extend(Handle& h, const Tokens& tokens) {
    alone(h, [&](Engine& e) { extend(e, tokens, e.draft.has_value()); });
}

// The draft's block behind the committed tokens: (tokens, or none where it is not finite; logits of all rows; states).
std::tuple<Tokens, Array<float>, Array<float>> run_propose(Handle& h, int32_t anchor) {
    const DraftConfig& c = h.draft().config;
    Tokens tokens(static_cast<size_t>(c.block_size - 1));
    Buffer<float> logits(c.block_size * c.vocab_size), hidden(c.block_size * c.dims.hidden);
    const bool good = alone(h, [&](Engine& e) {
        check_tokens(e, {&anchor, 1});
        Draft& d = *e.draft;
        run_block(e.backend, d, anchor);
        block_logits(e.backend, d, 0, c.block_size);
        std::copy_n(d.logits.data(), logits.size(), logits.data());
        std::copy_n(d.z.data(), hidden.size(), hidden.data());
        return block_tokens(e.backend, d, anchor, c.block_size - 1, tokens.data());
    });
    const auto q = static_cast<size_t>(c.block_size);
    return {good ? tokens : Tokens{}, to_numpy(std::move(logits), {q, static_cast<size_t>(c.vocab_size)}),
            to_numpy(std::move(hidden), {q, static_cast<size_t>(c.dims.hidden)})};
}

// One round by hand: verify tokens[0] (the anchor) and what was drafted behind it, commit the first `keep` rows, and
// give back what the target chose after every row.
Tokens run_verify(Handle& h, const Tokens& tokens, int64_t keep) {
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t most = h.engine.draft ? h.engine.draft->config.block_size : 1;
    if (n < 1 || n > most || keep < 0 || keep > n)
        throw Fault{.kind = FaultKind::Usage,
                    .what = "a verify takes an anchor and at most a block",
                    .found = std::to_string(n) + " rows, " + std::to_string(keep) + " kept",
                    .expected = "1 to " + std::to_string(most) + " rows"};
    std::vector<Choice> choices(tokens.size());
    alone(h, [&](Engine& e) {
        verify(e, tokens, e.draft.has_value());
        choose(e, choices);
        commit(e, keep, e.draft.has_value());
    });
    Tokens out;
    for (const Choice& c : choices) out.push_back(c.token);
    return out;
}

// (tensor, sums of squared inputs [cols], rows) of every matrix of the draft that was used since `collect`.
std::vector<std::tuple<std::string, Array<double>, int64_t>> collected(Handle& h) {
    const std::vector<InputSquares> inputs = alone(h, [](Engine& e) {
        if (!e.backend.collector)
            throw Fault{.kind = FaultKind::Usage, .what = "nothing is collected", .fix = "call collect first"};
        return e.backend.collector->seen();
    });
    std::vector<std::tuple<std::string, Array<double>, int64_t>> out;
    for (const InputSquares& input : inputs) {
        Buffer<double> sums(static_cast<int64_t>(input.sums.size()));
        std::copy(input.sums.begin(), input.sums.end(), sums.data());
        out.emplace_back(input.name, to_numpy(std::move(sums), {input.sums.size()}), input.rows);
    }
    return out;
}

// The draft's tensor table, some rows of it with bytes of their own.
void run_replace(Handle& h, const std::vector<TableRow>& table, const std::vector<nb::bytes>& data) {
    h.draft();
    std::vector<TensorInfo> tensors = tensor_table(table);
    if (data.size() > tensors.size())
        throw Fault{.kind = FaultKind::Usage, .what = "more data than tensors", .found = std::to_string(data.size())};
    for (size_t i = 0; i < data.size(); ++i) {
        const auto* first = static_cast<const std::byte*>(data[i].data());
        tensors[i].data = std::make_shared<const std::vector<std::byte>>(first, first + data[i].size());
    }
    alone(h, [&](Engine& e) { replace_tensors(e, tensors); });
}

// (rounds, probability among what could be chosen [anchors, q-1], log probability [anchors, q-1])
std::tuple<std::vector<std::pair<int, int>>, Array<float>, Array<float>> run_replay(
    Handle& h, const Tokens& tokens, int64_t prompt, int64_t budget,
    const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& features, const Tokens& anchors,
    int64_t n_max) {
    const DraftConfig& c = h.draft().config;
    if (features.shape(0) + 1 < tokens.size() || static_cast<int64_t>(features.shape(1)) != c.feature_size())
        throw Fault{.kind = FaultKind::Usage,
                    .what = "the features do not fit the text or the draft",
                    .found = std::to_string(features.shape(0)) + " x " + std::to_string(features.shape(1)),
                    .expected = std::to_string(tokens.size() - 1) + " x " + std::to_string(c.feature_size())};
    const Recording text{.tokens = tokens, .prompt = prompt, .budget = budget, .features = features.data()};
    Replay out = alone(h, [&](Engine& e) { return replay(e, text, anchors, n_max); });
    std::vector<std::pair<int, int>> rounds;
    for (const Round& r : out.rounds) rounds.emplace_back(r.drafted, r.accepted);
    const std::vector<size_t> shape{anchors.size(), static_cast<size_t>(c.block_size - 1)};
    return {std::move(rounds), to_numpy(std::move(out.chosen), shape), to_numpy(std::move(out.log_probability), shape)};
}

// The draft's context as bytes: (first, next, [K and V of layer 0, 1, ...]), each [positions, row bytes] in
// position order. For tests: two states are the same exactly when these are.
std::tuple<int64_t, int64_t, std::vector<Array<uint8_t>>> context_rows(Handle& h) {
    const KvRows& shape = h.draft().kv.shape;
    const int64_t bytes = shape.width * kv_bytes(shape.type);
    std::vector<Buffer<uint8_t>> copies;
    const DraftRing ring = alone(h, [&](Engine& e) {
        Draft& d = *e.draft;
        for (int64_t l = 0; l < d.config.num_hidden_layers; ++l)
            for (const KvRows& rows : {k_rows(d.kv, l), v_rows(d.kv, l)}) {
                Buffer<uint8_t>& out = copies.emplace_back((d.ring.next - d.ring.first) * bytes);
                for (int64_t p = d.ring.first; p < d.ring.next; ++p)
                    std::copy_n(reinterpret_cast<const uint8_t*>(rows.data) + ring_slot(d.ring, p) * bytes, bytes,
                                out.row(p - d.ring.first, bytes));
            }
        return d.ring;
    });
    std::vector<Array<uint8_t>> layers;
    for (Buffer<uint8_t>& copy : copies)
        layers.push_back(to_numpy(std::move(copy),
                                  {static_cast<size_t>(ring.next - ring.first), static_cast<size_t>(bytes)}));
    return {ring.first, ring.next, std::move(layers)};
}

void bind_settings(nb::module_& m) {
    nb::enum_<KvType>(m, "KvType").value("f32", KvType::F32).value("f16", KvType::F16);
    nb::enum_<Window>(m, "Window").value("per_row", Window::PerRow).value("anchored", Window::Anchored);
    nb::enum_<Act>(m, "Act")
        .value("silu", Act::Silu)
        .value("gelu_pytorch_tanh", Act::GeluTanh)
        .value("gelu", Act::Gelu);
    nb::enum_<Stop>(m, "Stop").value("eos", Stop::Eos).value("length", Stop::Length).value("context", Stop::Context);
    nb::class_<LayerDims>(m, "LayerDims", "Sizes of one transformer layer.")
        .def(nb::init<>())
        .def_rw("hidden", &LayerDims::hidden)
        .def_rw("ff", &LayerDims::ff)
        .def_rw("heads", &LayerDims::heads)
        .def_rw("kv_heads", &LayerDims::kv_heads)
        .def_rw("head_dim", &LayerDims::head_dim)
        .def_rw("rope_dimension_count", &LayerDims::rope_dimension_count)
        .def_rw("eps", &LayerDims::eps);
    nb::class_<TargetConfig>(m, "TargetConfig", "The target's geometry.")
        .def(nb::init<>())
        .def_rw("dims", &TargetConfig::dims)
        .def_rw("num_hidden_layers", &TargetConfig::num_hidden_layers)
        .def_rw("vocab_size", &TargetConfig::vocab_size)
        .def_rw("context_length", &TargetConfig::context_length)
        .def_rw("rope_theta", &TargetConfig::rope_theta);
    nb::class_<DraftConfig>(m, "DraftConfig", "What changes a draft's results, with DraftSpec's names.")
        .def(nb::init<>())
        .def_rw("dims", &DraftConfig::dims)
        .def_rw("num_hidden_layers", &DraftConfig::num_hidden_layers)
        .def_rw("vocab_size", &DraftConfig::vocab_size)
        .def_rw("rope_theta", &DraftConfig::rope_theta)
        .def_rw("rope_factor", &DraftConfig::rope_factor)
        .def_rw("block_size", &DraftConfig::block_size)
        .def_rw("mask_token_id", &DraftConfig::mask_token_id)
        .def_rw("target_layer_ids", &DraftConfig::target_layer_ids)
        .def_rw("target_hidden_size", &DraftConfig::target_hidden_size)
        .def_rw("sliding_window", &DraftConfig::sliding_window)
        .def_rw("sliding_layers", &DraftConfig::sliding_layers)
        .def_rw("causal_layers", &DraftConfig::causal_layers)
        .def_rw("hidden_act", &DraftConfig::hidden_act)
        .def_rw("conv_kernel_size", &DraftConfig::conv_kernel_size)
        .def_rw("conv_group_size", &DraftConfig::conv_group_size)
        .def_rw("selector_rank", &DraftConfig::selector_rank)
        .def_rw("selector_top_k", &DraftConfig::selector_top_k)
        .def_rw("embedding_scale", &DraftConfig::embedding_scale)
        .def_rw("logit_scale", &DraftConfig::logit_scale)
        .def_rw("attention_value_scale", &DraftConfig::attention_value_scale)
        .def_rw("final_logit_softcapping", &DraftConfig::final_logit_softcapping);
    nb::class_<RunConfig>(m, "RunConfig", "The run's settings, as EngineOptions has them.")
        .def(nb::init<>())
        .def_rw("kv_full", &RunConfig::kv_full)
        .def_rw("ring", &RunConfig::ring)
        .def_rw("kv_type", &RunConfig::kv_type)
        .def_rw("threads", &RunConfig::threads)
        .def_rw("isa", &RunConfig::isa)
        .def_rw("window", &RunConfig::window)
        .def_rw("max_context", &RunConfig::max_context)
        .def_rw("micro_batch", &RunConfig::micro_batch);
}

void bind_generation(nb::module_& m) {
    nb::class_<Generation>(m, "Generation", "What a generation gave, and how.")
        .def_ro("tokens", &Generation::tokens)
        .def_prop_ro("rounds",
                     [](const Generation& g) {
                         std::vector<std::pair<int, int>> out;
                         for (const Round& r : g.rounds) out.emplace_back(r.drafted, r.accepted);
                         return out;
                     })
        .def_ro("margins", &Generation::margins)
        .def_ro("steps", &Generation::steps)
        .def_ro("bad_drafts", &Generation::bad_drafts)
        .def_ro("stop", &Generation::stop)
        .def_ro("prefill_s", &Generation::prefill_s)
        .def_ro("draft_s", &Generation::draft_s)
        .def_ro("verify_s", &Generation::verify_s)
        .def_ro("total_s", &Generation::total_s);
}

void bind_handle(nb::module_& m) {
    nb::class_<Handle>(m, "Engine", "A target, perhaps a draft, and one sequence.")
        .def("generate", &run_generate, "prompt"_a, "max_new"_a, "n_max"_a, "eos"_a)
        .def("logits", &run_logits, "tokens"_a)
        .def("features", &run_features, "tokens"_a)
        .def("reset", [](Handle& h) { alone(h, [](Engine& e) { reset(e); }); })
        .def("extend", &run_extend, "tokens"_a)
        .def("rewind", [](Handle& h, int64_t length) { alone(h, [&](Engine& e) { rewind(e, length); }); }, "length"_a)
        .def("propose", &run_propose, "anchor"_a)
        .def("verify", &run_verify, "tokens"_a, "keep"_a)
        .def("collect", [](Handle& h) { h.draft(); alone(h, [](Engine& e) { collect_inputs(e); }); })
        .def("collected", &collected)
        .def("replace", &run_replace, "table"_a, "data"_a)
        .def("replay", &run_replay, "tokens"_a, "prompt"_a, "budget"_a, "features"_a, "anchors"_a, "n_max"_a)
        .def("context_rows", &context_rows)
        .def_prop_ro("length", [](Handle& h) { return alone(h, [](Engine& e) { return e.target.length; }); })
        .def_prop_ro("max_context", [](const Handle& h) { return h.engine.target.max_context; })
        .def_prop_ro("isa", [](const Handle& h) { return std::string(h.engine.backend.ops->name); })
        .def_prop_ro("ring_cap", [](const Handle& h) { return h.draft().ring.cap; })
        .def_prop_ro("draft_kv_bytes",
                     [](const Handle& h) { return h.engine.draft ? draft_kv_bytes(*h.engine.draft) : 0; });
    m.def("open_engine", &open_engine, "path"_a, "tensors"_a, "config"_a, "run"_a);
    m.def("open_pair", &open_pair, "path"_a, "tensors"_a, "config"_a, "draft_path"_a, "draft_tensors"_a,
          "draft_config"_a, "run"_a);
    m.def("kv_total", &kv_total, "cap"_a, "block"_a, "Rows of each K and V array of the draft (spec-runtime 4.1).");
}

}  // namespace
}  // namespace dflash

void bind_engine(nb::module_& m) {
    nb::register_exception_translator(dflash::translate);
    dflash::bind_settings(m);
    dflash::bind_generation(m);
    dflash::bind_handle(m);
}
