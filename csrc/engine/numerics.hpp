// Constants of the numeric contract (docs/numerics.md), shared by every backend, CUDA included: no includes, only
// constants. Coefficients are minimax fits made for this project (tools: none at run time); errors stand in the document.
#pragma once

namespace dflash::num {

// Round-to-nearest-even of |v| < 2^22 by adding and subtracting 1.5 * 2^23.
constexpr float kRound = 12582912.0f;

// Activation blocks: d = amax / 127; a block whose amax is below kTiny counts as zero, so that 1/d stays finite.
constexpr float kCodes = 127.0f;
constexpr float kTiny = 0x1p-100f;

// exp(x) = 2^n * e^r, n = rint(x * log2 e), r = x - n ln 2 in two parts; e^r = 1 + r + r^2 (E2 + E3 r + ...).
constexpr float kExpMax = 88.7228317f;    // above: +inf (largest F32 below ln of the largest F32)
constexpr float kExpMin = -87.3365402f;   // below: +0 (smallest F32 whose exp is a normal number)
constexpr float kLog2e = 0x1.715476p+0f;
constexpr float kLn2Hi = 0x1.62e4p-1f;    // 15 bits: n * kLn2Hi is exact
constexpr float kLn2Lo = 0x1.7f7d1cp-20f;
constexpr float kE2 = 0x1.fffffcp-2f;
constexpr float kE3 = 0x1.55548ap-3f;
constexpr float kE4 = 0x1.55584ep-5f;
constexpr float kE5 = 0x1.123f32p-7f;
constexpr float kE6 = 0x1.6ad18cp-10f;

// tanh(x) = x + x t (T0 + T1 t + ...), t = x^2, for |x| < kTanhSmall; else 1 - 2 / (1 + exp(2|x|)) with the sign of x.
constexpr float kTanhSmall = 0.625f;
constexpr float kT0 = -0x1.555534p-2f;
constexpr float kT1 = 0x1.110758p-3f;
constexpr float kT2 = -0x1.b841dap-5f;
constexpr float kT3 = 0x1.5246ecp-6f;
constexpr float kT4 = -0x1.7667bcp-8f;

// gelu(x) with tanh: x / (1 + exp(-u)), u = (kGeluA x) (1 + kGeluB x^2).
constexpr float kGeluA = 0x1.988454p+0f;  // 2 sqrt(2 / pi)
constexpr float kGeluB = 0x1.6e4e26p-5f;  // 0.044715

// gelu(x) exact: x Phi(x); the tail is Phi(-|x|) = t (G0 + G1 t + ...) exp(-x^2/2), t = 1 / (1 + kGeluC |x|).
constexpr float kGeluC = 0x1.333334p-2f;
constexpr float kG0 = 0x1.ea006ap-4f;
constexpr float kG1 = 0x1.ee9bcep-4f;
constexpr float kG2 = 0x1.993e3cp-4f;
constexpr float kG3 = 0x1.074c76p-3f;
constexpr float kG4 = -0x1.b7cfb8p-5f;
constexpr float kG5 = 0x1.a69f2cp-3f;
constexpr float kG6 = -0x1.41f530p-3f;
constexpr float kG7 = 0x1.2440e6p-5f;

}  // namespace dflash::num
