#pragma once

// Sums over the lanes of many vectors at once.

#include "recurrence/cpu/isa/tile.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

template <int... lanes>
struct LaneList {};
template <int count, int... lanes>
struct LanesUpTo : LanesUpTo<count - 1, count - 1, lanes...> {};
template <int... lanes>
struct LanesUpTo<0, lanes...> {
  using List = LaneList<lanes...>;
};

// Of a and b, cut into pieces of 2 * half lanes: all lower halves plus all upper halves.
template <int half, int... lanes>
RANKONE_INLINE Vec fold(Vec a, Vec b, LaneList<lanes...>) {
  return __builtin_shufflevector(a, b, (lanes / half * 2 * half + lanes % half)...) +
         __builtin_shufflevector(a, b, (lanes / half * 2 * half + half + lanes % half)...);
}

// Lane i of the result is the sum of the lanes of v[i], added in the order of sum(). Destroys v.
template <int half = kLanes / 2>
RANKONE_INLINE Vec lane_sums(Vec (&v)[kLanes]) {
  for (int i = 0; i < half; ++i) {
    v[i] = fold<half>(v[2 * i], v[2 * i + 1], typename LanesUpTo<kLanes>::List{});
  }
  if constexpr (half > 1) {
    return lane_sums<half / 2>(v);
  } else {
    return v[0];
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
