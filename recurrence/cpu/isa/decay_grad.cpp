// The gradient of the gates.

#include "recurrence/cpu/isa/declarations.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

void channel_decay_grad(const DecayGrad& d) {
  for (int c = 0; c < d.channels; c += kLanes) {
    const Vec whole = load(d.whole + c);
    Vec readers{};
    Vec inside{};
    for (int t = d.n - 1; t >= 0; --t) {
      const Index at = t * d.row + c;
      readers += load(d.query + at) * load(d.query_back + at);
      if (d.erase != nullptr) readers += load(d.erase + at) * load(d.erase_back + at);
      inside += load(d.inner + t * d.inner_row + c);
      store(d.out + t * d.out_row + c, whole + (readers + inside));
    }
    Vec writers{};
    for (int t = 0; t < d.n; ++t) {
      float* out = d.out + t * d.out_row + c;
      store(out, load(out) + writers);
      writers += load(d.write + t * d.row + c) * load(d.write_back + t * d.row + c);
    }
  }
}

void scalar_decay_grad(const DecayGrad& d) {
  float readers = 0.0F;
  // crossing(i, j) summed over i >= t, for every j.
  float below[kMaxChunk] = {};
  for (int t = d.n - 1; t >= 0; --t) {
    const Index at = t * d.row;
    readers += dot(d.query + at, d.query_back + at, d.channels);
    if (d.erase != nullptr) readers += dot(d.erase + at, d.erase_back + at, d.channels);
    const float* crossing = d.inner + t * d.inner_row;
    for (int j = 0; j < t; ++j) below[j] += crossing[j];
    Vec inside{};
    int j = 0;
    for (; j + kLanes <= t; j += kLanes) inside += load(below + j);
    float rest = sum(inside);
    for (; j < t; ++j) rest += below[j];
    d.out[t * d.out_row] = *d.whole + readers + rest;
  }
  float writers = 0.0F;
  for (int t = 0; t < d.n; ++t) {
    d.out[t * d.out_row] += writers;
    writers += dot(d.write + t * d.row, d.write_back + t * d.row, d.channels);
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
