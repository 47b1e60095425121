// precondition() on CUDA: from tensors to the calls of precondition.hpp, and scratch.

#include "recurrence/cuda/precondition.hpp"

#include <cmath>

#include "core/cuda/device_rows.hpp"
#include "recurrence/cuda/arrays.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cuda {
namespace {

// With the decays of the call.
ChunkScan chunk_scan(Context& context, const PreconditionCall& call) {
  const std::int64_t windows = (call.rows.chunks + kScanWindow - 1) / kScanWindow;
  const std::int64_t states = call.heads * call.d_k;
  return {floats(context, call.rows.chunks * states), floats(context, windows * states),
          call.scan.decays};
}

// Boundaries and decays go to the arena.
PreconditionCall precondition_call(Context& context, const Sequences& sequences,
                                   const Precondition& in) {
  const PreconditionShape shape = shape_of(sequences, in);
  PreconditionCall call;
  call.rows = rankone::cuda::device_rows(context, sequences, kPreconditionChunk);
  call.heads = shape.heads;
  call.d_k = static_cast<int>(shape.d_k);
  call.kind = in.kind;
  call.normalize = in.normalize;
  call.log_x = static_cast<float>(std::log(in.x));
  call.eps = static_cast<float>(in.eps);
  call.k = source_of(in.k);
  call.target = source_of(in.target);
  call.g = source_of(in.g);
  call.b = source_of(in.b);
  call.parameter = source_of(in.kind == PreconditionerKind::atk ? in.center : in.ridge);
  call.initial = pointer_of<const float>(in.initial);
  call.scan.decays = floats(context, call.rows.chunks * call.heads);
  return call;
}

}  // namespace
}  // namespace cuda

void CudaBackend::precondition(Context& context, const Sequences& sequences,
                               const Precondition& inputs, const PreconditionOut& out) const {
  const ArenaScope scope(context.arena());
  cuda::PreconditionCall call = cuda::precondition_call(context, sequences, inputs);
  call.scan = cuda::chunk_scan(context, call);
  call.out = cuda::sink_of(out.out);
  call.final = cuda::pointer_of<float>(out.final);
  call.states = cuda::pointer_of<float>(out.saved);
  if (context.planning()) return;
  cuda::launch_precondition_start(call, {}, call.initial, call.final, context.stream());
  cuda::launch_precondition(call, context.stream());
}

// The states before the chunks.
std::int64_t CudaBackend::precondition_saved(Context&, const Sequences& sequences,
                                             const Precondition& inputs) const {
  const PreconditionShape shape = shape_of(sequences, inputs);
  return rankone::cuda::count_chunks(sequences, cuda::kPreconditionChunk) * shape.heads * shape.d_k;
}

void CudaBackend::precondition_vjp(Context& context, const Sequences& sequences,
                                   const Precondition& inputs,
                                   const PreconditionCotangents& cotangents,
                                   const PreconditionGrads& grads) const {
  const ArenaScope scope(context.arena());
  cuda::PreconditionCall call = cuda::precondition_call(context, sequences, inputs);
  const bool scans = !cotangents.saved.defined();
  if (scans) {
    call.scan = cuda::chunk_scan(context, call);
  } else {
    call.states = cuda::pointer_of<float>(cotangents.saved);
  }
  const bool atk = inputs.kind == PreconditionerKind::atk;
  const Tensor& parameter = atk ? grads.center : grads.ridge;
  cuda::PreconditionBack back;
  back.d_out = cuda::source_of(cotangents.out);
  back.d_final = cuda::pointer_of<const float>(cotangents.final);
  if (grads.k.defined()) back.other = cuda::source_of(cotangents.k);
  back.joined = grads.joins_target();
  back.d_k = cuda::sink_of(grads.k);
  back.d_target = cuda::sink_of(grads.target);
  back.d_g = cuda::sink_of(grads.g);
  back.d_b = cuda::sink_of(grads.b);
  back.d_parameter = cuda::sink_of(parameter);
  back.d_initial = cuda::pointer_of<float>(grads.initial);
  back.scan = cuda::chunk_scan(context, call);
  if (parameter.defined()) {
    back.partials = cuda::floats(context, call.rows.chunks * call.heads * (atk ? 1 : call.d_k));
  }
  if (context.planning()) return;
  cuda::launch_precondition_start(call, back.scan, back.d_final, back.d_initial, context.stream());
  if (scans) cuda::launch_precondition(call, context.stream());
  cuda::launch_precondition_back(call, back, context.stream());
}

}  // namespace rankone::recurrence
