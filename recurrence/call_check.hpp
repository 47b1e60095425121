#pragma once

// The rules of recurrence.hpp for one tensor of a call: shape, dtype, layout. Messages name the
// function and the tensor.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/context.hpp"
#include "core/sequences.hpp"
#include "core/status.hpp"
#include "recurrence/backend.hpp"

namespace rankone::recurrence {

inline constexpr std::int64_t kMaxKeyDim = 256;
inline constexpr std::int64_t kMaxValueDim = 1024;

class CallCheck {
 public:
  using Axes = std::initializer_list<std::int64_t>;

  CallCheck(std::string_view operation, const Context& context)
      : operation_(operation), context_(context) {}
  CallCheck(std::string_view operation, const Context& context, const Sequences& sequences)
      : operation_(operation),
        context_(context),
        rows_(sequences.rows()),
        sequences_(sequences.count()) {}

  // The tensor that fixes the dtype of the call and has at least `axes` axes behind its rows;
  // `form` is its shape in words. First of all checks.
  void leading(std::string_view name, const Tensor& tensor, int axes, std::string_view form);

  // The values v, whose shape in words is `form`: there, with two axes behind their rows.
  void values(const Tensor& v, std::string_view form) const;

  // [R, axes...], where the rows may be several axes. An undefined tensor passes unless `required`.
  void input(std::string_view name, const Tensor& tensor, Axes axes) { row(name, tensor, axes, 0); }
  // The same in the dtype of the call or, in a 16-bit call, f32.
  void gate(std::string_view name, const Tensor& tensor, Axes axes) { row(name, tensor, axes, 1); }
  // [axes...] exactly, dtype as gate().
  void parameter(std::string_view name, const Tensor& tensor, Axes axes);
  // [N, axes...], f32 or in an f64 call f64; with `narrow` also bf16, except in an f64 call.
  void state(std::string_view name, const Tensor& tensor, Axes axes, bool narrow = false);

  void required(std::string_view name, const Tensor& tensor) const;
  // A tensor that has no meaning for this call: `why` says so.
  void absent(std::string_view name, const Tensor& tensor, std::string_view why) const;
  // The gradient of an input that is not there.
  void gradient_of(std::string_view name, const Tensor& gradient, const Tensor& input) const;

  void head_sizes(std::int64_t heads, std::int64_t d_k);
  void value_sizes(std::int64_t heads, std::int64_t value_heads, std::int64_t d_v);

  // Where the words take work, ask first: decoding checks a call for every token.
  template <class... Args>
  void that(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(Status::invalid_argument, "[{}] {}", operation_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  std::int64_t rows() const { return rows_; }
  void set_rows(std::int64_t rows) { rows_ = rows; }
  CallShape call() const { return CallShape{dtype_, context_.device(), false}; }
  Dtype wide() const { return dtype_ == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

 private:
  void row(std::string_view name, const Tensor& tensor, Axes axes, int gate);
  void whole(std::string_view name, const Tensor& tensor, const Shape& shape) const;
  void element(std::string_view name, const Tensor& tensor, bool gate) const;
  void layout(std::string_view name, const Tensor& tensor) const;

  std::string operation_;
  const Context& context_;
  std::int64_t rows_ = 0;
  std::int64_t sequences_ = 0;
  Dtype dtype_ = Dtype::f32;
};

}  // namespace rankone::recurrence
