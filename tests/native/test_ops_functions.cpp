// exp, tanh, the activations and the norms: how near the truth, and the same bits on every instruction set.
#include <algorithm>
#include <cmath>

#include "cpu/kernels.hpp"
#include "ops_check.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Distance from the truth in units of the last place of the truth.
double ulps(float got, double truth) {
    const double size = std::ldexp(1.0, std::max(std::ilogb(truth), -126) - 23);
    return std::fabs(got - truth) / size;
}

// Every stride-th float from `from` away from zero, up to `to` (both of one sign).
Floats ladder(float from, float to, uint32_t stride) {
    Floats out;
    for (uint32_t b = std::bit_cast<uint32_t>(from); b < std::bit_cast<uint32_t>(to); b += stride) out.push_back(std::bit_cast<float>(b));
    return out;
}

struct Error {
    double most = 0;
    float at = 0;
    void see(double e, float x) {
        if (e > most) most = e, at = x;
    }
};

void exp_is_near(const Kernels& kernels) {
    Error error;
    for (const auto& [from, to] : {std::pair{1e-8f, 88.722f}, std::pair{-1e-8f, -87.336f}}) {
        const Floats x = ladder(from, to, 997);
        Floats y(x.size());
        kernels.exp(x.data(), static_cast<int64_t>(x.size()), y.data());
        for (size_t i = 0; i < x.size(); ++i) error.see(ulps(y[i], std::exp(double(x[i]))), x[i]);
    }
    std::printf("%s exp: %.3f ulp at %a\n", kernels.name, error.most, error.at);
    check(error.most < 1.0, "%s: exp is off by %g ulp at %a", kernels.name, error.most, error.at);
}

void exp_at_the_edges(const Kernels& kernels) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), tiny = 0x1p-149f;
    const float x[] = {0.0f, -0.0f, tiny, -tiny, kInfinity, -kInfinity, nan, 88.7228317f, 88.7228394f, 1e30f, -87.3365402f, -87.3365479f, -1e30f};
    float y[std::size(x)];
    kernels.exp(x, std::size(x), y);
    const float expected[] = {1, 1, 1, 1, kInfinity, 0, nan, y[7], kInfinity, kInfinity, y[10], 0, 0};
    for (size_t i = 0; i < std::size(x); ++i) check(same(y[i], expected[i]), "%s: exp(%a) is %a", kernels.name, x[i], y[i]);
    check(std::isfinite(y[7]) && ulps(y[7], std::exp(double(x[7]))) < 1, "%s: exp near overflow is %a", kernels.name, y[7]);
    check(y[10] >= 0x1p-126f && ulps(y[10], std::exp(double(x[10]))) < 1, "%s: exp near underflow is %a", kernels.name, y[10]);
}

double phi(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }

// 0.5 x (1 + tanh(v)) = x / (1 + exp(-2v)), which keeps its digits where tanh is -1
double gelu_tanh(double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void activations_are_near(const Ops& ops) {
    const Threads one(1);
    Floats x = ladder(1e-6f, 30.0f, 20011), negative = ladder(-1e-6f, -30.0f, 20011);
    x.insert(x.end(), negative.begin(), negative.end());
    const Floats ones(x.size(), 1.0f);
    Floats y(x.size());
    const auto measure = [&](const char* name, double bound, auto truth) {
        Error relative;  // to the result where |x| <= 8, below that to what 1e-7 * |x| is
        for (size_t i = 0; i < x.size(); ++i) {
            const double t = truth(double(x[i]));
            relative.see(std::fabs(y[i] - t) / (x[i] < -8 ? std::fabs(x[i]) : std::fabs(t)), x[i]);
        }
        std::printf("%s %s: %.3g relative at %g\n", ops.name, name, relative.most, relative.at);
        check(relative.most < bound, "%s: %s is off by %g at %g", ops.name, name, relative.most, relative.at);
    };
    const int64_t count = static_cast<int64_t>(x.size());
    ops.gated(one, Act::Silu, x.data(), ones.data(), count, y.data());
    measure("silu", 3e-7, [](double v) { return v / (1 + std::exp(-v)); });
    ops.gated(one, Act::GeluTanh, x.data(), ones.data(), count, y.data());
    measure("gelu_tanh", 2e-5, gelu_tanh);
    ops.gated(one, Act::Gelu, x.data(), ones.data(), count, y.data());
    measure("gelu", 5e-6, [](double v) { return v * phi(v); });
    y = x;
    ops.softcap(one, 1.0f, count, y.data());
    measure("tanh", 3e-7, [](double v) { return std::tanh(v); });
}

// The same bits on every instruction set, at every length and for every kind of value, in place or not.
void isas_agree(const std::vector<const Ops*>& isas) {
    Random random{1};
    const Threads one(1), two(2);
    for (int kind = 0; kind < kKinds; ++kind)
        for (const int64_t count : std::initializer_list<int64_t>{1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 257, kind == kNormal ? 40000 : 300}) {
            Floats x = floats(random, count, Kind(kind));
            const Floats up = floats(random, count, Kind(kind)), w = floats(random, count);
            if (count > 60) x[count / 2] = kInfinity, x[count / 3] = std::numeric_limits<float>::quiet_NaN();
            for (const Ops* ops : isas)
                for (const Threads* threads : {&one, &two}) {
                    const auto same_as_scalar = [&](const char* name, auto apply) {
                        Floats expected = x, y = x;
                        apply(*isas[0], one, expected);
                        apply(*ops, *threads, y);
                        const int64_t at = difference(expected, y), shown = std::max<int64_t>(at, 0);
                        check(at < 0, "%s %s: count %d kind %d differs from scalar at %d: x %a, %a, not %a", ops->name, name, int(count),
                              kind, int(at), x[shown], y[shown], expected[shown]);
                    };
                    using C = Context&;
                    for (const Act act : {Act::Silu, Act::GeluTanh, Act::Gelu})
                        same_as_scalar("gated", [&](const Ops& o, C c, Floats& y) { o.gated(c, act, y.data(), up.data(), count, y.data()); });
                    same_as_scalar("add", [&](const Ops& o, C c, Floats& y) { o.add(c, up.data(), count, y.data()); });
                    same_as_scalar("scale", [&](const Ops& o, C c, Floats& y) { o.scale(c, 0.3f, count, y.data()); });
                    same_as_scalar("softcap", [&](const Ops& o, C c, Floats& y) { o.softcap(c, 1.7f, count, y.data()); });
                    same_as_scalar("rms_norm", [&](const Ops& o, C c, Floats& y) {
                        o.rms_norm(c, y.data(), w.data(), 1e-6f, 1, count, y.data());
                    });
                }
        }
}

void rms_norm_is_right(const Ops& ops) {
    Random random{2};
    const Threads two(2);
    for (const int64_t width : {5, 64, 100, 4096}) {
        const int64_t n = 6;
        const Floats x = floats(random, n * width), w = floats(random, width);
        Floats y(x.size()), in_place = x;
        ops.rms_norm(two, x.data(), w.data(), 1e-5f, n, width, y.data());
        ops.rms_norm(two, in_place.data(), w.data(), 1e-5f, n, width, in_place.data());
        check(difference(y, in_place) < 0, "%s: rms_norm in place differs", ops.name);
        for (int64_t t = 0; t < n; ++t) {
            double sum = 0;
            for (int64_t i = 0; i < width; ++i) sum += double(x[t * width + i]) * x[t * width + i];
            for (int64_t i = 0; i < width; ++i) {
                const double truth = x[t * width + i] / std::sqrt(sum / static_cast<double>(width) + 1e-5) * w[i];
                check(std::fabs(y[t * width + i] - truth) <= 4e-7 * std::fabs(truth), "%s: rms_norm width %d", ops.name, int(width));
            }
        }
    }
}

}  // namespace

int main() {
    const auto isas = every_isa();
    isas_agree(isas);
    for (const Ops* ops : isas) {
        const Kernels& kernels = *cpu_kernels(ops->name);
        exp_is_near(kernels);
        exp_at_the_edges(kernels);
        activations_are_near(*ops);
        rms_norm_is_right(*ops);
    }
    return finish("test_ops_functions");
}
