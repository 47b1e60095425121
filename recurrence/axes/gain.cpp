#include "recurrence/axes/gain.hpp"

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence {

bool is_key_norm(GainKind kind) {
  bool result = false;
  with_gain(kind, [&](auto policy) { result = decltype(policy)::key_norm; });
  return result;
}

}  // namespace rankone::recurrence
