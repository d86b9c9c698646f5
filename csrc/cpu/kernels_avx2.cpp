#include "cpu/vec_avx2.hpp"
#include "cpu/vec_kernels.hpp"

namespace dflash {

const Kernels kAvx2 = make_kernels("avx2");

}  // namespace dflash
