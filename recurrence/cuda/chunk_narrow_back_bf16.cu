#include "recurrence/cuda/chunk_narrow_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_narrow_back_bf16(const NarrowBackward& back, const NarrowForward& forward, int cluster,
                            void* stream) {
  start_narrow_back<bf16>(back, forward, cluster, stream);
}

}  // namespace rankone::recurrence::cuda
