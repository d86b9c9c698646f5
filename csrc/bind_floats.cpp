// Python bindings of csrc/floats: sizes and alignment are checked here, the loops run without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <stdexcept>
#include <tuple>

#include "floats/floats.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

fl_type type_of(int number) {
    const fl_type type = static_cast<fl_type>(number);
    require(fl_bytes(type) > 0, "not a float type");
    return type;
}

fl_isa isa_of(int number) {
    const fl_isa isa = static_cast<fl_isa>(number);
    require(fl_isa_usable(isa), "this machine cannot run the instruction set");
    return isa;
}

// Elements of `type` in a buffer that C may read or write as such.
std::size_t elements(fl_type type, const void* data, std::size_t bytes) {
    require(bytes % fl_bytes(type) == 0, "not a whole number of elements");
    require(reinterpret_cast<std::uintptr_t>(data) % fl_bytes(type) == 0, "buffer is not aligned");
    return bytes / fl_bytes(type);
}

std::size_t find_nonfinite(int type_number, Bytes x, int isa_number) {
    const fl_type type = type_of(type_number);
    const fl_isa isa = isa_of(isa_number);
    const std::size_t n = elements(type, x.data(), x.size());
    nb::gil_scoped_release release;
    return fl_find_nonfinite(type, x.data(), n, isa);
}

std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> convert(int from_number, Bytes x, int to_number, BytesOut y,
                                                               int isa_number) {
    const fl_type from = type_of(from_number), to = type_of(to_number);
    const fl_isa isa = isa_of(isa_number);
    const std::size_t n = elements(from, x.data(), x.size());
    require(elements(to, y.data(), y.size()) == n, "y has not as many elements as x");
    fl_losses losses;
    {
        nb::gil_scoped_release release;
        losses = fl_convert(from, x.data(), to, y.data(), n, isa);
    }
    return {losses.overflows, losses.flushed, losses.subnormals};
}

}  // namespace

void bind_floats(nb::module_& m) {
    using namespace nb::literals;
    m.def("fl_find_nonfinite", find_nonfinite, "type"_a, "x"_a, "isa"_a = 0,
          "Index of the first NaN or infinity; the number of elements if none.");
    m.def("fl_convert", convert, "source"_a, "x"_a, "target"_a, "y"_a, "isa"_a = 0,
          "Elements of x as type target in y; how many overflowed, became zero, or lost digits as subnormals.");
}
