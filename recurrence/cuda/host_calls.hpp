#pragma once

// A backend of a GPU for tensors in host memory: copies them there, runs, and copies results back.
// For comparisons (rankone golden) and tests, not for work. It watches what it runs: tensors lie
// between guards, inputs stay as they are, outputs and scratch are filled with NaN beforehand, and
// the call may take no more scratch than its planning pass did. Fails with Status::failed where one
// of these is broken.

#include <functional>
#include <memory>
#include <string>

#include "recurrence/backend.hpp"

namespace rankone::recurrence {

class HostCalls final : public Backend {
 public:
  // `inner` runs in a context of `options`; the calls of this backend are those of CPU contexts.
  HostCalls(std::string name, const Backend& inner, ContextOptions options);

  std::string_view name() const override { return name_; }
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

  // Scratch of the last call in bytes.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  class Copies;
  using Prepare = std::function<std::function<void(Context&)>(Copies&)>;
  void run(const Context& outer, const Prepare& prepare) const;

  std::string name_;
  const Backend& inner_;
  ContextOptions options_;
  mutable std::size_t scratch_bytes_ = 0;
};

}  // namespace rankone::recurrence
