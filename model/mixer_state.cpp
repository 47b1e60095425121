// The state of a mixer: which entries it has and how a new one looks.

#include <cmath>

#include "core/status.hpp"
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

void Mixer::add_state(std::vector<State::Entry>& entries, std::int64_t sequences,
                      Dtype dtype) const {
  const auto add = [&](Slot slot, const char* name, std::initializer_list<std::int64_t> shape,
                       const Tensor& fresh = {}) {
    if (slots_[static_cast<std::size_t>(slot)] < 0) return;
    std::vector<std::int64_t> whole{sequences};
    whole.insert(whole.end(), shape);
    State::Entry entry;
    entry.name = "layers." + std::to_string(layer_) + "." + name;
    entry.value = Tensor::zeros(Shape(whole), dtype);
    entry.fresh = fresh;
    entries.push_back(std::move(entry));
  };
  const auto channels = [](const Convolution& convolution) {
    return convolution ? convolution.weight->value.dim(0) : 0;
  };
  const std::int64_t window = config_.conv_size - 1;
  const std::int64_t features = sizes_.features;
  add(Slot::conv_q, "conv_q", {channels(weights_.query_conv), window});
  add(Slot::conv_k, "conv_k", {channels(weights_.key_conv), window});
  add(Slot::conv_v, "conv_v", {channels(weights_.value_conv), window});
  add(Slot::conv, "conv", {channels(weights_.fused_conv), window});
  add(Slot::memory, "S", {sizes_.value_heads, features, sizes_.value_dim});
  add(Slot::gram, "Hkk", {sizes_.value_heads, features, features});
  if (config_.axes.preconditioner == PreconditionerChoice::gram) {
    add(Slot::preconditioner, "A", {sizes_.key_heads, features, features}, fresh_gram(dtype));
  } else {
    add(Slot::preconditioner, "A", {sizes_.key_heads, features});
  }
}

// The Gram matrix starts as the ridge, a value of the parameters, read here outside of any step.
Tensor Mixer::fresh_gram(Dtype dtype) const {
  const std::int64_t features = sizes_.features;
  const Tensor fresh = Tensor::zeros({sizes_.key_heads, features, features}, Dtype::f64);
  const Tensor ridge = weights_.ridge->value.to(Dtype::f64);
  for (std::int64_t i = 0; i < sizes_.key_heads * features; ++i) {
    fresh.data<double>()[i * features + i % features] =
        std::log1p(std::exp(ridge.data<double>()[i])) + config_.ridge_min;
  }
  return fresh.to(dtype);
}

}  // namespace rankone::model
