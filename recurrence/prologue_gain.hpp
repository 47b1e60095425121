#pragma once

// The loop of gain() and gain_vjp() over rows, for any real type. The equations of the gains are in
// axes/gain.hpp; here are the scaling of keys and value by n = sqrt(N + eps), N = e . w, and the
// gates of the vector gain.

#include <algorithm>
#include <cmath>

#include "core/sequences.hpp"
#include "core/threads.hpp"
#include "recurrence/axes/gain.hpp"
#include "recurrence/prologue_decay.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {

// Null where the call has no such tensor or does not want it.
template <class Real>
struct GainArrays {
  const Real *x = nullptr, *x_v = nullptr, *theta = nullptr;
  const Real *e = nullptr, *w = nullptr, *v = nullptr;
  const std::int64_t* positions = nullptr;
};

template <class Real>
struct GainResults {  // outputs
  Real *b = nullptr, *e = nullptr, *w = nullptr, *v = nullptr;
};

template <class Real>
struct GainCotangentArrays {
  const Real *b = nullptr, *e = nullptr, *w = nullptr, *v = nullptr;
};

template <class Real>
struct GainGradArrays {
  Real *x = nullptr, *x_v = nullptr, *theta = nullptr, *e = nullptr, *w = nullptr, *v = nullptr;
  Real* partials = nullptr;  // scratch [row_blocks], for theta
};

// The gates of the vector gain: gate_forward<Real> and gate_backward<Real>, or vector versions.
template <class Real>
struct GateLoops {
  void (*forward)(Real* to, const Real* from, const Real* x, std::int64_t count);
  void (*backward)(Real* d_from, Real* d_x, const Real* from, const Real* x, const Real* d,
                   std::int64_t count);
};

// to[i] = from[i] sigmoid(x[i])
template <class Real>
void gate_forward(Real* to, const Real* from, const Real* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] * sigmoid(x[i]);
}

// Outputs and d may be null.
template <class Real>
void gate_backward(Real* d_from, Real* d_x, const Real* from, const Real* x, const Real* d,
                   std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Real d_gated = d != nullptr ? d[i] * sigmoid(x[i]) : 0;
    if (d_from != nullptr) d_from[i] = d_gated;
    if (d_x != nullptr) d_x[i] = d_gated * from[i] * sigmoid(-x[i]);
  }
}

// A dot product in eight strands: a fixed order that compilers can vectorise.
template <class Real>
Real strand_dot(const Real* a, const Real* b, std::int64_t n) {
  Real strands[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) strands[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) strands[j] += a[i] * b[i];
  return ((strands[0] + strands[4]) + (strands[2] + strands[6])) +
         ((strands[1] + strands[5]) + (strands[3] + strands[7]));
}

template <class Real>
class GainRows {
 public:
  GainRows(const Gain& in, const Sequences& sequences, const GainShape& shape,
           const GainArrays<Real>& arrays, const GateLoops<Real>& gates)
      : in_(in),
        sequences_(sequences),
        shape_(shape),
        arrays_(arrays),
        scalar_logits_(arrays.x != nullptr && in.kind != GainKind::vector),
        gates_(gates) {}

  void forward(ThreadPool& threads, const GainResults<Real>& out) const {
    each_block(threads, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      if (in_.kind == GainKind::vector) gate(begin, end, out);
      with_gain(in_.kind, [&](auto policy) {
        each_row(begin, end, [&](std::int64_t row, Real factor) {
          if constexpr (decltype(policy)::key_norm) {
            for (std::int64_t h = 0; h < shape_.heads; ++h) scale(policy, row, h, factor, out);
          } else if (out.b != nullptr) {
            for (std::int64_t j = 0; j < shape_.value_heads; ++j) {
              out.b[gain_at(row, j)] = factor * policy.value(inputs(row, j, Real(0))).b;
            }
          }
        });
      });
    });
  }

  void backward(ThreadPool& threads, const GainCotangentArrays<Real>& cot,
                const GainGradArrays<Real>& grads) const {
    each_block(threads, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
      if (in_.kind == GainKind::vector) return gate_vjp(begin, end, cot, grads);
      Real d_theta = 0;
      with_gain(in_.kind, [&](auto policy) {
        each_row(begin, end, [&](std::int64_t row, Real factor) {
          if constexpr (decltype(policy)::key_norm) {
            for (std::int64_t h = 0; h < shape_.heads; ++h) {
              d_theta += scale_vjp(policy, row, h, factor, cot, grads);
            }
          } else if (grads.x != nullptr) {
            for (std::int64_t j = 0; j < shape_.value_heads; ++j) {
              const std::int64_t at = gain_at(row, j);
              const Real d_b = cot.b != nullptr ? cot.b[at] : 0;
              grads.x[at] = d_b * factor * policy.value(inputs(row, j, Real(0))).d_x;
            }
          }
        });
      });
      if (grads.theta != nullptr) grads.partials[block] = d_theta;
    });
    if (grads.theta == nullptr) return;
    grads.theta[0] = 0;
    for (std::int64_t i = 0; i < row_blocks(shape_.rows); ++i) grads.theta[0] += grads.partials[i];
  }

 private:
  std::int64_t key_at(std::int64_t row, std::int64_t head) const {
    return (row * shape_.heads + head) * shape_.d_k;
  }
  std::int64_t value_at(std::int64_t row, std::int64_t head) const {
    return (row * shape_.value_heads + head) * shape_.d_v;
  }
  std::int64_t gain_at(std::int64_t row, std::int64_t head) const {
    return row * shape_.value_heads + head;
  }
  GainInputs<Real> inputs(std::int64_t row, std::int64_t head, Real N) const {
    return {scalar_logits_ ? arrays_.x[gain_at(row, head)] : 0, N, static_cast<Real>(in_.eps),
            arrays_.theta != nullptr ? arrays_.theta[0] : 0};
  }
  // 1 / n. Where even eps is 0 a zero key stays zero: it writes nothing.
  Real inverse_norm(Real N) const {
    const Real norm = N + static_cast<Real>(in_.eps);
    return norm > 0 ? 1 / std::sqrt(norm) : 0;
  }

  template <class Body>
  void each_block(ThreadPool& threads, Body&& body) const {
    threads.run(row_blocks(shape_.rows), [&](std::int64_t block, int) {
      body(block, block * kRowBlock, std::min((block + 1) * kRowBlock, shape_.rows));
    });
  }

  // Calls body(row, f(t)) for the rows of a block, which may lie in several sequences.
  template <class Body>
  void each_row(std::int64_t begin, std::int64_t end, Body&& body) const {
    const auto boundaries = sequences_.boundaries();
    std::int64_t sequence =
        std::upper_bound(boundaries.begin(), boundaries.end(), begin) - boundaries.begin() - 1;
    for (std::int64_t row = begin; row < end; ++row) {
      while (row >= sequences_.end(sequence)) ++sequence;
      const std::int64_t position = arrays_.positions != nullptr ? arrays_.positions[sequence] : 0;
      body(row,
           time_factor<Real>(in_.time_factor, position + row - sequences_.begin(sequence) + 1));
    }
  }

  // e / n, w / n, v / n and b of one key head and its value heads.
  template <class Policy>
  void scale(Policy policy, std::int64_t row, std::int64_t head, Real factor,
             const GainResults<Real>& out) const {
    const std::int64_t key = key_at(row, head), K = shape_.d_k, V = shape_.d_v;
    const Real N = strand_dot(arrays_.e + key, arrays_.w + key, K);
    const Real inverse = inverse_norm(N);
    const auto scaled = [inverse](Real* to, const Real* from, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] * inverse;
    };
    if (out.e != nullptr) scaled(out.e + key, arrays_.e + key, K);
    if (out.w != nullptr) scaled(out.w + key, arrays_.w + key, K);
    for (std::int64_t j = head * shape_.group(); j < (head + 1) * shape_.group(); ++j) {
      if (out.b != nullptr) {
        out.b[gain_at(row, j)] = factor * policy.value(inputs(row, j, N)).b;
      }
      const std::int64_t value = value_at(row, j);
      if (out.v != nullptr) scaled(out.v + value, arrays_.v + value, V);
    }
  }

  // With m = 1 / n and primes for the cotangents of e m, w m, v m and b:
  //     dm = e . e' + w . w' + sum v . v';     dN = -m^3 dm / 2 + sum b' db/dN
  //     de = m e' + dN w;   dw = m w' + dN e;  dv = m v';   dx = b' db/dx
  // Returns d theta.
  template <class Policy>
  Real scale_vjp(Policy policy, std::int64_t row, std::int64_t head, Real factor,
                 const GainCotangentArrays<Real>& cot, const GainGradArrays<Real>& grads) const {
    const std::int64_t key = key_at(row, head), K = shape_.d_k, V = shape_.d_v;
    const Real* e = arrays_.e + key;
    const Real* w = arrays_.w + key;
    const Real N = strand_dot(e, w, K);
    const Real m = inverse_norm(N);
    Real d_m = 0, d_N = 0, d_theta = 0;
    if (cot.e != nullptr) d_m += strand_dot(e, cot.e + key, K);
    if (cot.w != nullptr) d_m += strand_dot(w, cot.w + key, K);
    for (std::int64_t j = head * shape_.group(); j < (head + 1) * shape_.group(); ++j) {
      const std::int64_t value = value_at(row, j);
      if (cot.v != nullptr) d_m += strand_dot(arrays_.v + value, cot.v + value, V);
      const GainValue<Real> gain = policy.value(inputs(row, j, N));
      const Real d_b = cot.b != nullptr ? cot.b[gain_at(row, j)] * factor : 0;
      d_N += d_b * gain.d_N;
      d_theta += d_b * gain.d_theta;
      if (grads.x != nullptr) grads.x[gain_at(row, j)] = d_b * gain.d_x;
      if (grads.v != nullptr) blend(grads.v + value, m, cot.v, Real(0), arrays_.v, value, V);
    }
    d_N -= m * m * m * d_m / 2;
    if (grads.e != nullptr) blend(grads.e + key, m, cot.e, d_N, arrays_.w, key, K);
    if (grads.w != nullptr) blend(grads.w + key, m, cot.w, d_N, arrays_.e, key, K);
    return d_theta;
  }

  // to[i] = a x[at + i] + b y[at + i]; x may be null (zero).
  static void blend(Real* to, Real a, const Real* x, Real b, const Real* y, std::int64_t at,
                    std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = b * y[at + i];
    for (std::int64_t i = 0; x != nullptr && i < count; ++i) to[i] += a * x[at + i];
  }

  // The vector gain: every element times the sigmoid of its own logit.
  void gate(std::int64_t begin, std::int64_t end, const GainResults<Real>& out) const {
    const std::int64_t key = key_at(begin, 0), value = value_at(begin, 0);
    if (out.e != nullptr) {
      gates_.forward(out.e + key, arrays_.e + key, arrays_.x + key, key_at(end, 0) - key);
    }
    if (out.v != nullptr) {
      gates_.forward(out.v + value, arrays_.v + value, arrays_.x_v + value,
                     value_at(end, 0) - value);
    }
  }
  void gate_vjp(std::int64_t begin, std::int64_t end, const GainCotangentArrays<Real>& cot,
                const GainGradArrays<Real>& grads) const {
    const auto from = [](auto* array, std::int64_t at) {
      return array != nullptr ? array + at : nullptr;
    };
    const std::int64_t key = key_at(begin, 0), value = value_at(begin, 0);
    if (arrays_.e != nullptr) {
      gates_.backward(from(grads.e, key), from(grads.x, key), arrays_.e + key, arrays_.x + key,
                      from(cot.e, key), key_at(end, 0) - key);
    }
    gates_.backward(from(grads.v, value), from(grads.x_v, value), arrays_.v + value,
                    arrays_.x_v + value, from(cot.v, value), value_at(end, 0) - value);
  }

  const Gain& in_;
  const Sequences& sequences_;
  const GainShape& shape_;
  const GainArrays<Real>& arrays_;
  const bool scalar_logits_;  // x is [R, HV]
  const GateLoops<Real> gates_;
};

}  // namespace rankone::recurrence
