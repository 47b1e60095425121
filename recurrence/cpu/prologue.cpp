// The decay and gain functions in float32: the equations of axes/, the loops of prologue_*.hpp,
// which cut the rows into fixed blocks over the threads.

#include "core/isa.hpp"
#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/prologue_kernels.hpp"
#include "recurrence/prologue_gain.hpp"

namespace rankone::recurrence {
namespace {

const cpu::PrologueKernels& kernels() {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::avx512:
      return cpu::avx512::kPrologueKernels;
    case Isa::avx2:
      return cpu::avx2::kPrologueKernels;
    case Isa::baseline:
      break;
  }
#endif
  return cpu::baseline::kPrologueKernels;
}

GateLoops<float> gates() { return {kernels().gate, kernels().gate_back}; }

float* data_of(const Tensor& tensor) { return tensor.defined() ? tensor.data<float>() : nullptr; }

float* scratch(Context& context, std::int64_t count) {
  return static_cast<float*>(
      context.arena().allocate(static_cast<std::size_t>(count) * sizeof(float)));
}

GainArrays<float> arrays_of(const Gain& in) {
  return {data_of(in.x),
          data_of(in.x_v),
          data_of(in.theta),
          data_of(in.e),
          data_of(in.w),
          data_of(in.v),
          in.positions.defined() ? in.positions.data<std::int64_t>() : nullptr};
}

}  // namespace

void CpuBackend::decay(Context& context, const Decay& inputs, const DecayOut& out) const {
  const ArenaScope scope(context.arena());
  const DecayShape shape = shape_of(inputs, out.g);
  float* rates = scratch(context, shape.value_heads);
  if (context.planning()) return;
  const DecayArrays<float> arrays{data_of(inputs.x), data_of(inputs.a_log),
                                  data_of(inputs.dt_bias)};
  const DecayResults<float> results{data_of(out.g), data_of(out.dt)};
  decay_forward(context.threads(), inputs, shape, arrays, results, rates, kernels().decay);
}

void CpuBackend::decay_vjp(Context& context, const Decay& inputs, const DecayCotangents& cotangents,
                           const DecayGrads& grads) const {
  const ArenaScope scope(context.arena());
  const DecayShape shape = shape_of(inputs, cotangents.g);
  const DecayGradArrays<float> out{data_of(grads.x), data_of(grads.a_log), data_of(grads.dt_bias),
                                   scratch(context, shape.value_heads),
                                   scratch(context, decay_partials(shape))};
  if (context.planning()) return;
  const DecayArrays<float> arrays{data_of(inputs.x), data_of(inputs.a_log),
                                  data_of(inputs.dt_bias)};
  const DecayCotangentArrays<float> cot{data_of(cotangents.g), data_of(cotangents.dt)};
  decay_backward(context.threads(), inputs, shape, arrays, cot, out, kernels().decay_back);
}

void CpuBackend::gain(Context& context, const Sequences& sequences, const Gain& inputs,
                      const GainOut& out) const {
  if (context.planning()) return;
  const GainShape shape = shape_of(sequences, inputs, out.b);
  const GainArrays<float> arrays = arrays_of(inputs);
  const GainResults<float> results{data_of(out.b), data_of(out.e), data_of(out.w), data_of(out.v)};
  GainRows<float>(inputs, sequences, shape, arrays, gates()).forward(context.threads(), results);
}

void CpuBackend::gain_vjp(Context& context, const Sequences& sequences, const Gain& inputs,
                          const GainCotangents& cotangents, const GainGrads& grads) const {
  const ArenaScope scope(context.arena());
  const GainShape shape = shape_of(sequences, inputs, cotangents.b);
  float* partials = scratch(context, row_blocks(shape.rows));
  if (context.planning()) return;
  const GainArrays<float> arrays = arrays_of(inputs);
  const GainCotangentArrays<float> cot{data_of(cotangents.b), data_of(cotangents.e),
                                       data_of(cotangents.w), data_of(cotangents.v)};
  const GainGradArrays<float> out{data_of(grads.x), data_of(grads.x_v), data_of(grads.theta),
                                  data_of(grads.e), data_of(grads.w),   data_of(grads.v),
                                  partials};
  GainRows<float>(inputs, sequences, shape, arrays, gates()).backward(context.threads(), cot, out);
}

}  // namespace rankone::recurrence
