#pragma once

// What a backend of this layer implements. Arguments were validated by the public functions of
// recurrence.hpp; all tensors of one call have the context's device. A backend function first takes
// its scratch from context.arena() (inside an ArenaScope) and then returns if context.planning(),
// so that a planning pass sees what a real one would use.

#include <string>
#include <string_view>

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence {

// What a call needs, for accepts().
struct CallShape {
  Dtype dtype = Dtype::f32;  // of the inputs
  Device device = Device::cpu;
  bool gram = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual bool accepts(const CallShape& call) const = 0;

  virtual void two_key(Context&, const Sequences&, const TwoKey&, const TwoKeyOut&) const = 0;
  virtual std::int64_t two_key_saved(Context&, const Sequences&, const TwoKey&) const { return 0; }
  virtual void two_key_vjp(Context&, const Sequences&, const TwoKey&, const TwoKeyCotangents&,
                           const TwoKeyGrads&) const = 0;
  virtual void precondition(Context&, const Sequences&, const Precondition&,
                            const PreconditionOut&) const = 0;
  virtual std::int64_t precondition_saved(Context&, const Sequences&, const Precondition&) const {
    return 0;
  }
  virtual void precondition_vjp(Context&, const Sequences&, const Precondition&,
                                const PreconditionCotangents&, const PreconditionGrads&) const = 0;
  // Both in one call; a backend that has nothing better runs them one after the other. w (atk) or q
  // (atq) of the recurrence is what the preconditioner makes: here a tensor of its shape, whose
  // numbers are not to be read.
  virtual void preconditioned_two_key(Context&, const Sequences&, const Precondition&,
                                      const PreconditionOut&, const TwoKey&,
                                      const TwoKeyOut&) const;
  virtual void decay(Context&, const Decay&, const DecayOut&) const = 0;
  virtual void decay_vjp(Context&, const Decay&, const DecayCotangents&,
                         const DecayGrads&) const = 0;
  virtual void gain(Context&, const Sequences&, const Gain&, const GainOut&) const = 0;
  virtual void gain_vjp(Context&, const Sequences&, const Gain&, const GainCotangents&,
                        const GainGrads&) const = 0;
  virtual void mesa(Context&, const Sequences&, const Mesa&, const MesaOut&) const = 0;
  virtual void mesa_vjp(Context&, const Sequences&, const Mesa&, const MesaCotangents&,
                        const MesaGrads&) const = 0;
  virtual void longhorn(Context&, const Sequences&, const Longhorn&, const LonghornOut&) const = 0;
  virtual void longhorn_vjp(Context&, const Sequences&, const Longhorn&, const LonghornCotangents&,
                            const LonghornGrads&) const = 0;
};

const Backend& reference_backend();
const Backend& cpu_backend();
// What its two-key recurrence computes a sequence of so many tokens with, for reports:
// "avx512-f32", "amx-bf16x3".
std::string cpu_kernel(const Context& context, std::int64_t tokens, bool channel_decay);
#if defined(RANKONE_WITH_CUDA)
const Backend& cuda_backend();
#endif

// Adds a backend that the preference list of a Context can then name, before the built-in ones of
// the same name. For tests; the backend must outlive its use. Returns a function-local registration
// that unregisters on destruction.
class RegisteredBackend {
 public:
  explicit RegisteredBackend(const Backend& backend);
  ~RegisteredBackend();
  RegisteredBackend(const RegisteredBackend&) = delete;
  RegisteredBackend& operator=(const RegisteredBackend&) = delete;

 private:
  const Backend* backend_;
};

// The first backend of the context's list that accepts the call; the reference if none does.
const Backend& select_backend(const Context& context, const CallShape& call);

}  // namespace rankone::recurrence
