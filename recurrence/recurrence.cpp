// The public functions: check the call, choose the backend, run.

#include "recurrence/recurrence.hpp"

#include "core/status.hpp"
#include "recurrence/backend.hpp"
#include "recurrence/validate.hpp"

namespace rankone::recurrence {

void two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
             const TwoKeyOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  const Backend& backend = select_backend(context, call);
  if (out.saved.defined()) {
    validate_saved("two_key", context, out.saved,
                   backend.two_key_saved(context, sequences, inputs));
  }
  backend.two_key(context, sequences, inputs, out);
}

std::int64_t two_key_saved(Context& context, const Sequences& sequences, const TwoKey& inputs) {
  const CallShape call = validate(context, sequences, inputs);
  return select_backend(context, call).two_key_saved(context, sequences, inputs);
}

void two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                 const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  const Backend& backend = select_backend(context, call);
  if (cotangents.saved.defined()) {
    validate_saved("two_key_vjp", context, cotangents.saved,
                   backend.two_key_saved(context, sequences, inputs));
  }
  backend.two_key_vjp(context, sequences, inputs, cotangents, grads);
}

void precondition(Context& context, const Sequences& sequences, const Precondition& inputs,
                  const PreconditionOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  const Backend& backend = select_backend(context, call);
  if (out.saved.defined()) {
    validate_saved("precondition", context, out.saved,
                   backend.precondition_saved(context, sequences, inputs));
  }
  backend.precondition(context, sequences, inputs, out);
}

std::int64_t precondition_saved(Context& context, const Sequences& sequences,
                                const Precondition& inputs) {
  const CallShape call = validate(context, sequences, inputs);
  return select_backend(context, call).precondition_saved(context, sequences, inputs);
}

void precondition_vjp(Context& context, const Sequences& sequences, const Precondition& inputs,
                      const PreconditionCotangents& cotangents, const PreconditionGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  const Backend& backend = select_backend(context, call);
  if (cotangents.saved.defined()) {
    validate_saved("precondition_vjp", context, cotangents.saved,
                   backend.precondition_saved(context, sequences, inputs));
  }
  backend.precondition_vjp(context, sequences, inputs, cotangents, grads);
}

void preconditioned_two_key(Context& context, const Sequences& sequences,
                            const Precondition& precondition, const PreconditionOut& made,
                            const TwoKey& inputs, const TwoKeyOut& out) {
  const bool query = precondition.kind == PreconditionerKind::atq;
  TwoKey complete = inputs;
  Tensor& slot = query ? complete.q : complete.w;
  require(!slot.defined(), "[preconditioned_two_key] {} is given (the preconditioner makes it)",
          query ? "q" : "w");
  PreconditionOut checked = made;
  if (!checked.out.defined()) checked.out = precondition.target;
  const CallShape call = validate(context, sequences, precondition, checked);
  slot = checked.out;
  const CallShape solve = validate(context, sequences, complete, out);
  require(call.dtype == solve.dtype, "[preconditioned_two_key] k is {}, v is {} (one dtype)",
          name(call.dtype), name(solve.dtype));
  if (out.saved.defined()) {
    validate_saved("preconditioned_two_key", context, out.saved,
                   select_backend(context, solve).two_key_saved(context, sequences, complete));
  }
  if (made.saved.defined()) {
    validate_saved(
        "preconditioned_two_key", context, made.saved,
        select_backend(context, call).precondition_saved(context, sequences, precondition));
  }
  if (!call.gram) {
    return select_backend(context, call)
        .preconditioned_two_key(context, sequences, precondition, made, complete, out);
  }
  const ArenaScope scope(context.arena());
  if (!made.out.defined()) {
    checked.out = context.empty(precondition.target.shape(), precondition.target.dtype());
    slot = checked.out;
  }
  select_backend(context, call).precondition(context, sequences, precondition, checked);
  select_backend(context, solve).two_key(context, sequences, complete, out);
}

void decay(Context& context, const Decay& inputs, const DecayOut& out) {
  const CallShape call = validate(context, inputs, out);
  select_backend(context, call).decay(context, inputs, out);
}

void decay_vjp(Context& context, const Decay& inputs, const DecayCotangents& cotangents,
               const DecayGrads& grads) {
  const CallShape call = validate(context, inputs, cotangents, grads);
  select_backend(context, call).decay_vjp(context, inputs, cotangents, grads);
}

void gain(Context& context, const Sequences& sequences, const Gain& inputs, const GainOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  select_backend(context, call).gain(context, sequences, inputs, out);
}

void gain_vjp(Context& context, const Sequences& sequences, const Gain& inputs,
              const GainCotangents& cotangents, const GainGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  select_backend(context, call).gain_vjp(context, sequences, inputs, cotangents, grads);
}

void mesa(Context& context, const Sequences& sequences, const Mesa& inputs, const MesaOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  select_backend(context, call).mesa(context, sequences, inputs, out);
}

void mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
              const MesaCotangents& cotangents, const MesaGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  select_backend(context, call).mesa_vjp(context, sequences, inputs, cotangents, grads);
}

void longhorn(Context& context, const Sequences& sequences, const Longhorn& inputs,
              const LonghornOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  select_backend(context, call).longhorn(context, sequences, inputs, out);
}

void longhorn_vjp(Context& context, const Sequences& sequences, const Longhorn& inputs,
                  const LonghornCotangents& cotangents, const LonghornGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  select_backend(context, call).longhorn_vjp(context, sequences, inputs, cotangents, grads);
}

}  // namespace rankone::recurrence
