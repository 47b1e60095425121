#pragma once

// The enumerations of recurrence.hpp, apart from it for the vector kernels, which include no header
// of the standard library that has inline functions.

namespace rankone::recurrence {

enum class PreconditionerKind { atk, atq, gram };

enum class DecayForm { softplus, lower_bound, logsigmoid, fixed };

enum class GainKind {
  one,
  sigmoid,
  sigmoid2,
  dt,
  kaczmarz,
  nlms,
  longhorn,
  efla,
  learned_scalar,
  vector
};
enum class TimeFactor { none, inv_t, inv_sqrt_t, inv_log_t };

}  // namespace rankone::recurrence
