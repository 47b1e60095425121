#pragma once

// Checks of operator arguments. Every failure is Status::invalid_argument and names the operator
// and the tensor.

#include <string_view>

#include "core/status.hpp"
#include "core/tensor.hpp"

namespace rankone::nn {

// Gradients of parameters are never below f32.
inline Dtype parameter_gradient_dtype(Dtype activations) {
  return activations == Dtype::f64 ? Dtype::f64 : Dtype::f32;
}

class Arguments {
 public:
  explicit Arguments(std::string_view operation) : operation_(operation) {}

  // Present, contiguous, floating, at least `rank` axes.
  void floating(std::string_view name, const Tensor& tensor, int rank = 0) const;
  // Also of exactly this shape.
  void shaped(std::string_view name, const Tensor& tensor, const Shape& shape) const;
  // Also of the dtype of `other` and of its shape up to merged axes: [2, 3, 4], [6, 4] and [2, 12]
  // are alike, [4, 6] is not.
  void alike(std::string_view name, const Tensor& tensor, std::string_view other_name,
             const Tensor& other) const;
  // [..., trailing], as many elements as `rows` times that, of this dtype.
  void rows(std::string_view name, const Tensor& tensor, std::int64_t rows, const Shape& trailing,
            Dtype dtype) const;
  void dtype(std::string_view name, const Tensor& tensor, Dtype dtype) const;
  // The gradient of an activation: undefined, or alike.
  void gradient(std::string_view name, const Tensor& tensor, std::string_view other_name,
                const Tensor& other) const;
  // The gradient of a parameter: undefined, or of its shape and of the dtype that `activations`
  // asks for; refused where there is no parameter.
  void parameter_gradient(std::string_view name, const Tensor& gradient, const Tensor& parameter,
                          Dtype activations) const;
  // An element that selects one of `limit` rows: a backend's check, where the host holds the data.
  void index(std::string_view name, std::int64_t value, std::int64_t limit) const;

  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) refuse(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const;

  std::string_view operation_;
};

}  // namespace rankone::nn
