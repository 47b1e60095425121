#pragma once

// The loop of decay() and decay_vjp() over rows, for any real type: the float64 reference and the
// float32 cpu backend differ in nothing else. The equations are in axes/decay.hpp.

#include <algorithm>
#include <cmath>

#include "core/threads.hpp"
#include "recurrence/axes/decay.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {

// Rows of one task. Parameter gradients are summed within such a block and then in the order of the
// blocks, so their bits do not depend on the number of threads.
inline constexpr std::int64_t kRowBlock = 256;
inline std::int64_t row_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// Null where the call has no such tensor.
template <class Real>
struct DecayArrays {
  const Real *x = nullptr, *a_log = nullptr, *dt_bias = nullptr;
};

template <class Real>
struct DecayResults {
  Real *g = nullptr, *dt = nullptr;
};

template <class Real>
struct DecayCotangentArrays {
  const Real *g = nullptr, *dt = nullptr;
};

template <class Real>
struct DecayGradArrays {
  Real *x = nullptr, *a_log = nullptr, *dt_bias = nullptr;
  Real* rates = nullptr;     // scratch [HV]
  Real* partials = nullptr;  // scratch, decay_partials()
};

inline std::int64_t decay_partials(const DecayShape& shape) {
  return row_blocks(shape.rows) * shape.value_heads * (1 + shape.channels);
}

template <class Real>
void fill_rates(Real* rates, const Real* a_log, std::int64_t heads) {
  for (std::int64_t h = 0; h < heads; ++h) rates[h] = a_log != nullptr ? std::exp(a_log[h]) : 1;
}

template <class Real>
void decay_forward(ThreadPool& threads, const Decay& in, const DecayShape& shape,
                   const DecayArrays<Real>& arrays, const DecayResults<Real>& out, Real* rates) {
  fill_rates(rates, arrays.a_log, shape.value_heads);
  const std::int64_t width = shape.value_heads * shape.channels;
  with_decay<Real>(in, [&](auto policy) {
    threads.run(row_blocks(shape.rows), [&](std::int64_t block, int) {
      const std::int64_t end = std::min((block + 1) * kRowBlock, shape.rows);
      for (std::int64_t row = block * kRowBlock; row < end; ++row) {
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t at = row * width + i, head = i / shape.channels;
          const Real bias = arrays.dt_bias != nullptr ? arrays.dt_bias[i] : 0;
          const Real x = arrays.x != nullptr ? arrays.x[at] + bias : 0;
          const DecayValue<Real> value = policy.value(x, rates[head], head);
          if (out.g != nullptr) out.g[at] = value.g;
          if (out.dt != nullptr) out.dt[at] = value.dt;
        }
      }
    });
  });
}

template <class Real>
void decay_backward(ThreadPool& threads, const Decay& in, const DecayShape& shape,
                    const DecayArrays<Real>& arrays, const DecayCotangentArrays<Real>& cot,
                    const DecayGradArrays<Real>& grads) {
  fill_rates(grads.rates, arrays.a_log, shape.value_heads);
  const std::int64_t heads = shape.value_heads, width = heads * shape.channels;
  const std::int64_t blocks = row_blocks(shape.rows), stride = heads + width;
  std::fill(grads.partials, grads.partials + blocks * stride, Real(0));
  with_decay<Real>(in, [&](auto policy) {
    threads.run(blocks, [&](std::int64_t block, int) {
      Real* a_log = grads.partials + block * stride;
      Real* dt_bias = a_log + heads;
      const std::int64_t end = std::min((block + 1) * kRowBlock, shape.rows);
      for (std::int64_t row = block * kRowBlock; row < end; ++row) {
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t at = row * width + i, head = i / shape.channels;
          const Real bias = arrays.dt_bias != nullptr ? arrays.dt_bias[i] : 0;
          const Real x = arrays.x != nullptr ? arrays.x[at] + bias : 0;
          const Real d_g = cot.g != nullptr ? cot.g[at] : 0;
          const Real d_dt = cot.dt != nullptr ? cot.dt[at] : 0;
          const DecayDerivative<Real> d = policy.vjp(x, grads.rates[head], d_g, d_dt);
          if (grads.x != nullptr) grads.x[at] = d.x;
          a_log[head] += d.a_log;
          dt_bias[i] += d.x;
        }
      }
    });
  });
  const auto reduce = [&](Real* to, std::int64_t offset, std::int64_t count) {
    if (to == nullptr) return;
    std::fill(to, to + count, Real(0));
    for (std::int64_t block = 0; block < blocks; ++block) {
      const Real* from = grads.partials + block * stride + offset;
      for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
    }
  };
  reduce(grads.a_log, 0, heads);
  reduce(grads.dt_bias, heads, width);
}

}  // namespace rankone::recurrence
