#pragma once

// The CUDA backend: f32, bf16 and f16 inputs, float32 accumulation and state. Each function is
// defined in the file of its subject in this folder; where there is no kernel it fails with
// Status::unsupported. Compiled with RANKONE_CUDA_EMULATION the same code is a backend of the CPU
// for tests, which runs the kernels on emulated threads (core/cuda/language.hpp).

#include "recurrence/backend.hpp"

namespace rankone::recurrence {

class CudaBackend final : public Backend {
 public:
  std::string_view name() const override;
  bool accepts(const CallShape& call) const override;
  void two_key(Context&, const Sequences&, const TwoKey&, const TwoKeyOut&) const override;
  std::int64_t two_key_saved(Context&, const Sequences&, const TwoKey&) const override;
  void two_key_vjp(Context&, const Sequences&, const TwoKey&, const TwoKeyCotangents&,
                   const TwoKeyGrads&) const override;
  void precondition(Context&, const Sequences&, const Precondition&,
                    const PreconditionOut&) const override;
  std::int64_t precondition_saved(Context&, const Sequences&, const Precondition&) const override;
  void precondition_vjp(Context&, const Sequences&, const Precondition&,
                        const PreconditionCotangents&, const PreconditionGrads&) const override;
  void decay(Context&, const Decay&, const DecayOut&) const override;
  void decay_vjp(Context&, const Decay&, const DecayCotangents&, const DecayGrads&) const override;
  void gain(Context&, const Sequences&, const Gain&, const GainOut&) const override;
  void gain_vjp(Context&, const Sequences&, const Gain&, const GainCotangents&,
                const GainGrads&) const override;
  void mesa(Context&, const Sequences&, const Mesa&, const MesaOut&) const override;
  void mesa_vjp(Context&, const Sequences&, const Mesa&, const MesaCotangents&,
                const MesaGrads&) const override;
  void longhorn(Context&, const Sequences&, const Longhorn&, const LonghornOut&) const override;
  void longhorn_vjp(Context&, const Sequences&, const Longhorn&, const LonghornCotangents&,
                    const LonghornGrads&) const override;
};

}  // namespace rankone::recurrence
