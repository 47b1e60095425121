#pragma once

// What the differentiable functions share: outputs and gradients in the arena.

#include <utility>
#include <vector>

#include "nn/operators.hpp"
#include "nn/tape.hpp"

namespace rankone::nn::support {

// Undefined for an absent Var.
inline Tensor value(const Tape& tape, Var var) { return var ? tape.value(var) : Tensor(); }

inline Tensor like(Tape& tape, const Tensor& tensor) {
  return tape.context().empty(tensor.shape(), tensor.dtype());
}

// Where a vjp writes the gradient of an activation; undefined where none is wanted.
inline Tensor wanted(Tape& tape, Var var) {
  return tape.wants_grad(var) ? like(tape, tape.value(var)) : Tensor();
}

// The gradients that a vjp overwrites: scratch for each that is wanted, which the tape receives
// when the vjp has run, in the order they were asked for.
class ScratchGrads {
 public:
  explicit ScratchGrads(Tape& tape) : tape_(tape) {}

  Tensor of(Var var) {
    const Tensor gradient = wanted(tape_, var);
    if (gradient.defined()) gradients_.emplace_back(var, gradient);
    return gradient;
  }
  void give() const {
    for (const auto& [var, gradient] : gradients_) tape_.add_grad(var, gradient);
  }

 private:
  Tape& tape_;
  std::vector<std::pair<Var, Tensor>> gradients_;
};

// Where an operator of nn accumulates the gradient of a weight: the parameter's own gradient, or
// scratch for a weight that is a value of the tape.
class ParameterSlot {
 public:
  ParameterSlot(Tape& tape, Var var) : tape_(tape), var_(var) {
    if (!tape.wants_grad(var)) return;
    tensor_ = tape.param_grad(var);
    if (tensor_.defined()) return;
    tensor_ = like(tape, tape.value(var));
    fill(tape.context(), tensor_, 0.0);
    scratch_ = true;
  }
  const Tensor& tensor() const { return tensor_; }
  void give() const {
    if (scratch_) tape_.add_grad(var_, tensor_);
  }

 private:
  Tape& tape_;
  Var var_;
  Tensor tensor_;
  bool scratch_ = false;
};

}  // namespace rankone::nn::support
