#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.hpp"

namespace rankone::recurrence::cuda {

// Scratch of a kernel from the context's arena, aligned to 256 bytes; null for none.
inline void* workspace(Context& context, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  if (bytes == 0) return nullptr;
  auto address = reinterpret_cast<std::uintptr_t>(
      context.arena().allocate(bytes + kAlignment - Arena::kAlignment));
  address = (address + kAlignment - 1) / kAlignment * kAlignment;
  return reinterpret_cast<void*>(address);
}

}  // namespace rankone::recurrence::cuda
