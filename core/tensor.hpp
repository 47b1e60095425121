#pragma once

// A tensor: pointer, shape, strides and dtype, as an owner or as a view. Copies are shallow and
// cheap; a const Tensor does not make its elements const.

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.hpp"

namespace rankone {

inline constexpr int kMaxRank = 8;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);

  int rank() const { return rank_; }
  // Negative axes count from the end.
  std::int64_t operator[](int axis) const { return extents_[index(axis)]; }
  std::int64_t& operator[](int axis) { return extents_[index(axis)]; }
  std::int64_t count() const;  // product of the extents; 1 for rank 0
  bool operator==(const Shape& other) const;
  std::string str() const;  // "[2, 3]"

 private:
  std::size_t index(int axis) const {
    assert(axis < rank_ && axis >= -rank_);
    return static_cast<std::size_t>(axis < 0 ? axis + rank_ : axis);
  }
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;  // absent: defined() is false

  static Tensor empty(const Shape& shape, Dtype dtype);  // owner, 64-byte aligned, uninitialised
  static Tensor zeros(const Shape& shape, Dtype dtype);  // owner
  // A view of memory that somebody else owns; strides are row-major where not given. `data` may be
  // null in a planning pass, where only shapes matter.
  static Tensor view(void* data, const Shape& shape, Dtype dtype);
  static Tensor view(void* data, const Shape& shape, Dtype dtype,
                     std::span<const std::int64_t> strides);
  // The same over memory that lives as long as `owner`, to whose start it points.
  static Tensor owned(std::shared_ptr<void> owner, const Shape& shape, Dtype dtype);
  template <class T>
  static Tensor of(std::span<const T> values, const Shape& shape);  // owner, copied

  bool defined() const { return defined_; }
  explicit operator bool() const { return defined_; }
  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t dim(int axis) const { return shape_[axis]; }
  std::int64_t stride(int axis) const {  // in elements
    return strides_[static_cast<std::size_t>(axis < 0 ? axis + rank() : axis)];
  }
  std::int64_t count() const { return shape_.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }
  bool contiguous() const;

  void* raw() const { return data_; }
  template <class T>
  T* data() const {
    assert(dtype_ == DtypeOf<T>::value);
    return static_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    assert(contiguous());
    return {data<T>(), static_cast<std::size_t>(count())};
  }

  Tensor reshape(const Shape& shape) const;  // contiguous tensors only; same count
  Tensor slice(int axis, std::int64_t begin, std::int64_t end) const;
  Tensor clone() const;                       // owner, contiguous
  Tensor to(Dtype dtype) const;               // owner, contiguous, converted; floating types only
  void copy_from(const Tensor& other) const;  // same shape; converts between floating types
  void fill(double value) const;

 private:
  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  Shape shape_;
  std::array<std::int64_t, kMaxRank> strides_{};
  Dtype dtype_ = Dtype::f32;
  bool defined_ = false;
};

template <class T>
Tensor Tensor::of(std::span<const T> values, const Shape& shape) {
  Tensor result = empty(shape, DtypeOf<T>::value);
  assert(static_cast<std::int64_t>(values.size()) == shape.count());
  std::copy(values.begin(), values.end(), result.template data<T>());
  return result;
}

}  // namespace rankone
