#pragma once

// Host side of source.hpp: tensors as kernels take them, and scratch.

#include "core/context.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

// Undefined tensors are null.
inline Source source_of(const Tensor& tensor) {
  return tensor.defined() ? Source{tensor.raw(), tensor.dtype()} : Source{};
}
inline Sink sink_of(const Tensor& tensor) {
  return tensor.defined() ? Sink{tensor.raw(), tensor.dtype()} : Sink{};
}
template <class T>
T* pointer_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.raw()) : nullptr;
}

// Scratch of `count` floats in the arena; null in a planning pass.
inline float* floats(Context& context, std::int64_t count) {
  return static_cast<float*>(
      context.arena().allocate(static_cast<std::size_t>(count) * sizeof(float)));
}

}  // namespace rankone::recurrence::cuda
