// The operations a forward pass is written in. A backend implements exactly these; nothing above knows which one runs.
//
// Contract (docs/numerics.md): activations are F32; the order of every floating-point reduction is fixed, so a row's
// result does not depend on the other rows of the call, on threads, or on the instruction set. Buffers are row-major
// with rows of the stated width and no padding; inputs and outputs do not alias unless it says "in place".
// Nothing here checks: the caller has checked shapes. Only the scratch of the context allocates, where it grows.
#pragma once

#include <cstdint>
#include <span>

#include "engine/tensor.hpp"

namespace dflash {

constexpr int64_t kLanes = 32;      // lanes of every dot product and sum; lane combination is a butterfly 16 8 4 2 1
constexpr int64_t kChunk = 64;      // positions of an attention chunk, aligned to absolute positions
constexpr int64_t kMaxRows = 16;    // rows a matmul takes at once; longer inputs are cut into such pieces

enum class KvType : int32_t { F32 = 0, F16 = 1 };
constexpr int64_t kv_bytes(KvType t) { return t == KvType::F16 ? 2 : 4; }

// One layer's K or V cache: rows of `width` = nkv*hd values. Context position p lies in row p % cap (a full cache has
// cap > every position); rows `block_row` .. of a draft ring hold the current noise block.
struct KvRows {
    std::byte* data = nullptr;
    KvType type = KvType::F16;
    int64_t width = 0;
    int64_t cap = 0;
    int64_t block_row = 0;
};

// What one query row may see, as half-open ranges: context positions [ctx_begin, ctx_end) and rows
// [blk_begin, blk_end) of the noise block, which stand at positions block_pos + j, after all context.
struct Visible {
    int64_t ctx_begin = 0, ctx_end = 0;
    int64_t blk_begin = 0, blk_end = 0;
    int64_t block_pos = 0;
};

enum class Act : int32_t { Silu, GeluTanh, Gelu };

struct Context;  // threads and scratch of a backend; made by its factory, passed to each op

struct Ops {
    const char* name;  // "scalar", "avx2", "avx512"

    // out[i] = table row ids[i], as F32, times scale. out: [ids.size(), table.cols]
    void (*embed)(Context&, const Matrix& table, std::span<const int32_t> ids, float scale, float* out);

    // ys[k] = ws[k] * x for every k; all ws have the same cols. x: [n, cols]; ys[k]: [n, ws[k].rows].
    // One call quantises x once (where a weight is quantised) and runs all matrices in one parallel region.
    void (*matmul)(Context&, std::span<const Matrix> ws, const float* x, int64_t n, std::span<float* const> ys);

    // y = x / sqrt(mean(x^2) + eps) * w, row by row. x, y: [n, width], may be in place. w: [width]
    void (*rms_norm)(Context&, const float* x, const float* w, float eps, int64_t n, int64_t width, float* y);

    // Per-head RMS norm (w may be null: none) and NEOX RoPE of the first n_rot dims, in place. x: [n, heads*hd];
    // cos, sin: [n, n_rot/2], one row a token, computed on the host (docs/numerics.md).
    void (*norm_rope)(Context&, float* x, const float* w, float eps, int64_t n, int64_t heads, int64_t hd,
                      const float* cos, const float* sin, int64_t n_rot);

    // Writes row i of x ([n, kv.width]) to cache row rows[i], rounding to the cache's type (to nearest even).
    void (*store_kv)(Context&, const float* x, std::span<const int64_t> rows, const KvRows& kv);

    // out = softmax(scale * q k) v over what each row may see. q, out: [n, heads*hd]; head h reads KV head
    // h / (heads/kv_heads). visible: [n]. A row that sees nothing gives zeros.
    void (*attention)(Context&, const float* q, int64_t n, int64_t heads, int64_t kv_heads, int64_t hd, float scale,
                      const KvRows& k, const KvRows& v, std::span<const Visible> visible, float* out);

    // y = act(gate) * up, element by element; may be in place on gate. [count]
    void (*gated)(Context&, Act act, const float* gate, const float* up, int64_t count, float* y);

    // y += x. [count]
    void (*add)(Context&, const float* x, int64_t count, float* y);

    // y *= s. [count]
    void (*scale)(Context&, float s, int64_t count, float* y);

    // y = cap * tanh(y / cap). [count]
    void (*softcap)(Context&, float cap, int64_t count, float* y);

    // Grouped dynamic causal convolution of one side (spec-runtime 2.1), inside the block only:
    // y_t[ch] = sum over tap of (base[ch + H*(tap + K*side)] + dyn_t[side*K*G + tap*G + ch/group]) * u_{t-tap}[ch].
    // base: [2, K, H]; dyn: [n, 2*K*G]; u, y: [n, H], not in place.
    void (*conv)(Context&, const float* base, const float* dyn, const float* u, int64_t n, int64_t H, int64_t K,
                 int64_t group, int side, float* y);

    // ids[i] = index of the largest of row i, the lower index on ties; a row with a NaN or no finite value gives -1.
    void (*argmax)(Context&, const float* x, int64_t n, int64_t width, int32_t* ids);

    // The k largest of each row by (value descending, index ascending). ids, values: [n, k]. NaN rows give ids -1.
    void (*top_k)(Context&, const float* x, int64_t n, int64_t width, int64_t k, int32_t* ids, float* values);

    // out[i] = sum over r of (a[r] * b[r]) * c[i][r]: the selector's pairwise score of one predecessor against k candidates.
    // a = predecessor row, b = gate, c: [k, R]. The product a*b is rounded first; the sum follows the lane rule.
    void (*pair_score)(Context&, const float* a, const float* b, const float* c, int64_t k, int64_t R, float* out);
};

// CPU backend. `isa`: "auto" (best the machine has), "scalar", "avx2", "avx512"; null when the machine lacks it.
const Ops* cpu_ops(const char* isa);

// Threads (1 or more) and scratch. Threads sleep when idle and never change a bit.
Context* make_context(int threads);
void free_context(Context*);

}  // namespace dflash
