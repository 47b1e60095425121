// The diagonal preconditioner, token by token:
//
//     A = exp(g) A + b k^ * k^;   out = factor(A) * target
//
// with the factor of axes/preconditioner.hpp.

#include "recurrence/reference/precondition.hpp"

#include <cmath>

#include "recurrence/axes/preconditioner.hpp"
#include "recurrence/reference/algebra.hpp"
#include "recurrence/reference/reference_backend.hpp"
#include "recurrence/reference/replay.hpp"

namespace rankone::recurrence {

PreconditionInputs::PreconditionInputs(Context& context, Wide& wide, const PreconditionShape& sizes,
                                       const Precondition& in, std::int64_t state_size)
    : shape(sizes) {
  const std::int64_t gates = shape.rows * shape.heads, K = shape.d_k;
  k = wide.in(in.k);
  target = wide.in(in.target);
  g = wide.in(in.g, gates, 0.0);
  b = wide.in(in.b, gates, 1.0);
  initial = wide.in(in.initial, shape.sequences * shape.heads * state_size, 0.0);
  double* inverse = wide.filled(gates, 1.0);
  inverse_norm = inverse;
  if (!in.normalize) return;
  double* normalized = wide.scratch(gates * K);
  if (!context.planning()) {
    for (std::int64_t i = 0; i < gates; ++i) {
      const double* key = k + i * K;
      inverse[i] = 1.0 / std::sqrt(dot(key, key, K) + 1e-6);
      for (std::int64_t d = 0; d < K; ++d) normalized[i * K + d] = key[d] * inverse[i];
    }
  }
  k = normalized;
}

KeyGradients::KeyGradients(Wide& wide, const PreconditionShape& shape,
                           const PreconditionCotangents& cotangents, const PreconditionGrads& grads)
    : count_(shape.rows * shape.heads * shape.d_k), joined_(grads.joins_target()) {
  k = wide.filled(count_, 0.0);
  target = wide.filled(count_, 0.0);
  other_ = wide.in(cotangents.k, count_, 0.0);
  of_k_ = wide.in_place(grads.k, count_);
  of_target_ = wide.in_place(joined_ ? Tensor() : grads.target, count_);
}

void KeyGradients::add() const {
  for (std::int64_t i = 0; i < count_; ++i) {
    of_k_[i] = k[i] + other_[i] + (joined_ ? target[i] : 0.0);
    of_target_[i] = target[i];
  }
}

void normalize_vjp(double* dk, const double* k_hat, double inverse_norm, std::int64_t d_k) {
  const double along = dot(k_hat, dk, d_k);
  for (std::int64_t d = 0; d < d_k; ++d) dk[d] = inverse_norm * (dk[d] - k_hat[d] * along);
}

namespace {

// factor(A) of channel d of a head, and where its parameter (center or ridge) stands.
struct Factor {
  const Precondition& in;
  const double* parameter;
  std::int64_t d_k;

  bool atk() const { return in.kind == PreconditionerKind::atk; }
  std::int64_t parameter_at(std::int64_t head, std::int64_t d) const {
    return atk() ? head : head * d_k + d;
  }
  PreconditionFactor<double> operator()(double state, std::int64_t head, std::int64_t d) const {
    const double at = parameter[parameter_at(head, d)];
    return precondition_factor(in.kind, state, at, std::log(in.x), in.eps);
  }
};

void step(const PreconditionInputs& in, double* A, std::int64_t row, std::int64_t head) {
  const std::int64_t gate = in.gate_at(row, head);
  const double decay = std::exp(in.g[gate]);
  const double* k = in.k + in.key_at(row, head);
  for (std::int64_t d = 0; d < in.shape.d_k; ++d) {
    A[d] = precondition_step(A[d], decay, in.b[gate], k[d]);
  }
}

struct Gradients {
  double *k, *target, *g, *b;
};

// Reverse step, lambda = dL/dA from the future:
//     lambda += d_out target dfactor/dA;   dtarget = d_out factor;   dparameter += ...
//     dk^ = 2 b k^ lambda;   db = sum k^2 lambda;   dg = exp(g) sum lambda A_{t-1}
//     lambda <- exp(g) lambda
struct ReverseStep {
  const PreconditionInputs& in;
  const Gradients& grads;
  const Factor& factor;
  const double* d_out;
  double* parameter_grad;  // of this sequence and head: [K], or its first element for atk
  double* lambda;

  void operator()(std::int64_t row, std::int64_t head, const double* before,
                  const double* after) const {
    const std::int64_t key = in.key_at(row, head), gate = in.gate_at(row, head);
    const double decay = std::exp(in.g[gate]);
    for (std::int64_t d = 0; d < in.shape.d_k; ++d) {
      const PreconditionFactor<double> at = factor(after[d], head, d);
      const double through = d_out[key + d] * in.target[key + d], k = in.k[key + d];
      grads.target[key + d] = d_out[key + d] * at.factor;
      parameter_grad[factor.atk() ? 0 : d] += through * at.d_parameter;
      lambda[d] += through * at.d_state;
      grads.k[key + d] = 2.0 * in.b[gate] * k * lambda[d];
      grads.b[gate] += k * k * lambda[d];
      lambda[d] *= decay;
      grads.g[gate] += lambda[d] * before[d];
    }
    if (factor.in.normalize) {
      normalize_vjp(grads.k + key, in.k + key, in.inverse_norm[gate], in.shape.d_k);
    }
  }
};

}  // namespace

void ReferenceBackend::precondition(Context& context, const Sequences& sequences,
                                    const Precondition& inputs, const PreconditionOut& out) const {
  if (inputs.kind == PreconditionerKind::gram) return gram(context, sequences, inputs, out);
  Wide wide(context);
  const PreconditionShape shape = shape_of(sequences, inputs);
  const std::int64_t K = shape.d_k, tasks = shape.sequences * shape.heads;
  const PreconditionInputs in(context, wide, shape, inputs, K);
  const bool atk = inputs.kind == PreconditionerKind::atk;
  const Factor factor{inputs, wide.in(atk ? inputs.center : inputs.ridge), K};
  double* result = wide.out(out.out, shape.rows * shape.heads * K);
  double* final_state = wide.in_place(out.final, tasks * K);
  double* states = wide.scratch(tasks * K);
  if (context.planning()) return;

  context.threads().run(tasks, [&](std::int64_t task, int) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    double* A = states + task * K;
    std::copy(in.initial + task * K, in.initial + (task + 1) * K, A);
    for (std::int64_t row = sequences.begin(sequence); row < sequences.end(sequence); ++row) {
      step(in, A, row, head);
      const std::int64_t key = in.key_at(row, head);
      for (std::int64_t d = 0; d < K; ++d) {
        result[key + d] = factor(A[d], head, d).factor * in.target[key + d];
      }
    }
    std::copy(A, A + K, final_state + task * K);
  });
  wide.finish();
}

void ReferenceBackend::precondition_vjp(Context& context, const Sequences& sequences,
                                        const Precondition& inputs,
                                        const PreconditionCotangents& cotangents,
                                        const PreconditionGrads& grads) const {
  if (inputs.kind == PreconditionerKind::gram) {
    return gram_vjp(context, sequences, inputs, cotangents, grads);
  }
  Wide wide(context);
  const PreconditionShape shape = shape_of(sequences, inputs);
  const std::int64_t K = shape.d_k, tasks = shape.sequences * shape.heads;
  const std::int64_t gates = shape.rows * shape.heads;
  const PreconditionInputs in(context, wide, shape, inputs, K);
  const bool atk = inputs.kind == PreconditionerKind::atk;
  const Factor factor{inputs, wide.in(atk ? inputs.center : inputs.ridge), K};
  const double* d_out = wide.in(cotangents.out);
  const double* d_final = wide.in(cotangents.final, tasks * K, 0.0);
  const KeyGradients keys(wide, shape, cotangents, grads);
  const Gradients out{keys.k, keys.target, wide.out(grads.g, gates), wide.out(grads.b, gates)};
  const std::int64_t width = atk ? 1 : K;  // elements of the parameter per head
  double* parameter = wide.out(atk ? grads.center : grads.ridge, shape.heads * width);
  double* initial = wide.out(grads.initial, tasks * K);
  double* parts = wide.filled(tasks * width, 0.0);
  const std::int64_t history = replay_scratch(sequences.longest(), K), per_worker = history + K;
  double* scratch = wide.scratch(context.threads().size() * per_worker);
  if (context.planning()) return;

  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    const std::int64_t begin = sequences.begin(sequence);
    double* kept = scratch + worker * per_worker;
    double* lambda = kept + history;
    const ReverseStep reverse{in, out, factor, d_out, parts + task * width, lambda};
    std::copy(d_final + task * K, d_final + (task + 1) * K, lambda);
    replay_backwards(
        sequences.length(sequence), K, in.initial + task * K, kept,
        [&](std::int64_t t, double* A) { step(in, A, begin + t, head); },
        [&](std::int64_t t, const double* before, const double* after) {
          reverse(begin + t, head, before, after);
        });
    std::copy(lambda, lambda + K, initial + task * K);
  });
  keys.add();
  for (std::int64_t task = 0; task < tasks; ++task) {
    add_scaled(parameter + task % shape.heads * width, 1.0, parts + task * width, width);
  }
  wide.finish();
}

}  // namespace rankone::recurrence
