#include "recurrence/validate.hpp"

#include "recurrence/call_check.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace {

// ---- two_key -----------------------------------------------------------------------------------

struct TwoKeyCheck {
  CallCheck check;
  TwoKeyShape shape;
  bool narrow_states;  // may be

  TwoKeyCheck(std::string_view operation, const Context& context, const Sequences& sequences,
              const TwoKey& in, bool narrow)
      : check(operation, context, sequences), narrow_states(narrow) {
    check.leading("q", in.q, 2, "[R, H, K]");
    check.required("w", in.w);
    check.values(in.v, "[R, HV, V]");
    shape = shape_of(sequences, in);
    check.head_sizes(shape.heads, shape.d_k);
    check.value_sizes(shape.heads, shape.value_heads, shape.d_v);
    tensors("", in.q, in.e, in.w, in.v, in.g, in.b, in.initial_state);
  }

  void tensors(std::string_view what, const Tensor& q, const Tensor& e, const Tensor& w,
               const Tensor& v, const Tensor& g, const Tensor& b, const Tensor& state) {
    const auto named = [&](const char* name) { return std::string(what) + name; };
    check.input(named("q"), q, {shape.heads, shape.d_k});
    check.input(named("e"), e, {shape.heads, shape.d_k});
    check.input(named("w"), w, {shape.heads, shape.d_k});
    check.input(named("v"), v, {shape.value_heads, shape.d_v});
    if (shape.channel_decay) {
      check.gate(named("g"), g, {shape.value_heads, shape.d_k});
    } else {
      check.gate(named("g"), g, {shape.value_heads});
    }
    check.gate(named("b"), b, {shape.value_heads});
    check.state(named("initial_state"), state, {shape.value_heads, shape.d_k, shape.d_v},
                narrow_states);
  }
};

// ---- precondition ------------------------------------------------------------------------------

struct PreconditionCheck {
  CallCheck check;
  PreconditionShape shape;
  bool gram;

  PreconditionCheck(std::string_view operation, const Context& context, const Sequences& sequences,
                    const Precondition& in)
      : check(operation, context, sequences), gram(in.kind == PreconditionerKind::gram) {
    check.leading("k", in.k, 2, "[R, H, K]");
    check.required("target", in.target);
    shape = shape_of(sequences, in);
    check.head_sizes(shape.heads, shape.d_k);
    if (in.kind == PreconditionerKind::atk) {
      check.required("center", in.center);
      check.absent("ridge", in.ridge, "atk has none");
      check.that(in.x >= 1.0 && in.x < 1e6, "x is {} (at least 1)", in.x);
      check.that(in.eps > 0.0 && in.eps < 1.0, "eps is {} (above 0, below 1)", in.eps);
    } else {
      check.required("ridge", in.ridge);
      check.absent("center", in.center, "only atk has one");
    }
    tensors("", in.k, in.target, in.g, in.b, in.center, in.ridge);
    state("initial", in.initial);
  }

  void tensors(std::string_view what, const Tensor& k, const Tensor& target, const Tensor& g,
               const Tensor& b, const Tensor& center, const Tensor& ridge) {
    const auto named = [&](const char* name) { return std::string(what) + name; };
    check.input(named("k"), k, {shape.heads, shape.d_k});
    check.input(named("target"), target, {shape.heads, shape.d_k});
    check.gate(named("g"), g, {shape.heads});
    check.gate(named("b"), b, {shape.heads});
    check.parameter(named("center"), center, {shape.heads});
    check.parameter(named("ridge"), ridge, {shape.heads, shape.d_k});
  }
  void state(std::string_view name, const Tensor& tensor) {
    if (gram) {
      check.state(name, tensor, {shape.heads, shape.d_k, shape.d_k});
    } else {
      check.state(name, tensor, {shape.heads, shape.d_k});
    }
  }
  CallShape call() const {
    CallShape call = check.call();
    call.gram = gram;
    return call;
  }
};

// ---- mesa --------------------------------------------------------------------------------------

struct MesaCheck {
  CallCheck check;
  MesaShape shape;

  MesaCheck(std::string_view operation, const Context& context, const Sequences& sequences,
            const Mesa& in)
      : check(operation, context, sequences) {
    check.leading("q", in.q, 2, "[R, H, K]");
    check.required("k", in.k);
    check.required("lambda", in.lambda);
    check.values(in.v, "[R, H, V]");
    shape = shape_of(sequences, in);
    check.head_sizes(shape.heads, shape.d_k);
    check.that(in.v.dim(-2) == shape.heads, "v has {} heads, q has {} (the cg solve has no groups)",
               in.v.dim(-2), shape.heads);
    check.value_sizes(shape.heads, shape.heads, shape.d_v);
    check.that(in.max_iterations >= 1, "max_iterations is {} (at least 1)", in.max_iterations);
    check.that(in.tolerance >= 0.0, "tolerance is {} (at least 0)", in.tolerance);
    check.that(in.damping >= 0.0, "damping is {} (at least 0)", in.damping);
    tensors("", in.q, in.k, in.v, in.g, in.b, in.lambda);
    states("initial_", in.initial_hkk, in.initial_hkv);
  }

  void tensors(std::string_view what, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& g, const Tensor& b, const Tensor& lambda) {
    const auto named = [&](const char* name) { return std::string(what) + name; };
    check.input(named("q"), q, {shape.heads, shape.d_k});
    check.input(named("k"), k, {shape.heads, shape.d_k});
    check.input(named("v"), v, {shape.heads, shape.d_v});
    check.gate(named("g"), g, {shape.heads});
    check.gate(named("b"), b, {shape.heads});
    check.parameter(named("lambda"), lambda, {shape.heads, shape.d_k});
  }
  void states(std::string_view what, const Tensor& hkk, const Tensor& hkv) {
    check.state(std::string(what) + "hkk", hkk, {shape.heads, shape.d_k, shape.d_k});
    check.state(std::string(what) + "hkv", hkv, {shape.heads, shape.d_k, shape.d_v});
  }
};

// ---- longhorn ----------------------------------------------------------------------------------

struct LonghornCheck {
  CallCheck check;
  LonghornShape shape;

  LonghornCheck(std::string_view operation, const Context& context, const Sequences& sequences,
                const Longhorn& in)
      : check(operation, context, sequences) {
    check.leading("q", in.q, 2, "[R, H, K]");
    check.required("k", in.k);
    check.required("beta", in.beta);
    check.values(in.v, "[R, HV, V]");
    shape = shape_of(sequences, in);
    check.head_sizes(shape.heads, shape.d_k);
    check.value_sizes(shape.heads, shape.value_heads, shape.d_v);
    tensors("", in.q, in.k, in.v, in.beta, in.initial_state);
  }

  void tensors(std::string_view what, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& beta, const Tensor& state) {
    const auto named = [&](const char* name) { return std::string(what) + name; };
    check.input(named("q"), q, {shape.heads, shape.d_k});
    check.input(named("k"), k, {shape.heads, shape.d_k});
    check.input(named("v"), v, {shape.value_heads, shape.d_v});
    check.gate(named("beta"), beta, {shape.value_heads, shape.d_v});
    check.state(named("initial_state"), state, {shape.value_heads, shape.d_k, shape.d_v});
  }
};

}  // namespace

CallShape validate(const Context& context, const Sequences& sequences, const TwoKey& in) {
  return TwoKeyCheck("two_key_saved", context, sequences, in, true).check.call();
}

void validate_saved(std::string_view operation, const Context& context, const Tensor& saved,
                    std::int64_t numbers) {
  CallCheck check(operation, context);
  check.parameter("saved", saved, {numbers});
}

CallShape validate(const Context& context, const Sequences& sequences, const TwoKey& in,
                   const TwoKeyOut& out) {
  TwoKeyCheck two_key("two_key", context, sequences, in, true);
  const TwoKeyShape& shape = two_key.shape;
  two_key.check.input("o", out.o, {shape.value_heads, shape.d_v});
  two_key.check.state("final_state", out.final_state, {shape.value_heads, shape.d_k, shape.d_v},
                      true);
  two_key.check.that(!in.initial_state.defined() || !out.final_state.defined() ||
                         in.initial_state.dtype() == out.final_state.dtype(),
                     "initial_state is {} and final_state {} (they are of one dtype)",
                     in.initial_state.defined() ? name(in.initial_state.dtype()) : "",
                     out.final_state.defined() ? name(out.final_state.dtype()) : "");
  return two_key.check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const TwoKey& in,
                   const TwoKeyCotangents& cot, const TwoKeyGrads& grads) {
  TwoKeyCheck two_key("two_key_vjp", context, sequences, in, false);
  const TwoKeyShape& shape = two_key.shape;
  CallCheck& check = two_key.check;
  check.required("the cotangent of o", cot.o);
  check.input("the cotangent of o", cot.o, {shape.value_heads, shape.d_v});
  check.state("the cotangent of final_state", cot.final_state,
              {shape.value_heads, shape.d_k, shape.d_v});
  check.gradient_of("e", grads.e, in.e);
  check.gradient_of("g", grads.g, in.g);
  check.gradient_of("b", grads.b, in.b);
  two_key.tensors("the gradient of ", grads.q, grads.e, grads.w, grads.v, grads.g, grads.b,
                  grads.initial_state);
  return check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Precondition& in) {
  return PreconditionCheck("precondition_saved", context, sequences, in).call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Precondition& in,
                   const PreconditionOut& out) {
  PreconditionCheck precondition("precondition", context, sequences, in);
  const PreconditionShape& shape = precondition.shape;
  precondition.check.input("out", out.out, {shape.heads, shape.d_k});
  precondition.state("final", out.final);
  return precondition.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Precondition& in,
                   const PreconditionCotangents& cot, const PreconditionGrads& grads) {
  PreconditionCheck precondition("precondition_vjp", context, sequences, in);
  const PreconditionShape& shape = precondition.shape;
  CallCheck& check = precondition.check;
  check.required("the cotangent of out", cot.out);
  check.input("the cotangent of out", cot.out, {shape.heads, shape.d_k});
  precondition.state("the cotangent of final", cot.final);
  check.input("the cotangent of k", cot.k, {shape.heads, shape.d_k});
  check.gradient_of("g", grads.g, in.g);
  check.gradient_of("b", grads.b, in.b);
  check.gradient_of("center", grads.center, in.center);
  check.gradient_of("ridge", grads.ridge, in.ridge);
  precondition.tensors("the gradient of ", grads.k, grads.target, grads.g, grads.b, grads.center,
                       grads.ridge);
  precondition.state("the gradient of initial", grads.initial);
  return precondition.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Mesa& in,
                   const MesaOut& out) {
  MesaCheck mesa("mesa", context, sequences, in);
  mesa.check.input("o", out.o, {mesa.shape.heads, mesa.shape.d_v});
  mesa.states("final_", out.final_hkk, out.final_hkv);
  return mesa.check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Mesa& in,
                   const MesaCotangents& cot, const MesaGrads& grads) {
  MesaCheck mesa("mesa_vjp", context, sequences, in);
  CallCheck& check = mesa.check;
  check.required("the cotangent of o", cot.o);
  check.input("the cotangent of o", cot.o, {mesa.shape.heads, mesa.shape.d_v});
  mesa.states("the cotangent of final_", cot.final_hkk, cot.final_hkv);
  check.gradient_of("g", grads.g, in.g);
  check.gradient_of("b", grads.b, in.b);
  mesa.tensors("the gradient of ", grads.q, grads.k, grads.v, grads.g, grads.b, grads.lambda);
  mesa.states("the gradient of initial_", grads.initial_hkk, grads.initial_hkv);
  return check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Longhorn& in,
                   const LonghornOut& out) {
  LonghornCheck longhorn("longhorn", context, sequences, in);
  const LonghornShape& shape = longhorn.shape;
  longhorn.check.input("o", out.o, {shape.value_heads, shape.d_v});
  longhorn.check.state("final_state", out.final_state, {shape.value_heads, shape.d_k, shape.d_v});
  return longhorn.check.call();
}

CallShape validate(const Context& context, const Sequences& sequences, const Longhorn& in,
                   const LonghornCotangents& cot, const LonghornGrads& grads) {
  LonghornCheck longhorn("longhorn_vjp", context, sequences, in);
  const LonghornShape& shape = longhorn.shape;
  CallCheck& check = longhorn.check;
  check.required("the cotangent of o", cot.o);
  check.input("the cotangent of o", cot.o, {shape.value_heads, shape.d_v});
  check.state("the cotangent of final_state", cot.final_state,
              {shape.value_heads, shape.d_k, shape.d_v});
  longhorn.tensors("the gradient of ", grads.q, grads.k, grads.v, grads.beta, grads.initial_state);
  return check.call();
}

}  // namespace rankone::recurrence
