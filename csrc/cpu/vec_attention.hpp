// Attention for any register width.
#pragma once

#include "cpu/vec_matmul.hpp"

namespace dflash {
namespace {

// A user is one query row and head. All users of a KV head walk its chunks together: K of a chunk is widened once, every
// user scores it, then V takes its place. Users that see the same positions share the loads, four at a time. What a
// user sees of a chunk is a 64-bit mask. Scratch: the widened chunk, then for each user its state, laid out as User.

constexpr int kUsers = 4;

struct User {
    const float* q;
    uint64_t seen;          // of the current chunk
    float M, L, keep, take; // running maximum and sum; factors of the current merge
    float* total;           // hd sums of values
    alignas(64) float p[kChunk];
};

constexpr int64_t kUserFloats = sizeof(User) / 4;

int64_t attention_floats(int64_t group, int64_t hd) { return kChunk * hd + kMaxRows * group * (kUserFloats + hd) + 16; }

inline uint64_t range_bits(int64_t begin, int64_t end) {  // [begin, end) cut to 0..64
    begin = more_of(begin, 0);
    end = less_of(end, 64);
    if (begin >= end) return 0;
    return (end - begin == 64 ? ~uint64_t{0} : (uint64_t{1} << (end - begin)) - 1) << begin;
}

inline uint64_t seen_bits(const Visible& see, int64_t base) {
    return range_bits(see.ctx_begin - base, see.ctx_end - base) |
           range_bits(see.block_pos + see.blk_begin - base, see.block_pos + see.blk_end - base);
}

// The rows of a chunk that anyone sees, widened: position base + j to out + j*hd.
inline void widen_chunk(const KvRows& kv, int64_t base, int64_t block_pos, uint64_t seen, int64_t first, int64_t hd, float* out) {
    const int64_t slot = base % kv.cap;
    for (; seen; seen &= seen - 1) {
        const int64_t j = __builtin_ctzll(seen), p = base + j;
        int64_t row = slot + j;  // p % cap, without a division each
        if (block_pos >= 0 && p >= block_pos) row = kv.block_row + p - block_pos;
        else
            while (row >= kv.cap) row -= kv.cap;
        if (kv.type == KvType::F16) widen_plain<WeightF16>(kv.data + (row * kv.width + first) * 2, hd, 1.0f, out + j * hd);
        else memcpy(out + j * hd, kv.data + (row * kv.width + first) * 4, static_cast<size_t>(4 * hd));
    }
}

// Scores of two positions, k and k + hd, for each of n users: dot[2*u], dot[2*u + 1].
template <int n>
inline void score_pair(User* const* user, const float* k, int64_t hd, float* dot) {
    F acc[2 * kUsers][P];
    for (auto& a : acc)
        for (F& v : a) v = set(0.0f);
    int64_t i = 0;
    for (; i + W * P <= hd; i += W * P)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const F k0 = load(k + i + p * W), k1 = load(k + hd + i + p * W);
#pragma GCC unroll 4
            for (int u = 0; u < n; ++u) {
                const F q = load(user[u]->q + i + p * W);
                acc[2 * u][p] = fma(q, k0, acc[2 * u][p]);
                acc[2 * u + 1][p] = fma(q, k1, acc[2 * u + 1][p]);
            }
        }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
        const int64_t at = i + p * W, left = less_of(W, hd - at);
        if (left <= 0) break;
        const F k0 = load_n(k + at, left), k1 = load_n(k + hd + at, left);
#pragma GCC unroll 4
        for (int u = 0; u < n; ++u) {
            const F q = load_n(user[u]->q + at, left);
            acc[2 * u][p] = select_n(left, fma(q, k0, acc[2 * u][p]), acc[2 * u][p]);
            acc[2 * u + 1][p] = select_n(left, fma(q, k1, acc[2 * u + 1][p]), acc[2 * u + 1][p]);
        }
    }
    for (int u = 0; u < 2 * n; u += 4) _mm_store_ps(dot + u, sums(acc[u], acc[u + 1], acc[u + 2], acc[u + 3]));
}

template <int n>
inline void score_chunk(User* const* user, const float* k, int64_t hd, float scale) {
    for (int64_t j = 0; j < kChunk; j += 2) {  // what is scored but not seen is dropped by soften()
        if (!(user[0]->seen >> j & 3)) continue;
        alignas(16) float dot[2 * kUsers];
        score_pair<n>(user, k + j * hd, hd, dot);
        for (int u = 0; u < n; ++u) user[u]->p[j] = dot[2 * u] * scale, user[u]->p[j + 1] = dot[2 * u + 1] * scale;
    }
}

// Scores to weights: p = exp(s - m), and the factors and sum of the merge.
inline void soften(User& user) {
    F most = set(-kInfinity);
    for (int64_t i = 0; i < kChunk; i += W) {
        const uint32_t here = static_cast<uint32_t>(user.seen >> i) & ((1u << W) - 1);
        const F score = select(mask_of(here), load(user.p + i), set(-kInfinity));
        store(user.p + i, score);
        most = max_or_second(score, most);
    }
    const float m = largest(most), larger = m > user.M ? m : user.M;
    Lanes sum;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kChunk / W; ++i) {
        const F p = exp_(sub(load(user.p + i * W), set(m)));
        store(user.p + i * W, p);
        sum.r[i % P] = add(sum.r[i % P], p);
    }
    float factor[W] = {user.M - larger, m - larger};
    store(factor, exp_(load(factor)));
    user.keep = factor[0];
    user.take = factor[1];
    user.M = larger;
    user.L = __builtin_fmaf(sum.sum(), user.take, user.L * user.keep);
}

// total = fma(sum of p v, take, total * keep) for R registers of values from d on; V row j stands at v + j*hd.
template <int n, int R>
inline void merge_values(User* const* user, const float* v, int64_t hd, int64_t d) {
    F a[n][R];
#pragma GCC unroll 4
    for (int u = 0; u < n; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) a[u][r] = set(0.0f);
    for (uint64_t left = user[0]->seen; left; left &= left - 1) {
        const int j = __builtin_ctzll(left);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const F value = load(v + j * hd + d + r * W);
#pragma GCC unroll 4
            for (int u = 0; u < n; ++u) a[u][r] = fma(set(user[u]->p[j]), value, a[u][r]);
        }
    }
    for (int u = 0; u < n; ++u)
        for (int r = 0; r < R; ++r) {
            float* const total = user[u]->total + d + r * W;
            store(total, fma(a[u][r], set(user[u]->take), mul(load(total), set(user[u]->keep))));
        }
}

inline void merge_rest(User& user, const float* v, int64_t hd, int64_t d) {
    const int64_t n = hd - d;
    F a = set(0.0f);
    for (uint64_t left = user.seen; left; left &= left - 1) {
        const int j = __builtin_ctzll(left);
        a = fma(set(user.p[j]), load_n(v + j * hd + d, n), a);
    }
    store_n(user.total + d, fma(a, set(user.take), mul(load_n(user.total + d, n), set(user.keep))), n);
}

template <int n>
inline void merge_chunk(User* const* user, const float* v, int64_t hd) {
    constexpr int R = n * P > 8 ? 2 : 4;  // registers of sums: n * R
    int64_t d = 0;
    for (; d + R * W <= hd; d += R * W) merge_values<n, R>(user, v, hd, d);
    for (; d + W <= hd; d += W) merge_values<n, 1>(user, v, hd, d);
    for (int u = 0; d < hd && u < n; ++u) merge_rest(*user[u], v, hd, d);
}

// Calls one(n, users) for runs of up to four users that see the same, something, of the chunk.
template <class One>
inline void each_run(User* users, int64_t count, const One& one) {
    for (int64_t i = 0; i < count;) {
        User* run[kUsers];
        int n = 0;
        const uint64_t seen = users[i].seen;
        while (i < count && n < kUsers && users[i].seen == seen) run[n++] = &users[i++];
        if (seen) one(n, run);
    }
}

// What all rows [begin, end) see: positions [first, last), of which those from block_pos on lie in the block (-1: none).
struct Span {
    int64_t first, last, block_pos;
    bool one_block;  // no two rows have different blocks
};

inline Span span_of(const Visible* visible, int64_t begin, int64_t end) {
    Span span{INT64_MAX, 0, -1, true};
    for (int64_t row = begin; row < end; ++row) {
        const Visible& see = visible[row];
        if (see.ctx_begin < see.ctx_end) {
            span.first = less_of(span.first, see.ctx_begin);
            span.last = more_of(span.last, see.ctx_end);
        }
        if (see.blk_begin < see.blk_end) {
            span.one_block = span.one_block && (span.block_pos < 0 || span.block_pos == see.block_pos);
            span.block_pos = see.block_pos;
            span.first = less_of(span.first, see.block_pos + see.blk_begin);
            span.last = more_of(span.last, see.block_pos + see.blk_end);
        }
    }
    for (int64_t row = begin; row < end && span.block_pos >= 0; ++row)  // a context that reaches into the others' block
        span.one_block = span.one_block && visible[row].ctx_end <= span.block_pos;
    return span;
}

void attention(const AttentionTask& task, int64_t kv_head, int64_t begin, int64_t end, float* scratch) {
    const int64_t hd = task.hd, group = task.heads / task.kv_heads, count = (end - begin) * group;
    const Span span = span_of(task.visible, begin, end);
    if (!span.one_block && end - begin > 1) {  // positions mean different rows: one row at a time
        for (int64_t row = begin; row < end; ++row) attention(task, kv_head, row, row + 1, scratch);
        return;
    }
    User* const users = reinterpret_cast<User*>(scratch);
    float *const totals = scratch + count * kUserFloats, *const chunk = totals + count * hd;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t head = kv_head * group + i % group;
        users[i].q = task.q + ((begin + i / group) * task.heads + head) * hd;
        users[i].M = -kInfinity;
        users[i].L = 0.0f;
        users[i].total = totals + i * hd;
    }
    memset(totals, 0, static_cast<size_t>(4 * count * hd));
    for (int64_t base = span.first / kChunk * kChunk; base < span.last; base += kChunk) {
        uint64_t any = 0;
        for (int64_t i = 0; i < count; ++i) any |= users[i].seen = seen_bits(task.visible[begin + i / group], base);
        widen_chunk(task.k, base, span.block_pos, any, kv_head * hd, hd, chunk);
        each_run(users, count, [&](int n, User* const* run) {
            if (n == 4) score_chunk<4>(run, chunk, hd, task.scale);
            else if (n == 3) score_chunk<3>(run, chunk, hd, task.scale);
            else if (n == 2) score_chunk<2>(run, chunk, hd, task.scale);
            else score_chunk<1>(run, chunk, hd, task.scale);
            for (int u = 0; u < n; ++u) soften(*run[u]);
        });
        widen_chunk(task.v, base, span.block_pos, any, kv_head * hd, hd, chunk);
        each_run(users, count, [&](int n, User* const* run) {
            if (n == 4) merge_chunk<4>(run, chunk, hd);
            else if (n == 3) merge_chunk<3>(run, chunk, hd);
            else if (n == 2) merge_chunk<2>(run, chunk, hd);
            else merge_chunk<1>(run, chunk, hd);
        });
    }
    for (int64_t i = 0; i < count; ++i) {
        const Visible& see = task.visible[begin + i / group];
        const bool some = see.ctx_begin < see.ctx_end || see.blk_begin < see.blk_end;
        float* const out = task.out + ((begin + i / group) * task.heads + kv_head * group + i % group) * hd;
        map(users[i].total, hd, out, [&](F x) { return some ? div(x, set(users[i].L)) : set(0.0f); });
    }
}

}  // namespace
}  // namespace dflash
