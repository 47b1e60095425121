// Diagonal Longhorn, one lane a value column:
//     D = beta / (1 + beta |k|^2);  S_d = (1 - D k_d^2) S_d + D v k_d;  o = sum_d S_d q_d

#include "recurrence/cpu/isa/declarations.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

void longhorn(const LonghornScan& s) {
  const Index state_size = static_cast<Index>(s.channels) * kLine;
  for (int c = 0; c < kLine; c += kLanes) {
    for (int t = 0; t < s.n; ++t) {
      const Vec beta = load(s.beta + t * s.value_row + c);
      const Vec gain = beta / (splat(1.0F) + beta * splat(s.norm[t]));
      const Vec write = gain * load(s.v + t * s.value_row + c);
      Vec out{};
      for (int d = 0; d < s.channels; ++d) {
        float* state = s.state + static_cast<Index>(d) * kLine + c;
        const Vec old = load(state);
        if (s.history != nullptr) {
          store(s.history + t * state_size + static_cast<Index>(d) * kLine + c, old);
        }
        const float k = s.k[t * s.key_row + d];
        const Vec next = (splat(1.0F) - gain * splat(k * k)) * old + write * splat(k);
        store(state, next);
        out += next * splat(s.q[t * s.key_row + d]);
      }
      if (s.out != nullptr) store(s.out + t * s.value_row + c, out);
    }
    if (s.history == nullptr) continue;
    for (int d = 0; d < s.channels; ++d) {
      const Index at = static_cast<Index>(d) * kLine + c;
      store(s.history + s.n * state_size + at, load(s.state + at));
    }
  }
}

void longhorn_back(const LonghornScanBack& b) {
  const LonghornScan& s = b.scan;
  const Index state_size = static_cast<Index>(s.channels) * kLine;
  for (int c = 0; c < kLine; c += kLanes) {
    for (int t = s.n - 1; t >= 0; --t) {
      const Vec beta = load(s.beta + t * s.value_row + c);
      const Vec v = load(s.v + t * s.value_row + c);
      const Vec d_out = load(b.d_out + t * s.value_row + c);
      const Vec inverse = splat(1.0F) / (splat(1.0F) + beta * splat(s.norm[t]));
      const Vec gain = beta * inverse;
      Vec d_gain{};
      Vec written{};  // sum_d dS_d k_d
      for (int d = 0; d < s.channels; ++d) {
        const Index at = static_cast<Index>(d) * kLine + c;
        const float k = s.k[t * s.key_row + d];
        const float* before = s.history + t * state_size + at;
        const Vec old = load(before);
        const Vec d_state = load(b.d_state + at) + splat(s.q[t * s.key_row + d]) * d_out;
        b.d_q[t * s.key_row + d] += sum(load(before + state_size) * d_out);
        b.d_k[t * s.key_row + d] += sum(d_state * gain * (v - splat(2.0F * k) * old));
        d_gain += d_state * splat(k) * (v - splat(k) * old);
        written += d_state * splat(k);
        store(b.d_state + at, d_state * (splat(1.0F) - gain * splat(k * k)));
      }
      store(b.d_v + t * s.value_row + c, gain * written);
      store(b.d_beta + t * s.value_row + c, d_gain * inverse * inverse);
      b.d_norm[t] -= sum(gain * gain * d_gain);
    }
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
