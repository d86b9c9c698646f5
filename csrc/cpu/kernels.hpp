// What an instruction set implements: serial pieces of the ops, on raw pointers. Threads, checks and spans stay in
// ops.cpp. Files compiled for an instruction set include no standard header with inline code that another file could
// share (the linker keeps one copy of it, and it might be theirs), so this interface is plain C.
#pragma once

#include <stdint.h>

#include "engine/ops.hpp"

namespace dflash {

// Rows of one weight matrix times n activation rows. x: F32 rows for a float weight; else rows as quantise() wrote them.
struct MatmulTask {
    const std::byte* w;
    int64_t w_stride;  // bytes from row to row
    int64_t cols;
    const std::byte* x;
    int64_t x_stride;  // bytes
    int64_t n;         // 1 to kMaxRows
    float* y;
    int64_t y_stride;  // floats
};
using MatmulRows = void (*)(const MatmulTask&, int64_t row_begin, int64_t row_end);

struct AttentionTask {
    const float* q;
    int64_t heads, kv_heads, hd;
    float scale;
    KvRows k, v;
    const Visible* visible;
    float* out;
};

// The largest of a piece of a row: lowest index on ties.
struct Best {
    float value;
    int32_t id;
    bool nan;     // a NaN was seen
    bool finite;  // a finite value was seen
};

struct Kernels {
    const char* name;

    // Quantised activation row: bytes it takes (a multiple of 64), and the writer.
    int64_t (*quantised_bytes)(int64_t cols);
    void (*quantise)(const float* x, int64_t cols, std::byte* out);

    MatmulRows f32, f16, bf16, q8_0, q4_0;

    void (*widen_row)(Type type, const std::byte* row, int64_t cols, float scale, float* out);
    void (*rms_norm)(const float* x, const float* w, float eps, int64_t width, float* y);
    // One head: w null for no norm.
    void (*norm_rope)(float* x, const float* w, float eps, int64_t hd, const float* cos, const float* sin, int64_t n_rot);
    void (*store_kv)(const float* x, int64_t width, KvType type, std::byte* out);

    // All query heads of one KV head, for rows [begin, end) with end - begin <= kMaxRows. scratch: attention_floats().
    int64_t (*attention_floats)(int64_t group, int64_t hd);
    void (*attention)(const AttentionTask&, int64_t kv_head, int64_t begin, int64_t end, float* scratch);

    void (*gated)(Act act, const float* gate, const float* up, int64_t count, float* y);
    void (*add)(const float* x, int64_t count, float* y);
    void (*scale)(float s, int64_t count, float* y);
    void (*softcap)(float cap, int64_t count, float* y);
    // Output row t, given u and dyn of the whole block.
    void (*conv)(const float* base, const float* dyn, const float* u, int64_t t, int64_t H, int64_t K, int64_t group,
                 int side, float* y);

    Best (*best)(const float* x, int64_t width);
    void (*top_k)(const float* x, int64_t width, int64_t k, int32_t* ids, float* values);
    float (*pair_score)(const float* a, const float* b, const float* c, int64_t R);
    void (*exp)(const float* x, int64_t count, float* y);  // for tests of the shared functions
};

extern const Kernels kScalar;
extern const Kernels kAvx2;    // defined on x86-64 only
extern const Kernels kAvx512;  // likewise

const Kernels* cpu_kernels(const char* isa);  // names and null as cpu_ops()

}  // namespace dflash
