// The kernels for any register width: include one vec_*.hpp before. docs/numerics.md says what each computes; how it is
// cut into registers changes nothing, because a register holds neighbouring lanes and every lane goes its own way.
// Anonymous and free of standard inline code on purpose: see kernels.hpp.
#pragma once

#include "cpu/vec_attention.hpp"
#include "cpu/vec_matmul.hpp"
#include "cpu/vec_rows.hpp"

namespace dflash {
namespace {

constexpr Kernels make_kernels(const char* name) {
    return {
        .name = name,
        .quantised_bytes = quantised_bytes,
        .quantise = quantise,
        .f32 = matmul<WeightF32>,
        .f16 = matmul<WeightF16>,
        .bf16 = matmul<WeightBF16>,
        .q8_0 = matmul<WeightQ8_0>,
        .q4_0 = matmul<WeightQ4_0>,
        .widen_row = widen_row,
        .rms_norm = rms_norm,
        .norm_rope = norm_rope,
        .store_kv = store_kv,
        .attention_floats = attention_floats,
        .attention = attention,
        .gated = gated,
        .add = add_row,
        .scale = scale_row,
        .softcap = softcap,
        .conv = conv,
        .best = best,
        .top_k = top_k,
        .pair_score = pair_score,
        .exp = exp_row,
    };
}

}  // namespace
}  // namespace dflash
