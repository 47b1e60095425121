// longhorn() on CUDA: from tensors to the calls of longhorn.hpp, and scratch.

#include "recurrence/cuda/longhorn.hpp"

#include "core/cuda/device_rows.hpp"
#include "recurrence/cuda/arrays.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cuda {
namespace {

LonghornCall longhorn_call(Context& context, const Sequences& sequences, const Longhorn& in) {
  const LonghornShape shape = shape_of(sequences, in);
  LonghornCall call;
  call.rows = rankone::cuda::device_rows(context, sequences, kLonghornChunk);
  call.heads = shape.heads;
  call.value_heads = shape.value_heads;
  call.d_k = static_cast<int>(shape.d_k);
  call.d_v = static_cast<int>(shape.d_v);
  call.q = source_of(in.q);
  call.k = source_of(in.k);
  call.v = source_of(in.v);
  call.beta = source_of(in.beta);
  call.initial = pointer_of<const float>(in.initial_state);
  constexpr std::int64_t kRows = std::int64_t{kLonghornSegment} * kLonghornChunk;
  call.segments.most = static_cast<int>((sequences.longest() + kRows - 1) / kRows);
  if (call.segments.most > 1) {
    const std::int64_t states = segment_slots(call.rows.sequences, call.rows.chunks) *
                                call.value_heads * call.d_k * call.d_v;
    call.segments.scales = floats(context, states);
    call.segments.adds = floats(context, states);
  }
  return call;
}

}  // namespace
}  // namespace cuda

void CudaBackend::longhorn(Context& context, const Sequences& sequences, const Longhorn& inputs,
                           const LonghornOut& out) const {
  const ArenaScope scope(context.arena());
  cuda::LonghornCall call = cuda::longhorn_call(context, sequences, inputs);
  call.o = cuda::sink_of(out.o);
  call.final = cuda::pointer_of<float>(out.final_state);
  if (!context.planning()) cuda::launch_longhorn(call, context.stream());
}

void CudaBackend::longhorn_vjp(Context& context, const Sequences& sequences, const Longhorn& inputs,
                               const LonghornCotangents& cotangents,
                               const LonghornGrads& grads) const {
  const ArenaScope scope(context.arena());
  cuda::LonghornCall call = cuda::longhorn_call(context, sequences, inputs);
  const std::int64_t states = call.rows.chunks * call.value_heads * call.d_k * call.d_v;
  const std::int64_t keys = sequences.rows() * call.heads * call.d_k;
  call.states = cuda::floats(context, states);
  cuda::LonghornBack back;
  back.d_o = cuda::source_of(cotangents.o);
  back.d_final = cuda::pointer_of<const float>(cotangents.final_state);
  back.d_q = cuda::sink_of(grads.q);
  back.d_k = cuda::sink_of(grads.k);
  back.d_v = cuda::sink_of(grads.v);
  back.d_beta = cuda::sink_of(grads.beta);
  back.d_initial = cuda::pointer_of<float>(grads.initial_state);
  back.cotangents = cuda::floats(context, states);
  back.sum_q = cuda::floats(context, keys);
  back.sum_k = cuda::floats(context, keys);
  if (!context.planning()) cuda::launch_longhorn_back(call, back, context.stream());
}

}  // namespace rankone::recurrence
