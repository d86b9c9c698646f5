// Python bindings of csrc/engine.
#include <nanobind/nanobind.h>

void bind_engine(nanobind::module_&) {}
