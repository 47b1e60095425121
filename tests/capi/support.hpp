#pragma once

// Tensors for both sides of the C interface, and calls with a workspace of exactly the size asked
// for.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "core/sequences.hpp"
#include "core/tensor.hpp"
#include "rankone/rankone.h"

namespace rankone::test {

inline rankone_dtype c_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return RANKONE_F64;
    case Dtype::f32:
      return RANKONE_F32;
    case Dtype::bf16:
      return RANKONE_BF16;
    case Dtype::f16:
      return RANKONE_F16;
    default:
      return RANKONE_I64;
  }
}

inline rankone_tensor c_tensor(const Tensor& tensor) {
  rankone_tensor result{};
  if (!tensor) return result;
  result.data = tensor.raw();
  result.dtype = c_dtype(tensor.dtype());
  result.rank = tensor.rank();
  for (int i = 0; i < tensor.rank(); ++i) {
    result.shape[i] = tensor.dim(i);
    result.strides[i] = tensor.stride(i);
  }
  return result;
}

// Uniform in [low, high).
inline Tensor uniform(const Shape& shape, Dtype dtype, double low, double high,
                      std::uint64_t seed) {
  Random random(seed);
  Tensor values = Tensor::empty(shape, Dtype::f64);
  for (double& value : values.span<double>()) value = low + (high - low) * random.uniform();
  return values.to(dtype);
}

// A tensor of the same shape and dtype, all NaN: whatever a call leaves unwritten shows.
inline Tensor unwritten(const Tensor& like) {
  if (!like) return {};
  Tensor result = Tensor::empty(like.shape(), like.dtype());
  result.fill(std::nan(""));
  return result;
}

inline void expect_same_bits(const Tensor& expected, const Tensor& got, const char* name) {
  ASSERT_EQ(expected.defined(), got.defined()) << name;
  if (!expected) return;
  const Tensor a = expected.clone();
  const Tensor b = got.clone();
  ASSERT_EQ(a.bytes(), b.bytes()) << name;
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0) << name;
}

// The same elements spread out in memory: last two axes swapped, each element twice as far. `kept`
// holds the memory.
inline Tensor spread(const Tensor& tensor, std::vector<Tensor>& kept) {
  if (!tensor || tensor.rank() < 2) return tensor;
  const int rank = tensor.rank();
  std::vector<int> from_inside = {rank - 2, rank - 1};
  for (int axis = rank - 3; axis >= 0; --axis) from_inside.push_back(axis);
  std::vector<std::int64_t> strides(static_cast<std::size_t>(rank));
  std::int64_t stride = 2;
  for (const int axis : from_inside) {
    strides[static_cast<std::size_t>(axis)] = stride;
    stride *= tensor.dim(axis);
  }
  kept.push_back(Tensor::zeros({stride}, tensor.dtype()));
  Tensor result = Tensor::view(kept.back().raw(), tensor.shape(), tensor.dtype(), strides);
  result.copy_from(tensor);
  return result;
}

// Memory of exactly `bytes` for a workspace, with a guard behind it.
class WorkspaceMemory {
 public:
  explicit WorkspaceMemory(std::size_t bytes) : bytes_(bytes) {
    memory_.reset(
        static_cast<unsigned char*>(std::aligned_alloc(64, (bytes + kGuard + 63) / 64 * 64)));
    std::memset(memory_.get(), 0xff, bytes);
    std::memset(memory_.get() + bytes, 0xa5, kGuard);
  }
  void* data() const { return memory_.get(); }
  bool guard_is_intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (memory_.get()[bytes_ + i] != 0xa5) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  std::unique_ptr<unsigned char, Free> memory_;
};

class CInterface : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(rankone_context_create(nullptr, &context_, nullptr, 0), RANKONE_OK);
  }
  void TearDown() override {
    for (rankone_sequences* sequences : sequences_) rankone_sequences_free(sequences);
    rankone_context_free(context_);
  }

  const rankone_sequences* cut(const Sequences& sequences) {
    rankone_sequences* result = nullptr;
    const auto boundaries = sequences.boundaries();
    EXPECT_EQ(rankone_sequences_packed(context_, boundaries.data(),
                                       static_cast<std::int64_t>(boundaries.size()), &result),
              RANKONE_OK)
        << rankone_last_error(context_);
    sequences_.push_back(result);
    return result;
  }

  // Asks for the workspace, then calls with exactly that.
  template <class Function>
  void expect_done(Function&& function) {
    std::size_t bytes = 0;
    rankone_call call{};
    call.query = &bytes;
    ASSERT_EQ(function(&call), RANKONE_OK) << rankone_last_error(context_);
    ASSERT_GT(bytes, 0U);
    const WorkspaceMemory workspace(bytes);
    call = rankone_call{nullptr, workspace.data(), bytes, nullptr};
    EXPECT_EQ(function(&call), RANKONE_OK) << rankone_last_error(context_);
    EXPECT_STREQ(rankone_last_error(context_), "");
    EXPECT_TRUE(workspace.guard_is_intact());
  }

  rankone_context* context_ = nullptr;
  std::vector<rankone_sequences*> sequences_;
};

}  // namespace rankone::test
