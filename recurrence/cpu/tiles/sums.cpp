// Sums for the gradients of gates and gains.

#include "recurrence/cpu/isa/sums.hpp"
#include "recurrence/cpu/tiles/declarations.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

// As many rows at a time as a vector has lanes, so that their sums over lanes are taken together.
void row_dots(const TileRowDots& d) {
  for (int first = 0; first < d.rows; first += kLanes) {
    const int left = d.rows - first;
    Vec sums[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      sums[r] = Vec{};
      if (r >= left) continue;
      const float* a = d.a + (first + r) * d.a_row;
      const float* b = d.b + (first + r) * d.b_row;
      int c = 0;
      for (; c + kLanes <= d.columns; c += kLanes) sums[r] += load(a + c) * load(b + c);
      if (c < d.columns) {
        sums[r] += load_part(a + c, d.columns - c) * load_part(b + c, d.columns - c);
      }
    }
    const Vec dots = lane_sums(sums);
    if (left >= kLanes) {
      store(d.out + first, dots);
    } else {
      store_part(d.out + first, dots, left);
    }
  }
}

void crossing(const TileCrossing& d) {
  // The products summed over i >= t, for every j. Behind column t - 1 it is not read any more.
  float below[kMaxChunk] = {};
  for (int t = d.n - 1; t >= 0; --t) {
    const Index at = t * d.row;
    Vec inside{};
    for (int j = 0; j < t; j += kLanes) {
      Vec value = load(below + j) + load(d.d_seen + at + j) * load(d.seen + at + j);
      if (d.d_read != nullptr) value += load(d.d_read + at + j) * load(d.read + at + j);
      store(below + j, value);
      inside += t - j >= kLanes ? value : load_part(below + j, t - j);
    }
    d.inside[t] = sum(inside);
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
