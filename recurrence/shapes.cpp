#include "recurrence/shapes.hpp"

namespace rankone::recurrence {

TwoKeyShape shape_of(const Sequences& sequences, const TwoKey& inputs) {
  TwoKeyShape shape{sequences.rows(), sequences.count(), inputs.q.dim(-2),
                    inputs.v.dim(-2), inputs.q.dim(-1),  inputs.v.dim(-1)};
  const Tensor& g = inputs.g;
  if (!g.defined()) return shape;
  // By the number of elements: [B, T, HV] and [R, HV, K] have the same rank. With d_k = 1 both
  // readings are the same numbers. Without rows only the axes can tell.
  const std::int64_t scalars = sequences.rows() * shape.value_heads;
  shape.channel_decay =
      scalars != 0 ? g.count() != scalars
                   : g.rank() > 2 && g.dim(-2) == shape.value_heads && g.dim(-1) == shape.d_k;
  return shape;
}

PreconditionShape shape_of(const Sequences& sequences, const Precondition& inputs) {
  return {sequences.rows(), sequences.count(), inputs.k.dim(-2), inputs.k.dim(-1)};
}

DecayShape shape_of(const Decay& inputs, const Tensor& g) {
  const Tensor& like = inputs.x.defined() ? inputs.x : g;
  DecayShape shape;
  shape.channels = inputs.channel ? like.dim(-1) : 1;
  shape.value_heads = like.dim(inputs.channel ? -2 : -1);
  const std::int64_t width = shape.value_heads * shape.channels;
  shape.rows = width > 0 ? like.count() / width : 0;
  return shape;
}

GainShape shape_of(const Sequences& sequences, const Gain& inputs, const Tensor& b) {
  GainShape shape{sequences.rows(), sequences.count()};
  const Tensor& key = inputs.e.defined() ? inputs.e : inputs.w;
  if (key.defined()) {
    shape.heads = key.dim(-2);
    shape.d_k = key.dim(-1);
  }
  if (inputs.v.defined()) {
    shape.value_heads = inputs.v.dim(-2);
    shape.d_v = inputs.v.dim(-1);
  } else if (inputs.x.defined() && inputs.kind != GainKind::vector) {
    shape.value_heads = inputs.x.dim(-1);
  } else if (b.defined()) {
    shape.value_heads = b.dim(-1);
  }
  return shape;
}

MesaShape shape_of(const Sequences& sequences, const Mesa& inputs) {
  return {sequences.rows(), sequences.count(), inputs.q.dim(-2), inputs.q.dim(-1),
          inputs.v.dim(-1)};
}

LonghornShape shape_of(const Sequences& sequences, const Longhorn& inputs) {
  return {sequences.rows(), sequences.count(), inputs.q.dim(-2),
          inputs.v.dim(-2), inputs.q.dim(-1),  inputs.v.dim(-1)};
}

}  // namespace rankone::recurrence
