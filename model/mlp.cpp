#include <cmath>

#include "model/layers.hpp"

namespace rankone::model {

Mlp::Mlp(const Declare& declare, std::int64_t width, bool bias) {
  const std::int64_t hidden = declare.config().hidden_size;
  const std::string start = declare.prefix() + declare.layout().mlp;
  const auto matrix = [&](const char* name, std::int64_t out, std::int64_t in, Init init) {
    ParameterSpec spec;
    spec.name = start + name + ".weight";
    spec.shape = {out, in};
    spec.init = init;
    spec.weight = true;
    return declare.add(std::move(spec));
  };
  const auto vector = [&](const char* name, std::int64_t size) {
    ParameterSpec spec;
    spec.name = start + name + ".bias";
    spec.shape = {size};
    spec.decays = false;
    return declare.add(std::move(spec));
  };
  Init down = declare.matrix_init(width);
  if (declare.kaiming()) {
    // The depth rescaling of the first paper's code: w3 is divided by sqrt(2 layers).
    const auto layers = static_cast<double>(declare.config().layers.size());
    down = Init::uniform(down.b / std::sqrt(2.0 * layers));
  }
  gate_ = matrix("gate_proj", width, hidden, declare.matrix_init(hidden));
  up_ = matrix("up_proj", width, hidden, declare.matrix_init(hidden));
  down_ = matrix("down_proj", hidden, width, down);
  if (bias) {
    gate_bias_ = vector("gate_proj", width);
    up_bias_ = vector("up_proj", width);
    down_bias_ = vector("down_proj", hidden);
  }
}

nn::Var Mlp::forward(nn::Tape& tape, nn::Var x) const {
  const nn::Var gate = apply_linear(tape, x, gate_, gate_bias_);
  const nn::Var up = apply_linear(tape, x, up_, up_bias_);
  return apply_linear(tape, nn::swiglu(tape, gate, up), down_, down_bias_);
}

}  // namespace rankone::model
