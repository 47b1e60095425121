#pragma once

// Shared by the diagonal and the exact preconditioner.

#include "recurrence/reference/wide.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {

// The inputs in float64; `k` is L2-normalised already where the call asks for it.
struct PreconditionInputs {
  PreconditionShape shape;
  const double *k, *target, *g, *b, *initial;
  const double* inverse_norm;  // [R, H], 1 where the call does not normalise

  PreconditionInputs(Context& context, Wide& wide, const PreconditionShape& sizes,
                     const Precondition& in, std::int64_t state_size);

  std::int64_t key_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.heads + head) * shape.d_k;
  }
  std::int64_t gate_at(std::int64_t row, std::int64_t head) const {
    return row * shape.heads + head;
  }
};

// The gradients of k and target: their parts apart, then, by add(), what the tensors receive.
struct KeyGradients {
  double *k, *target;  // [R, H, K]: through the state, through the product; zero at the start

  KeyGradients(Wide& wide, const PreconditionShape& shape, const PreconditionCotangents& cotangents,
               const PreconditionGrads& grads);
  void add() const;

 private:
  std::int64_t count_;
  bool joined_;
  const double* other_;
  double *of_k_, *of_target_;
};

// Turns dL/dk^ of one row into dL/dk: with k^ = k r, r = 1 / sqrt(|k|^2 + 1e-6),
// dk = r (dk^ - k^ (k^ . dk^)).
void normalize_vjp(double* dk, const double* k_hat, double inverse_norm, std::int64_t d_k);

void gram(Context&, const Sequences&, const Precondition&, const PreconditionOut&);
void gram_vjp(Context&, const Sequences&, const Precondition&, const PreconditionCotangents&,
              const PreconditionGrads&);

}  // namespace rankone::recurrence
