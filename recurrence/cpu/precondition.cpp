#include "recurrence/cpu/cpu_backend.hpp"

namespace rankone::recurrence {

void CpuBackend::precondition(Context& context, const Sequences& sequences,
                              const Precondition& inputs, const PreconditionOut& out) const {
  reference_backend().precondition(context, sequences, inputs, out);
}

void CpuBackend::precondition_vjp(Context& context, const Sequences& sequences,
                                  const Precondition& inputs,
                                  const PreconditionCotangents& cotangents,
                                  const PreconditionGrads& grads) const {
  reference_backend().precondition_vjp(context, sequences, inputs, cotangents, grads);
}

}  // namespace rankone::recurrence
