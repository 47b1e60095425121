#include "recurrence/cpu/kernels.hpp"

namespace rankone::recurrence::cpu {

const Kernels& kernels() {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::avx512:
      return avx512::kKernels;
    case Isa::avx2:
      return avx2::kKernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::kKernels;
}

}  // namespace rankone::recurrence::cpu
