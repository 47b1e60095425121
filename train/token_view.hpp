#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.hpp"

namespace rankone::train {

// Token ids of a batch as an operator takes them, [n] i32: a view, which operators only read.
inline Tensor token_view(std::span<const std::int32_t> ids) {
  return Tensor::view(const_cast<std::int32_t*>(ids.data()),
                      {static_cast<std::int64_t>(ids.size())}, Dtype::i32);
}

}  // namespace rankone::train
