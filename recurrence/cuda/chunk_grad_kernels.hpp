#pragma once

// The kernels of chunk_grad.hpp for one format and engine. A .cu file for each names them, so that
// they compile side by side and wgmma only where it exists.

#include "recurrence/cuda/chunk_grad_anchored.hpp"
#include "recurrence/cuda/chunk_grad_channel.hpp"
#include "recurrence/cuda/chunk_grad_scalar.hpp"
#include "recurrence/cuda/chunk_grad_stream.hpp"

namespace rankone::recurrence::cuda {

inline int grad_shared_bytes(GateKind gate, int columns, int stages) {
  if (gate == GateKind::channel) return ChannelShared::bytes(stages);
  return columns == 64 ? GradShared<64>::bytes(stages) : GradShared<128>::bytes(stages);
}

template <class Format, class Engine, int Columns, bool Totals>
__global__ void __launch_bounds__(kGradThreads, 1)
    grad_scalar_kernel(const __grid_constant__ GradCall call) {
  if constexpr (kRunsHere<Engine>) {
    GradScalar<Format, Engine, Columns, Totals> head(call);
    work_off<Format, Engine, Columns>(call, head, shared_memory(),
                                      shared_memory() + GradShared<Columns>::kStages);
  }
}

template <class Format, class Engine, bool Totals>
__global__ void __launch_bounds__(kGradThreads, 1)
    grad_channel_kernel(const __grid_constant__ GradCall call) {
  if constexpr (kRunsHere<Engine>) {
    GradChannel<Format, Totals> head(call);
    work_off<Format, Engine, 64>(call, head, shared_memory(),
                                 shared_memory() + ChannelShared::kStages);
  }
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

template <class Format, int Columns, int Tiles, bool Delta, bool Tied>
__global__ void __launch_bounds__(kStreamThreads, 1)
    grad_stream_kernel(const __grid_constant__ StreamCall call) {
  if constexpr (kHopper) {
    GradStream<Format, WgmmaEngine<Format>, Columns, Tiles, Delta, Tied>(call).run();
  }
}

template <class Format, bool Delta, bool Tied, bool Blocks>
__global__ void __launch_bounds__(kAnchoredThreads, kAnchoredBlocks)
    grad_anchored_kernel(const __grid_constant__ StreamCall call) {
  if constexpr (kHopper) {
    GradAnchored<Format, WgmmaEngine<Format>, Delta, Tied, Blocks>(call).run();
  }
}

inline StreamCall with_tensors(const GradCall& grad) {
  const TwoKeyCall& call = grad.chunk.call;
  const auto keys = [&](const void* data) {
    return row_map(data, call.rows.count, call.heads, call.d_k);
  };
  const auto values = [&](const void* data) {
    return row_map(data, call.rows.count, call.value_heads, call.d_v);
  };
  StreamCall all{grad, {}};
  all.tensors = {keys(call.q),
                 keys(call.delta ? call.e : nullptr),
                 keys(call.w),
                 values(grad.back.d_o),
                 values(call.delta ? grad.chunk.d_value : nullptr),
                 values(grad.chunk.z),
                 row_map(call.gate == GateKind::channel ? call.g.data : nullptr, call.rows.count,
                         call.value_heads, call.g.dtype == Dtype::f32 ? 2 * call.d_k : call.d_k,
                         call.g.dtype == Dtype::f32 ? 256 : 128)};
  return all;
}

template <class Format>
void start_anchored(const GradCall& grad, int blocks, void* stream) {
  const TwoKeyCall& call = grad.chunk.call;
  const StreamCall all = with_tensors(grad);
  const auto start = [&](auto delta, auto tied) {
    launch(grad_anchored_kernel<Format, delta, tied, false>, blocks, kAnchoredThreads,
           AnchoredShared::kBytes, stream, all);
    launch(grad_anchored_kernel<Format, delta, tied, true>, blocks, kAnchoredThreads,
           AnchoredShared::kBytes, stream, all);
  };
  if (!call.delta) {
    start(std::false_type(), std::true_type());
  } else if (call.same_key) {
    start(std::true_type(), std::true_type());
  } else {
    start(std::true_type(), std::false_type());
  }
}

template <class Format>
void start_stream(const GradCall& grad, int blocks, void* stream) {
  const TwoKeyCall& call = grad.chunk.call;
  const StreamCall all = with_tensors(grad);
  const auto start = [&](auto columns, auto tiles, auto delta, auto tied) {
    launch(grad_stream_kernel<Format, columns, tiles, delta, tied>, blocks, kStreamThreads,
           StreamShared < columns, delta && !tied && columns == 128 > ::kBytes, stream, all);
  };
  const auto with_keys = [&](auto columns, auto tiles) {
    if (!call.delta) {
      start(columns, tiles, std::false_type(), std::true_type());
    } else if (call.same_key) {
      start(columns, tiles, std::true_type(), std::true_type());
    } else {
      start(columns, tiles, std::true_type(), std::false_type());
    }
  };
  if (value_tiles(call.d_v) == 1) {
    with_keys(std::integral_constant<int, 64>(), std::integral_constant<int, 1>());
  } else {
    with_keys(std::integral_constant<int, 128>(), std::integral_constant<int, 2>());
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
void start_stream_bf16(const GradCall& call, int blocks, void* stream);
void start_stream_f16(const GradCall& call, int blocks, void* stream);
void start_anchored_bf16(const GradCall& call, int blocks, void* stream);
void start_anchored_f16(const GradCall& call, int blocks, void* stream);

}  // namespace rankone::recurrence::cuda
