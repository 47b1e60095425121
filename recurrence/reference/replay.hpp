#pragma once

// Walks a recurrence backwards. States are kept every kSegment steps and recomputed between, so the
// memory is that of about T / kSegment + kSegment states and not of T.

#include <algorithm>
#include <cstdint>

namespace rankone::recurrence {

inline constexpr std::int64_t kSegment = 64;

inline std::int64_t replay_scratch(std::int64_t longest, std::int64_t state_size) {
  return (longest / kSegment + 1 + kSegment + 1) * state_size;
}

// `step(t, state)` advances the state by step t in place; `back(t, before, after)` is called for t
// = steps - 1 .. 0 with the states before and after step t. `scratch` has replay_scratch() elements
// and `initial` `size`.
template <class Step, class Back>
void replay_backwards(std::int64_t steps, std::int64_t size, const double* initial, double* scratch,
                      Step&& step, Back&& back) {
  double* history = scratch;                       // states of one segment
  double* kept = scratch + (kSegment + 1) * size;  // the state before each segment
  double* state = history;
  std::copy(initial, initial + size, state);
  for (std::int64_t t = 0; t < steps; ++t) {
    if (t % kSegment == 0) std::copy(state, state + size, kept + t / kSegment * size);
    step(t, state);
  }
  for (std::int64_t begin = (steps - 1) / kSegment * kSegment; steps > 0 && begin >= 0;
       begin -= kSegment) {
    const std::int64_t end = std::min(begin + kSegment, steps);
    const double* start = kept + begin / kSegment * size;
    std::copy(start, start + size, history);
    for (std::int64_t t = begin; t < end; ++t) {
      double* next = history + (t - begin + 1) * size;
      std::copy(next - size, next, next);
      step(t, next);
    }
    for (std::int64_t t = end - 1; t >= begin; --t) {
      const double* before = history + (t - begin) * size;
      back(t, before, before + size);
    }
  }
}

}  // namespace rankone::recurrence
