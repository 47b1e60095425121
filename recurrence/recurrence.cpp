// The public functions: check the call, choose the backend, run.

#include "recurrence/recurrence.hpp"

#include "recurrence/backend.hpp"
#include "recurrence/validate.hpp"

namespace rankone::recurrence {

void two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
             const TwoKeyOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  select_backend(context, call).two_key(context, sequences, inputs, out);
}

void two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                 const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  select_backend(context, call).two_key_vjp(context, sequences, inputs, cotangents, grads);
}

void precondition(Context& context, const Sequences& sequences, const Precondition& inputs,
                  const PreconditionOut& out) {
  const CallShape call = validate(context, sequences, inputs, out);
  select_backend(context, call).precondition(context, sequences, inputs, out);
}

void precondition_vjp(Context& context, const Sequences& sequences, const Precondition& inputs,
                      const PreconditionCotangents& cotangents, const PreconditionGrads& grads) {
  const CallShape call = validate(context, sequences, inputs, cotangents, grads);
  select_backend(context, call).precondition_vjp(context, sequences, inputs, cotangents, grads);
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
