// What the ops cost: time of a matrix product by type and rows, and what it means in bytes of weights a second; then
// the small ops of one layer. The best of many short runs; with one thread, of the time it had the processor, so that a
// busy machine disturbs little.
//   ops_bench [isa] [threads] [seconds for each figure]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "engine/ops.hpp"

using namespace dflash;

namespace {

double budget = 0.1;
clockid_t clock_id = CLOCK_MONOTONIC;

double now(clockid_t id) {
    timespec t;
    clock_gettime(id, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double best_seconds(const std::function<void()>& work) {
    double best = 1e9;
    work();
    for (const double start = now(CLOCK_MONOTONIC); now(CLOCK_MONOTONIC) - start < budget;) {
        const double from = now(clock_id);
        work();
        best = std::min(best, now(clock_id) - from);
    }
    return best;
}

// Weights of ordinary size: subnormal ones would be slow everywhere.
std::vector<std::byte> some_weights(Type type, int64_t count) {
    std::vector<std::byte> out(static_cast<size_t>(row_bytes(type, count)));
    uint32_t state = 1;
    const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
    for (std::byte& b : out) b = static_cast<std::byte>(next());
    for (int64_t at = 0; at < static_cast<int64_t>(out.size()); at += block_bytes(type)) {
        // the high half of F32, BF16 or F16, or the scale of a block: about 0.01
        const bool f32_like = type == Type::F32 || type == Type::BF16;
        const uint16_t high = static_cast<uint16_t>((f32_like ? 0x3c00 : 0x2400) + (next() & 0xff));
        std::memcpy(out.data() + at + (type == Type::F32 ? 2 : 0), &high, sizeof high);
    }
    return out;
}

void matmuls(const Ops& ops, Context& c, int64_t cols, int64_t rows) {
    static constexpr struct {
        const char* name;
        Type type;
    } kTypes[] = {{"F32", Type::F32}, {"F16", Type::F16}, {"BF16", Type::BF16}, {"Q8_0", Type::Q8_0}, {"Q4_0", Type::Q4_0}};
    std::vector<float> x(static_cast<size_t>(16 * cols), 0.5f), y(static_cast<size_t>(16 * rows));
    float* const ys[] = {y.data()};
    for (const auto& [name, type] : kTypes) {
        const auto bytes = some_weights(type, cols * rows);
        const Matrix w{bytes.data(), type, cols, rows};
        double one = 0;
        for (const int64_t n : {1, 2, 4, 8, 16}) {
            const double t = best_seconds([&] { ops.matmul(c, {&w, 1}, x.data(), n, {ys, 1}); });
            if (n == 1) one = t;
            std::printf("%6s %5ld x %5ld  n %2ld %12.2f us %8.1f GB/s %8.1f Gmac/s  %5.2fx one row\n", name, long(cols), long(rows), long(n),
                        t * 1e6, static_cast<double>(bytes.size()) / t * 1e-9, static_cast<double>(rows * cols * n) / t * 1e-9, t / one);
        }
    }
}

void small_ops(const Ops& ops, Context& c, int64_t H, int64_t heads, int64_t kv_heads, int64_t hd, int64_t context) {
    for (const int64_t n : {1, 8}) {
        std::vector<float> x(static_cast<size_t>(n * heads * hd + n * 4 * H), 0.5f), y(x.size()), w(x.size(), 1.0f), table(static_cast<size_t>(n * hd));
        auto cache = some_weights(Type::F16, (context + n) * kv_heads * hd);
        const KvRows kv{cache.data(), KvType::F16, kv_heads * hd, context, context};
        const std::vector<Visible> see(static_cast<size_t>(n), Visible{0, context, 0, n, context});
        const auto show = [&](const char* name, const std::function<void()>& work) {
            std::printf("%10s n %ld %10.2f us\n", name, long(n), best_seconds(work) * 1e6);
        };
        show("rms_norm", [&] { ops.rms_norm(c, x.data(), w.data(), 1e-6f, n, H, y.data()); });
        show("norm_rope", [&] { ops.norm_rope(c, x.data(), w.data(), 1e-6f, n, heads, hd, table.data(), table.data(), hd); });
        show("gated", [&] { ops.gated(c, Act::Silu, x.data(), w.data(), n * 2 * H, y.data()); });
        show("add", [&] { ops.add(c, x.data(), n * H, y.data()); });
        show("attention", [&] { ops.attention(c, x.data(), n, heads, kv_heads, hd, 0.125f, kv, kv, see, y.data()); });
    }
}

}  // namespace

int main(int argc, char** argv) {
    const Ops* ops = cpu_ops(argc > 1 ? argv[1] : "auto");
    const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
    if (argc > 3) budget = std::atof(argv[3]);
    if (!ops) return std::fprintf(stderr, "this machine has no %s\n", argv[1]), 2;
    if (threads == 1) clock_id = CLOCK_THREAD_CPUTIME_ID;
    Context* c = make_context(threads);
    std::printf("%s, %d threads\n", ops->name, threads);
    matmuls(*ops, *c, 256, 640);
    matmuls(*ops, *c, 5120, 17408);
    matmuls(*ops, *c, 17408, 5120);
    small_ops(*ops, *c, 256, 4, 2, 64, 512);
    small_ops(*ops, *c, 5120, 32, 8, 128, 4096);
    free_context(c);
}
