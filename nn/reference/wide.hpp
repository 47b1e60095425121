#pragma once

// How the reference backend reads and writes tensors of any floating dtype: as float64, widened
// into scratch of the context's arena.

#include "core/context.hpp"

namespace rankone::nn::reference {

// One argument as float64. A float64 tensor is used where it lies. Undefined tensors are legal and
// convert to false. While planning only the scratch is taken.
class Wide {
 public:
  enum class Use { read, write, accumulate };

  Wide(Context& context, const Tensor& tensor, Use use = Use::read) : tensor_(tensor), use_(use) {
    if (!tensor.defined()) return;
    if (tensor.dtype() == Dtype::f64) {
      data_ = tensor.data<double>();
      return;
    }
    wide_ = context.empty(tensor.shape(), Dtype::f64);
    data_ = wide_.data<double>();
    if (use != Use::write && !context.planning()) wide_.copy_from(tensor);
  }
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;

  explicit operator bool() const { return tensor_.defined(); }
  double& operator[](std::int64_t i) const { return data_[i]; }
  double* data() const { return data_; }

  // Rounds what was computed to the dtype of the tensor; the last step of every operator.
  void store() const {
    if (wide_.defined() && use_ != Use::read) tensor_.copy_from(wide_);
  }

 private:
  Tensor tensor_;
  Tensor wide_;
  Use use_;
  double* data_ = nullptr;
};

}  // namespace rankone::nn::reference
