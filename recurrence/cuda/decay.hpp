#pragma once

// The decay axis (recurrence.hpp) as its kernels get it.

#include "recurrence/axes/decay.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

struct DecayCall {
  DecayConstants constants;
  std::int64_t rows = 0, heads = 0, channels = 1;  // R, HV, K or 1
  Source x, a_log, dt_bias;
  Sink g, dt;
};

struct DecayBack {
  Source d_g, d_dt;
  Sink d_x, d_a_log, d_dt_bias;
  float* partials = nullptr;  // decay_partials(); null: no parameter has a gradient
};

void launch_decay(const DecayCall& call, void* stream);
// Scratch of launch_decay_back() where a parameter has a gradient.
std::int64_t decay_partials(const DecayCall& call);
void launch_decay_back(const DecayCall& call, const DecayBack& back, void* stream);

}  // namespace rankone::recurrence::cuda
