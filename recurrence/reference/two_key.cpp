// The two-key recurrence, token by token:
//
//     S~ = diag(exp g) S;   u = b (v - S~^T e);   S = S~ + w u^T;   o = scale S^T q
//
// The additive solve is the delta solve with e = 0.

#include "recurrence/reference/algebra.hpp"
#include "recurrence/reference/reference_backend.hpp"
#include "recurrence/reference/replay.hpp"
#include "recurrence/reference/wide.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace {

struct Inputs {
  TwoKeyShape shape;
  const double *q, *e, *w, *v, *g, *b, *initial;

  Inputs(Wide& wide, const TwoKeyShape& sizes, const TwoKey& in) : shape(sizes) {
    const std::int64_t R = shape.rows, HV = shape.value_heads;
    q = wide.in(in.q);
    e = wide.in(in.e, R * shape.heads * shape.d_k, 0.0);
    w = wide.in(in.w);
    v = wide.in(in.v);
    g = wide.in(in.g, R * HV, 0.0);
    b = wide.in(in.b, R * HV, 1.0);
    initial = wide.in(in.initial_state, shape.sequences * HV * shape.d_k * shape.d_v, 0.0);
  }

  std::int64_t key_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.heads + head / shape.group()) * shape.d_k;
  }
  std::int64_t value_at(std::int64_t row, std::int64_t head) const {
    return (row * shape.value_heads + head) * shape.d_v;
  }
  std::int64_t gain_at(std::int64_t row, std::int64_t head) const {
    return row * shape.value_heads + head;
  }
  std::int64_t decay_at(std::int64_t row, std::int64_t head) const {
    return gain_at(row, head) * (shape.channel_decay ? shape.d_k : 1);
  }
  std::int64_t decay_stride() const { return shape.channel_decay ? 1 : 0; }
  std::int64_t state_at(std::int64_t sequence, std::int64_t head) const {
    return (sequence * shape.value_heads + head) * shape.d_k * shape.d_v;
  }
  std::int64_t state_size() const { return shape.d_k * shape.d_v; }

  // u = b (v - S~^T e), S~ = `decayed`.
  void write_value(double* u, const double* decayed, std::int64_t row, std::int64_t head) const {
    read(u, decayed, e + key_at(row, head), shape.d_k, shape.d_v);
    const double gain = b[gain_at(row, head)];
    for (std::int64_t j = 0; j < shape.d_v; ++j) u[j] = gain * (v[value_at(row, head) + j] - u[j]);
  }

  // S <- diag(exp g) S + w u^T
  void step(double* S, double* u, std::int64_t row, std::int64_t head) const {
    decay_rows(S, g + decay_at(row, head), decay_stride(), shape.d_k, shape.d_v);
    write_value(u, S, row, head);
    add_outer(S, 1.0, w + key_at(row, head), u, shape.d_k, shape.d_v);
  }
};

struct Gradients {
  double *q, *e, *w, *v, *g, *b, *initial;
};

// One step of the reverse recurrence. Gr = dL/dS, from the future; `before` = S_{t-1}, `after` =
// S_t:
//     dq  = scale S do;          Gr += scale q do^T
//     dw  = Gr u;                du  = Gr^T w;        db = du . r,   r = v - S~^T e
//     dr  = b du;                dv  = dr;            de = -S~ dr;   Gr -= e dr^T
//     dg_d = <Gr_d, S~_d>  (a scalar decay sums over d);             Gr <- diag(exp g) Gr
struct ReverseStep {
  const Inputs& in;
  const Gradients& grads;
  const double* d_out;
  double scale;
  double *Gr, *decayed, *u, *du;  // scratch of one worker

  void operator()(std::int64_t row, std::int64_t head, const double* before,
                  const double* after) const {
    const std::int64_t K = in.shape.d_k, V = in.shape.d_v;
    const std::int64_t key = in.key_at(row, head), value = in.value_at(row, head);
    const double* g = in.g + in.decay_at(row, head);
    const double* d_o = d_out + value;

    add_product(grads.q + key, scale, after, d_o, K, V);
    add_outer(Gr, scale, in.q + key, d_o, K, V);

    std::copy(before, before + K * V, decayed);
    decay_rows(decayed, g, in.decay_stride(), K, V);
    in.write_value(u, decayed, row, head);
    add_product(grads.w + key, 1.0, Gr, u, K, V);
    read(du, Gr, in.w + key, K, V);

    read(u, decayed, in.e + key, K, V);  // u: now S~^T e
    const double gain = in.b[in.gain_at(row, head)];
    double db = 0.0;
    for (std::int64_t j = 0; j < V; ++j) {
      db += du[j] * (in.v[value + j] - u[j]);
      du[j] *= gain;  // now dr
      grads.v[value + j] = du[j];
    }
    grads.b[in.gain_at(row, head)] = db;
    add_product(grads.e + key, -1.0, decayed, du, K, V);
    add_outer(Gr, -1.0, in.e + key, du, K, V);

    for (std::int64_t d = 0; d < K; ++d) {
      grads.g[in.decay_at(row, head) + d * in.decay_stride()] +=
          dot(Gr + d * V, decayed + d * V, V);
    }
    decay_rows(Gr, g, in.decay_stride(), K, V);
  }
};

}  // namespace

void ReferenceBackend::two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
                               const TwoKeyOut& out) const {
  Wide wide(context);
  const Inputs in(wide, shape_of(sequences, inputs), inputs);
  const TwoKeyShape& shape = in.shape;
  const std::int64_t size = in.state_size(), V = shape.d_v;
  double* o = wide.out(out.o, shape.rows * shape.value_heads * V);
  double* final_state = wide.in_place(out.final_state, in.state_at(shape.sequences, 0));
  double* scratch = wide.scratch(context.threads().size() * (size + V));
  if (context.planning()) return;

  const std::int64_t tasks = shape.sequences * shape.value_heads;
  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.value_heads, head = task % shape.value_heads;
    double* S = scratch + worker * (size + V);
    double* u = S + size;
    const double* initial = in.initial + in.state_at(sequence, head);
    std::copy(initial, initial + size, S);
    for (std::int64_t row = sequences.begin(sequence); row < sequences.end(sequence); ++row) {
      in.step(S, u, row, head);
      double* o_row = o + in.value_at(row, head);
      read(o_row, S, in.q + in.key_at(row, head), shape.d_k, V);
      for (std::int64_t j = 0; j < V; ++j) o_row[j] *= inputs.scale;
    }
    std::copy(S, S + size, final_state + in.state_at(sequence, head));
  });
  wide.finish();
}

void ReferenceBackend::two_key_vjp(Context& context, const Sequences& sequences,
                                   const TwoKey& inputs, const TwoKeyCotangents& cotangents,
                                   const TwoKeyGrads& grads) const {
  Wide wide(context);
  const Inputs in(wide, shape_of(sequences, inputs), inputs);
  const TwoKeyShape& shape = in.shape;
  const std::int64_t size = in.state_size(), V = shape.d_v;
  const std::int64_t keys = in.shape.rows * shape.heads * shape.d_k;
  const std::int64_t states = in.state_at(shape.sequences, 0);
  const double* d_o = wide.in(cotangents.o);
  const double* d_final = wide.in(cotangents.final_state, states, 0.0);
  double* const d_e = wide.out(grads.e, keys);
  const Gradients out{wide.out(grads.q, keys),
                      d_e,
                      grads.joins_keys() ? d_e : wide.out(grads.w, keys),
                      wide.out(grads.v, in.value_at(shape.rows, 0)),
                      wide.out(grads.g, in.decay_at(shape.rows, 0)),
                      wide.out(grads.b, in.gain_at(shape.rows, 0)),
                      wide.out(grads.initial_state, states)};
  const std::int64_t history = replay_scratch(sequences.longest(), size);
  const std::int64_t per_worker = history + 2 * size + 2 * V;
  double* scratch = wide.scratch(context.threads().size() * per_worker);
  if (context.planning()) return;

  // A task is a key head with its value heads in order: they add to the same dq, de and dw.
  context.threads().run(shape.sequences * shape.heads, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads, begin = sequences.begin(sequence);
    double* Gr = scratch + worker * per_worker + history;
    double* u = Gr + 2 * size;
    const ReverseStep reverse{in, out, d_o, inputs.scale, Gr, Gr + size, u, u + V};
    for (std::int64_t j = 0; j < shape.group(); ++j) {
      const std::int64_t head = task % shape.heads * shape.group() + j;
      const std::int64_t state = in.state_at(sequence, head);
      std::copy(d_final + state, d_final + state + size, Gr);
      replay_backwards(
          sequences.length(sequence), size, in.initial + state, scratch + worker * per_worker,
          [&](std::int64_t t, double* S) { in.step(S, u, begin + t, head); },
          [&](std::int64_t t, const double* before, const double* after) {
            reverse(begin + t, head, before, after);
          });
      std::copy(Gr, Gr + size, out.initial + state);
    }
  });
  wide.finish();
}

}  // namespace rankone::recurrence
