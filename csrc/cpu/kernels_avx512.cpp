#include "cpu/vec_avx512.hpp"
#include "cpu/vec_kernels.hpp"

namespace dflash {

const Kernels kAvx512 = make_kernels("avx512");

}  // namespace dflash
