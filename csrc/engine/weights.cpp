#include "engine/weights.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace dflash {
namespace {

// Values and bytes of a block, by ggml id (spec-quant 0.5).
struct TypeRow {
    int32_t id;
    std::string_view name;
    int64_t block_len, block_bytes;
};
constexpr std::array kTypes = {
    TypeRow{0, "F32", 1, 4},        TypeRow{1, "F16", 1, 2},        TypeRow{30, "BF16", 1, 2},
    TypeRow{2, "Q4_0", 32, 18},     TypeRow{3, "Q4_1", 32, 20},     TypeRow{6, "Q5_0", 32, 22},
    TypeRow{7, "Q5_1", 32, 24},     TypeRow{8, "Q8_0", 32, 34},     TypeRow{10, "Q2_K", 256, 84},
    TypeRow{11, "Q3_K", 256, 110},  TypeRow{12, "Q4_K", 256, 144},  TypeRow{13, "Q5_K", 256, 176},
    TypeRow{14, "Q6_K", 256, 210},  TypeRow{20, "IQ4_NL", 32, 18},  TypeRow{23, "IQ4_XS", 256, 136},
};

bool computes_with(int32_t id) {
    return id == 0 || id == 1 || id == 2 || id == 8 || id == 30;
}

const TypeRow* find_type(int32_t id) {
    const auto* row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& t) { return t.id == id; });
    return row == kTypes.end() ? nullptr : row;
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
                .where = w.file.path() + ": " + name,
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

void check_entry(const Weights& w, const TensorInfo& t) {
    const TypeRow* type = find_type(t.type);
    if (!type)
        refuse(w, t.name, "the runtime has no decoder for this tensor type", "ggml type " + std::to_string(t.type),
               "F32, F16, BF16, Q4_0..Q8_0, Q2_K..Q6_K, IQ4_NL or IQ4_XS", "convert the file to one of these types");
    const int64_t count = value_count(t.shape);
    if (t.shape.empty() || t.shape.size() > 4 || count < 0)
        refuse(w, t.name, "a tensor's shape is not usable", dims(t.shape), "1 to 4 positive dims");
    if (t.shape[0] % type->block_len != 0)
        refuse(w, t.name, "a tensor's rows are not whole blocks", dims(t.shape) + " as " + std::string(type->name),
               "ne0 a multiple of " + std::to_string(type->block_len));
    const auto expected = static_cast<uint64_t>(count / type->block_len * type->block_bytes);
    if (t.nbytes != expected)
        refuse(w, t.name, "a tensor's size contradicts its shape", std::to_string(t.nbytes) + " bytes",
               std::to_string(expected) + " for " + dims(t.shape) + " as " + std::string(type->name));
    if (t.offset % 4 != 0)
        refuse(w, t.name, "a tensor's data is not aligned", "offset " + std::to_string(t.offset), "a multiple of 4");
    w.file.bytes(t.offset, t.nbytes, t.name);
}

const TensorInfo& take(Weights& w, const std::string& name, const std::vector<int64_t>& shape) {
    const auto it = w.tensors.find(name);
    if (it == w.tensors.end()) refuse(w, name, "a tensor is missing", "no such tensor", "a tensor of this name");
    if (it->second.shape != shape)
        refuse(w, name, "a tensor has the wrong shape", dims(it->second.shape), dims(shape));
    w.used.insert(name);
    return it->second;
}

// `count` values of the tensor as F32 in a buffer that the weights own, row by row of the first dim.
const float* to_f32(const Backend& b, Weights& w, const TensorInfo& t) {
    const TypeRow& type = *find_type(t.type);
    if (!computes_with(t.type))
        refuse(w, t.name, "the runtime cannot compute with this tensor type yet", std::string(type.name),
               "F32, F16, BF16, Q8_0 or Q4_0", "requantise the file to q8_0 or q4-mix");
    const int64_t count = value_count(t.shape);
    const Matrix flat{w.file.bytes(t.offset, t.nbytes, t.name), static_cast<Type>(t.type), count, 1};
    const int32_t first = 0;
    Buffer<float>& out = w.converted.emplace_back(count);
    b.ops->embed(b.ctx(), flat, {&first, 1}, 1.0F, out.data());
    return out.data();
}

}  // namespace

Weights open_weights(const std::string& path, const std::vector<TensorInfo>& table) {
    Weights w;
    w.file = Mapping(path);
    for (const TensorInfo& t : table) {
        check_entry(w, t);
        if (!w.tensors.emplace(t.name, t).second) refuse(w, t.name, "a tensor appears twice", t.name, "each name once");
    }
    return w;
}

bool has(const Weights& w, const std::string& name) { return w.tensors.contains(name); }

Matrix take_matrix(const Backend& b, Weights& w, const std::string& name, int64_t cols, int64_t rows) {
    const TensorInfo& t = take(w, name, {cols, rows});
    if (!computes_with(t.type))
        return {reinterpret_cast<const std::byte*>(to_f32(b, w, t)), Type::F32, cols, rows};
    return {w.file.bytes(t.offset, t.nbytes, name), static_cast<Type>(t.type), cols, rows};
}

const float* take_floats(const Backend& b, Weights& w, const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo& t = take(w, name, shape);
    if (t.type != static_cast<int32_t>(Type::F32)) return to_f32(b, w, t);
    return reinterpret_cast<const float*>(w.file.bytes(t.offset, t.nbytes, name));
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
                .where = w.file.path(),
                .expected = "only tensors that take part in the forward pass"};
}

}  // namespace dflash
