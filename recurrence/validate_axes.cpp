// The checks of the decay and gain functions.

#include "recurrence/call_check.hpp"
#include "recurrence/shapes.hpp"
#include "recurrence/validate.hpp"

namespace rankone::recurrence {
namespace {

// ---- decay -------------------------------------------------------------------------------------

struct DecayCheck {
  CallCheck check;
  DecayShape shape;
  bool channel;

  // `g` is the output or its cotangent; it leads where x is not used.
  DecayCheck(std::string_view operation, const Context& context, const Decay& in, const Tensor& g)
      : check(operation, context), channel(in.channel) {
    if (in.form == DecayForm::fixed) {
      check.absent("x", in.x, "the fixed decay has no logits");
      check.absent("a_log", in.a_log, "the fixed decay has no parameters");
      check.absent("dt_bias", in.dt_bias, "the fixed decay has no parameters");
      check.that(!in.channel, "the fixed decay is one per head (channel must be false)");
      check.leading("g", g, 1, "[R, HV]");
    } else {
      check.leading("x", in.x, in.channel ? 2 : 1, in.channel ? "[R, HV, K]" : "[R, HV]");
    }
    if (in.form == DecayForm::logsigmoid) {
      check.absent("a_log", in.a_log, "logsigmoid has none");
      check.that(in.normalizer > 0.0, "normalizer is {} (above 0)", in.normalizer);
    }
    if (in.form == DecayForm::lower_bound) {
      check.that(in.bound < 0.0, "bound is {} (below 0)", in.bound);
    }
    if (in.form == DecayForm::softplus) {
      check.that(in.dt_min >= 0.0 && in.dt_min <= in.dt_max,
                 "the limits of dt are {} and {} (0 <= dt_min <= dt_max)", in.dt_min, in.dt_max);
    }
    shape = shape_of(in, g);
    check.that(shape.value_heads >= 1, "HV is {} (at least 1)", shape.value_heads);
    check.that(shape.channels >= 1 && shape.channels <= kMaxKeyDim, "d_k is {} (1 to {})",
               shape.channels, kMaxKeyDim);
    check.set_rows(shape.rows);
    gate("x", in.x);
    check.parameter("a_log", in.a_log, {shape.value_heads});
    parameter("dt_bias", in.dt_bias);
  }

  void gate(std::string_view name, const Tensor& tensor) {
    if (channel) {
      check.gate(name, tensor, {shape.value_heads, shape.channels});
    } else {
      check.gate(name, tensor, {shape.value_heads});
    }
  }
  void parameter(std::string_view name, const Tensor& tensor) {
    if (channel) {
      check.parameter(name, tensor, {shape.value_heads, shape.channels});
    } else {
      check.parameter(name, tensor, {shape.value_heads});
    }
  }
};

// ---- gain --------------------------------------------------------------------------------------

bool has_logits(GainKind kind) { return kind != GainKind::one && kind != GainKind::nlms; }

struct GainCheck {
  CallCheck check;
  GainShape shape;
  const Gain& in;
  bool key_norm;
  bool vector;

  GainCheck(std::string_view operation, const Context& context, const Sequences& sequences,
            const Gain& inputs, const Tensor& b)
      : check(operation, context, sequences),
        in(inputs),
        key_norm(is_key_norm(inputs.kind)),
        vector(inputs.kind == GainKind::vector) {
    presence(b);
    shape = shape_of(sequences, in, b);
    if (in.e.defined()) check.head_sizes(shape.heads, shape.d_k);
    if (in.v.defined()) {
      check.value_sizes(in.e.defined() ? shape.heads : 1, shape.value_heads, shape.d_v);
    }
    check.that(in.eps >= 0.0, "eps is {} (at least 0)", in.eps);
    tensors("", in.x, in.x_v, in.e, in.w, in.v);
    check.parameter("theta", in.theta, {1});
    positions(sequences);
  }

  void tensors(std::string_view what, const Tensor& x, const Tensor& x_v, const Tensor& e,
               const Tensor& w, const Tensor& v) {
    const auto named = [&](const char* name) { return std::string(what) + name; };
    if (vector) {
      check.gate(named("x"), x, {shape.heads, shape.d_k});
      check.gate(named("x_v"), x_v, {shape.value_heads, shape.d_v});
    } else {
      check.gate(named("x"), x, {shape.value_heads});
    }
    check.input(named("e"), e, {shape.heads, shape.d_k});
    check.input(named("w"), w, {shape.heads, shape.d_k});
    check.input(named("v"), v, {shape.value_heads, shape.d_v});
  }

  // Outputs or their cotangents.
  void results(std::string_view what, const Tensor& b, const Tensor& e, const Tensor& w,
               const Tensor& v) {
    const auto named = [&](const char* name) { return std::string(what) + name; };
    if (!key_norm) {
      check.absent(named("w"), w, "only a key-norm gain scales w");
    }
    if (!key_norm && !vector) {
      check.absent(named("e"), e, "this gain scales no key");
      check.absent(named("v"), v, "this gain scales no value");
    }
    check.that(!e.defined() || in.e.defined(), "{} is wanted, but the call has no e", named("e"));
    check.gate(named("b"), b, {shape.value_heads});
    check.input(named("e"), e, {shape.heads, shape.d_k});
    check.input(named("w"), w, {shape.heads, shape.d_k});
    check.input(named("v"), v, {shape.value_heads, shape.d_v});
  }

 private:
  void presence(const Tensor& b) {
    if (key_norm || vector) {
      check.leading("v", in.v, 2, "[R, HV, V]");
    } else {
      check.absent("e", in.e, "this gain looks at no key");
      check.absent("v", in.v, "this gain looks at no value");
      if (has_logits(in.kind)) {
        check.leading("x", in.x, 1, "[R, HV]");
      } else {
        check.leading("b", b, 1, "[R, HV]");
      }
    }
    if (key_norm) {
      check.that(in.e.defined() && in.e.rank() > 2, "e is {} (it is [R, H, K])",
                 in.e.defined() ? in.e.shape().str() : "undefined");
      check.required("w", in.w);
    } else {
      check.absent("w", in.w, "only a key-norm gain looks at it");
    }
    if (vector) {
      check.required("x_v", in.x_v);
      check.that(in.e.defined() == in.x.defined(),
                 "e and x are not both given (both, or neither in an additive solve)");
      check.that(!in.e.defined() || in.e.rank() > 2, "e has shape {} (it is [R, H, K])",
                 in.e.defined() ? in.e.shape().str() : "");
    } else {
      check.absent("x_v", in.x_v, "only the vector gain has value logits");
      if (has_logits(in.kind)) {
        check.required("x", in.x);
      } else {
        check.absent("x", in.x, "this gain has no logits");
      }
    }
    if (in.kind == GainKind::learned_scalar) {
      check.required("theta", in.theta);
    } else {
      check.absent("theta", in.theta, "only learned_scalar has one");
    }
  }

  void positions(const Sequences& sequences) {
    if (!in.positions.defined()) return;
    check.that(in.positions.dtype() == Dtype::i64 &&
                   in.positions.shape() == Shape{sequences.count()} && in.positions.contiguous(),
               "positions is {} {} (it is i64 [{}], contiguous)",
               rankone::name(in.positions.dtype()), in.positions.shape().str(), sequences.count());
  }
};

}  // namespace

CallShape validate(const Context& context, const Decay& in, const DecayOut& out) {
  DecayCheck decay("decay", context, in, out.g);
  decay.gate("g", out.g);
  if (in.form != DecayForm::softplus) {
    decay.check.absent("dt", out.dt, "only the softplus form has a time step");
  }
  decay.gate("dt", out.dt);
  return decay.check.call();
}

CallShape validate(const Context& context, const Decay& in, const DecayCotangents& cot,
                   const DecayGrads& grads) {
  DecayCheck decay("decay_vjp", context, in, cot.g);
  CallCheck& check = decay.check;
  check.that(cot.g.defined() || cot.dt.defined(), "no cotangent is given (g, dt or both)");
  if (in.form != DecayForm::softplus) {
    check.absent("the cotangent of dt", cot.dt, "only the softplus form has a time step");
  }
  decay.gate("the cotangent of g", cot.g);
  decay.gate("the cotangent of dt", cot.dt);
  check.gradient_of("x", grads.x, in.x);
  check.gradient_of("a_log", grads.a_log, in.a_log);
  check.gradient_of("dt_bias", grads.dt_bias, in.dt_bias);
  decay.gate("the gradient of x", grads.x);
  check.parameter("the gradient of a_log", grads.a_log, {decay.shape.value_heads});
  decay.parameter("the gradient of dt_bias", grads.dt_bias);
  return check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Gain& in,
                   const GainOut& out) {
  GainCheck gain("gain", context, sequences, in, out.b);
  gain.results("", out.b, out.e, out.w, out.v);
  return gain.check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Gain& in,
                   const GainCotangents& cot, const GainGrads& grads) {
  GainCheck gain("gain_vjp", context, sequences, in, cot.b);
  CallCheck& check = gain.check;
  check.that(cot.b.defined() || cot.e.defined() || cot.w.defined() || cot.v.defined(),
             "no cotangent is given");
  gain.results("the cotangent of ", cot.b, cot.e, cot.w, cot.v);
  check.gradient_of("x", grads.x, in.x);
  check.gradient_of("x_v", grads.x_v, in.x_v);
  check.gradient_of("theta", grads.theta, in.theta);
  check.gradient_of("e", grads.e, in.e);
  check.gradient_of("w", grads.w, in.w);
  check.gradient_of("v", grads.v, in.v);
  gain.tensors("the gradient of ", grads.x, grads.x_v, grads.e, grads.w, grads.v);
  check.parameter("the gradient of theta", grads.theta, {1});
  return check.call();
}

}  // namespace rankone::recurrence
