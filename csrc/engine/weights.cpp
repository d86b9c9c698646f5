#include "engine/weights.hpp"

#include <array>
#include <span>
#include <utility>

#include "kquant/kquant.h"

namespace dflash {
namespace {

bool computes_with(int32_t id) {
    for (const Type t : {Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0})
        if (id == static_cast<int32_t>(t)) return true;
    return false;
}

kq_type stored_type(const TensorInfo& t) { return static_cast<kq_type>(t.type); }

std::string type_name(int32_t id) {
    static constexpr std::array<std::pair<int32_t, const char*>, 15> kNames = {{
        {0, "F32"}, {1, "F16"}, {2, "Q4_0"}, {3, "Q4_1"}, {6, "Q5_0"}, {7, "Q5_1"}, {8, "Q8_0"}, {10, "Q2_K"},
        {11, "Q3_K"}, {12, "Q4_K"}, {13, "Q5_K"}, {14, "Q6_K"}, {20, "IQ4_NL"}, {23, "IQ4_XS"}, {30, "BF16"},
    }};
    for (const auto& [known, name] : kNames)
        if (known == id) return name;
    return "ggml type " + std::to_string(id);
}

std::string dims(std::span<const int64_t> shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

[[noreturn]] void refuse(const Weights& w, const std::string& name, const std::string& what, const std::string& found,
                         const std::string& expected, const std::string& fix = "") {
    throw Fault{.kind = FaultKind::Input,
                .what = what,
                .found = found,
                .where = w.file->path() + ": " + name,
                .expected = expected,
                .fix = fix};
}

// Product of the dims, or -1 when one is not positive or the product leaves int64's safe range.
int64_t value_count(std::span<const int64_t> shape) {
    constexpr int64_t kMost = int64_t{1} << 48;
    int64_t n = 1;
    for (const int64_t d : shape) {
        if (d <= 0 || d > kMost / n) return -1;
        n *= d;
    }
    return n;
}

// Where the tensor's bytes lie. Throws Fault Input when they are not all there.
const std::byte* bytes_of(const Weights& w, const TensorInfo& t) {
    if (!t.data) return w.file->bytes(t.offset, t.nbytes, t.name);
    if (t.data->size() != t.nbytes)
        refuse(w, t.name, "a tensor's data has another size", std::to_string(t.data->size()) + " bytes",
               std::to_string(t.nbytes));
    return t.data->data();
}

void check_entry(const Weights& w, const TensorInfo& t) {
    const auto block_len = static_cast<int64_t>(kq_block_weights(stored_type(t)));
    if (block_len == 0)
        refuse(w, t.name, "the runtime has no decoder for this tensor type", type_name(t.type),
               "F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS",
               "convert the file to one of these types");
    const int64_t count = value_count(t.shape);
    if (t.shape.empty() || t.shape.size() > 4 || count < 0)
        refuse(w, t.name, "a tensor's shape is not usable", dims(t.shape), "1 to 4 positive dims");
    if (t.shape[0] % block_len != 0)
        refuse(w, t.name, "a tensor's rows are not whole blocks", dims(t.shape) + " as " + type_name(t.type),
               "ne0 a multiple of " + std::to_string(block_len));
    const uint64_t expected = static_cast<uint64_t>(count / block_len) * kq_block_bytes(stored_type(t));
    if (t.nbytes != expected)
        refuse(w, t.name, "a tensor's size contradicts its shape", std::to_string(t.nbytes) + " bytes",
               std::to_string(expected) + " for " + dims(t.shape) + " as " + type_name(t.type));
    if (t.offset % 4 != 0)
        refuse(w, t.name, "a tensor's data is not aligned", "offset " + std::to_string(t.offset), "a multiple of 4");
    bytes_of(w, t);
}

const TensorInfo& take(Weights& w, const std::string& name, const std::vector<int64_t>& shape) {
    const auto it = w.tensors.find(name);
    if (it == w.tensors.end()) refuse(w, name, "a tensor is missing", "no such tensor", "a tensor of this name");
    if (it->second.shape != shape)
        refuse(w, name, "a tensor has the wrong shape", dims(it->second.shape), dims(shape));
    w.used.insert(name);
    return it->second;
}

// The tensor's values as F32, in a buffer that the weights own.
const float* to_f32(Weights& w, const TensorInfo& t) {
    const auto cols = static_cast<size_t>(t.shape[0]);
    const int64_t count = value_count(t.shape);
    Buffer<float>& out = w.converted.emplace_back(count);
    if (kq_dequantize_rows(stored_type(t), bytes_of(w, t), static_cast<size_t>(count) / cols, cols, out.data()) != KQ_OK)
        throw Fault{.what = "a checked tensor was not dequantised", .found = type_name(t.type), .where = t.name};
    return out.data();
}

}  // namespace

Weights open_weights(std::shared_ptr<const Mapping> file, const std::vector<TensorInfo>& table) {
    Weights w;
    w.file = std::move(file);
    for (const TensorInfo& t : table) {
        check_entry(w, t);
        if (!w.tensors.emplace(t.name, t).second) refuse(w, t.name, "a tensor appears twice", t.name, "each name once");
    }
    return w;
}

bool has(const Weights& w, const std::string& name) { return w.tensors.contains(name); }

Matrix take_matrix(Weights& w, const std::string& name, int64_t cols, int64_t rows) {
    const TensorInfo& t = take(w, name, {cols, rows});
    Matrix m{bytes_of(w, t), static_cast<Type>(t.type), cols, rows};
    if (!computes_with(t.type)) m = {reinterpret_cast<const std::byte*>(to_f32(w, t)), Type::F32, cols, rows};
    return w.matrices[name] = m;
}

const float* take_floats(Weights& w, const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo& t = take(w, name, shape);
    if (t.type != static_cast<int32_t>(Type::F32)) return to_f32(w, t);
    return reinterpret_cast<const float*>(bytes_of(w, t));
}

void refuse_unused(const Weights& w) {
    std::string names;
    int64_t count = 0;
    for (const auto& [name, info] : w.tensors)
        if (!w.used.contains(name) && ++count <= 4) names += (names.empty() ? "" : ", ") + name;
    if (count == 0) return;
    const bool bias = names.find(".bias") != std::string::npos;
    throw Fault{.kind = FaultKind::Input,
                .what = bias ? "biases are not part of the forward pass the runtime computes"
                             : "the file has tensors that the runtime would not use",
                .found = names + (count > 4 ? " and " + std::to_string(count - 4) + " more" : ""),
                .where = w.file->path(),
                .expected = "only tensors that take part in the forward pass"};
}

}  // namespace dflash
