#pragma once

// A trained tensor of a model: its value, its gradient where it is trained, and how the optimiser
// treats it.

#include <string>

#include "core/tensor.hpp"

namespace rankone::nn {

struct Parameter {
  std::string name;    // as in the model's own file layout
  Tensor value;        // f32 (f64 in the reference; bf16 or f16 as weight storage for inference)
  Tensor grad;         // undefined outside training
  bool decays = true;  // weight decay applies (not on A_log, dt_bias, norms, centers, biases, D)

  bool defined() const { return value.defined(); }
};

}  // namespace rankone::nn
