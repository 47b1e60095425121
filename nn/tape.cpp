#include "nn/tape.hpp"

#include <cassert>
#include <memory>

#include "nn/operators.hpp"

namespace rankone::nn {

Var Tape::push(Node node) {
  nodes_.push_back(std::move(node));
  return Var{static_cast<int>(nodes_.size()) - 1};
}

Var Tape::constant(const Tensor& value) {
  Node node;
  node.value = value;
  return push(std::move(node));
}

Var Tape::leaf(const Tensor& value) {
  Node node;
  node.value = value;
  node.wants_grad = recording_;
  return push(std::move(node));
}

Var Tape::parameter(const Parameter& parameter) {
  return this->parameter(parameter, parameter.value.shape());
}

Var Tape::parameter(const Parameter& parameter, const Shape& shape) {
  Node node;
  node.value = parameter.value.reshape(shape);
  if (recording_ && parameter.grad.defined()) {
    node.param_grad = parameter.grad.reshape(shape);
    node.wants_grad = true;
  }
  return push(std::move(node));
}

Var Tape::record(const Tensor& value, Vjp vjp) {
  Node node;
  node.value = value;
  node.wants_grad = true;
  node.vjp = std::move(vjp);
  return push(std::move(node));
}

bool Tape::wants_grad(Var var) const { return var && nodes_[index(var)].wants_grad; }

void Tape::add_grad(Var var, const Tensor& gradient) {
  if (!wants_grad(var)) return;
  Node& node = nodes_[index(var)];
  assert(gradient.count() == node.value.count());
  if (node.param_grad.defined()) {
    add(context_, node.param_grad, gradient.reshape(node.param_grad.shape()), node.param_grad);
    return;
  }
  const Tensor shaped = gradient.reshape(node.value.shape());
  if (!node.grad.defined()) {
    node.grad = shaped;
  } else if (node.borrowed) {
    add(context_, node.grad, shaped, shaped);
    node.grad = shaped;
  } else {
    add(context_, node.grad, shaped, node.grad);
  }
  node.borrowed = false;
}

void Tape::share_grad(Var var, const Tensor& gradient) {
  if (!wants_grad(var)) return;
  Node& node = nodes_[index(var)];
  const Tensor shaped = gradient.reshape(node.value.shape());
  if (node.param_grad.defined()) {
    add(context_, node.param_grad, shaped.reshape(node.param_grad.shape()), node.param_grad);
  } else if (!node.grad.defined()) {
    node.grad = shaped;
    node.borrowed = true;
  } else if (node.borrowed) {
    const Tensor sum = context_.empty(shaped.shape(), shaped.dtype());
    add(context_, node.grad, shaped, sum);
    node.grad = sum;
    node.borrowed = false;
  } else {
    add(context_, node.grad, shaped, node.grad);
  }
}

const Sequences& Tape::keep(Sequences sequences) {
  sequences_.push_back(std::move(sequences));
  return sequences_.back();
}

void Tape::backward(Var output, const Tensor& cotangent) {
  assert(recording_);
  share_grad(output, cotangent);
  for (int id = output.id; id >= 0; --id) {
    Node& node = nodes_[static_cast<std::size_t>(id)];
    if (!node.vjp || !(node.joint || node.grad.defined())) continue;
    const Vjp vjp = std::move(node.vjp);
    const Tensor dy = node.grad;
    vjp(*this, dy);
  }
}

namespace {

// The gradient of a block's input, moved out of the block's arena scope.
void move_grad(Context& context, const Tensor& grad, const Tensor& dx) {
  if (grad.defined()) {
    copy(context, grad, dx);
  } else {
    fill(context, dx, 0.0);
  }
}

}  // namespace

Var Tape::checkpoint(Var x, const Block& block, bool recompute) {
  const Tensor input = value(x);
  if (!recording_) {
    ArenaScope scope(context_.arena());
    Tape inner(context_, Mode::inference);
    const Var y = block(inner, inner.constant(input));
    copy(context_, inner.value(y), input);
    return x;
  }
  if (recompute) return replay_block(x, block);
  auto inner = std::make_shared<Tape>(context_, Mode::training);
  const Var inner_x = wants_grad(x) ? inner->leaf(input) : inner->constant(input);
  const Var inner_y = block(*inner, inner_x);
  return result(inner->value(inner_y), [inner, inner_x, inner_y, x](Tape& tape, const Tensor& dy) {
    Context& context = tape.context();
    const Tensor dx = context.empty(dy.shape(), dy.dtype());
    {
      ArenaScope scope(context.arena());
      inner->backward(inner_y, dy);
      if (tape.wants_grad(x)) move_grad(context, inner->grad(inner_x), dx);
    }
    tape.add_grad(x, dx);
  });
}

// The activations of the block are released and made again, on a tape of their own, when its
// cotangent is known.
Var Tape::replay_block(Var x, const Block& block) {
  const Tensor input = value(x);
  const Tensor output = context_.empty(input.shape(), input.dtype());
  {
    ArenaScope scope(context_.arena());
    Tape inner(context_, Mode::inference);
    const Var y = block(inner, inner.constant(input));
    copy(context_, inner.value(y), output);
  }
  return result(output, [input, block, x](Tape& tape, const Tensor& dy) {
    Context& context = tape.context();
    const Tensor dx = context.empty(dy.shape(), dy.dtype());
    {
      ArenaScope scope(context.arena());
      Tape inner(context, Mode::training);
      const Var inner_x = tape.wants_grad(x) ? inner.leaf(input) : inner.constant(input);
      const Var inner_y = block(inner, inner_x);
      inner.backward(inner_y, dy);
      if (tape.wants_grad(x)) move_grad(context, inner.grad(inner_x), dx);
    }
    tape.add_grad(x, dx);
  });
}

}  // namespace rankone::nn
