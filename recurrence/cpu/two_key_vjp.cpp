#include "recurrence/cpu/cpu_backend.hpp"

namespace rankone::recurrence {

void CpuBackend::two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                             const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) const {
  reference_backend().two_key_vjp(context, sequences, inputs, cotangents, grads);
}

}  // namespace rankone::recurrence
