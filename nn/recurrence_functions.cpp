// The functions of recurrence.hpp on the tape. Their gradients are overwritten, never accumulated,
// so those of parameters too go through scratch and add_grad.

#include "nn/function_support.hpp"
#include "nn/functions.hpp"

namespace rankone::nn {

using support::like;
using support::ScratchGrads;
using support::value;

namespace {

recurrence::TwoKey two_key_inputs(const Tape& tape, const TwoKeyArgs& vars) {
  recurrence::TwoKey inputs;
  inputs.q = value(tape, vars.q);
  inputs.e = value(tape, vars.e);
  inputs.w = value(tape, vars.w);
  inputs.v = value(tape, vars.v);
  inputs.g = value(tape, vars.g);
  inputs.b = value(tape, vars.b);
  inputs.initial_state = vars.state;
  inputs.scale = vars.scale;
  return inputs;
}

// One gradient for both keys where they are one.
recurrence::TwoKeyGrads two_key_grads(ScratchGrads& grads, const TwoKeyArgs& vars) {
  recurrence::TwoKeyGrads to;
  to.q = grads.of(vars.q);
  to.e = grads.of(vars.e);
  to.w = vars.e && vars.w.id == vars.e.id ? to.e : grads.of(vars.w);
  to.v = grads.of(vars.v);
  to.g = grads.of(vars.g);
  to.b = grads.of(vars.b);
  return to;
}

recurrence::Precondition precondition_inputs(const Tape& tape, const PreconditionArgs& vars) {
  recurrence::Precondition inputs;
  inputs.kind = vars.kind;
  inputs.k = value(tape, vars.k);
  inputs.target = value(tape, vars.target);
  inputs.g = value(tape, vars.g);
  inputs.b = value(tape, vars.b);
  inputs.center = value(tape, vars.center);
  inputs.ridge = value(tape, vars.ridge);
  inputs.initial = vars.state;
  inputs.x = vars.x;
  inputs.eps = vars.eps;
  inputs.normalize = vars.normalize;
  return inputs;
}

// For the way back.
Tensor precondition_saved(Tape& tape, const Sequences& sequences,
                          const recurrence::Precondition& inputs) {
  if (!tape.recording()) return {};
  Context& context = tape.context();
  const std::int64_t numbers = recurrence::precondition_saved(context, sequences, inputs);
  return numbers > 0 ? context.empty({numbers}, Dtype::f32) : Tensor();
}

// One gradient for k and the target where they are one. `d_k`: what the tape will receive for k,
// with a part of it there already; undefined: this gives it.
void precondition_back(Tape& tape, const Sequences& sequences, const PreconditionArgs& vars,
                       const recurrence::Precondition& inputs, const Tensor& dy,
                       const Tensor& saved, const Tensor& d_k = {}) {
  ScratchGrads grads(tape);
  recurrence::PreconditionGrads to;
  to.k = d_k.defined() ? d_k : grads.of(vars.k);
  to.target = vars.target.id == vars.k.id ? to.k : grads.of(vars.target);
  to.g = grads.of(vars.g);
  to.b = grads.of(vars.b);
  to.center = grads.of(vars.center);
  to.ridge = grads.of(vars.ridge);
  recurrence::precondition_vjp(tape.context(), sequences, inputs, {dy, {}, saved, d_k}, to);
  grads.give();
}

}  // namespace

Var two_key(Tape& tape, const Sequences& sequences, const TwoKeyArgs& vars) {
  const recurrence::TwoKey inputs = two_key_inputs(tape, vars);
  const Tensor o = like(tape, inputs.v);
  recurrence::two_key(tape.context(), sequences, inputs, {o, vars.state});
  return tape.result(o, [=, &sequences](Tape& tape_, const Tensor& dy) {
    ScratchGrads grads(tape_);
    recurrence::two_key_vjp(tape_.context(), sequences, inputs, {dy, {}},
                            two_key_grads(grads, vars));
    grads.give();
  });
}

Var precondition(Tape& tape, const Sequences& sequences, const PreconditionArgs& vars) {
  const recurrence::Precondition inputs = precondition_inputs(tape, vars);
  const Tensor out = like(tape, inputs.target);
  const Tensor saved = precondition_saved(tape, sequences, inputs);
  recurrence::precondition(tape.context(), sequences, inputs, {out, vars.state, saved});
  return tape.result(out, [=, &sequences](Tape& tape_, const Tensor& dy) {
    precondition_back(tape_, sequences, vars, inputs, dy, saved);
  });
}

Var preconditioned_two_key(Tape& tape, const Sequences& sequences,
                           const PreconditionArgs& precondition, const TwoKeyArgs& vars) {
  const recurrence::Precondition first = precondition_inputs(tape, precondition);
  const recurrence::TwoKey inputs = two_key_inputs(tape, vars);
  const Tensor o = like(tape, inputs.v);
  // Only the way back reads what is made.
  const Tensor made = tape.recording() ? like(tape, first.target) : Tensor();
  const Tensor saved = precondition_saved(tape, sequences, first);
  recurrence::preconditioned_two_key(tape.context(), sequences, first,
                                     {made, precondition.state, saved}, inputs, {o, vars.state});
  return tape.result(o, [=, &sequences](Tape& tape_, const Tensor& dy) {
    const bool query = first.kind == recurrence::PreconditionerKind::atq;
    recurrence::TwoKey complete = inputs;
    ScratchGrads grads(tape_);
    recurrence::TwoKeyGrads to = two_key_grads(grads, vars);
    (query ? complete.q : complete.w) = made;
    Tensor& d_made = query ? to.q : to.w;
    d_made = like(tape_, made);
    recurrence::two_key_vjp(tape_.context(), sequences, complete, {dy, {}}, to);
    const bool erases = vars.e && vars.e.id == precondition.k.id;
    precondition_back(tape_, sequences, precondition, first, d_made, saved,
                      erases ? to.e : Tensor());
    grads.give();
  });
}

DecayResult decay(Tape& tape, const DecayArgs& vars, bool want_dt) {
  recurrence::Decay inputs;
  inputs.form = vars.form;
  inputs.channel = vars.channel;
  inputs.x = value(tape, vars.x);
  inputs.a_log = value(tape, vars.a_log);
  inputs.dt_bias = value(tape, vars.dt_bias);
  inputs.bound = vars.bound;
  inputs.normalizer = vars.normalizer;
  inputs.clamp = vars.clamp;
  inputs.dt_min = vars.dt_min;
  inputs.dt_max = vars.dt_max;
  if (!vars.x) {  // the fixed form: nothing to differentiate
    const Tensor g = tape.context().empty(vars.shape, vars.dtype);
    recurrence::decay(tape.context(), inputs, {g, {}});
    return {tape.constant(g), {}};
  }
  recurrence::DecayOut out{like(tape, inputs.x), {}};
  if (want_dt) out.dt = like(tape, inputs.x);
  recurrence::decay(tape.context(), inputs, out);
  DecayResult result{tape.leaf(out.g), {}};
  if (want_dt) result.dt = tape.leaf(out.dt);
  tape.joint([=](Tape& tape_, const Tensor&) {
    recurrence::DecayCotangents cotangents{tape_.grad(result.g), {}};
    if (result.dt) cotangents.dt = tape_.grad(result.dt);
    if (!cotangents.g.defined() && !cotangents.dt.defined()) return;
    ScratchGrads grads(tape_);
    recurrence::decay_vjp(tape_.context(), inputs, cotangents,
                          {grads.of(vars.x), grads.of(vars.a_log), grads.of(vars.dt_bias)});
    grads.give();
  });
  return result;
}

Var softplus(Tape& tape, Var x, double shift) {
  const Tensor input = tape.value(x);
  // The time step of the softplus decay is softplus itself.
  DecayArgs args;
  args.x = reshape(tape, x, {input.count(), 1});
  Var y = reshape(tape, decay(tape, args, true).dt, input.shape());
  if (shift != 0.0) {
    const Tensor constant = like(tape, input);
    fill(tape.context(), constant, shift);
    y = add(tape, y, tape.constant(constant));
  }
  return y;
}

namespace {

recurrence::Gain gain_inputs(const Tape& tape, const GainArgs& vars) {
  recurrence::Gain inputs;
  inputs.kind = vars.kind;
  inputs.time_factor = vars.time_factor;
  inputs.x = value(tape, vars.x);
  inputs.x_v = value(tape, vars.x_v);
  inputs.theta = value(tape, vars.theta);
  inputs.e = value(tape, vars.e);
  inputs.w = value(tape, vars.w);
  inputs.v = value(tape, vars.v);
  inputs.eps = vars.eps;
  inputs.positions = vars.positions;
  return inputs;
}

void gain_backward(Tape& tape, const Sequences& sequences, const GainArgs& vars,
                   const recurrence::Gain& inputs, const GainResult& out) {
  const auto grad = [&](Var output, Var input) {
    return output && output.id != input.id ? tape.grad(output) : Tensor();
  };
  recurrence::GainCotangents cotangents;
  cotangents.b = grad(out.b, {});
  cotangents.e = grad(out.e, vars.e);
  // Where both keys are one, their outputs are one Var: its cotangent counts once.
  if (out.w.id != out.e.id) cotangents.w = grad(out.w, vars.w);
  cotangents.v = grad(out.v, vars.v);
  if (!cotangents.b.defined() && !cotangents.e.defined() && !cotangents.w.defined() &&
      !cotangents.v.defined()) {
    return;
  }
  ScratchGrads grads(tape);
  recurrence::GainGrads to;
  to.x = grads.of(vars.x);
  to.x_v = grads.of(vars.x_v);
  to.theta = grads.of(vars.theta);
  to.e = grads.of(vars.e);
  to.w = grads.of(vars.w);
  to.v = grads.of(vars.v);
  // Only a time factor: nothing to differentiate.
  if (!to.x.defined() && !to.x_v.defined() && !to.v.defined()) return;
  recurrence::gain_vjp(tape.context(), sequences, inputs, cotangents, to);
  grads.give();
}

}  // namespace

GainResult gain(Tape& tape, const Sequences& sequences, const GainArgs& vars) {
  using recurrence::GainKind;
  const bool keys = recurrence::is_key_norm(vars.kind);
  const bool vector = vars.kind == GainKind::vector;
  const bool timed = vars.time_factor != recurrence::TimeFactor::none;
  GainResult result{{}, vars.e, vars.w, vars.v};
  if (vars.kind == GainKind::one && !timed) return result;
  const recurrence::Gain inputs = gain_inputs(tape, vars);
  recurrence::GainOut out;
  if (!vector || timed) out.b = tape.context().empty(vars.shape, vars.dtype);
  if (keys || (vector && vars.e)) out.e = like(tape, inputs.e);
  if (keys && vars.w.id != vars.e.id) out.w = like(tape, inputs.w);
  if (keys || vector) out.v = like(tape, inputs.v);
  recurrence::gain(tape.context(), sequences, inputs, out);
  if (out.b.defined()) result.b = tape.leaf(out.b);
  if (out.e.defined()) result.e = tape.leaf(out.e);
  if (keys) result.w = out.w.defined() ? tape.leaf(out.w) : result.e;
  if (out.v.defined()) result.v = tape.leaf(out.v);
  tape.joint([=, &sequences](Tape& tape_, const Tensor&) {
    gain_backward(tape_, sequences, vars, inputs, result);
  });
  return result;
}

Var mesa(Tape& tape, const Sequences& sequences, const MesaArgs& vars) {
  recurrence::Mesa inputs;
  inputs.q = value(tape, vars.q);
  inputs.k = value(tape, vars.k);
  inputs.v = value(tape, vars.v);
  inputs.g = value(tape, vars.g);
  inputs.b = value(tape, vars.b);
  inputs.lambda = value(tape, vars.lambda);
  inputs.initial_hkk = vars.hkk;
  inputs.initial_hkv = vars.hkv;
  inputs.max_iterations = vars.max_iterations;
  inputs.tolerance = vars.tolerance;
  inputs.damping = vars.damping;
  const Tensor o = like(tape, inputs.v);
  recurrence::mesa(tape.context(), sequences, inputs, {o, vars.hkk, vars.hkv});
  return tape.result(o, [=, &sequences](Tape& tape_, const Tensor& dy) {
    ScratchGrads grads(tape_);
    recurrence::MesaGrads to;
    to.q = grads.of(vars.q);
    to.k = grads.of(vars.k);
    to.v = grads.of(vars.v);
    to.g = grads.of(vars.g);
    to.b = grads.of(vars.b);
    to.lambda = grads.of(vars.lambda);
    recurrence::mesa_vjp(tape_.context(), sequences, inputs, {dy, {}, {}}, to);
    grads.give();
  });
}

Var longhorn(Tape& tape, const Sequences& sequences, const LonghornArgs& vars) {
  const recurrence::Longhorn inputs{tape.value(vars.q), tape.value(vars.k), tape.value(vars.v),
                                    tape.value(vars.beta), vars.state};
  const Tensor o = like(tape, inputs.v);
  recurrence::longhorn(tape.context(), sequences, inputs, {o, vars.state});
  return tape.result(o, [=, &sequences](Tape& tape_, const Tensor& dy) {
    ScratchGrads grads(tape_);
    recurrence::LonghornGrads to;
    to.q = grads.of(vars.q);
    to.k = grads.of(vars.k);
    to.v = grads.of(vars.v);
    to.beta = grads.of(vars.beta);
    recurrence::longhorn_vjp(tape_.context(), sequences, inputs, {dy, {}}, to);
    grads.give();
  });
}

}  // namespace rankone::nn
