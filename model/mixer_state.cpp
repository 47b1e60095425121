// The state of a mixer: which entries it has and how a new one looks.

#include <cmath>

#include "model/mixer.hpp"

namespace rankone::model {

using recurrence::PreconditionerChoice;
using recurrence::Solve;

void Mixer::place_slots() {
  slots_.fill(-1);
  int next = 0;
  const auto place = [&](Slot slot, bool present) {
    if (present) slots_[static_cast<std::size_t>(slot)] = next++;
  };
  // A window of one tap looks at no earlier token and has no history.
  const bool history = config_.conv_size > 1;
  place(Slot::conv_q, history && weights_.query_conv);
  place(Slot::conv_k, history && weights_.key_conv);
  place(Slot::conv_v, history && weights_.value_conv);
  place(Slot::conv, history && weights_.fused_conv);
  place(Slot::memory, true);
  place(Slot::gram, config_.axes.solve == Solve::cg);
  place(Slot::preconditioner, config_.axes.preconditioner != PreconditionerChoice::none);
}

Tensor Mixer::state(const LayerCall& call, Slot slot) const {
  const int index = slots_[static_cast<std::size_t>(slot)];
  return index < 0 ? Tensor() : state_entry(call, static_cast<std::size_t>(index));
}

// In the order of place_slots().
std::vector<StateShape> Mixer::state_shapes() const {
  std::vector<StateShape> shapes;
  const auto add = [&](Slot slot, const char* name, const Shape& shape) {
    if (slots_[static_cast<std::size_t>(slot)] >= 0) shapes.push_back({name, shape, false});
  };
  const std::int64_t query = sizes_.query_heads * sizes_.key_dim;
  const std::int64_t key = sizes_.writes * sizes_.stored_key_heads * sizes_.key_dim;
  const std::int64_t value = sizes_.writes * sizes_.stored_value_heads * sizes_.value_dim;
  const std::int64_t window = config_.conv_size - 1;
  const std::int64_t features = sizes_.features;
  if (window > 0) {
    add(Slot::conv_q, "conv_q", {query, window});
    add(Slot::conv_k, "conv_k", {key, window});
    add(Slot::conv_v, "conv_v", {value, window});
    add(Slot::conv, "conv", {value + 2 * key, window});
  }
  add(Slot::memory, "S", {sizes_.value_heads, features, sizes_.value_dim});
  add(Slot::gram, "Hkk", {sizes_.value_heads, features, features});
  const bool gram = config_.axes.preconditioner == PreconditionerChoice::gram;
  add(Slot::preconditioner, "A",
      gram ? Shape{sizes_.key_heads, features, features} : Shape{sizes_.key_heads, features});
  return shapes;
}

// The Gram matrix of the exact preconditioner starts as the ridge, a value of the parameters.
Tensor Mixer::fresh_state(const StateShape& entry) const {
  if (config_.axes.preconditioner != PreconditionerChoice::gram || entry.name != "A") return {};
  const std::int64_t features = sizes_.features;
  const Tensor fresh = Tensor::zeros(entry.shape, Dtype::f64);
  const Tensor ridge = weights_.ridge->value.to(Dtype::f64);
  for (std::int64_t i = 0; i < sizes_.key_heads * features; ++i) {
    fresh.data<double>()[i * features + i % features] =
        std::log1p(std::exp(ridge.data<double>()[i])) + config_.ridge_min;
  }
  return fresh;
}

}  // namespace rankone::model
