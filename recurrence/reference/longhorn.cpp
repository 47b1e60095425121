// Diagonal Longhorn, token by token. With N = |k|^2 and D_j = beta_j / (1 + beta_j N):
//
//     S_dj <- (1 - D_j k_d^2) S_dj + D_j v_j k_d;     o_j = sum_d S_dj q_d

#include "recurrence/reference/algebra.hpp"
#include "recurrence/reference/reference_backend.hpp"
#include "recurrence/reference/replay.hpp"
#include "recurrence/reference/wide.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace {

struct Inputs {
  LonghornShape shape;
  const double *q, *k, *v, *beta, *initial;

  std::int64_t key_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.heads + head / shape.group()) * shape.d_k;
  }
  std::int64_t value_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.value_heads + head) * shape.d_v;
  }
  std::int64_t state_at(std::int64_t sequence, std::int64_t head) const {
    return (sequence * shape.value_heads + head) * shape.d_k * shape.d_v;
  }

  void step(double* S, std::int64_t row, std::int64_t head) const {
    const double* key = k + key_at(row, head);
    const double N = dot(key, key, shape.d_k);
    for (std::int64_t j = 0; j < shape.d_v; ++j) {
      const double gain = beta[value_at(row, head) + j];
      const double D = gain / (1.0 + gain * N);
      const double value = v[value_at(row, head) + j];
      for (std::int64_t d = 0; d < shape.d_k; ++d) {
        double& s = S[d * shape.d_v + j];
        s = (1.0 - D * key[d] * key[d]) * s + D * value * key[d];
      }
    }
  }
};

Inputs inputs_of(Wide& wide, const LonghornShape& shape, const Longhorn& in) {
  const std::int64_t states = shape.sequences * shape.value_heads * shape.d_k * shape.d_v;
  return {shape,         wide.in(in.q),    wide.in(in.k),
          wide.in(in.v), wide.in(in.beta), wide.in(in.initial_state, states, 0.0)};
}

struct Gradients {
  double *q, *k, *v, *beta, *initial;
};

// Reverse step, Gr = dL/dS from the future, `before` = S_{t-1}:
//     dq_d += S_dj do_j;    Gr_dj += q_d do_j
//     dD_j  = sum_d Gr_dj (v_j k_d - k_d^2 S_dj);   dv_j = sum_d Gr_dj D_j k_d
//     dk_d += Gr_dj D_j (v_j - 2 k_d S_dj);         Gr_dj <- Gr_dj (1 - D_j k_d^2)
// and through D: dD/dbeta = 1 / (1 + beta N)^2, dD/dN = -D^2, dN = 2 k dk.
void reverse_step(const Inputs& in, const Gradients& grads, const double* d_o, std::int64_t row,
                  std::int64_t head, const double* before, const double* after, double* Gr) {
  const std::int64_t K = in.shape.d_k, V = in.shape.d_v;
  const std::int64_t key_row = in.key_at(row, head), value_row = in.value_at(row, head);
  const double* k = in.k + key_row;
  const double N = dot(k, k, K);
  add_product(grads.q + key_row, 1.0, after, d_o + value_row, K, V);
  add_outer(Gr, 1.0, in.q + key_row, d_o + value_row, K, V);
  double dN = 0.0;
  for (std::int64_t j = 0; j < V; ++j) {
    const double beta = in.beta[value_row + j], v = in.v[value_row + j];
    const double D = beta / (1.0 + beta * N);
    double dD = 0.0, dv = 0.0;
    for (std::int64_t d = 0; d < K; ++d) {
      double& gr = Gr[d * V + j];
      const double s = before[d * V + j];
      dD += gr * (v * k[d] - k[d] * k[d] * s);
      dv += gr * D * k[d];
      grads.k[key_row + d] += gr * D * (v - 2.0 * k[d] * s);
      gr *= 1.0 - D * k[d] * k[d];
    }
    grads.v[value_row + j] = dv;
    grads.beta[value_row + j] = dD / ((1.0 + beta * N) * (1.0 + beta * N));
    dN -= dD * D * D;
  }
  add_scaled(grads.k + key_row, 2.0 * dN, k, K);
}

}  // namespace

void ReferenceBackend::longhorn(Context& context, const Sequences& sequences,
                                const Longhorn& inputs, const LonghornOut& out) const {
  Wide wide(context);
  const LonghornShape shape = shape_of(sequences, inputs);
  const Inputs in = inputs_of(wide, shape, inputs);
  const std::int64_t size = shape.d_k * shape.d_v;
  double* o = wide.out(out.o, in.value_at(shape.rows, 0));
  double* final_state = wide.in_place(out.final_state, in.state_at(shape.sequences, 0));
  double* scratch = wide.scratch(context.threads().size() * size);
  if (context.planning()) return;

  const std::int64_t tasks = shape.sequences * shape.value_heads;
  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.value_heads, head = task % shape.value_heads;
    double* S = scratch + worker * size;
    const double* initial = in.initial + in.state_at(sequence, head);
    std::copy(initial, initial + size, S);
    for (std::int64_t row = sequences.begin(sequence); row < sequences.end(sequence); ++row) {
      in.step(S, row, head);
      read(o + in.value_at(row, head), S, in.q + in.key_at(row, head), shape.d_k, shape.d_v);
    }
    std::copy(S, S + size, final_state + in.state_at(sequence, head));
  });
  wide.finish();
}

void ReferenceBackend::longhorn_vjp(Context& context, const Sequences& sequences,
                                    const Longhorn& inputs, const LonghornCotangents& cotangents,
                                    const LonghornGrads& grads) const {
  Wide wide(context);
  const LonghornShape shape = shape_of(sequences, inputs);
  const Inputs in = inputs_of(wide, shape, inputs);
  const std::int64_t size = shape.d_k * shape.d_v;
  const std::int64_t keys = shape.rows * shape.heads * shape.d_k;
  const std::int64_t values = in.value_at(shape.rows, 0);
  const std::int64_t states = in.state_at(shape.sequences, 0);
  const double* d_o = wide.in(cotangents.o);
  const double* d_final = wide.in(cotangents.final_state, states, 0.0);
  const Gradients out{wide.out(grads.q, keys), wide.out(grads.k, keys), wide.out(grads.v, values),
                      wide.out(grads.beta, values), wide.out(grads.initial_state, states)};
  const std::int64_t history = replay_scratch(sequences.longest(), size);
  double* scratch = wide.scratch(context.threads().size() * (history + size));
  if (context.planning()) return;

  // A task is a key head with its value heads in order: they add to the same dq and dk.
  context.threads().run(shape.sequences * shape.heads, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, begin = sequences.begin(sequence);
    double* states_kept = scratch + worker * (history + size);
    double* Gr = states_kept + history;
    for (std::int64_t j = 0; j < shape.group(); ++j) {
      const std::int64_t head = task % shape.heads * shape.group() + j;
      const std::int64_t state = in.state_at(sequence, head);
      std::copy(d_final + state, d_final + state + size, Gr);
      replay_backwards(
          sequences.length(sequence), size, in.initial + state, states_kept,
          [&](std::int64_t t, double* S) { in.step(S, begin + t, head); },
          [&](std::int64_t t, const double* before, const double* after) {
            reverse_step(in, out, d_o, begin + t, head, before, after, Gr);
          });
      std::copy(Gr, Gr + size, out.initial + state);
    }
  });
  wide.finish();
}

}  // namespace rankone::recurrence
