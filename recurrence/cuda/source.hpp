#pragma once

// Tensors whose dtype is known at run time, as kernels get them.

#include "core/cuda/language.hpp"

namespace rankone::recurrence::cuda {

// f32, bf16 or f16; null where the call has no such tensor.
struct Source {
  const void* data = nullptr;
  Dtype dtype = Dtype::f32;
};
struct Sink {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
};

}  // namespace rankone::recurrence::cuda
