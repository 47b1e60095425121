#pragma once

// How the CPU backend cuts element-wise work: into blocks whose borders depend on the problem
// alone, so that results have the same bits for any number of threads.

#include <algorithm>
#include <cstring>

#include "core/context.hpp"
#include "nn/cpu/elementwise_kernels.hpp"

namespace rankone::nn::cpu {

// Enough work for a thread to be worth waking: about 10 us.
inline constexpr std::int64_t kElementsPerTask = 16384;

inline std::int64_t rows_per_task(std::int64_t width) {
  return std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, width));
}

// work(begin, end, worker) over [0, count).
template <class Work>
void for_blocks(Context& context, std::int64_t count, std::int64_t block, Work&& work) {
  if (count <= block) {
    if (count > 0) work(std::int64_t{0}, count, 0);
    return;
  }
  context.threads().run((count + block - 1) / block, [&](std::int64_t task, int worker) {
    work(task * block, std::min(count, (task + 1) * block), worker);
  });
}

// A parameter as float32: where it lies, or widened into the arena.
inline const float* as_float(Context& context, const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.dtype() == Dtype::f32) return tensor.data<float>();
  const Tensor wide = context.empty(tensor.shape(), Dtype::f32);
  if (!context.planning()) wide.copy_from(tensor);
  return wide.data<float>();
}

inline float* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<float>() : nullptr;
}

inline float* scratch(Context& context, std::int64_t count) {
  return context.empty({count}, Dtype::f32).data<float>();
}

// A row of scratch for each worker.
class WorkerScratch {
 public:
  WorkerScratch(Context& context, std::int64_t width)
      : width_((width + 15) / 16 * 16),
        data_(scratch(context, width_ * context.threads().size())) {}
  float* of(int worker) const { return data_ + width_ * worker; }

 private:
  std::int64_t width_;
  float* data_;
};

// Gradients of parameters, [width]: each block of rows sums its own in float32, and the sums are
// added up in the order of the blocks.
class BlockSums {
 public:
  static constexpr std::int64_t kMostBlocks = 64;

  BlockSums(Context& context, std::int64_t rows, std::int64_t least_rows, std::int64_t width)
      : rows_(rows),
        block_(std::max(least_rows, (rows + kMostBlocks - 1) / kMostBlocks)),
        width_(width),
        data_(scratch(context, (rows + block_ - 1) / block_ * width)) {}

  // work(begin, end, sums, worker): sums [width] of the block, zero at the start.
  template <class Work>
  void run(Context& context, Work&& work) const {
    for_blocks(context, rows_, block_, [&](std::int64_t begin, std::int64_t end, int worker) {
      float* sums = data_ + begin / block_ * width_;
      std::memset(sums, 0, static_cast<std::size_t>(width_) * sizeof(float));
      work(begin, end, sums, worker);
    });
  }

  // The sum of all blocks, in the memory of the first; null where there are no rows.
  float* total() const {
    if (rows_ == 0) return nullptr;
    for (std::int64_t at = block_; at < rows_; at += block_) {
      map_kernels().add(width_, data_, data_ + at / block_ * width_, data_);
    }
    return data_;
  }
  void add_to(float* target) const {
    if (const float* sums = total()) map_kernels().add(width_, target, sums, target);
  }

 private:
  std::int64_t rows_;
  std::int64_t block_;
  std::int64_t width_;
  float* data_;
};

}  // namespace rankone::nn::cpu
