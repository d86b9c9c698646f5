// What the tests of the ops share: which instruction sets there are, inputs (pleasant and nasty), comparison by bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/half.hpp"
#include "engine/ops.hpp"

namespace dflash::test {

inline int failures = 0;

__attribute__((format(printf, 2, 3))) inline void check(bool ok, const char* what, ...) {
    if (ok) return;
    if (++failures > 20) return;
    std::va_list args;
    va_start(args, what);
    std::fputs("FAILED: ", stderr);
    std::vfprintf(stderr, what, args);
    std::fputc('\n', stderr);
    va_end(args);
}

// The instruction sets this machine has, the scalar one first.
inline std::vector<const Ops*> every_isa() {
    std::vector<const Ops*> found;
    std::printf("instruction sets:");
    for (const char* name : {"scalar", "avx2", "avx512"})
        if (const Ops* ops = cpu_ops(name)) {
            found.push_back(ops);
            std::printf(" %s", ops->name);
        }
    std::printf("\n");
    return found;
}

struct Threads {
    explicit Threads(int n) : context(make_context(n)) {}
    ~Threads() { free_context(context); }
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;
    operator Context&() const { return *context; }
    Context* context;
};

struct Random {
    uint64_t state;
    uint32_t bits() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state >> 32);
    }
    int64_t below(int64_t n) { return static_cast<int64_t>(bits()) % n; }
    float uniform() { return static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-31f; }  // -1 .. 1
    float normal() { return uniform() + uniform() + uniform(); }
};

using Floats = std::vector<float>;

// Kinds of values: what a forward pass has, then what it should never have but must survive alike everywhere.
enum Kind { kNormal, kWide, kSubnormal, kHuge, kZeros, kTies, kKinds };

inline float value(Random& random, Kind kind) {
    const float u = random.normal();
    switch (kind) {
        case kNormal: return u;
        case kWide: return std::ldexp(u, static_cast<int>(random.below(60)) - 30);
        case kSubnormal: return random.below(3) ? std::ldexp(u, -130) : u;
        case kHuge: return std::ldexp(u, static_cast<int>(random.below(2)) * 120);
        case kZeros: return random.below(2) ? 0.0f : random.below(2) ? -0.0f : u;
        default: return static_cast<float>(random.below(9) - 4) * 0.5f;
    }
}

inline Floats floats(Random& random, int64_t count, Kind kind = kNormal) {
    Floats out(static_cast<size_t>(count));
    for (float& v : out) v = value(random, kind);
    return out;
}

// Bytes of `count` values of a type; a block type gets random codes (all of them) and scales of the kind.
inline std::vector<std::byte> weights(Random& random, Type type, int64_t count, Kind kind = kNormal) {
    std::vector<std::byte> out(static_cast<size_t>(row_bytes(type, count)));
    const auto put = [&](int64_t at, auto v) { std::memcpy(out.data() + at, &v, sizeof v); };
    for (int64_t b = 0; b < count / block_len(type); ++b) {
        const float v = value(random, kind);
        const int64_t at = b * block_bytes(type);
        if (type == Type::F32) put(at, v);
        else if (type == Type::BF16) put(at, static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
        else put(at, f32_to_f16(v));
        for (int64_t i = 2; block_len(type) > 1 && i < block_bytes(type); ++i)
            put(at + i, static_cast<uint8_t>(random.bits() >> 7));
    }
    return out;
}

constexpr Type kTypes[] = {Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0};

inline const char* name_of(Type t) {
    switch (t) {
        case Type::F32: return "F32";
        case Type::F16: return "F16";
        case Type::BF16: return "BF16";
        case Type::Q8_0: return "Q8_0";
        default: return "Q4_0";
    }
}

inline bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Index of the first value that differs by a bit, -1 for none.
inline int64_t difference(const Floats& a, const Floats& b) {
    for (size_t i = 0; i < a.size(); ++i)
        if (!same(a[i], b[i])) return static_cast<int64_t>(i);
    return a.size() == b.size() ? -1 : 0;
}

inline int finish(const char* name) {
    if (failures) std::fprintf(stderr, "%s: %d checks failed\n", name, failures);
    return failures != 0;
}

}  // namespace dflash::test
