#pragma once

// The layers of a model. A layer declares its parameters and the entries of its state, and computes
// with functions of nn/functions.hpp, so that training, prefill and decode are one path.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/layout.hpp"
#include "model/state.hpp"
#include "nn/functions.hpp"

namespace rankone::model {

// What a call of the model hands to its layers.
struct LayerCall {
  const Sequences& sequences;
  const State* state = nullptr;  // null: fresh and not kept
  bool decoding = false;         // one token a sequence

  Tensor positions() const { return state != nullptr ? state->positions() : Tensor(); }
};

// One entry of a layer's state: [shape...] per sequence.
struct StateShape {
  std::string name;  // "S"; in the model's state "layers.3.S"
  Shape shape;
  bool grows = false;  // a KV cache, [heads, capacity, width]
};

// The time-mixing part of a block: a Mixer or an Attention.
class TimeMixing {
 public:
  virtual ~TimeMixing() = default;
  // x [R, hidden], already normed -> [R, hidden].
  virtual nn::Var forward(nn::Tape& tape, const LayerCall& call, nn::Var x) const = 0;
  // The entries of its state for one sequence, always the same ones in the same order.
  virtual std::vector<StateShape> state_shapes() const = 0;
  // The value of a new entry that does not start at zero; undefined: it does. Reads parameters, so
  // outside of any step.
  virtual Tensor fresh_state(const StateShape& entry) const = 0;
  // Where its entries begin among those of the model.
  void place_state(std::size_t first) { first_entry_ = first; }

 protected:
  // Entry number `index` of this layer, undefined without a state.
  Tensor state_entry(const LayerCall& call, std::size_t index) const {
    return call.state != nullptr ? call.state->entries()[first_entry_ + index].value : Tensor();
  }

 private:
  std::size_t first_entry_ = 0;
};

std::unique_ptr<TimeMixing> make_mixer(const Declare& declare, const MixerConfig& config);
std::unique_ptr<TimeMixing> make_attention(const Declare& declare, const AttentionConfig& config);

// SwiGLU: down(silu(gate x) * up x).
class Mlp {
 public:
  Mlp(const Declare& declare, std::int64_t width, bool bias);
  nn::Var forward(nn::Tape& tape, nn::Var x) const;

 private:
  const nn::Parameter* gate_;
  const nn::Parameter* up_;
  const nn::Parameter* down_;
  const nn::Parameter* gate_bias_ = nullptr;
  const nn::Parameter* up_bias_ = nullptr;
  const nn::Parameter* down_bias_ = nullptr;
};

// x weight^T + bias; a null bias is none.
inline nn::Var apply_linear(nn::Tape& tape, nn::Var x, const nn::Parameter* weight,
                            const nn::Parameter* bias = nullptr) {
  return nn::linear(tape, x, tape.parameter(*weight),
                    bias != nullptr ? tape.parameter(*bias) : nn::Var());
}

}  // namespace rankone::model
