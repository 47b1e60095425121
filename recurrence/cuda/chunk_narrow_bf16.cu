#include "recurrence/cuda/chunk_narrow_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_narrow_bf16(const NarrowForward& scan, const NarrowPlan& plan, void* stream) {
  start_narrow<bf16>(scan, plan, stream);
}

}  // namespace rankone::recurrence::cuda
