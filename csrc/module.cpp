// The Python module dflash_gguf._native: one binding file a library, nothing else.
#include <nanobind/nanobind.h>

void bind_floats(nanobind::module_& m);  // bind_floats.cpp
void bind_kquant(nanobind::module_& m);  // bind_kquant.cpp
void bind_engine(nanobind::module_& m);  // bind_engine.cpp

NB_MODULE(_native, m) {
    m.doc() = "Native parts of dflash-gguf: K-quant kernels and the speculative runtime.";
    bind_floats(m);
    bind_kquant(m);
    bind_engine(m);
}
