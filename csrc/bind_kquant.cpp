// Python bindings of csrc/kquant: buffers in, buffers out, sizes checked here so that no caller can reach past an end.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "kquant/kquant.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

kq_type type_of(int number) {
    const kq_type type = static_cast<kq_type>(number);
    require(kq_block_weights(type) > 0, "unknown type");
    return type;
}

// Bytes of all rows; refuses sizes that do not divide or do not fit.
std::size_t total_bytes(kq_type type, std::size_t rows, std::size_t cols) {
    const std::size_t row = kq_row_bytes(type, cols);
    require(row > 0, "the row length is not a multiple of the block length");
    require(rows == 0 || row <= SIZE_MAX / rows, "the size overflows");
    return rows * row;
}

// The rows of a float type, with the length and the alignment that C asks for.
const void* rows_of(const Bytes& x, kq_type source, std::size_t rows, std::size_t cols) {
    require(kq_block_weights(source) == 1, "the source is not a float type");
    require(x.size() == total_bytes(source, rows, cols), "x has not rows * cols elements");
    require(reinterpret_cast<std::uintptr_t>(x.data()) % kq_block_bytes(source) == 0, "x is not aligned");
    return x.data();
}

void check(kq_status status) {
    require(status != KQ_BAD_TYPE, "not a quantised type");
    require(status != KQ_BAD_COLS, "the row length is not a multiple of the block length");
    require(status != KQ_BAD_ISA, "this machine cannot run the instruction set");
}

void quantize(int qtype, int source_type, Bytes x, std::size_t rows, std::size_t cols, std::optional<Floats> importance,
              BytesOut blocks, int isa) {
    const kq_type type = type_of(qtype), source = type_of(source_type);
    const void* data = rows_of(x, source, rows, cols);
    require(blocks.size() == total_bytes(type, rows, cols), "blocks has not the size of the result");
    require(!importance || importance->size() == cols, "importance has not one value a column");
    const float* weights = importance ? importance->data() : nullptr;
    kq_status status;
    {
        nb::gil_scoped_release release;
        status = kq_quantize_rows(type, source, data, rows, cols, weights, blocks.data(), static_cast<kq_isa>(isa));
    }
    check(status);
}

void dequantize(int qtype, Bytes blocks, std::size_t rows, std::size_t cols, FloatsOut y) {
    const kq_type type = type_of(qtype);
    require(blocks.size() == total_bytes(type, rows, cols), "blocks has not rows * cols weights");
    require(y.size() == total_bytes(KQ_F32, rows, cols) / 4, "y has not rows * cols elements");
    require(kq_block_weights(type) > 1 || reinterpret_cast<std::uintptr_t>(blocks.data()) % kq_block_bytes(type) == 0,
            "blocks is not aligned");
    kq_status status;
    {
        nb::gil_scoped_release release;
        status = kq_dequantize_rows(type, blocks.data(), rows, cols, y.data());
    }
    check(status);
}

std::tuple<double, double, double, double> measure(int qtype, int source_type, Bytes x, Bytes blocks, std::size_t rows,
                                                   std::size_t cols) {
    const kq_type type = type_of(qtype), source = type_of(source_type);
    const void* data = rows_of(x, source, rows, cols);
    require(blocks.size() == total_bytes(type, rows, cols), "blocks has not rows * cols weights");
    kq_status status;
    kq_error error{};
    {
        nb::gil_scoped_release release;
        status = kq_measure_rows(type, source, data, blocks.data(), rows, cols, &error);
    }
    check(status);
    return {error.xx, error.yy, error.xy, error.ee};
}

std::size_t find_nonfinite(int source_type, Bytes x) {
    const kq_type source = type_of(source_type);
    const std::size_t n = x.size() / kq_block_bytes(source);
    const void* data = n ? rows_of(x, source, 1, n) : x.data();
    nb::gil_scoped_release release;
    return kq_find_nonfinite(source, data, n);
}

std::size_t find_bad_block(int qtype, Bytes blocks) {
    const kq_type type = type_of(qtype);
    const std::size_t n = blocks.size() / kq_block_bytes(type);
    nb::gil_scoped_release release;
    return kq_find_bad_block(type, blocks.data(), n);
}

}  // namespace

void bind_kquant(nb::module_& m) {
    using namespace nb::literals;
    m.def("kq_block_weights", [](int type) { return kq_block_weights(static_cast<kq_type>(type)); }, "qtype"_a,
          "Weights in a block; 0 for an unknown type.");
    m.def("kq_block_bytes", [](int type) { return kq_block_bytes(static_cast<kq_type>(type)); }, "qtype"_a,
          "Bytes of a block; 0 for an unknown type.");
    m.def("kq_best_isa", [] { return static_cast<int>(kq_best_isa()); },
          "The best instruction set here: 1 scalar, 2 AVX2, 3 AVX-512.");
    m.def("kq_quantize", quantize, "qtype"_a, "source"_a, "x"_a, "rows"_a, "cols"_a, "importance"_a.none(), "blocks"_a,
          "isa"_a, "Quantise rows * cols elements of x (bytes of type source) into blocks.");
    m.def("kq_dequantize", dequantize, "qtype"_a, "blocks"_a, "rows"_a, "cols"_a, "y"_a, "Dequantise blocks into y.");
    m.def("kq_measure", measure, "qtype"_a, "source"_a, "x"_a, "blocks"_a, "rows"_a, "cols"_a,
          "Sums (x*x, y*y, x*y, (x-y)^2) of weights x and their dequantised blocks y.");
    m.def("kq_find_nonfinite", find_nonfinite, "source"_a, "x"_a, "Index of the first NaN or infinity; the length if none.");
    m.def("kq_find_bad_block", find_bad_block, "qtype"_a, "blocks"_a,
          "Index of the first block with a NaN or infinite scale; the number of blocks if none.");
}
