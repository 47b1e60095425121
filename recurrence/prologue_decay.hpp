#pragma once

// decay() and decay_vjp() over blocks of rows, for any real type; the equations are in
// axes/decay.hpp.

#include <algorithm>
#include <cmath>

#include "core/threads.hpp"
#include "recurrence/decay_block.hpp"
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

inline DecayConstants constants_of(const Decay& in) {
  return {in.form, in.bound, in.normalizer, in.clamp, in.dt_min, in.dt_max};
}

// A of every head.
template <class Real>
void fill_rates(Real* rates, DecayForm form, const Real* a_log, std::int64_t heads) {
  for (std::int64_t h = 0; h < heads; ++h) {
    rates[h] = decay_rate(form, a_log != nullptr ? a_log[h] : Real(0), h);
  }
}

template <class Real>
void decay_block(const DecayBlock<Real>& block) {
  with_decay<Real>(*block.constants, [&](auto policy) {
    const std::int64_t width = block.heads * block.channels;
    for (std::int64_t at = 0; at < block.rows * width; ++at) {
      const std::int64_t i = at % width;
      const Real bias = block.dt_bias != nullptr ? block.dt_bias[i] : 0;
      const Real x = block.x != nullptr ? block.x[at] + bias : 0;
      const DecayValue<Real> value = policy.value(x, block.rates[i / block.channels]);
      if (block.g != nullptr) block.g[at] = value.g;
      if (block.dt != nullptr) block.dt[at] = value.dt;
    }
  });
}

template <class Real>
void decay_block_back(const DecayBlockBack<Real>& block) {
  with_decay<Real>(*block.constants, [&](auto policy) {
    const std::int64_t width = block.heads * block.channels;
    for (std::int64_t at = 0; at < block.rows * width; ++at) {
      const std::int64_t i = at % width, head = i / block.channels;
      const Real bias = block.dt_bias != nullptr ? block.dt_bias[i] : 0;
      const Real x = block.x != nullptr ? block.x[at] + bias : 0;
      const Real d_g = block.d_g != nullptr ? block.d_g[at] : 0;
      const Real d_dt = block.d_dt != nullptr ? block.d_dt[at] : 0;
      const DecayDerivative<Real> d = policy.vjp(x, block.rates[head], d_g, d_dt);
      if (block.d_x != nullptr) block.d_x[at] = d.x;
      block.d_a_log[head] += d.a_log;
      block.d_dt_bias[i] += d.x;
    }
  });
}

// `kernel` computes one block: decay_block<Real> or a vector version of it.
template <class Real>
void decay_forward(ThreadPool& threads, const Decay& in, const DecayShape& shape,
                   const DecayArrays<Real>& arrays, const DecayResults<Real>& out, Real* rates,
                   void (*kernel)(const DecayBlock<Real>&)) {
  const DecayConstants constants = constants_of(in);
  fill_rates(rates, in.form, arrays.a_log, shape.value_heads);
  threads.run(row_blocks(shape.rows), [&](std::int64_t block, int) {
    const std::int64_t row = block * kRowBlock, rows = std::min(kRowBlock, shape.rows - row);
    const std::int64_t at = row * shape.value_heads * shape.channels;
    const auto from = [at](auto* array) { return array != nullptr ? array + at : nullptr; };
    kernel({&constants, rows, shape.value_heads, shape.channels, from(arrays.x), arrays.dt_bias,
            rates, from(out.g), from(out.dt)});
  });
}

template <class Real>
void decay_backward(ThreadPool& threads, const Decay& in, const DecayShape& shape,
                    const DecayArrays<Real>& arrays, const DecayCotangentArrays<Real>& cot,
                    const DecayGradArrays<Real>& grads,
                    void (*kernel)(const DecayBlockBack<Real>&)) {
  const DecayConstants constants = constants_of(in);
  fill_rates(grads.rates, in.form, arrays.a_log, shape.value_heads);
  const std::int64_t heads = shape.value_heads, width = heads * shape.channels;
  const std::int64_t blocks = row_blocks(shape.rows), stride = heads + width;
  std::fill(grads.partials, grads.partials + blocks * stride, Real(0));
  threads.run(blocks, [&](std::int64_t block, int) {
    const std::int64_t row = block * kRowBlock, rows = std::min(kRowBlock, shape.rows - row);
    const auto from = [at = row * width](auto* array) {
      return array != nullptr ? array + at : nullptr;
    };
    Real* partial = grads.partials + block * stride;
    kernel({&constants, rows, heads, shape.channels, from(arrays.x), arrays.dt_bias, grads.rates,
            from(cot.g), from(cot.dt), from(grads.x), partial, partial + heads});
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
