// Attention: right values, and the same bits whatever the cache's shape, the batch, the threads and the instruction set.
#include <cmath>

#include "ops_check.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

struct Shape {
    int64_t heads, kv_heads, hd;
    KvType type = KvType::F16;
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(hd)); }
    int64_t width() const { return kv_heads * hd; }
};

// K or V of positions 0.. and of a block, and the ways to lay them out.
struct Store {
    Floats context, block;  // rows of width
};

Store make_store(Random& random, const Shape& s, int64_t context, int64_t block, Kind kind = kNormal) {
    return {floats(random, context * s.width(), kind), floats(random, block * s.width(), kind)};
}

// The cache rows of a store: position p at p % cap, only positions >= oldest; all other rows hold NaN.
struct Cache {
    std::vector<std::byte> bytes;
    KvRows rows;
};

Cache lay_out(const Ops& ops, Context& c, const Store& store, const Shape& s, int64_t cap, int64_t oldest) {
    const int64_t block = static_cast<int64_t>(store.block.size()) / s.width();
    const int64_t context = static_cast<int64_t>(store.context.size()) / s.width();
    Cache cache{std::vector<std::byte>(static_cast<size_t>((cap + block) * s.width() * kv_bytes(s.type)), std::byte{0xff}), {}};
    cache.rows = {cache.bytes.data(), s.type, s.width(), cap, cap};
    std::vector<int64_t> to;
    for (int64_t p = oldest; p < context; ++p) to.push_back(p % cap);
    ops.store_kv(c, store.context.data() + oldest * s.width(), to, cache.rows);
    to.clear();
    for (int64_t j = 0; j < block; ++j) to.push_back(cap + j);
    ops.store_kv(c, store.block.data(), to, cache.rows);
    return cache;
}

Floats attend(const Ops& ops, Context& c, const Shape& s, const Floats& q, const Cache& k, const Cache& v,
              const std::vector<Visible>& visible) {
    const int64_t n = static_cast<int64_t>(visible.size());
    Floats out(static_cast<size_t>(n * s.heads * s.hd), -7.0f);
    ops.attention(c, q.data(), n, s.heads, s.kv_heads, s.hd, s.scale(), k.rows, v.rows, visible, out.data());
    return out;
}

// Rows of a block at the end of a context of which `window` positions are visible, causal or not.
std::vector<Visible> block_rows(int64_t n, int64_t context, int64_t window, bool causal) {
    std::vector<Visible> rows;
    for (int64_t i = 0; i < n; ++i)
        rows.push_back({std::max<int64_t>(0, context + i + 1 - window), context, 0, causal ? i + 1 : n, context});
    return rows;
}

float stored(const Shape& s, float x) { return s.type == KvType::F16 ? f16_to_f32(f32_to_f16(x)) : x; }

void values_are_right(const Ops& ops) {
    Random random{1};
    const Threads one(1);
    const Shape s{6, 2, 64};
    const int64_t context = 150, n = 5;
    const Store ks = make_store(random, s, context, n), vs = make_store(random, s, context, n);
    const Floats q = floats(random, n * s.heads * s.hd);
    const auto visible = block_rows(n, context, 100, true);
    const Floats out = attend(ops, one, s, q, lay_out(ops, one, ks, s, 512, 0), lay_out(ops, one, vs, s, 512, 0), visible);
    for (int64_t row = 0; row < n; ++row)
        for (int64_t h = 0; h < s.heads; ++h) {
            std::vector<double> score, value(static_cast<size_t>(s.hd));
            std::vector<const float*> v;
            const auto see = [&](const Floats& k, const Floats& from, int64_t p) {
                const int64_t at = p * s.width() + h / 3 * s.hd;
                double dot = 0;
                for (int64_t d = 0; d < s.hd; ++d) dot += double(q[(row * s.heads + h) * s.hd + d]) * stored(s, k[at + d]);
                score.push_back(dot * s.scale());
                v.push_back(&from[at]);
            };
            for (int64_t p = visible[row].ctx_begin; p < context; ++p) see(ks.context, vs.context, p);
            for (int64_t j = 0; j < visible[row].blk_end; ++j) see(ks.block, vs.block, j);
            double most = -1e300, sum = 0;
            for (const double x : score) most = std::fmax(most, x);
            for (size_t i = 0; i < score.size(); ++i) {
                sum += std::exp(score[i] - most);
                for (int64_t d = 0; d < s.hd; ++d) value[d] += std::exp(score[i] - most) * stored(s, v[i][d]);
            }
            for (int64_t d = 0; d < s.hd; ++d)
                check(std::fabs(out[(row * s.heads + h) * s.hd + d] - value[d] / sum) < 3e-6, "%s: row %d head %d dim %d", ops.name,
                      int(row), int(h), int(d));
        }
}

// A ring that has wrapped, at any capacity, gives the bits of a full cache, though its other rows hold NaN.
void ring_equals_full_cache(const Ops& ops) {
    Random random{2};
    const Threads one(1);
    for (const KvType type : {KvType::F16, KvType::F32}) {
        const Shape s{2, 1, 64, type};
        for (const int64_t context : {3, 64, 65, 200, 331}) {
            const int64_t n = 4, window = 70;
            const Store ks = make_store(random, s, context, n), vs = make_store(random, s, context, n);
            const Floats q = floats(random, n * s.heads * s.hd);
            const auto visible = block_rows(n, context, window, false);
            const Floats full = attend(ops, one, s, q, lay_out(ops, one, ks, s, 1024, 0), lay_out(ops, one, vs, s, 1024, 0), visible);
            for (const int64_t cap : {70, 71, 96, 127, 128, 130}) {
                const int64_t oldest = std::max<int64_t>(0, context - window + 1);
                const Floats ring =
                    attend(ops, one, s, q, lay_out(ops, one, ks, s, cap, oldest), lay_out(ops, one, vs, s, cap, oldest), visible);
                check(difference(full, ring) < 0, "%s: context %d in a ring of %d", ops.name, int(context), int(cap));
            }
        }
    }
}

// A token verified in a batch, as block rows or as context rows, has the bits of the token alone.
void block_rows_equal_context_rows(const Ops& ops) {
    Random random{3};
    const Threads one(1);
    const Shape s{2, 1, 64};
    const int64_t context = 121, n = 9;  // the block crosses position 128
    const Store ks = make_store(random, s, context, n), vs = make_store(random, s, context, n);
    const Floats q = floats(random, n * s.heads * s.hd);
    const Floats together = attend(ops, one, s, q, lay_out(ops, one, ks, s, 200, 0), lay_out(ops, one, vs, s, 200, 0),
                                   block_rows(n, context, 1000, true));
    Store kc{ks.context, {}}, vc{vs.context, {}};
    kc.context.insert(kc.context.end(), ks.block.begin(), ks.block.end());
    vc.context.insert(vc.context.end(), vs.block.begin(), vs.block.end());
    const Cache k = lay_out(ops, one, kc, s, 300, 0), v = lay_out(ops, one, vc, s, 300, 0);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t size = s.heads * s.hd;
        const Floats alone = attend(ops, one, s, Floats(q.begin() + i * size, q.begin() + (i + 1) * size), k, v,
                                    {{0, context + i + 1, 0, 0, context + i + 1}});
        check(difference(Floats(together.begin() + i * size, together.begin() + (i + 1) * size), alone) < 0,
              "%s: row %d of a batch differs from the token alone", ops.name, int(i));
    }
}

void isas_and_threads_agree(const std::vector<const Ops*>& isas) {
    Random random{4};
    const Threads one(1), two(2), three(3);
    const Shape shapes[] = {{4, 2, 64}, {2, 2, 40}, {3, 1, 128}, {3, 1, 33, KvType::F32}, {2, 1, 80}, {1, 1, 256, KvType::F32}};
    for (const Shape& s : shapes)
        for (int kind = 0; kind < kKinds; ++kind) {
            const int64_t context = 90 + random.below(100), n = 1 + random.below(kind == kNormal ? 20 : 5);
            const Store ks = make_store(random, s, context, n, Kind(kind)), vs = make_store(random, s, context, n, Kind(kind));
            const Floats q = floats(random, n * s.heads * s.hd, Kind(kind));
            const auto visible = block_rows(n, context, 40 + random.below(150), random.below(2) == 0);
            const Cache k = lay_out(*isas[0], one, ks, s, 300, 0), v = lay_out(*isas[0], one, vs, s, 300, 0);
            const Floats expected = attend(*isas[0], one, s, q, k, v, visible);
            for (const Ops* ops : isas) {
                check(lay_out(*ops, one, ks, s, 300, 0).bytes == k.bytes, "%s: store_kv differs, kind %d", ops->name, kind);
                for (const Threads* threads : {&one, &two, &three}) {
                    const int64_t at = difference(expected, attend(*ops, *threads, s, q, k, v, visible));
                    check(at < 0, "%s: hd %d kind %d n %d context %d differs from scalar at %d", ops->name, int(s.hd), kind, int(n),
                          int(context), int(at));
                }
            }
        }
}

void nothing_visible_gives_zeros(const Ops& ops) {
    Random random{5};
    const Threads one(1);
    const Shape s{2, 1, 64};
    const Store store = make_store(random, s, 4, 4);
    const Cache cache = lay_out(ops, one, store, s, 8, 0);
    const Floats q = floats(random, 2 * s.heads * s.hd);
    const Floats out = attend(ops, one, s, q, cache, cache, {{2, 2, 1, 1, 4}, {1, 2, 0, 0, 4}});
    for (int64_t i = 0; i < s.heads * s.hd; ++i) check(same(out[i], 0.0f), "%s: %g of nothing", ops.name, out[i]);
    for (int64_t i = 0; i < s.heads * s.hd; ++i) {  // one visible position: its value, unweighted
        const float expected = stored(s, store.context[s.hd + i % s.hd]);
        check(out[s.heads * s.hd + i] == expected, "%s: %g, not the value of the one position", ops.name, out[s.heads * s.hd + i]);
    }
}

}  // namespace

int main() {
    const auto isas = every_isa();
    isas_and_threads_agree(isas);
    for (const Ops* ops : isas) {
        values_are_right(*ops);
        ring_equals_full_cache(*ops);
        block_rows_equal_context_rows(*ops);
        nothing_visible_gives_zeros(*ops);
    }
    return finish("test_ops_attention");
}
