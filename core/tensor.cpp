#include "core/tensor.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/status.hpp"

namespace rankone {

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  require(extents.size() <= kMaxRank, "[shape] rank {} is more than {}", extents.size(), kMaxRank);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    require(extents[i] >= 0, "[shape] extent {} of axis {} is negative", extents[i], i);
    extents_[i] = extents[i];
  }
}

std::int64_t Shape::count() const {
  std::size_t total = 1;
  for (int i = 0; i < rank_; ++i) {
    total = checked_multiply(total, static_cast<std::size_t>((*this)[i]), Status::invalid_argument);
  }
  return static_cast<std::int64_t>(total);
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ &&
         std::equal(extents_.begin(), extents_.begin() + rank_, other.extents_.begin());
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  return text + "]";
}

namespace {

template <class Visit>
decltype(auto) visit_floating(Dtype dtype, Visit&& visit) {
  switch (dtype) {
    case Dtype::f64:
      return visit(double{});
    case Dtype::f32:
      return visit(float{});
    case Dtype::bf16:
      return visit(bf16{});
    case Dtype::f16:
      return visit(f16{});
    default:
      fail(Status::invalid_argument, "[tensor] no conversion for dtype {}", name(dtype));
  }
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, bf16> || std::is_same_v<From, f16>) {
    return convert<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, bf16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, f16>) {
    return to_f16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Calls row(offset_a, offset_b) for each position of all axes but the last.
template <class Row>
void for_each_row(const Tensor& a, const Tensor& b, Row&& row) {
  if (a.count() == 0) return;
  const int outer = std::max(a.rank() - 1, 0);
  std::array<std::int64_t, kMaxRank> at{};
  while (true) {
    std::int64_t offset_a = 0;
    std::int64_t offset_b = 0;
    for (int i = 0; i < outer; ++i) {
      offset_a += at[static_cast<std::size_t>(i)] * a.stride(i);
      offset_b += at[static_cast<std::size_t>(i)] * b.stride(i);
    }
    row(offset_a, offset_b);
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      if (++at[static_cast<std::size_t>(axis)] < a.dim(axis)) break;
      at[static_cast<std::size_t>(axis)] = 0;
    }
    if (axis < 0) return;
  }
}

// Large tensors lie in large pages where the system has them: what is read once from memory comes a
// fifth faster.
constexpr std::size_t kLargePage = std::size_t{2} << 20;

void* allocate(std::size_t bytes) {
  if (bytes < 2 * kLargePage) return std::aligned_alloc(64, std::max<std::size_t>(bytes, 64));
  const std::size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  void* const data = std::aligned_alloc(kLargePage, std::max(bytes, whole));
#if defined(MADV_HUGEPAGE)
  if (data != nullptr) ::madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, Dtype dtype) {
  const std::size_t bytes = checked_multiply(static_cast<std::size_t>(shape.count()),
                                             size_of(dtype), Status::invalid_argument);
  const std::size_t padded = checked_add(bytes, 63, Status::invalid_argument) / 64 * 64;
  void* data = allocate(padded);
  if (data == nullptr) fail(Status::out_of_memory, "[tensor] can not allocate {} bytes", padded);
  Tensor result = view(data, shape, dtype);
  result.owner_ = std::shared_ptr<void>(data, [](void* pointer) { std::free(pointer); });
  return result;
}

Tensor Tensor::zeros(const Shape& shape, Dtype dtype) {
  Tensor result = empty(shape, dtype);
  std::memset(result.data_, 0, result.bytes());
  return result;
}

Tensor Tensor::view(void* data, const Shape& shape, Dtype dtype) {
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = stride;
    stride *= shape[i];
  }
  return view(
      data, shape, dtype,
      std::span<const std::int64_t>(strides.data(), static_cast<std::size_t>(shape.rank())));
}

Tensor Tensor::view(void* data, const Shape& shape, Dtype dtype,
                    std::span<const std::int64_t> strides) {
  assert(static_cast<int>(strides.size()) == shape.rank());
  Tensor result;
  result.data_ = data;
  result.shape_ = shape;
  std::copy(strides.begin(), strides.end(), result.strides_.begin());
  result.dtype_ = dtype;
  result.defined_ = true;
  return result;
}

Tensor Tensor::owned(std::shared_ptr<void> owner, const Shape& shape, Dtype dtype) {
  Tensor result = view(owner.get(), shape, dtype);
  result.owner_ = std::move(owner);
  return result;
}

bool Tensor::contiguous() const {
  std::int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != expected) return false;
    expected *= dim(i);
  }
  return true;
}

Tensor Tensor::reshape(const Shape& shape) const {
  require(contiguous(), "[reshape] tensor of shape {} is not contiguous", shape_.str());
  require(shape.count() == count(), "[reshape] {} has {} elements, {} has {}", shape_.str(),
          count(), shape.str(), shape.count());
  Tensor result = view(data_, shape, dtype_);
  result.owner_ = owner_;
  return result;
}

Tensor Tensor::slice(int axis, std::int64_t begin, std::int64_t end) const {
  require(begin >= 0 && begin <= end && end <= dim(axis), "[slice] {}..{} is not in axis {} of {}",
          begin, end, axis, shape_.str());
  Tensor result = *this;
  if (data_ != nullptr) {
    result.data_ = static_cast<std::byte*>(data_) +
                   begin * stride(axis) * static_cast<std::int64_t>(size_of(dtype_));
  }
  result.shape_[axis] = end - begin;
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape_, dtype_);
  result.copy_from(*this);
  return result;
}

Tensor Tensor::to(Dtype dtype) const {
  Tensor result = empty(shape_, dtype);
  result.copy_from(*this);
  return result;
}

void Tensor::copy_from(const Tensor& other) const {
  require(shape_ == other.shape_, "[copy] shapes differ: {} and {}", shape_.str(),
          other.shape_.str());
  const std::int64_t columns = rank() == 0 ? 1 : dim(-1);
  const std::int64_t step = rank() == 0 ? 1 : stride(-1);
  const std::int64_t other_step = rank() == 0 ? 1 : other.stride(-1);
  if (dtype_ == other.dtype_) {
    const std::size_t size = size_of(dtype_);
    for_each_row(*this, other, [&](std::int64_t to, std::int64_t from) {
      auto* target = static_cast<std::byte*>(data_) + to * static_cast<std::int64_t>(size);
      const auto* source =
          static_cast<const std::byte*>(other.data_) + from * static_cast<std::int64_t>(size);
      if (step == 1 && other_step == 1) {
        std::memcpy(target, source, static_cast<std::size_t>(columns) * size);
        return;
      }
      for (std::int64_t i = 0; i < columns; ++i) {
        std::memcpy(target + i * step * static_cast<std::int64_t>(size),
                    source + i * other_step * static_cast<std::int64_t>(size), size);
      }
    });
    return;
  }
  visit_floating(dtype_, [&](auto to_type) {
    visit_floating(other.dtype_, [&](auto from_type) {
      using To = decltype(to_type);
      using From = decltype(from_type);
      for_each_row(*this, other, [&](std::int64_t to, std::int64_t from) {
        To* target = data<To>() + to;
        const From* source = other.data<From>() + from;
        for (std::int64_t i = 0; i < columns; ++i) {
          target[i * step] = convert<To>(source[i * other_step]);
        }
      });
    });
  });
}

void Tensor::fill(double value) const {
  const std::int64_t columns = rank() == 0 ? 1 : dim(-1);
  const std::int64_t step = rank() == 0 ? 1 : stride(-1);
  visit_floating(dtype_, [&](auto type) {
    using T = decltype(type);
    const T element = convert<T>(value);
    for_each_row(*this, *this, [&](std::int64_t to, std::int64_t) {
      for (std::int64_t i = 0; i < columns; ++i) data<T>()[to + i * step] = element;
    });
  });
}

}  // namespace rankone
