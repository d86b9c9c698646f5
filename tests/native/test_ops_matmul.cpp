// Matrix products: right values, the same bits on every instruction set, and a row that does not know its company.
#include <cmath>

#include "ops_check.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

// y[n, rows] of one matrix.
Floats product(const Ops& ops, Context& c, const Matrix& w, const Floats& x, int64_t n) {
    Floats y(static_cast<size_t>(n * w.rows), -7.0f);
    float* const ys[] = {y.data()};
    ops.matmul(c, {&w, 1}, x.data(), n, {ys, 1});
    return y;
}

Floats widened(const Ops& ops, Context& c, const Matrix& w) {
    std::vector<int32_t> ids;
    for (int64_t r = 0; r < w.rows; ++r) ids.push_back(static_cast<int32_t>(r));
    Floats out(static_cast<size_t>(w.rows * w.cols));
    ops.embed(c, w, ids, 1.0f, out.data());
    return out;
}

// Within rounding of the product in double. A quantised activation is off by at most half a step of amax / 127 a value.
void values_are_right(const Ops& ops) {
    Random random{1};
    const Threads one(1);
    for (const Type type : kTypes) {
        const int64_t cols = 160, rows = 9, n = 3;
        const auto bytes = weights(random, type, cols * rows);
        const Matrix w{bytes.data(), type, cols, rows};
        const Floats x = floats(random, cols * n), plain = widened(ops, one, w), y = product(ops, one, w, x, n);
        for (int64_t t = 0; t < n; ++t)
            for (int64_t r = 0; r < rows; ++r) {
                double sum = 0, size = 0, slack = 0;
                for (int64_t i = 0; i < cols; ++i) {
                    const double a = plain[r * cols + i], b = x[t * cols + i];
                    sum += a * b;
                    size += std::fabs(a * b);
                    double amax = 0;
                    for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) amax = std::fmax(amax, std::fabs(x[t * cols + j]));
                    if (block_len(type) > 1) slack += std::fabs(a) * amax / 254 * 1.001;
                }
                check(std::fabs(y[t * rows + r] - sum) <= size * 1e-6 + slack, "%s %s: row %d of token %d is %g, not %g",
                      ops.name, name_of(type), int(r), int(t), y[t * rows + r], sum);
            }
    }
}

// One-hot activations read single weights: shows the layout of codes, scales and blocks.
void one_hot_reads_one_weight(const Ops& ops) {
    Random random{2};
    const Threads one(1);
    for (const Type type : kTypes) {
        const int64_t cols = 192, rows = 2;
        const auto bytes = weights(random, type, cols * rows);
        const Matrix w{bytes.data(), type, cols, rows};
        const Floats plain = widened(ops, one, w);
        for (int64_t i = 0; i < cols; ++i) {
            Floats x(static_cast<size_t>(cols));
            x[i] = 127.0f;  // code 127, scale 1
            const Floats y = product(ops, one, w, x, 1);
            for (int64_t r = 0; r < rows; ++r) {
                const float expected = static_cast<float>(127.0 * double(plain[r * cols + i]));
                check(std::fabs(y[r] - expected) <= std::fabs(expected) * 1e-6f, "%s %s: value %d of row %d reads %g, not %g",
                      ops.name, name_of(type), int(i), int(r), y[r], expected);
            }
        }
    }
}

void isas_agree(const std::vector<const Ops*>& isas) {
    Random random{3};
    const Threads one(1);
    for (const Type type : kTypes)
        for (int kind = 0; kind < kKinds; ++kind)
            for (const int64_t base : {1, 31, 33, 96, 128, 161, 320}) {
                const int64_t cols = block_len(type) > 1 ? (base + 31) / 32 * 32 : base;
                const int64_t rows = 1 + random.below(20), n = 1 + random.below(16);
                const auto bytes = weights(random, type, cols * rows, kind == kHuge && type != Type::F32 ? kNormal : Kind(kind));
                const Matrix w{bytes.data(), type, cols, rows};
                const Floats x = floats(random, cols * n, Kind(kind));
                const Floats expected = product(*isas[0], one, w, x, n);
                for (const Ops* ops : isas) {
                    const int64_t at = difference(expected, product(*ops, one, w, x, n));
                    check(at < 0, "%s %s: cols %d rows %d n %d kind %d differs from scalar at %d", ops->name, name_of(type),
                          int(cols), int(rows), int(n), kind, int(at));
                    check(difference(widened(*isas[0], one, w), widened(*ops, one, w)) < 0, "%s %s: embed differs", ops->name,
                          name_of(type));
                }
            }
}

// Long rows go slice by slice over blocks of weight rows; a whole number of slices, and a rest of every kind.
void long_rows_agree(const std::vector<const Ops*>& isas) {
    Random random{7};
    const Threads one(1), two(2);
    for (const Type type : kTypes)
        for (const int64_t cols : {4096, 4128, 3009}) {
            if (cols % block_len(type)) continue;
            const int64_t rows = 26, n = block_len(type) > 1 ? 13 : 5;
            const auto bytes = weights(random, type, cols * rows);
            const Matrix w{bytes.data(), type, cols, rows};
            const Floats x = floats(random, cols * n), expected = product(*isas[0], two, w, x, n);
            for (const Ops* ops : isas)
                check(difference(expected, product(*ops, one, w, x, n)) < 0, "%s %s: cols %d rows %d n %d differs from scalar", ops->name,
                      name_of(type), int(cols), int(rows), int(n));
        }
}

// A NaN or infinity in one activation spoils its own row, and no other.
void bad_values_stay_in_their_row(const std::vector<const Ops*>& isas) {
    Random random{4};
    const Threads one(1);
    for (const Type type : kTypes)
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            const int64_t cols = 288, rows = 5, n = 4;
            const auto bytes = weights(random, type, cols * rows);
            const Matrix w{bytes.data(), type, cols, rows};
            Floats x = floats(random, cols * n);
            const Floats good = product(*isas[0], one, w, x, n);
            x[2 * cols + 140] = bad;
            const Floats expected = product(*isas[0], one, w, x, n);
            for (const Ops* ops : isas) {
                const Floats y = product(*ops, one, w, x, n);
                check(difference(expected, y) < 0, "%s %s: a bad value is treated unlike scalar", ops->name, name_of(type));
                for (int64_t i = 0; i < n * rows; ++i)
                    check(i / rows == 2 ? !std::isfinite(y[i]) : same(y[i], good[i]), "%s %s: %g at token %d", ops->name,
                          name_of(type), y[i], int(i / rows));
            }
        }
}

// Every batch of 1 to 16 rows, and longer ones, gives each row the bits it has alone; so do 1, 2 and 3 threads.
void rows_are_independent(const Ops& ops) {
    Random random{5};
    for (const Type type : kTypes) {
        const int64_t cols = 288, rows = 37, most = 37;
        const auto bytes = weights(random, type, cols * rows);
        const Matrix w{bytes.data(), type, cols, rows};
        const Floats x = floats(random, cols * most);
        const Threads one(1), two(2), three(3);
        Floats alone;
        for (int64_t t = 0; t < most; ++t) {
            const Floats y = product(ops, one, w, Floats(x.begin() + t * cols, x.begin() + (t + 1) * cols), 1);
            alone.insert(alone.end(), y.begin(), y.end());
        }
        for (int64_t n = 1; n <= most; n += n < 17 ? 1 : 10)
            for (const Threads* threads : {&one, &two, &three}) {
                if (threads != &one && n % 4) continue;
                const Floats y = product(ops, *threads, w, x, n);
                check(difference(Floats(alone.begin(), alone.begin() + n * rows), y) < 0, "%s %s: a row changes in a batch of %d",
                      ops.name, name_of(type), int(n));
            }
    }
}

// Several matrices of any types in one call equal the same matrices one by one.
void matrices_together_equal_matrices_alone(const Ops& ops) {
    Random random{6};
    const int64_t cols = 256, n = 5;
    const Threads two(2);
    const Floats x = floats(random, cols * n);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Matrix> ws;
    std::vector<Floats> ys;
    std::vector<float*> out;
    for (const Type type : kTypes) {
        const int64_t rows = 3 + random.below(90);
        bytes.push_back(weights(random, type, cols * rows));
        ws.push_back({bytes.back().data(), type, cols, rows});
        ys.emplace_back(static_cast<size_t>(n * rows));
    }
    for (Floats& y : ys) out.push_back(y.data());
    ops.matmul(two, ws, x.data(), n, out);
    for (size_t k = 0; k < ws.size(); ++k)
        check(difference(product(ops, two, ws[k], x, n), ys[k]) < 0, "%s %s: differs in company", ops.name, name_of(ws[k].type));
}

}  // namespace

int main() {
    const auto isas = every_isa();
    isas_agree(isas);
    long_rows_agree(isas);
    bad_values_stay_in_their_row(isas);
    for (const Ops* ops : isas) {
        values_are_right(*ops);
        one_hot_reads_one_weight(*ops);
        rows_are_independent(*ops);
        matrices_together_equal_matrices_alone(*ops);
    }
    return finish("test_ops_matmul");
}
