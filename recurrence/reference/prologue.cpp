// The decay and gain functions in float64: the equations of axes/, the loops of prologue_*.hpp.

#include "recurrence/prologue_gain.hpp"
#include "recurrence/reference/reference_backend.hpp"
#include "recurrence/reference/wide.hpp"

namespace rankone::recurrence {
namespace {

const double* optional_in(Wide& wide, const Tensor& tensor) {
  return tensor.defined() ? wide.in(tensor) : nullptr;
}

double* optional_out(Wide& wide, const Tensor& tensor) {
  return tensor.defined() ? wide.out(tensor, tensor.count()) : nullptr;
}

// Outputs may be the memory of inputs, so the inputs must not be zeroed with them.
double* written(Wide& wide, const Tensor& tensor) {
  return tensor.defined() ? wide.in_place(tensor, tensor.count()) : nullptr;
}

GainArrays<double> arrays_of(Wide& wide, const Gain& in) {
  return {optional_in(wide, in.x),
          optional_in(wide, in.x_v),
          optional_in(wide, in.theta),
          optional_in(wide, in.e),
          optional_in(wide, in.w),
          optional_in(wide, in.v),
          in.positions.defined() ? in.positions.data<std::int64_t>() : nullptr};
}

constexpr GateLoops<double> kGates = {gate_forward<double>, gate_backward<double>};

}  // namespace

void ReferenceBackend::decay(Context& context, const Decay& inputs, const DecayOut& out) const {
  Wide wide(context);
  const DecayShape shape = shape_of(inputs, out.g);
  const DecayArrays<double> arrays{optional_in(wide, inputs.x), optional_in(wide, inputs.a_log),
                                   optional_in(wide, inputs.dt_bias)};
  const DecayResults<double> results{written(wide, out.g), written(wide, out.dt)};
  double* rates = wide.scratch(shape.value_heads);
  if (context.planning()) return;
  decay_forward(context.threads(), inputs, shape, arrays, results, rates, decay_block<double>);
  wide.finish();
}

void ReferenceBackend::decay_vjp(Context& context, const Decay& inputs,
                                 const DecayCotangents& cotangents, const DecayGrads& grads) const {
  Wide wide(context);
  const DecayShape shape = shape_of(inputs, cotangents.g);
  const DecayArrays<double> arrays{optional_in(wide, inputs.x), optional_in(wide, inputs.a_log),
                                   optional_in(wide, inputs.dt_bias)};
  const DecayCotangentArrays<double> cot{optional_in(wide, cotangents.g),
                                         optional_in(wide, cotangents.dt)};
  const DecayGradArrays<double> out{optional_out(wide, grads.x), optional_out(wide, grads.a_log),
                                    optional_out(wide, grads.dt_bias),
                                    wide.scratch(shape.value_heads),
                                    wide.scratch(decay_partials(shape))};
  if (context.planning()) return;
  decay_backward(context.threads(), inputs, shape, arrays, cot, out, decay_block_back<double>);
  wide.finish();
}

void ReferenceBackend::gain(Context& context, const Sequences& sequences, const Gain& inputs,
                            const GainOut& out) const {
  Wide wide(context);
  const GainShape shape = shape_of(sequences, inputs, out.b);
  const GainArrays<double> arrays = arrays_of(wide, inputs);
  const GainResults<double> results{written(wide, out.b), written(wide, out.e),
                                    written(wide, out.w), written(wide, out.v)};
  if (context.planning()) return;
  GainRows<double>(inputs, sequences, shape, arrays, kGates).forward(context.threads(), results);
  wide.finish();
}

void ReferenceBackend::gain_vjp(Context& context, const Sequences& sequences, const Gain& inputs,
                                const GainCotangents& cotangents, const GainGrads& grads) const {
  Wide wide(context);
  const GainShape shape = shape_of(sequences, inputs, cotangents.b);
  const GainArrays<double> arrays = arrays_of(wide, inputs);
  const GainCotangentArrays<double> cot{
      optional_in(wide, cotangents.b), optional_in(wide, cotangents.e),
      optional_in(wide, cotangents.w), optional_in(wide, cotangents.v)};
  const GainGradArrays<double> out{
      optional_out(wide, grads.x),         optional_out(wide, grads.x_v),
      optional_out(wide, grads.theta),     optional_out(wide, grads.e),
      optional_out(wide, grads.w),         optional_out(wide, grads.v),
      wide.scratch(row_blocks(shape.rows))};
  if (context.planning()) return;
  GainRows<double>(inputs, sequences, shape, arrays, kGates).backward(context.threads(), cot, out);
  wide.finish();
}

}  // namespace rankone::recurrence
