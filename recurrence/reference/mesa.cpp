// MesaNet, token by token, with the exact solve or, damped, the published iterations:
//
//     Hkk = exp(g) Hkk + b k k^T;   Hkv = exp(g) Hkv + b k v^T
//     p = (Hkk + diag(lambda))^{-1} q;   o = Hkv^T p

#include "recurrence/reference/algebra.hpp"
#include "recurrence/reference/reference_backend.hpp"
#include "recurrence/reference/replay.hpp"
#include "recurrence/reference/wide.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace {

struct Inputs {
  MesaShape shape;
  int max_iterations;
  double damping;
  const double *q, *k, *v, *g, *b, *lambda, *initial_hkk, *initial_hkv;

  std::int64_t key_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.heads + head) * shape.d_k;
  }
  std::int64_t value_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.heads + head) * shape.d_v;
  }
  std::int64_t gate_at(std::int64_t row, std::int64_t head) const {
    return row * shape.heads + head;
  }
  std::int64_t gram_size() const { return shape.d_k * shape.d_k; }
  std::int64_t cross_size() const { return shape.d_k * shape.d_v; }
  // Both states of a head lie one behind the other: Hkk, then Hkv.
  std::int64_t state_size() const { return gram_size() + cross_size(); }

  void load(double* state, std::int64_t at) const {
    const double* hkk = initial_hkk + at * gram_size();
    const double* hkv = initial_hkv + at * cross_size();
    std::copy(hkk, hkk + gram_size(), state);
    std::copy(hkv, hkv + cross_size(), state + gram_size());
  }

  void step(double* state, std::int64_t row, std::int64_t head) const {
    const std::int64_t K = shape.d_k, V = shape.d_v;
    const double* key = k + key_at(row, head);
    const double decay = std::exp(g[gate_at(row, head)]), gain = b[gate_at(row, head)];
    for (std::int64_t i = 0; i < state_size(); ++i) state[i] *= decay;
    add_outer(state, gain, key, key, K, K);
    add_outer(state + gram_size(), gain, key, v + value_at(row, head), K, V);
  }

  // M <- Hkk + diag(lambda), for the exact solve as its Cholesky factor
  void prepare(double* M, const double* state, std::int64_t head) const {
    const std::int64_t K = shape.d_k;
    std::copy(state, state + gram_size(), M);
    for (std::int64_t d = 0; d < K; ++d) M[d * K + d] += lambda[head * K + d];
    if (damping == 0.0) cholesky(M, K);
  }

  // x <- M^{-1} x
  void solve(const double* M, double* x) const {
    if (damping == 0.0) {
      cholesky_solve(M, x, shape.d_k);
    } else {
      conjugate_gradients(M, x, shape.d_k, max_iterations, damping);
    }
  }

  // The same for the query of a row, which is left as it is.
  void solve_query(double* M, double* p, const double* state, std::int64_t row,
                   std::int64_t head) const {
    prepare(M, state, head);
    std::copy(q + key_at(row, head), q + key_at(row, head) + shape.d_k, p);
    solve(M, p);
  }
};

Inputs inputs_of(Wide& wide, const MesaShape& shape, const Mesa& in) {
  const std::int64_t gates = shape.rows * shape.heads, states = shape.sequences * shape.heads;
  return {shape,
          in.max_iterations,
          in.damping,
          wide.in(in.q),
          wide.in(in.k),
          wide.in(in.v),
          wide.in(in.g, gates, 0.0),
          wide.in(in.b, gates, 1.0),
          wide.in(in.lambda),
          wide.in(in.initial_hkk, states * shape.d_k * shape.d_k, 0.0),
          wide.in(in.initial_hkv, states * shape.d_k * shape.d_v, 0.0)};
}

struct Gradients {
  double *q, *k, *v, *g, *b, *lambda;
};

// Reverse step. M = Hkk + diag(lambda), Gkk and Gkv = dL/dHkk and dL/dHkv from the future:
//     dp = Hkv do;   z = M^{-1} dp;   dq = z;   dM = -z p^T  (to Gkk and, its diagonal, dlambda)
//     Gkv += p do^T
//     dk = b ((Gkk + Gkk^T) k + Gkv v);   dv = b Gkv^T k;   db = k^T Gkk k + k^T Gkv v
//     dg = exp(g) (<Gkk, Hkk_{t-1}> + <Gkv, Hkv_{t-1}>);    G <- exp(g) G
struct ReverseStep {
  const Inputs& in;
  const Gradients& grads;
  const double* d_out;
  double* lambda_grad;  // of this sequence and head
  double *G, *factor, *p, *z, *read_v;

  void operator()(std::int64_t row, std::int64_t head, const double* before,
                  const double* after) const {
    const std::int64_t K = in.shape.d_k, V = in.shape.d_v;
    const double* d_o = d_out + in.value_at(row, head);
    const double* k = in.k + in.key_at(row, head);
    const double* v = in.v + in.value_at(row, head);
    const std::int64_t gate = in.gate_at(row, head);
    double* Gkv = G + in.gram_size();

    in.solve_query(factor, p, after, row, head);
    std::fill(z, z + K, 0.0);
    add_product(z, 1.0, after + in.gram_size(), d_o, K, V);
    in.solve(factor, z);
    std::copy(z, z + K, grads.q + in.key_at(row, head));
    add_outer(G, -1.0, z, p, K, K);
    for (std::int64_t d = 0; d < K; ++d) lambda_grad[d] -= z[d] * p[d];
    add_outer(Gkv, 1.0, p, d_o, K, V);

    double* dk = grads.k + in.key_at(row, head);
    read(p, G, k, K, K);  // Gkk^T k
    read(read_v, Gkv, k, K, V);
    add_product(dk, 1.0, G, k, K, K);
    add_product(dk, 1.0, Gkv, v, K, V);
    for (std::int64_t d = 0; d < K; ++d) dk[d] = in.b[gate] * (dk[d] + p[d]);
    for (std::int64_t j = 0; j < V; ++j) {
      grads.v[in.value_at(row, head) + j] = in.b[gate] * read_v[j];
    }
    grads.b[gate] = dot(p, k, K) + dot(read_v, v, V);
    const double decay = std::exp(in.g[gate]);
    grads.g[gate] = decay * dot(G, before, in.state_size());
    for (std::int64_t i = 0; i < in.state_size(); ++i) G[i] *= decay;
  }
};

}  // namespace

void ReferenceBackend::mesa(Context& context, const Sequences& sequences, const Mesa& inputs,
                            const MesaOut& out) const {
  Wide wide(context);
  const MesaShape shape = shape_of(sequences, inputs);
  const Inputs in = inputs_of(wide, shape, inputs);
  const std::int64_t tasks = shape.sequences * shape.heads;
  double* o = wide.out(out.o, in.value_at(shape.rows, 0));
  double* final_hkk = wide.in_place(out.final_hkk, tasks * in.gram_size());
  double* final_hkv = wide.in_place(out.final_hkv, tasks * in.cross_size());
  const std::int64_t per_worker = in.state_size() + in.gram_size() + shape.d_k;
  double* scratch = wide.scratch(context.threads().size() * per_worker);
  if (context.planning()) return;

  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    double* state = scratch + worker * per_worker;
    double* factor = state + in.state_size();
    double* p = factor + in.gram_size();
    in.load(state, task);
    for (std::int64_t row = sequences.begin(sequence); row < sequences.end(sequence); ++row) {
      in.step(state, row, head);
      in.solve_query(factor, p, state, row, head);
      read(o + in.value_at(row, head), state + in.gram_size(), p, shape.d_k, shape.d_v);
    }
    const double* hkv = state + in.gram_size();
    std::copy(state, state + in.gram_size(), final_hkk + task * in.gram_size());
    std::copy(hkv, hkv + in.cross_size(), final_hkv + task * in.cross_size());
  });
  wide.finish();
}

void ReferenceBackend::mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
                                const MesaCotangents& cotangents, const MesaGrads& grads) const {
  Wide wide(context);
  const MesaShape shape = shape_of(sequences, inputs);
  const Inputs in = inputs_of(wide, shape, inputs);
  const std::int64_t tasks = shape.sequences * shape.heads, K = shape.d_k;
  const std::int64_t size = in.state_size(), gram = in.gram_size(), cross = in.cross_size();
  const double* d_o = wide.in(cotangents.o);
  const double* d_hkk = wide.in(cotangents.final_hkk, tasks * gram, 0.0);
  const double* d_hkv = wide.in(cotangents.final_hkv, tasks * cross, 0.0);
  const Gradients out{
      wide.out(grads.q, in.key_at(shape.rows, 0)),   wide.out(grads.k, in.key_at(shape.rows, 0)),
      wide.out(grads.v, in.value_at(shape.rows, 0)), wide.out(grads.g, in.gate_at(shape.rows, 0)),
      wide.out(grads.b, in.gate_at(shape.rows, 0)),  wide.out(grads.lambda, shape.heads * K)};
  double* initial_hkk = wide.out(grads.initial_hkk, tasks * gram);
  double* initial_hkv = wide.out(grads.initial_hkv, tasks * cross);
  double* lambda_parts = wide.filled(tasks * K, 0.0);
  const std::int64_t history = replay_scratch(sequences.longest(), size);
  const std::int64_t per_worker = history + 2 * size + gram + 2 * K + shape.d_v;
  double* scratch = wide.scratch(context.threads().size() * per_worker);
  if (context.planning()) return;

  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    const std::int64_t begin = sequences.begin(sequence);
    double* kept = scratch + worker * per_worker;
    double* G = kept + history;
    double* start = G + size;
    double* factor = start + size;
    double* p = factor + gram;
    const ReverseStep reverse{in, out,   d_o,      lambda_parts + task * K, G, factor,
                              p,  p + K, p + 2 * K};
    std::copy(d_hkk + task * gram, d_hkk + (task + 1) * gram, G);
    std::copy(d_hkv + task * cross, d_hkv + (task + 1) * cross, G + gram);
    in.load(start, task);
    replay_backwards(
        sequences.length(sequence), size, start, kept,
        [&](std::int64_t t, double* state) { in.step(state, begin + t, head); },
        [&](std::int64_t t, const double* before, const double* after) {
          reverse(begin + t, head, before, after);
        });
    std::copy(G, G + gram, initial_hkk + task * gram);
    std::copy(G + gram, G + size, initial_hkv + task * cross);
  });
  for (std::int64_t task = 0; task < tasks; ++task) {
    add_scaled(out.lambda + task % shape.heads * K, 1.0, lambda_parts + task * K, K);
  }
  wide.finish();
}

}  // namespace rankone::recurrence
