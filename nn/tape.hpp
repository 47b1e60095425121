#pragma once

// A small tape of coarse operators. Functions of functions.hpp compute a value with an operator
// and, while the tape records, note how to run its vjp; backward() runs them in reverse. The same
// model code therefore serves training, prefill and decode. Values and gradients live in the arena
// of the context.

#include <functional>
#include <vector>

#include "core/context.hpp"
#include "core/tensor.hpp"
#include "nn/parameter.hpp"

namespace rankone::nn {

// A value on a tape. Default-constructed: absent.
struct Var {
  int id = -1;
  explicit operator bool() const { return id >= 0; }
};

class Tape {
 public:
  enum class Mode { inference, training };

  Tape(Context& context, Mode mode) : context_(context), recording_(mode == Mode::training) {}

  Context& context() { return context_; }
  bool recording() const { return recording_; }

  Var constant(const Tensor& value);          // no gradient
  Var leaf(const Tensor& value);              // gradient wanted, read with grad()
  Var parameter(const Parameter& parameter);  // gradient accumulates into parameter.grad
  const Tensor& value(Var var) const { return nodes_[index(var)].value; }
  bool wants_grad(Var var) const;  // false for constants, absent Vars, and when not recording

  // Notes the result of an operator. `vjp` is kept only while recording; it reads grad(result) and
  // gives its contributions to add_grad or, for parameters, accumulates into param_grad.
  using Vjp = std::function<void(Tape& tape, const Tensor& dy)>;
  Var result(const Tensor& value, Vjp vjp);

  // The gradient so far; undefined: none (zero).
  const Tensor& grad(Var var) const { return nodes_[index(var)].grad; }
  // Where the vjp accumulates the gradient of a parameter; undefined for frozen ones.
  const Tensor& param_grad(Var var) const { return nodes_[index(var)].param_grad; }
  // Adds `gradient` (arena memory of the caller, which it gives away).
  void add_grad(Var var, const Tensor& gradient);

  // Runs the vjps of all results up to `output` in reverse, starting from its cotangent.
  void backward(Var output, const Tensor& cotangent);

  // y = block(x). With `recompute` only x and y are kept: the activations of the block are released
  // and made again during backward. block must be a pure function of x and parameters.
  using Block = std::function<Var(Tape& tape, Var x)>;
  Var checkpoint(Var x, const Block& block, bool recompute);

 private:
  struct Node {
    Tensor value;
    Tensor grad;
    Tensor param_grad;
    bool wants_grad = false;
    Vjp vjp;
  };
  std::size_t index(Var var) const { return static_cast<std::size_t>(var.id); }

  Context& context_;
  bool recording_;
  std::vector<Node> nodes_;
};

}  // namespace rankone::nn
