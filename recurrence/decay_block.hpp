#pragma once

// A block of rows of decay() or its vjp: what a kernel gets. Rows are [heads, channels], one behind
// the other; pointers are to the first row and null where the call has no such tensor.

#include <cstdint>

#include "recurrence/axes/decay.hpp"

namespace rankone::recurrence {

template <class Real>
struct DecayBlock {
  const DecayConstants* constants;
  std::int64_t rows, heads, channels;
  const Real* x;
  const Real* dt_bias;  // [heads, channels]
  const Real* rates;    // A, [heads]
  Real *g, *dt;
};

template <class Real>
struct DecayBlockBack {
  const DecayConstants* constants;
  std::int64_t rows, heads, channels;
  const Real* x;
  const Real* dt_bias;
  const Real* rates;
  const Real *d_g, *d_dt;
  Real* d_x;
  Real *d_a_log, *d_dt_bias;  // never null: [heads] and [heads, channels], added to
};

}  // namespace rankone::recurrence
