// docs/numerics.md, word for word in plain C++: the oracle of the other instruction sets, and what runs where there is
// no vector path. Nothing here is tuned.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/half.hpp"
#include "cpu/kernels.hpp"
#include "engine/numerics.hpp"

namespace dflash {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The 32 lanes of a sum.
struct Lanes {
    float lane[kLanes] = {};

    void fma(int64_t i, float a, float b) { lane[i % kLanes] = std::fma(a, b, lane[i % kLanes]); }

    float sum() const {
        float v[kLanes], next[kLanes];
        std::copy(lane, lane + kLanes, v);
        for (int64_t step = kLanes / 2; step > 0; step /= 2) {
            for (int64_t l = 0; l < kLanes; ++l) next[l] = v[l] + v[l ^ step];
            std::copy(next, next + kLanes, v);
        }
        return v[0];
    }
};

uint16_t load_u16(const std::byte* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

float load_f32(const std::byte* p) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Element i of a row of a float type, widened.
float float_at(Type type, const std::byte* row, int64_t i) {
    switch (type) {
        case Type::F32: return load_f32(row + 4 * i);
        case Type::F16: return f16_to_f32(load_u16(row + 2 * i));
        default: return bf16_to_f32(load_u16(row + 2 * i));
    }
}

// Code of value i of a block: Q8_0 holds it as a byte, Q4_0 as a nibble (first half low, second half high) plus 8.
int code_at(Type type, const std::byte* block, int64_t i) {
    if (type == Type::Q8_0) return static_cast<int8_t>(block[2 + i]);
    const int byte = std::to_integer<int>(block[2 + i % 16]);
    return (i < 16 ? byte & 15 : byte >> 4) - 8;
}

// ---- functions ----

float exp_(float x) {
    if (std::isnan(x)) return x;
    if (x > num::kExpMax) return kInfinity;
    if (x < num::kExpMin) return 0.0f;
    const float shifted = std::fma(x, num::kLog2e, num::kRound);
    const float n = shifted - num::kRound;
    float r = std::fma(-n, num::kLn2Hi, x);
    r = std::fma(-n, num::kLn2Lo, r);
    float p = num::kE6;
    for (const float c : {num::kE5, num::kE4, num::kE3, num::kE2, 1.0f, 1.0f}) p = std::fma(p, r, c);
    return std::bit_cast<float>(std::bit_cast<int32_t>(p) + static_cast<int32_t>(n) * (1 << 23));
}

float tanh_(float x) {
    const float a = std::fabs(x);
    if (a < num::kTanhSmall) {
        const float t = x * x;
        float p = num::kT4;
        for (const float c : {num::kT3, num::kT2, num::kT1, num::kT0}) p = std::fma(p, t, c);
        return std::fma(x * t, p, x);
    }
    return std::copysign(1.0f - 2.0f / (1.0f + exp_(2.0f * a)), x);
}

float silu(float x) { return x / (1.0f + exp_(-x)); }

float gelu_tanh(float x) {
    const float u = (num::kGeluA * x) * std::fma(num::kGeluB * x, x, 1.0f);
    return x / (1.0f + exp_(-u));
}

float gelu(float x) {
    const float a = std::fabs(x);
    const float t = 1.0f / std::fma(num::kGeluC, a, 1.0f);
    float p = num::kG7;
    for (const float c : {num::kG6, num::kG5, num::kG4, num::kG3, num::kG2, num::kG1, num::kG0}) p = std::fma(p, t, c);
    const float tail = (t * p) * exp_((-0.5f * x) * x);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

float act_of(Act act, float x) {
    switch (act) {
        case Act::Silu: return silu(x);
        case Act::GeluTanh: return gelu_tanh(x);
        default: return gelu(x);
    }
}

// ---- matrix products ----

// A quantised activation row: one int8 a value, then one F32 scale a block.
int64_t quantised_bytes(int64_t cols) { return (cols + cols / 8 + 63) / 64 * 64; }

void quantise(const float* x, int64_t cols, std::byte* out) {
    for (int64_t b = 0; b < cols / 32; ++b) {
        const float* v = x + 32 * b;
        float amax = 0.0f;
        bool finite = true;
        for (int i = 0; i < 32; ++i) {
            finite = finite && std::isfinite(v[i]);
            amax = std::max(amax, std::fabs(v[i]));
        }
        const bool zero = !finite || amax < num::kTiny;
        const float d = zero ? 0.0f : amax / num::kCodes;
        for (int i = 0; i < 32; ++i) {
            const float q = zero ? 0.0f : (v[i] * (1.0f / d) + num::kRound) - num::kRound;
            out[32 * b + i] = static_cast<std::byte>(static_cast<int8_t>(q));
        }
        const float stored = finite ? d : kNaN;
        std::memcpy(out + cols + 4 * b, &stored, sizeof stored);
    }
}

template <Type type>
void matmul_float(const MatmulTask& task, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
        for (int64_t t = 0; t < task.n; ++t) {
            const std::byte* x = task.x + t * task.x_stride;
            Lanes acc;
            for (int64_t i = 0; i < task.cols; ++i)
                acc.fma(i, float_at(type, task.w + r * task.w_stride, i), load_f32(x + 4 * i));
            task.y[t * task.y_stride + r] = acc.sum();
        }
}

template <Type type>
void matmul_quantised(const MatmulTask& task, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
        for (int64_t t = 0; t < task.n; ++t) {
            const std::byte* x = task.x + t * task.x_stride;
            Lanes acc;
            for (int64_t u = 0; u < task.cols / 4; ++u) {  // a unit: four values of block u / 8
                const std::byte* block = task.w + r * task.w_stride + u / 8 * block_bytes(type);
                const float d = f16_to_f32(load_u16(block)) * load_f32(x + task.cols + u / 8 * 4);
                int32_t sum = 0;
                for (int64_t i = 0; i < 4; ++i)
                    sum += code_at(type, block, u % 8 * 4 + i) * static_cast<int8_t>(x[4 * u + i]);
                acc.fma(u, d, static_cast<float>(sum));
            }
            task.y[t * task.y_stride + r] = acc.sum();
        }
}

void widen_row(Type type, const std::byte* row, int64_t cols, float scale, float* out) {
    for (int64_t i = 0; i < cols; ++i) {
        if (block_len(type) == 1) {
            out[i] = float_at(type, row, i) * scale;
            continue;
        }
        const std::byte* block = row + i / 32 * block_bytes(type);
        out[i] = (f16_to_f32(load_u16(block)) * static_cast<float>(code_at(type, block, i % 32))) * scale;
    }
}

// ---- norms, rotary positions, cache ----

// 1 / sqrt(mean(x^2) + eps)
float rms_factor(const float* x, int64_t width, float eps) {
    Lanes acc;
    for (int64_t i = 0; i < width; ++i) acc.fma(i, x[i], x[i]);
    return 1.0f / std::sqrt(acc.sum() / static_cast<float>(width) + eps);
}

void rms_norm(const float* x, const float* w, float eps, int64_t width, float* y) {
    const float factor = rms_factor(x, width, eps);
    for (int64_t i = 0; i < width; ++i) y[i] = (x[i] * factor) * w[i];
}

void norm_rope(float* x, const float* w, float eps, int64_t hd, const float* cos, const float* sin, int64_t n_rot) {
    if (w) rms_norm(x, w, eps, hd, x);
    const int64_t half = n_rot / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = std::fma(a, cos[i], -(b * sin[i]));
        x[i + half] = std::fma(a, sin[i], b * cos[i]);
    }
}

void store_kv(const float* x, int64_t width, KvType type, std::byte* out) {
    for (int64_t i = 0; i < width; ++i) {
        if (type == KvType::F32) {
            std::memcpy(out + 4 * i, &x[i], 4);
        } else {
            const uint16_t h = f32_to_f16(x[i]);
            std::memcpy(out + 2 * i, &h, 2);
        }
    }
}

float kv_at(const KvRows& kv, int64_t row, int64_t i) {
    const std::byte* p = kv.data + (row * kv.width + i) * kv_bytes(kv.type);
    return kv.type == KvType::F16 ? f16_to_f32(load_u16(p)) : load_f32(p);
}

// ---- attention ----

int64_t attention_floats(int64_t, int64_t hd) { return 2 * hd; }

// One query row and head. scratch: 2*hd floats, the running and the chunk's sum of values.
void attend(const AttentionTask& task, int64_t row, int64_t head, float* scratch) {
    const Visible& see = task.visible[row];
    const int64_t hd = task.hd, first = head / (task.heads / task.kv_heads) * hd;  // in a K or V row
    const float* q = task.q + (row * task.heads + head) * hd;
    float *total = scratch, *part = scratch + hd;
    std::fill(total, total + hd, 0.0f);
    float M = -kInfinity, L = 0.0f;

    // Positions ascend: the context, then the block. `index` walks both.
    const int64_t context = see.ctx_end - see.ctx_begin, count = context + see.blk_end - see.blk_begin;
    const auto position = [&](int64_t i) {
        return i < context ? see.ctx_begin + i : see.block_pos + see.blk_begin + i - context;
    };
    const auto cache_row = [&](const KvRows& kv, int64_t i) {
        return i < context ? (see.ctx_begin + i) % kv.cap : kv.block_row + see.blk_begin + i - context;
    };
    for (int64_t begin = 0, end; begin < count; begin = end) {
        const int64_t chunk = position(begin) / kChunk;
        float score[kChunk], m = -kInfinity;
        for (end = begin; end < count && position(end) / kChunk == chunk; ++end) {
            Lanes dot;
            for (int64_t d = 0; d < hd; ++d) dot.fma(d, q[d], kv_at(task.k, cache_row(task.k, end), first + d));
            score[end - begin] = dot.sum() * task.scale;
            if (score[end - begin] > m) m = score[end - begin];
        }
        Lanes weights;
        std::fill(part, part + hd, 0.0f);
        for (int64_t i = begin; i < end; ++i) {
            const float p = exp_(score[i - begin] - m);
            weights.lane[position(i) % kLanes] += p;
            for (int64_t d = 0; d < hd; ++d)
                part[d] = std::fma(p, kv_at(task.v, cache_row(task.v, i), first + d), part[d]);
        }
        const float larger = m > M ? m : M;
        const float keep = exp_(M - larger), take = exp_(m - larger);
        L = std::fma(weights.sum(), take, L * keep);
        for (int64_t d = 0; d < hd; ++d) total[d] = std::fma(part[d], take, total[d] * keep);
        M = larger;
    }
    float* out = task.out + (row * task.heads + head) * hd;
    for (int64_t d = 0; d < hd; ++d) out[d] = count ? total[d] / L : 0.0f;
}

void attention(const AttentionTask& task, int64_t kv_head, int64_t begin, int64_t end, float* scratch) {
    const int64_t group = task.heads / task.kv_heads;
    for (int64_t row = begin; row < end; ++row)
        for (int64_t h = 0; h < group; ++h) attend(task, row, kv_head * group + h, scratch);
}

// ---- element by element ----

void gated(Act act, const float* gate, const float* up, int64_t count, float* y) {
    for (int64_t i = 0; i < count; ++i) y[i] = act_of(act, gate[i]) * up[i];
}

void add(const float* x, int64_t count, float* y) {
    for (int64_t i = 0; i < count; ++i) y[i] += x[i];
}

void scale(float s, int64_t count, float* y) {
    for (int64_t i = 0; i < count; ++i) y[i] *= s;
}

void softcap(float cap, int64_t count, float* y) {
    for (int64_t i = 0; i < count; ++i) y[i] = cap * tanh_(y[i] / cap);
}

void conv(const float* base, const float* dyn, const float* u, int64_t t, int64_t H, int64_t K, int64_t group, int side,
          float* y) {
    const int64_t G = H / group;
    const float* mine = dyn + t * 2 * K * G + side * K * G;
    for (int64_t ch = 0; ch < H; ++ch) {
        float acc = 0.0f;
        for (int64_t tap = 0; tap < K && tap <= t; ++tap)
            acc = std::fma(base[ch + H * (tap + K * side)] + mine[tap * G + ch / group], u[(t - tap) * H + ch], acc);
        y[t * H + ch] = acc;
    }
}

void exp_row(const float* x, int64_t count, float* y) {
    for (int64_t i = 0; i < count; ++i) y[i] = exp_(x[i]);
}

// ---- choices ----

Best best(const float* x, int64_t width) {
    Best b{-kInfinity, 0, false, false};
    for (int64_t i = 0; i < width; ++i) {
        b.nan = b.nan || std::isnan(x[i]);
        b.finite = b.finite || std::isfinite(x[i]);
        if (x[i] > b.value) b = {x[i], static_cast<int32_t>(i), b.nan, b.finite};
    }
    return b;
}

void top_k(const float* x, int64_t width, int64_t k, int32_t* ids, float* values) {
    if (std::any_of(x, x + width, [](float v) { return std::isnan(v); })) {
        std::fill(ids, ids + k, -1);
        std::fill(values, values + k, kNaN);
        return;
    }
    int64_t held = 0;
    for (int64_t i = 0; i < width; ++i) {
        if (held == k && !(x[i] > values[k - 1])) continue;
        int64_t at = held < k ? held++ : k - 1;
        for (; at > 0 && x[i] > values[at - 1]; --at) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = x[i];
        ids[at] = static_cast<int32_t>(i);
    }
}

float pair_score(const float* a, const float* b, const float* c, int64_t R) {
    Lanes acc;
    for (int64_t r = 0; r < R; ++r) acc.fma(r, a[r] * b[r], c[r]);
    return acc.sum();
}

}  // namespace

const Kernels kScalar = {
    .name = "scalar",
    .quantised_bytes = quantised_bytes,
    .quantise = quantise,
    .f32 = matmul_float<Type::F32>,
    .f16 = matmul_float<Type::F16>,
    .bf16 = matmul_float<Type::BF16>,
    .q8_0 = matmul_quantised<Type::Q8_0>,
    .q4_0 = matmul_quantised<Type::Q4_0>,
    .widen_row = widen_row,
    .rms_norm = rms_norm,
    .norm_rope = norm_rope,
    .store_kv = store_kv,
    .attention_floats = attention_floats,
    .attention = attention,
    .gated = gated,
    .add = add,
    .scale = scale,
    .softcap = softcap,
    .conv = conv,
    .best = best,
    .top_k = top_k,
    .pair_score = pair_score,
    .exp = exp_row,
};

}  // namespace dflash
