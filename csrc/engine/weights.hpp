// A GGUF file's tensors by name: each is asked for with its shape, used once, and none may be left over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/buffer.hpp"
#include "engine/mapping.hpp"
#include "engine/tensor.hpp"

namespace dflash {

// A row of the tensor table that Python hands over. Nothing in it is trusted here.
struct TensorInfo {
    std::string name;
    int32_t type = 0;             // ggml id
    std::vector<int64_t> shape;   // GGUF order, ne0 first
    uint64_t offset = 0;          // absolute in the file
    uint64_t nbytes = 0;
    std::shared_ptr<const std::vector<std::byte>> data = nullptr;  // used in place of the file's bytes, where not null
};

struct Weights {
    std::shared_ptr<const Mapping> file;
    std::map<std::string, TensorInfo> tensors;
    std::set<std::string> used;
    std::map<std::string, Matrix> matrices;  // those that were taken
    std::vector<Buffer<float>> converted;  // what was turned into F32 at load
};

// Checks every entry's type, shape, size and place. Throws Fault Input by tensor name.
Weights open_weights(std::shared_ptr<const Mapping> file, const std::vector<TensorInfo>& table);

bool has(const Weights& w, const std::string& name);

// The matrix `name` of exactly [cols, rows]. A type that the ops do not compute with is turned into F32 here.
// Throws Fault Input when it is absent or has another shape.
Matrix take_matrix(Weights& w, const std::string& name, int64_t cols, int64_t rows);

// The tensor `name` of exactly this shape as F32 values (norms, conv bases).
const float* take_floats(Weights& w, const std::string& name, const std::vector<int64_t>& shape);

// Throws Fault Input naming the tensors that nobody took: a loaded but unused tensor is another model.
void refuse_unused(const Weights& w);

}  // namespace dflash
