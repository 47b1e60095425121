#pragma once

// A small tape of coarse operators. Functions of functions.hpp compute a value with an operator
// and, while the tape records, note how to run its vjp; backward() runs them in reverse. The same
// model code therefore serves training, prefill and decode. Values and gradients live in the arena
// of the context.

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "core/context.hpp"
#include "core/sequences.hpp"
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
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Context& context() { return context_; }
  bool recording() const { return recording_; }

  Var constant(const Tensor& value);          // no gradient
  Var leaf(const Tensor& value);              // gradient wanted, read with grad()
  Var parameter(const Parameter& parameter);  // gradient accumulates into parameter.grad
  // The same with another shape of the same count, e.g. [channels, 1, width] as [channels, width].
  Var parameter(const Parameter& parameter, const Shape& shape);
  const Tensor& value(Var var) const { return nodes_[index(var)].value; }
  bool wants_grad(Var var) const;  // false for constants, absent Vars, and when not recording

  // Notes the result of an operator. `vjp` is kept only while recording; it reads grad(result) and
  // gives its contributions to add_grad or, for parameters, accumulates into param_grad.
  using Vjp = std::function<void(Tape& tape, const Tensor& dy)>;
  template <class Function>
  Var result(const Tensor& value, Function&& vjp) {
    return recording_ ? record(value, Vjp(std::forward<Function>(vjp))) : constant(value);
  }

  // For an operator with several outputs, each put on the tape as a leaf: `vjp` always runs and
  // reads their gradients itself.
  template <class Function>
  void joint(Function&& vjp) {
    if (!recording_) return;
    const Var var = record(Tensor(), Vjp(std::forward<Function>(vjp)));
    nodes_[index(var)].joint = true;
  }

  // The gradient so far; undefined: none (zero).
  const Tensor& grad(Var var) const { return nodes_[index(var)].grad; }
  // Where the vjp accumulates the gradient of a parameter; undefined for frozen ones.
  const Tensor& param_grad(Var var) const { return nodes_[index(var)].param_grad; }
  // Adds `gradient` (arena memory of the caller, which it gives away).
  void add_grad(Var var, const Tensor& gradient);
  // Adds `gradient`, which others go on reading: it is never written to.
  void share_grad(Var var, const Tensor& gradient);

  // Keeps derived sequences alive as long as the tape.
  const Sequences& keep(Sequences sequences);

  // Runs the vjps of all results up to `output` in reverse, starting from its cotangent, which is
  // only read.
  void backward(Var output, const Tensor& cotangent);

  // y = block(x), of the shape and dtype of x; block must be a pure function of x and parameters
  // and is called again during backward where `recompute`: then only x and y are kept in between.
  // While recording, the gradients inside the block are released when it has been run backwards.
  // Otherwise the block's activations are released at once and x is given away: y is written over
  // it.
  using Block = std::function<Var(Tape& tape, Var x)>;
  Var checkpoint(Var x, const Block& block, bool recompute);

 private:
  struct Node {
    Tensor value;
    Tensor grad;
    Tensor param_grad;
    bool wants_grad = false;
    bool borrowed = false;  // grad is memory that others read
    bool joint = false;     // its vjp needs no gradient of its own
    Vjp vjp;
  };
  std::size_t index(Var var) const { return static_cast<std::size_t>(var.id); }
  Var push(Node node);
  Var record(const Tensor& value, Vjp vjp);
  Var replay_block(Var x, const Block& block);

  Context& context_;
  bool recording_;
  std::vector<Node> nodes_;
  std::deque<Sequences> sequences_;
};

}  // namespace rankone::nn
