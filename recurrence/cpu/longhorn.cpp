#include "recurrence/cpu/cpu_backend.hpp"

namespace rankone::recurrence {

void CpuBackend::longhorn(Context& context, const Sequences& sequences, const Longhorn& inputs,
                          const LonghornOut& out) const {
  reference_backend().longhorn(context, sequences, inputs, out);
}

void CpuBackend::longhorn_vjp(Context& context, const Sequences& sequences, const Longhorn& inputs,
                              const LonghornCotangents& cotangents,
                              const LonghornGrads& grads) const {
  reference_backend().longhorn_vjp(context, sequences, inputs, cotangents, grads);
}

}  // namespace rankone::recurrence
