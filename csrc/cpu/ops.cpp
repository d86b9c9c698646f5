// The ops of ops.hpp over the kernels of one instruction set: cuts the work into independent pieces and shares them
// among the threads. Nothing here computes a value.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "cpu/context.hpp"
#include "cpu/kernels.hpp"

namespace dflash {
namespace {

// Work below these sizes is done by the caller alone: a hand-off costs about a microsecond.
constexpr int64_t kSharedProducts = 1 << 15;  // multiply-adds
constexpr int64_t kSharedValues = 1 << 14;    // values of an element-wise op
constexpr int64_t kPiecesPerThread = 4;       // of a matmul, so that a slow thread holds up little

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr bool is_float(Type t) { return block_len(t) == 1; }

MatmulRows matmul_of(const Kernels& k, Type t) {
    switch (t) {
        case Type::F32: return k.f32;
        case Type::F16: return k.f16;
        case Type::BF16: return k.bf16;
        case Type::Q8_0: return k.q8_0;
        case Type::Q4_0: return k.q4_0;
    }
    return nullptr;
}

// Calls body(begin, end) for pieces of [0, count): one piece when count is small.
template <class Body>
void share_values(Context& c, int64_t count, int64_t per_item, Body&& body) {
    if (count * per_item < kSharedValues) {
        body(0, count);
        return;
    }
    const int64_t piece = ceil_div(ceil_div(count, c.pool.threads()), 64) * 64;
    c.pool.run(ceil_div(count, piece), [&](int64_t i, int) { body(i * piece, std::min(count, (i + 1) * piece)); });
}

template <class Body>
void share_rows(Context& c, int64_t n, int64_t width, Body&& body) {
    if (n * width < kSharedValues) {
        for (int64_t i = 0; i < n; ++i) body(i);
        return;
    }
    c.pool.run(n, [&](int64_t i, int) { body(i); });
}

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

template <const Kernels& kernels>
struct Cpu {
    static void embed(Context&, const Matrix& table, std::span<const int32_t> ids, float scale, float* out) {
        for (size_t i = 0; i < ids.size(); ++i)
            kernels.widen_row(table.type, table.row(ids[i]), table.cols, scale, out + static_cast<int64_t>(i) * table.cols);
    }

    static void matmul(Context& c, std::span<const Matrix> ws, const float* x, int64_t n, std::span<float* const> ys) {
        const int64_t cols = ws[0].cols;
        int64_t rows = 0;
        bool quantised = false;
        for (const Matrix& w : ws) {
            rows += w.rows;
            quantised = quantised || !is_float(w.type);
        }
        const int64_t stride = kernels.quantised_bytes(cols);
        std::byte* const q = quantised ? c.rows.get(std::min(n, kMaxRows) * stride) : nullptr;
        for (int64_t first = 0; first < n; first += kMaxRows) {
            const int64_t count = std::min(kMaxRows, n - first);
            const float* const xs = x + first * cols;
            if (quantised)
                share_rows(c, count, cols, [&](int64_t i) { kernels.quantise(xs + i * cols, cols, q + i * stride); });
            const auto work = [&](int64_t begin, int64_t end) {  // rows of all matrices, one after another
                int64_t base = 0;
                for (size_t k = 0; k < ws.size() && base < end; base += ws[k++].rows) {
                    const Matrix& w = ws[k];
                    const bool plain = is_float(w.type);
                    const MatmulTask task{.w = w.data,
                                          .w_stride = row_bytes(w.type, cols),
                                          .cols = cols,
                                          .x = plain ? reinterpret_cast<const std::byte*>(xs) : q,
                                          .x_stride = plain ? cols * 4 : stride,
                                          .n = count,
                                          .y = ys[k] + first * w.rows,
                                          .y_stride = w.rows};
                    const int64_t from = std::max<int64_t>(begin - base, 0), to = std::min(end - base, w.rows);
                    if (from < to) matmul_of(kernels, w.type)(task, from, to);
                }
            };
            if (rows * cols * count < kSharedProducts || c.pool.threads() == 1) {
                work(0, rows);
                continue;
            }
            const int64_t piece = std::max<int64_t>(16, ceil_div(ceil_div(rows, c.pool.threads() * kPiecesPerThread), 16) * 16);
            c.pool.run(ceil_div(rows, piece), [&](int64_t i, int) { work(i * piece, std::min(rows, (i + 1) * piece)); });
        }
    }

    static void rms_norm(Context& c, const float* x, const float* w, float eps, int64_t n, int64_t width, float* y) {
        share_rows(c, n, width, [&](int64_t i) { kernels.rms_norm(x + i * width, w, eps, width, y + i * width); });
    }

    static void norm_rope(Context& c, float* x, const float* w, float eps, int64_t n, int64_t heads, int64_t hd,
                          const float* cos, const float* sin, int64_t n_rot) {
        share_rows(c, n, heads * hd, [&](int64_t i) {
            for (int64_t h = 0; h < heads; ++h)
                kernels.norm_rope(x + (i * heads + h) * hd, w, eps, hd, cos + i * (n_rot / 2), sin + i * (n_rot / 2), n_rot);
        });
    }

    static void store_kv(Context&, const float* x, std::span<const int64_t> rows, const KvRows& kv) {
        const int64_t bytes = kv.width * kv_bytes(kv.type);
        for (size_t i = 0; i < rows.size(); ++i)
            kernels.store_kv(x + static_cast<int64_t>(i) * kv.width, kv.width, kv.type, kv.data + rows[i] * bytes);
    }

    static void attention(Context& c, const float* q, int64_t n, int64_t heads, int64_t kv_heads, int64_t hd, float scale,
                          const KvRows& k, const KvRows& v, std::span<const Visible> visible, float* out) {
        const AttentionTask task{q, heads, kv_heads, hd, scale, k, v, visible.data(), out};
        int64_t seen = 0;
        for (int64_t i = 0; i < n; ++i)
            seen += visible[i].ctx_end - visible[i].ctx_begin + visible[i].blk_end - visible[i].blk_begin;
        const int64_t threads = seen * heads * hd < kSharedProducts ? 1 : c.pool.threads();
        // A piece is a KV head and some query rows: as many rows as leave every thread a piece.
        const int64_t tiles = std::max(ceil_div(n, kMaxRows), std::min(n, ceil_div(threads, kv_heads)));
        const int64_t tile = ceil_div(n, tiles);
        const int64_t bytes = ceil_div(kernels.attention_floats(heads / kv_heads, hd) * 4, 64) * 64;
        std::byte* const working = c.working.get(bytes * threads);
        const auto body = [&](int64_t i, int thread) {
            const int64_t begin = i / kv_heads * tile, end = std::min(n, begin + tile);
            if (begin < end) kernels.attention(task, i % kv_heads, begin, end, reinterpret_cast<float*>(working + bytes * thread));
        };
        if (threads == 1)
            for (int64_t i = 0; i < tiles * kv_heads; ++i) body(i, 0);
        else
            c.pool.run(tiles * kv_heads, body);
    }

    static void gated(Context& c, Act act, const float* gate, const float* up, int64_t count, float* y) {
        share_values(c, count, 8, [&](int64_t b, int64_t e) { kernels.gated(act, gate + b, up + b, e - b, y + b); });
    }

    static void add(Context& c, const float* x, int64_t count, float* y) {
        share_values(c, count, 1, [&](int64_t b, int64_t e) { kernels.add(x + b, e - b, y + b); });
    }

    static void scale(Context& c, float s, int64_t count, float* y) {
        share_values(c, count, 1, [&](int64_t b, int64_t e) { kernels.scale(s, e - b, y + b); });
    }

    static void softcap(Context& c, float cap, int64_t count, float* y) {
        share_values(c, count, 8, [&](int64_t b, int64_t e) { kernels.softcap(cap, e - b, y + b); });
    }

    static void conv(Context& c, const float* base, const float* dyn, const float* u, int64_t n, int64_t H, int64_t K,
                     int64_t group, int side, float* y) {
        share_rows(c, n, H * K, [&](int64_t t) { kernels.conv(base, dyn, u, t, H, K, group, side, y); });
    }

    static void argmax(Context& c, const float* x, int64_t n, int64_t width, int32_t* ids) {
        const int64_t parts = n * width < kSharedValues ? 1 : std::min<int64_t>(c.pool.threads(), width / 1024 + 1);
        const int64_t piece = ceil_div(width, parts);
        Best* const found = reinterpret_cast<Best*>(c.rows.get(n * parts * static_cast<int64_t>(sizeof(Best))));
        const auto body = [&](int64_t i, int) {
            const int64_t begin = std::min(width, i % parts * piece), end = std::min(width, begin + piece);
            found[i] = kernels.best(x + i / parts * width + begin, end - begin);
            found[i].id += static_cast<int32_t>(begin);
        };
        if (parts == 1)
            for (int64_t i = 0; i < n; ++i) body(i, 0);
        else
            c.pool.run(n * parts, body);
        for (int64_t i = 0; i < n; ++i) {
            Best all = found[i * parts];
            for (int64_t p = 1; p < parts; ++p) {
                const Best& next = found[i * parts + p];
                if (next.value > all.value) all.value = next.value, all.id = next.id;
                all.nan = all.nan || next.nan;
                all.finite = all.finite || next.finite;
            }
            ids[i] = all.nan || !all.finite ? -1 : all.id;
        }
    }

    static void top_k(Context& c, const float* x, int64_t n, int64_t width, int64_t k, int32_t* ids, float* values) {
        share_rows(c, n, width, [&](int64_t i) { kernels.top_k(x + i * width, width, k, ids + i * k, values + i * k); });
    }

    static void pair_score(Context&, const float* a, const float* b, const float* c, int64_t k, int64_t R, float* out) {
        for (int64_t i = 0; i < k; ++i) out[i] = kernels.pair_score(a, b, c + i * R, R);
    }
};

template <const Kernels& kernels>
constexpr Ops make_ops(const char* name) {
    using C = Cpu<kernels>;
    return {.name = name,
            .embed = C::embed,
            .matmul = C::matmul,
            .rms_norm = C::rms_norm,
            .norm_rope = C::norm_rope,
            .store_kv = C::store_kv,
            .attention = C::attention,
            .gated = C::gated,
            .add = C::add,
            .scale = C::scale,
            .softcap = C::softcap,
            .conv = C::conv,
            .argmax = C::argmax,
            .top_k = C::top_k,
            .pair_score = C::pair_score};
}

// What this build and this machine have, best first. A vector file is entered only if the machine has everything the
// compiler was told it may use there (CMakeLists.txt).
struct Choice {
    const Kernels* kernels;
    Ops ops;
    bool (*available)();
};

const Choice kChoices[] = {
#if defined(__x86_64__)
    {&kAvx512, make_ops<kAvx512>("avx512"), [] { return has_avx2() && has_avx512(); }},
    {&kAvx2, make_ops<kAvx2>("avx2"), has_avx2},
#endif
    {&kScalar, make_ops<kScalar>("scalar"), [] { return true; }},
};

const Choice* choose(const char* isa) {
    const std::string_view name = isa;
    for (const Choice& choice : kChoices)
        if ((name == "auto" || name == choice.ops.name) && choice.available()) return &choice;
    return nullptr;
}

}  // namespace

const Ops* cpu_ops(const char* isa) {
    const Choice* choice = choose(isa);
    return choice ? &choice->ops : nullptr;
}

const Kernels* cpu_kernels(const char* isa) {
    const Choice* choice = choose(isa);
    return choice ? choice->kernels : nullptr;
}

Context* make_context(int threads) { return new Context(std::max(threads, 1)); }
void free_context(Context* c) { delete c; }

}  // namespace dflash
