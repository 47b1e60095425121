#include "nn/functions.hpp"

#include "nn/function_support.hpp"

namespace rankone::nn {

using support::like;
using support::ParameterSlot;
using support::wanted;

Var linear(Tape& tape, Var x, Var weight, Var bias) {
  const Linear args{tape.value(x), tape.value(weight), support::value(tape, bias)};
  Shape shape = args.x.shape();
  shape[-1] = args.weight.dim(0);
  const Tensor y = tape.context().empty(shape, args.x.dtype());
  linear(tape.context(), args, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    const Tensor dx = wanted(tape_, x);
    const ParameterSlot dweight(tape_, weight);
    const ParameterSlot dbias(tape_, bias);
    linear_vjp(tape_.context(), args, dy, {dx, dweight.tensor(), dbias.tensor()});
    tape_.add_grad(x, dx);
    dweight.give();
    dbias.give();
  });
}

Var embedding(Tape& tape, const Tensor& ids, Var table) {
  const Tensor values = tape.value(table);
  // Half-precision tables are weight storage; activations are float32 then.
  const Dtype dtype = values.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  const Tensor y = tape.context().empty({ids.count(), values.dim(-1)}, dtype);
  embedding(tape.context(), ids, values, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(table)) return;
    const ParameterSlot dtable(tape_, table);
    embedding_vjp(tape_.context(), ids, dy, dtable.tensor());
    dtable.give();
  });
}

Var rms_norm(Tape& tape, Var x, Var weight, double eps, const NormGate& gate) {
  RmsNorm args;
  args.x = tape.value(x);
  args.weight = support::value(tape, weight);
  args.gate = support::value(tape, gate.gate);
  args.activation = gate.activation;
  args.gate_first = gate.first;
  args.eps = eps;
  const Tensor y = like(tape, args.x);
  rms_norm(tape.context(), args, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    const Tensor dx = wanted(tape_, x);
    const Tensor dgate = wanted(tape_, gate.gate);
    const ParameterSlot dweight(tape_, weight);
    rms_norm_vjp(tape_.context(), args, dy, {dx, dweight.tensor(), dgate});
    tape_.add_grad(x, dx);
    tape_.add_grad(gate.gate, dgate);
    dweight.give();
  });
}

Var vector_norm(Tape& tape, Var x, VectorNormForm form, double eps) {
  const VectorNorm args{tape.value(x), form, eps};
  const Tensor y = like(tape, args.x);
  vector_norm(tape.context(), args, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    vector_norm_vjp(tape_.context(), args, dy, dx);
    tape_.add_grad(x, dx);
  });
}

Var short_conv(Tape& tape, const Sequences& sequences, Var x, Var weight, Var bias,
               Activation activation, const Tensor& history) {
  const ShortConv args{tape.value(x), tape.value(weight), support::value(tape, bias), history,
                       activation};
  const Tensor y = like(tape, args.x);
  short_conv(tape.context(), sequences, args, {y, history});
  return tape.result(y, [=, &sequences](Tape& tape_, const Tensor& dy) {
    const Tensor dx = wanted(tape_, x);
    const ParameterSlot dweight(tape_, weight);
    const ParameterSlot dbias(tape_, bias);
    short_conv_vjp(tape_.context(), sequences, args, {dy, {}},
                   {dx, dweight.tensor(), dbias.tensor(), {}});
    tape_.add_grad(x, dx);
    dweight.give();
    dbias.give();
  });
}

Var activate(Tape& tape, Var x, Activation activation) {
  if (activation == Activation::none) return x;
  const Tensor input = tape.value(x);
  const Tensor y = like(tape, input);
  activate(tape.context(), input, activation, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    activate_vjp(tape_.context(), input, activation, dy, dx);
    tape_.add_grad(x, dx);
  });
}

Var swiglu(Tape& tape, Var gate, Var up) {
  const Tensor gate_value = tape.value(gate);
  const Tensor up_value = tape.value(up);
  const Tensor y = like(tape, gate_value);
  swiglu(tape.context(), gate_value, up_value, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    const Tensor dgate = wanted(tape_, gate);
    const Tensor dup = wanted(tape_, up);
    swiglu_vjp(tape_.context(), gate_value, up_value, dy, dgate, dup);
    tape_.add_grad(gate, dgate);
    tape_.add_grad(up, dup);
  });
}

Var multiply(Tape& tape, Var a, Var b) {
  const Tensor a_value = tape.value(a);
  const Tensor b_value = tape.value(b);
  const Tensor y = like(tape, a_value);
  multiply(tape.context(), a_value, b_value, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    const Tensor da = wanted(tape_, a);
    const Tensor db = wanted(tape_, b);
    multiply_vjp(tape_.context(), a_value, b_value, dy, da, db);
    tape_.add_grad(a, da);
    tape_.add_grad(b, db);
  });
}

Var add(Tape& tape, Var a, Var b) {
  const Tensor y = like(tape, tape.value(a));
  add(tape.context(), tape.value(a), tape.value(b), y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    tape_.share_grad(a, dy);
    tape_.share_grad(b, dy);
  });
}

Var scale(Tape& tape, Var x, double factor) {
  const Tensor y = like(tape, tape.value(x));
  scale(tape.context(), tape.value(x), factor, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    scale(tape_.context(), dy, factor, dx);
    tape_.add_grad(x, dx);
  });
}

Var head_skip(Tape& tape, Var o, Var x, Var skip) {
  const Tensor x_value = tape.value(x);
  const Tensor skip_value = tape.value(skip);
  const Tensor y = like(tape, tape.value(o));
  head_skip(tape.context(), tape.value(o), x_value, skip_value, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    const Tensor dx = wanted(tape_, x);
    const ParameterSlot dskip(tape_, skip);
    head_skip_vjp(tape_.context(), x_value, skip_value, dy, dx, dskip.tensor());
    tape_.share_grad(o, dy);
    tape_.add_grad(x, dx);
    dskip.give();
  });
}

Var exp_scale(Tape& tape, Var x, Var g, double factor) {
  const Tensor x_value = tape.value(x);
  const Tensor g_value = tape.value(g);
  const Tensor y = like(tape, x_value);
  exp_scale(tape.context(), x_value, g_value, factor, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    const Tensor dx = wanted(tape_, x);
    const Tensor dg = wanted(tape_, g);
    exp_scale_vjp(tape_.context(), x_value, g_value, factor, dy, dx, dg);
    tape_.add_grad(x, dx);
    tape_.add_grad(g, dg);
  });
}

Var feature_map(Tape& tape, Var x, FeatureMap map) {
  const Tensor input = tape.value(x);
  Shape shape = input.shape();
  shape[-1] *= map == FeatureMap::hedgehog ? 2 : 8;
  const Tensor y = tape.context().empty(shape, input.dtype());
  feature_map(tape.context(), input, map, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    feature_map_vjp(tape_.context(), input, map, dy, dx);
    tape_.add_grad(x, dx);
  });
}

Var repeat_heads(Tape& tape, Var x, std::int64_t repeats) {
  if (repeats == 1) return x;
  const Tensor input = tape.value(x);
  Shape shape = input.shape();
  shape[-2] *= repeats;
  const Tensor y = tape.context().empty(shape, input.dtype());
  repeat_heads(tape.context(), input, repeats, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    repeat_heads_vjp(tape_.context(), dy, repeats, dx);
    tape_.add_grad(x, dx);
  });
}

Var columns(Tape& tape, Var x, std::int64_t begin, std::int64_t width) {
  const Tensor input = tape.value(x);
  Shape shape = input.shape();
  shape[-1] = width;
  const Tensor y = tape.context().empty(shape, input.dtype());
  columns(tape.context(), input, begin, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    columns_vjp(tape_.context(), dy, begin, dx);
    tape_.add_grad(x, dx);
  });
}

Var pad_columns(Tape& tape, Var x, std::int64_t width) {
  const Tensor input = tape.value(x);
  Shape shape = input.shape();
  shape[-1] = width;
  const Tensor y = tape.context().empty(shape, input.dtype());
  columns_vjp(tape.context(), input, 0, y);
  return tape.result(y, [=](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    columns(tape_.context(), dy, 0, dx);
    tape_.add_grad(x, dx);
  });
}

Var reshape(Tape& tape, Var x, const Shape& shape) {
  return tape.result(tape.value(x).reshape(shape),
                     [=](Tape& tape_, const Tensor& dy) { tape_.share_grad(x, dy); });
}

Var rope(Tape& tape, const Sequences& sequences, Var x, double theta, const Tensor& positions) {
  const Rope args{tape.value(x), positions, theta};
  const Tensor y = like(tape, args.x);
  rope(tape.context(), sequences, args, y);
  return tape.result(y, [=, &sequences](Tape& tape_, const Tensor& dy) {
    if (!tape_.wants_grad(x)) return;
    const Tensor dx = wanted(tape_, x);
    rope_vjp(tape_.context(), sequences, args, dy, dx);
    tape_.add_grad(x, dx);
  });
}

Var attention(Tape& tape, const Sequences& sequences, const AttentionArgs& vars) {
  Attention args;
  args.q = tape.value(vars.q);
  args.k = tape.value(vars.k);
  args.v = tape.value(vars.v);
  args.window = vars.window;
  args.scale = vars.scale;
  args.cache_k = vars.cache_k;
  args.cache_v = vars.cache_v;
  args.positions = vars.positions;
  const Tensor o = like(tape, args.q);
  attention(tape.context(), sequences, args, o);
  return tape.result(o, [=, &sequences](Tape& tape_, const Tensor& dy) {
    const AttentionGrads grads{wanted(tape_, vars.q), wanted(tape_, vars.k), wanted(tape_, vars.v)};
    attention_vjp(tape_.context(), sequences, args, o, dy, grads);
    tape_.add_grad(vars.q, grads.q);
    tape_.add_grad(vars.k, grads.k);
    tape_.add_grad(vars.v, grads.v);
  });
}

}  // namespace rankone::nn
