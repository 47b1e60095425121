// The exact preconditioner, token by token:
//
//     G = exp(g) G + b k^ k^^T,  G_0 = diag(ridge);   out = G^{-1} target

#include <cmath>

#include "recurrence/reference/algebra.hpp"
#include "recurrence/reference/precondition.hpp"
#include "recurrence/reference/replay.hpp"

namespace rankone::recurrence {
namespace {

struct Gram {
  PreconditionInputs in;
  const double* ridge;
  bool from_ridge;  // no initial state: G_0 = diag(ridge)

  Gram(Context& context, Wide& wide, const PreconditionShape& shape, const Precondition& inputs)
      : in(context, wide, shape, inputs, shape.d_k * shape.d_k),
        ridge(wide.in(inputs.ridge)),
        from_ridge(!inputs.initial.defined()) {}

  void load(double* G, std::int64_t task) const {
    const std::int64_t K = in.shape.d_k, head = task % in.shape.heads;
    std::copy(in.initial + task * K * K, in.initial + (task + 1) * K * K, G);
    for (std::int64_t d = 0; from_ridge && d < K; ++d) G[d * K + d] = ridge[head * K + d];
  }
  void step(double* G, std::int64_t row, std::int64_t head) const {
    const std::int64_t K = in.shape.d_k, gate = in.gate_at(row, head);
    const double* k = in.k + in.key_at(row, head);
    decay_rows(G, in.g + gate, 0, K, K);
    add_outer(G, in.b[gate], k, k, K, K);
  }
  void solve(double* factor, double* x, const double* G, std::int64_t row,
             std::int64_t head) const {
    const std::int64_t K = in.shape.d_k, key = in.key_at(row, head);
    std::copy(G, G + K * K, factor);
    cholesky(factor, K);
    std::copy(in.target + key, in.target + key + K, x);
    cholesky_solve(factor, x, K);
  }
};

struct Gradients {
  double *k, *target, *g, *b;
};

// Reverse step, D = dL/dG from the future, y = G^{-1} target:
//     z = G^{-1} d_out;   dtarget = z;   D -= z y^T
//     dk^ = b (D + D^T) k^;   db = k^^T D k^;   dg = exp(g) <D, G_{t-1}>;   D <- exp(g) D
struct ReverseStep {
  const Gram& gram;
  const Gradients& grads;
  const double* d_out;
  bool normalize;
  double *D, *factor, *y;

  void operator()(std::int64_t row, std::int64_t head, const double* before,
                  const double* after) const {
    const PreconditionInputs& in = gram.in;
    const std::int64_t K = in.shape.d_k, key = in.key_at(row, head), gate = in.gate_at(row, head);
    const double* k = in.k + key;
    double* z = grads.target + key;
    double* dk = grads.k + key;
    gram.solve(factor, y, after, row, head);
    std::copy(d_out + key, d_out + key + K, z);
    cholesky_solve(factor, z, K);
    add_outer(D, -1.0, z, y, K, K);

    read(dk, D, k, K, K);  // D^T k
    grads.b[gate] = dot(dk, k, K);
    add_product(dk, 1.0, D, k, K, K);
    for (std::int64_t d = 0; d < K; ++d) dk[d] *= in.b[gate];
    if (normalize) normalize_vjp(dk, k, in.inverse_norm[gate], K);
    decay_rows(D, in.g + gate, 0, K, K);
    grads.g[gate] = dot(D, before, K * K);
  }
};

}  // namespace

void gram(Context& context, const Sequences& sequences, const Precondition& inputs,
          const PreconditionOut& out) {
  Wide wide(context);
  const PreconditionShape shape = shape_of(sequences, inputs);
  const std::int64_t K = shape.d_k, size = K * K, tasks = shape.sequences * shape.heads;
  const Gram gram(context, wide, shape, inputs);
  double* result = wide.out(out.out, shape.rows * shape.heads * K);
  double* final_state = wide.in_place(out.final, tasks * size);
  double* scratch = wide.scratch(context.threads().size() * 2 * size);
  if (context.planning()) return;

  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    double* G = scratch + worker * 2 * size;
    gram.load(G, task);
    for (std::int64_t row = sequences.begin(sequence); row < sequences.end(sequence); ++row) {
      gram.step(G, row, head);
      gram.solve(G + size, result + gram.in.key_at(row, head), G, row, head);
    }
    std::copy(G, G + size, final_state + task * size);
  });
  wide.finish();
}

void gram_vjp(Context& context, const Sequences& sequences, const Precondition& inputs,
              const PreconditionCotangents& cotangents, const PreconditionGrads& grads) {
  Wide wide(context);
  const PreconditionShape shape = shape_of(sequences, inputs);
  const std::int64_t K = shape.d_k, size = K * K, tasks = shape.sequences * shape.heads;
  const std::int64_t gates = shape.rows * shape.heads;
  const Gram gram(context, wide, shape, inputs);
  const double* d_out = wide.in(cotangents.out);
  const double* d_final = wide.in(cotangents.final, tasks * size, 0.0);
  const KeyGradients keys(wide, shape, cotangents, grads);
  const Gradients out{keys.k, keys.target, wide.out(grads.g, gates), wide.out(grads.b, gates)};
  double* ridge = wide.out(grads.ridge, shape.heads * K);
  double* initial = wide.out(grads.initial, tasks * size);
  const std::int64_t history = replay_scratch(sequences.longest(), size);
  const std::int64_t per_worker = history + 3 * size + K;
  double* scratch = wide.scratch(context.threads().size() * per_worker);
  if (context.planning()) return;

  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    const std::int64_t begin = sequences.begin(sequence);
    double* kept = scratch + worker * per_worker;
    double* D = kept + history;
    double* start = D + size;
    double* factor = start + size;
    const ReverseStep reverse{gram, out, d_out, inputs.normalize, D, factor, factor + size};
    std::copy(d_final + task * size, d_final + (task + 1) * size, D);
    gram.load(start, task);
    replay_backwards(
        sequences.length(sequence), size, start, kept,
        [&](std::int64_t t, double* G) { gram.step(G, begin + t, head); },
        [&](std::int64_t t, const double* before, const double* after) {
          reverse(begin + t, head, before, after);
        });
    std::copy(D, D + size, initial + task * size);
  });
  keys.add();
  for (std::int64_t task = 0; gram.from_ridge && task < tasks; ++task) {
    for (std::int64_t d = 0; d < K; ++d) {
      ridge[task % shape.heads * K + d] += initial[task * size + d * K + d];
    }
  }
  wide.finish();
}

}  // namespace rankone::recurrence
