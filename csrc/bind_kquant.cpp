// Python bindings of csrc/kquant.
#include <nanobind/nanobind.h>

void bind_kquant(nanobind::module_&) {}
