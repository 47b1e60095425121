#pragma once

// The tensors of a call as plain float64 arrays. Inputs of another dtype are widened into arena
// scratch, outputs are computed there and rounded once at the end, absent inputs are arrays of
// their neutral value: so the equations behind need no cases. One Wide lives inside one ArenaScope.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/context.hpp"

namespace rankone::recurrence {

class Wide {
 public:
  explicit Wide(Context& context) : context_(context), scope_(context.arena()) {}
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;

  double* scratch(std::int64_t count) {
    return static_cast<double*>(
        context_.arena().allocate(static_cast<std::size_t>(count) * sizeof(double)));
  }

  // An array of `count` elements, all `value`.
  double* filled(std::int64_t count, double value) {
    double* data = scratch(count);
    if (!context_.planning()) std::fill(data, data + count, value);
    return data;
  }

  const double* in(const Tensor& tensor) {
    if (tensor.dtype() == Dtype::f64) return tensor.data<double>();
    double* data = scratch(tensor.count());
    if (!context_.planning()) Tensor::view(data, tensor.shape(), Dtype::f64).copy_from(tensor);
    return data;
  }

  // The tensor, or where it is absent an array of `count` times `otherwise`.
  const double* in(const Tensor& tensor, std::int64_t count, double otherwise) {
    return tensor.defined() ? in(tensor) : filled(count, otherwise);
  }

  // An output array, zero at the start; an absent one is scratch.
  double* out(const Tensor& tensor, std::int64_t count) {
    if (!tensor.defined() || tensor.dtype() != Dtype::f64) {
      double* data = filled(count, 0.0);
      if (tensor.defined()) rounded_.emplace_back(data, tensor);
      return data;
    }
    double* data = tensor.data<double>();
    if (!context_.planning()) std::fill(data, data + count, 0.0);
    return data;
  }

  // An output that is not zeroed, since it may be the memory of an input: read before it is
  // written.
  double* in_place(const Tensor& tensor, std::int64_t count) {
    if (tensor.defined() && tensor.dtype() == Dtype::f64) return tensor.data<double>();
    double* data = scratch(count);
    if (tensor.defined()) rounded_.emplace_back(data, tensor);
    return data;
  }

  // Rounds the outputs into their tensors.
  void finish() {
    for (const auto& [data, tensor] : rounded_) {
      tensor.copy_from(Tensor::view(data, tensor.shape(), Dtype::f64));
    }
  }

 private:
  Context& context_;
  ArenaScope scope_;
  std::vector<std::pair<double*, Tensor>> rounded_;
};

}  // namespace rankone::recurrence
