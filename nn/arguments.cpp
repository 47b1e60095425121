#include "nn/arguments.hpp"

#include <algorithm>

namespace rankone::nn {
namespace {

// Every boundary between axes of `coarse`, as the number of elements behind it, is one of `fine`.
bool merges_into(const Shape& fine, const Shape& coarse) {
  std::int64_t behind = 1;
  std::int64_t behind_fine = 1;
  int axis = fine.rank();
  for (int i = coarse.rank() - 1; i >= 0; --i) {
    behind *= coarse[i];
    while (axis > 0 && behind_fine < behind) behind_fine *= fine[--axis];
    if (behind_fine != behind) return false;
  }
  return true;
}

bool same_elements(const Shape& a, const Shape& b) {
  if (a.count() != b.count()) return false;
  return a.count() == 0 || merges_into(a, b) || merges_into(b, a);
}

}  // namespace

void Arguments::refuse(const std::string& message) const {
  fail(Status::invalid_argument, "[{}] {}", operation_, message);
}

void Arguments::floating(std::string_view name, const Tensor& tensor, int rank) const {
  check(tensor.defined(), "{} is missing", name);
  check(is_floating(tensor.dtype()), "{} has dtype {} (must be f64, f32, bf16 or f16)", name,
        rankone::name(tensor.dtype()));
  check(tensor.rank() >= rank, "{} has shape {} (must have at least {} axes)", name,
        tensor.shape().str(), rank);
  check(tensor.contiguous(), "{} of shape {} is not contiguous", name, tensor.shape().str());
}

void Arguments::shaped(std::string_view name, const Tensor& tensor, const Shape& shape) const {
  floating(name, tensor);
  check(tensor.shape() == shape, "{} has shape {} (must be {})", name, tensor.shape().str(),
        shape.str());
}

void Arguments::rows(std::string_view name, const Tensor& tensor, std::int64_t rows,
                     const Shape& trailing, Dtype dtype) const {
  floating(name, tensor, trailing.rank());
  bool fits = tensor.count() == rows * trailing.count();
  for (int i = 1; i <= trailing.rank(); ++i) fits = fits && tensor.dim(-i) == trailing[-i];
  check(fits, "{} has shape {} (must be {} rows of {})", name, tensor.shape().str(), rows,
        trailing.str());
  this->dtype(name, tensor, dtype);
}

void Arguments::index(std::string_view name, std::int64_t value, std::int64_t limit) const {
  check(value >= 0 && value < limit, "{} holds {} (must be in [0, {}))", name, value, limit);
}

void Arguments::dtype(std::string_view name, const Tensor& tensor, Dtype dtype) const {
  check(tensor.dtype() == dtype, "{} has dtype {} (must be {})", name,
        rankone::name(tensor.dtype()), rankone::name(dtype));
}

void Arguments::alike(std::string_view name, const Tensor& tensor, std::string_view other_name,
                      const Tensor& other) const {
  floating(name, tensor);
  check(same_elements(tensor.shape(), other.shape()), "{} has shape {} (must be that of {}, {})",
        name, tensor.shape().str(), other_name, other.shape().str());
  dtype(name, tensor, other.dtype());
}

void Arguments::gradient(std::string_view name, const Tensor& tensor, std::string_view other_name,
                         const Tensor& other) const {
  if (!tensor.defined()) return;
  check(other.defined(), "{} is asked for, but there is no {}", name, other_name);
  alike(name, tensor, other_name, other);
}

void Arguments::parameter_gradient(std::string_view name, const Tensor& gradient,
                                   const Tensor& parameter, Dtype activations) const {
  if (!gradient.defined()) return;
  check(parameter.defined(), "{} is asked for, but there is no such parameter", name);
  shaped(name, gradient, parameter.shape());
  dtype(name, gradient, parameter_gradient_dtype(activations));
}

}  // namespace rankone::nn
