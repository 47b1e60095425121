#pragma once

// The CPU backend: float32, vectorised, threads over independent work.
// Each function is defined in the file of its subject in this folder.

#include "recurrence/backend.hpp"

namespace rankone::recurrence {

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override;
  bool accepts(const CallShape& call) const override;
  void two_key(Context&, const Sequences&, const TwoKey&, const TwoKeyOut&) const override;
  void two_key_vjp(Context&, const Sequences&, const TwoKey&, const TwoKeyCotangents&,
                   const TwoKeyGrads&) const override;
  void precondition(Context&, const Sequences&, const Precondition&,
                    const PreconditionOut&) const override;
  void precondition_vjp(Context&, const Sequences&, const Precondition&,
                        const PreconditionCotangents&, const PreconditionGrads&) const override;
  void preconditioned_two_key(Context&, const Sequences&, const Precondition&,
                              const PreconditionOut&, const TwoKey&,
                              const TwoKeyOut&) const override;
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
