#include "recurrence/call_check.hpp"

namespace rankone::recurrence {
namespace {

std::string axes_text(CallCheck::Axes axes) {
  std::string text;
  for (const std::int64_t axis : axes) text += ", " + std::to_string(axis);
  return text;
}

}  // namespace

void CallCheck::leading(std::string_view name, const Tensor& tensor, int axes,
                        std::string_view form) {
  that(tensor.defined(), "{} is undefined (it is {})", name, form);
  if (tensor.rank() <= axes) {
    that(false, "{} has shape {} (it is {})", name, tensor.shape().str(), form);
  }
  that(is_floating(tensor.dtype()), "{} is {} (it is f64, f32, bf16 or f16)", name,
       rankone::name(tensor.dtype()));
  dtype_ = tensor.dtype();
}

void CallCheck::layout(std::string_view name, const Tensor& tensor) const {
  that(tensor.contiguous(), "{} is not contiguous (its rows must follow each other)", name);
  that(context_.planning() || tensor.raw() != nullptr || tensor.count() == 0,
       "{} has no memory (null is for planning passes)", name);
}

void CallCheck::element(std::string_view name, const Tensor& tensor, bool gate) const {
  const bool right = tensor.dtype() == dtype_ || (gate && tensor.dtype() == wide());
  that(right, "{} is {}, the call is {} (one dtype per call)", name, rankone::name(tensor.dtype()),
       rankone::name(dtype_));
}

void CallCheck::values(const Tensor& v, std::string_view form) const {
  if (v.defined() && v.rank() > 2) return;
  that(false, "v is {} (it is {})", v.defined() ? v.shape().str() : "undefined", form);
}

void CallCheck::row(std::string_view name, const Tensor& tensor, Axes axes, int gate) {
  if (!tensor.defined()) return;
  std::int64_t width = 1;
  bool fits = tensor.rank() > static_cast<int>(axes.size());
  int axis = -static_cast<int>(axes.size());
  for (const std::int64_t extent : axes) {
    fits = fits && tensor.dim(axis++) == extent;
    width *= extent;
  }
  fits = fits && tensor.count() == rows_ * width;
  if (!fits) {
    that(false, "{} has shape {} (it is [{}{}]; the {} rows may be several axes)", name,
         tensor.shape().str(), rows_, axes_text(axes), rows_);
  }
  element(name, tensor, gate != 0);
  layout(name, tensor);
}

void CallCheck::whole(std::string_view name, const Tensor& tensor, const Shape& shape) const {
  if (tensor.shape() != shape) {
    that(false, "{} has shape {} (it is {})", name, tensor.shape().str(), shape.str());
  }
  layout(name, tensor);
}

void CallCheck::parameter(std::string_view name, const Tensor& tensor, Axes axes) {
  if (!tensor.defined()) return;
  whole(name, tensor, Shape(axes));
  element(name, tensor, true);
}

void CallCheck::state(std::string_view name, const Tensor& tensor, Axes axes, bool narrow) {
  if (!tensor.defined()) return;
  std::vector<std::int64_t> extents{sequences_};
  extents.insert(extents.end(), axes.begin(), axes.end());
  whole(name, tensor, Shape(extents));
  narrow = narrow && dtype_ != Dtype::f64;
  that(tensor.dtype() == wide() || (narrow && tensor.dtype() == Dtype::bf16),
       "{} is {} (states of this call are {}{})", name, rankone::name(tensor.dtype()),
       rankone::name(wide()), narrow ? " or bf16" : "");
}

void CallCheck::required(std::string_view name, const Tensor& tensor) const {
  that(tensor.defined(), "{} is undefined (this call needs it)", name);
}

void CallCheck::absent(std::string_view name, const Tensor& tensor, std::string_view why) const {
  that(!tensor.defined(), "{} is given, but {}", name, why);
}

void CallCheck::gradient_of(std::string_view name, const Tensor& gradient,
                            const Tensor& input) const {
  that(!gradient.defined() || input.defined(),
       "the gradient of {} is wanted, but the call has no {}", name, name);
}

void CallCheck::head_sizes(std::int64_t heads, std::int64_t d_k) {
  that(heads >= 1, "H is {} (at least 1)", heads);
  that(d_k >= 1 && d_k <= kMaxKeyDim, "d_k is {} (1 to {})", d_k, kMaxKeyDim);
}

void CallCheck::value_sizes(std::int64_t heads, std::int64_t value_heads, std::int64_t d_v) {
  that(value_heads >= 1 && value_heads % heads == 0, "HV is {} (a multiple of H = {})", value_heads,
       heads);
  that(d_v >= 1 && d_v <= kMaxValueDim, "d_v is {} (1 to {})", d_v, kMaxValueDim);
}

}  // namespace rankone::recurrence
