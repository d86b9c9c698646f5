// The chosen ops and their context, and the few helpers that every forward pass needs.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "engine/collector.hpp"
#include "engine/error.hpp"
#include "engine/ops.hpp"

namespace dflash {

struct FreeContext {
    void operator()(Context* c) const { free_context(c); }
};

struct Backend {
    const Ops* ops = nullptr;
    std::unique_ptr<Context, FreeContext> context;
    std::unique_ptr<Collector> collector;  // null: nothing is counted
    Context& ctx() const { return *context; }
};

inline Backend make_backend(const std::string& isa, int threads) {
    const Ops* ops = cpu_ops(isa.c_str());
    if (!ops)
        throw Fault{.kind = FaultKind::Environment,
                    .what = "this machine does not run the instruction set asked for",
                    .found = "isa = " + isa,
                    .expected = "auto, scalar, avx2 or avx512, as the machine has it",
                    .fix = "use isa = auto"};
    return {ops, std::unique_ptr<Context, FreeContext>(make_context(threads)), nullptr};
}

// ys[k] = ws[k] * x for n rows: every matmul of a forward pass goes through here.
inline void project(const Backend& b, std::span<const Matrix> ws, const float* x, int64_t n,
                    std::span<float* const> ys) {
    if (b.collector)
        for (const Matrix& w : ws) b.collector->see(w, x, n);
    b.ops->matmul(b.ctx(), ws, x, n, ys);
}

// The same, its lists written out at the call.
inline void project(const Backend& b, std::initializer_list<Matrix> ws, const float* x, int64_t n,
                    std::initializer_list<float*> ys) {
    project(b, std::span(ws.begin(), ws.size()), x, n, std::span(ys.begin(), ys.size()));
}

}  // namespace dflash
