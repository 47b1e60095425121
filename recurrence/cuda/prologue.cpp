// decay() and gain() on CUDA: from tensors to the calls of decay.hpp and gain.hpp, and scratch.

#include "core/cuda/device_rows.hpp"
#include "recurrence/cuda/arrays.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/cuda/decay.hpp"
#include "recurrence/cuda/gain.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cuda {
namespace {

DecayCall decay_call(const Decay& in, const DecayShape& shape) {
  DecayCall call{};
  call.constants = {in.form, in.bound, in.normalizer, in.clamp, in.dt_min, in.dt_max};
  call.rows = shape.rows;
  call.heads = shape.value_heads;
  call.channels = shape.channels;
  call.x = source_of(in.x);
  call.a_log = source_of(in.a_log);
  call.dt_bias = source_of(in.dt_bias);
  return call;
}

GainCall gain_call(Context& context, const Sequences& sequences, const Gain& in,
                   const GainShape& shape) {
  GainCall call;
  call.kind = in.kind;
  call.key_norm = is_key_norm(in.kind);
  call.time_factor = in.time_factor;
  if (in.time_factor != TimeFactor::none) {
    call.rows = rankone::cuda::device_rows(context, sequences, 64);
  }
  call.count = shape.rows;
  call.heads = shape.heads;
  call.value_heads = shape.value_heads;
  call.d_k = static_cast<int>(shape.d_k);
  call.d_v = static_cast<int>(shape.d_v);
  call.eps = static_cast<float>(in.eps);
  call.positions =
      in.positions.defined() ? static_cast<const std::int64_t*>(in.positions.raw()) : nullptr;
  call.x = source_of(in.x);
  call.x_v = source_of(in.x_v);
  call.theta = source_of(in.theta);
  call.e = source_of(in.e);
  call.w = source_of(in.w);
  call.v = source_of(in.v);
  return call;
}

}  // namespace
}  // namespace cuda

void CudaBackend::decay(Context& context, const Decay& inputs, const DecayOut& out) const {
  if (context.planning()) return;
  cuda::DecayCall call = cuda::decay_call(inputs, shape_of(inputs, out.g));
  call.g = cuda::sink_of(out.g);
  call.dt = cuda::sink_of(out.dt);
  cuda::launch_decay(call, context.stream());
}

void CudaBackend::decay_vjp(Context& context, const Decay& inputs,
                            const DecayCotangents& cotangents, const DecayGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Tensor& like = cotangents.g.defined() ? cotangents.g : cotangents.dt;
  const cuda::DecayCall call = cuda::decay_call(inputs, shape_of(inputs, like));
  cuda::DecayBack back{cuda::source_of(cotangents.g), cuda::source_of(cotangents.dt),
                       cuda::sink_of(grads.x), cuda::sink_of(grads.a_log),
                       cuda::sink_of(grads.dt_bias)};
  if (grads.a_log.defined() || grads.dt_bias.defined()) {
    back.partials = cuda::floats(context, cuda::decay_partials(call));
  }
  if (!context.planning()) cuda::launch_decay_back(call, back, context.stream());
}

void CudaBackend::gain(Context& context, const Sequences& sequences, const Gain& inputs,
                       const GainOut& out) const {
  const ArenaScope scope(context.arena());
  cuda::GainCall call =
      cuda::gain_call(context, sequences, inputs, shape_of(sequences, inputs, out.b));
  call.b = cuda::sink_of(out.b);
  call.e_out = cuda::sink_of(out.e);
  call.w_out = cuda::sink_of(out.w);
  call.v_out = cuda::sink_of(out.v);
  if (!context.planning()) cuda::launch_gain(call, context.stream());
}

void CudaBackend::gain_vjp(Context& context, const Sequences& sequences, const Gain& inputs,
                           const GainCotangents& cotangents, const GainGrads& grads) const {
  const ArenaScope scope(context.arena());
  const cuda::GainCall call =
      cuda::gain_call(context, sequences, inputs, shape_of(sequences, inputs, cotangents.b));
  cuda::GainBack back{cuda::source_of(cotangents.b), cuda::source_of(cotangents.e),
                      cuda::source_of(cotangents.w), cuda::source_of(cotangents.v),
                      cuda::sink_of(grads.x),        cuda::sink_of(grads.x_v),
                      cuda::sink_of(grads.theta),    cuda::sink_of(grads.e),
                      cuda::sink_of(grads.w),        cuda::sink_of(grads.v)};
  if (grads.theta.defined()) back.partials = cuda::floats(context, cuda::gain_partials(call));
  if (!context.planning()) cuda::launch_gain_back(call, back, context.stream());
}

}  // namespace rankone::recurrence
