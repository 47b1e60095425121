#include "recurrence/cpu/cpu_backend.hpp"

namespace rankone::recurrence {

void CpuBackend::mesa(Context& context, const Sequences& sequences, const Mesa& inputs,
                      const MesaOut& out) const {
  reference_backend().mesa(context, sequences, inputs, out);
}

void CpuBackend::mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
                          const MesaCotangents& cotangents, const MesaGrads& grads) const {
  reference_backend().mesa_vjp(context, sequences, inputs, cotangents, grads);
}

}  // namespace rankone::recurrence
