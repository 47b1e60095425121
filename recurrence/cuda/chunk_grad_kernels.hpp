#pragma once

// The kernels of chunk_grad.hpp for one format and engine. A .cu file for each names them, so that
// they compile side by side and wgmma only where it exists.

#include "recurrence/cuda/chunk_grad_channel.hpp"
#include "recurrence/cuda/chunk_grad_scalar.hpp"

namespace rankone::recurrence::cuda {

inline int grad_shared_bytes(GateKind gate, int columns, int stages) {
  if (gate == GateKind::channel) return ChannelShared::bytes(stages);
  return columns == 64 ? GradShared<64>::bytes(stages) : GradShared<128>::bytes(stages);
}

template <class Format, class Engine, int Columns, bool Totals>
__global__ void __launch_bounds__(kGradThreads, 1)
    grad_scalar_kernel(const __grid_constant__ GradCall call) {
  GradScalar<Format, Engine, Columns, Totals> head(call);
  work_off<Format, Engine, Columns>(call, head, shared_memory(),
                                    shared_memory() + GradShared<Columns>::kStages);
}

template <class Format, class Engine, bool Totals>
__global__ void __launch_bounds__(kGradThreads, 1)
    grad_channel_kernel(const __grid_constant__ GradCall call) {
  GradChannel<Format, Totals> head(call);
  work_off<Format, Engine, 64>(call, head, shared_memory(),
                               shared_memory() + ChannelShared::kStages);
}

template <class Format, class Engine>
void start_grad(const GradCall& call, int columns, std::int64_t blocks, void* stream) {
  const auto bytes =
      static_cast<std::size_t>(grad_shared_bytes(call.chunk.call.gate, columns, call.stages));
  const auto start = [&](auto* kernel) {
    launch(kernel, blocks, kGradThreads, bytes, stream, call);
  };
  if (call.chunk.call.gate == GateKind::channel) {
    if (call.group > 1) {
      start(grad_channel_kernel<Format, Engine, true>);
    } else {
      start(grad_channel_kernel<Format, Engine, false>);
    }
  } else if (columns == 64) {
    start(grad_scalar_kernel<Format, Engine, 64, true>);
  } else {
    start(grad_scalar_kernel<Format, Engine, 128, false>);
  }
}

// Defined in chunk_grad_{mma,wgmma}_{bf16,f16}.cu.
#define RANKONE_GRAD(name) \
  void start_grad_##name(const GradCall& call, int columns, std::int64_t blocks, void* stream);
RANKONE_GRAD(mma_bf16)
RANKONE_GRAD(mma_f16)
RANKONE_GRAD(wgmma_bf16)
RANKONE_GRAD(wgmma_f16)
#undef RANKONE_GRAD

}  // namespace rankone::recurrence::cuda
