#pragma once

// The gain axis (recurrence.hpp) as its kernels get it.

#include "core/cuda/rows.hpp"
#include "recurrence/choices.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

struct GainCall {
  GainKind kind = GainKind::sigmoid;
  bool key_norm = false;  // is_key_norm(kind)
  TimeFactor time_factor = TimeFactor::none;
  rankone::cuda::Rows rows;
  std::int64_t count = 0;                   // R
  std::int64_t heads = 0, value_heads = 0;  // H (0 where the gain looks at no key), HV
  int d_k = 0, d_v = 0;
  float eps = 0.0F;
  const std::int64_t* positions = nullptr;  // [N]
  Source x, x_v, theta, e, w, v;
  Sink b, e_out, w_out, v_out;
};

struct GainBack {
  Source d_b, d_e, d_w, d_v;                      // cotangents
  Sink to_x, to_x_v, to_theta, to_e, to_w, to_v;  // gradients
  float* partials = nullptr;                      // gain_partials(); null: theta has no gradient
};

void launch_gain(const GainCall& call, void* stream);
// Scratch of launch_gain_back() where theta has a gradient.
std::int64_t gain_partials(const GainCall& call);
void launch_gain_back(const GainCall& call, const GainBack& back, void* stream);

}  // namespace rankone::recurrence::cuda
