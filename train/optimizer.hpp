#pragma once

// AdamW over the parameters of a model, with the gradient's norm, clipping and the non-finite flag
// kept in tensors: the host reads them only when it logs.

#include <cstdint>
#include <vector>

#include "core/context.hpp"
#include "core/safetensors.hpp"
#include "nn/parameter.hpp"
#include "train/config.hpp"

namespace rankone::train {

class Optimizer {
 public:
  // The parameters must have gradients. Weight decay applies to those with Parameter::decays.
  Optimizer(std::vector<nn::Parameter*> parameters, const TrainConfig& config);

  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  void zero_gradients(Context& context) const;
  // Adds the squares of all gradients to sum [1] f64.
  void add_norm(Context& context, const Tensor& sum) const;
  // Step t (from 1) with the learning rate lr. sum is the squared norm of the gradient; where it is
  // not finite, parameters and moments stay as they are.
  void apply(Context& context, std::int64_t t, double lr, const Tensor& sum) const;

  // "parameter.NAME", "m.NAME", "v.NAME": views, not copies.
  TensorFile state() const;
  // Fails with corrupt where names, shapes or dtypes are not those of state().
  void restore(const TensorFile& state) const;

 private:
  std::vector<nn::Parameter*> parameters_;
  std::vector<Tensor> m_;
  std::vector<Tensor> v_;
  Tensor factor_;  // [1] f32
  Tensor ok_;      // [1] i32
  double beta1_;
  double beta2_;
  double weight_decay_;
  double clip_;
};

}  // namespace rankone::train
