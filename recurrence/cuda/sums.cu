#include "recurrence/cuda/sums.hpp"

#include "recurrence/cuda/array.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;
constexpr int kStrands = kThreads / kColumns;

// width = 1: a block takes 32 groups, eight threads each.
__global__ void __launch_bounds__(kThreads)
    sum_columns(Sink to, const float* partials, std::int64_t parts, std::int64_t stride,
                std::int64_t groups, float factor) {
  auto* sums = reinterpret_cast<double*>(rankone::cuda::shared_memory());
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int strand = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * kColumns + column;
  double sum = 0.0;
  if (group < groups) {
    for (std::int64_t part = strand; part < parts; part += kStrands) {
      sum += static_cast<double>(partials[part * stride + group]);
    }
  }
  sums[strand * kColumns + column] = sum;
  __syncthreads();
  if (strand != 0 || group >= groups) return;
  for (int other = 1; other < kStrands; ++other) sum += sums[other * kColumns + column];
  store(to, group, factor * static_cast<float>(sum));
}

// A block takes one group: a thread has one of its columns, in every so-many-th part.
constexpr int kGroupThreads = 1024;

__global__ void __launch_bounds__(kGroupThreads)
    sum_group(Sink to, const float* partials, std::int64_t parts, std::int64_t stride, int width,
              float factor) {
  auto* sums = reinterpret_cast<double*>(rankone::cuda::shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  const int strands = kGroupThreads / width, strand = thread / width;
  const float* from = partials + static_cast<std::int64_t>(blockIdx.x) * width + thread % width;
  double sum = 0.0;
  if (strand < strands) {
#pragma unroll 8
    for (std::int64_t part = strand; part < parts; part += strands) {
      sum += static_cast<double>(from[part * stride]);
    }
  }
  sums[thread] = sum;
  for (int half = kGroupThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) store(to, blockIdx.x, factor * static_cast<float>(sums[0]));
}

}  // namespace

void launch_sums(const Sink& to, const float* partials, std::int64_t parts, std::int64_t stride,
                 std::int64_t groups, std::int64_t width, float factor, void* stream) {
  if (to.data == nullptr) return;
  if (width == 1 && groups > 1) {
    rankone::cuda::launch(sum_columns, (groups + kColumns - 1) / kColumns, kThreads,
                          kThreads * sizeof(double), stream, to, partials, parts, stride, groups,
                          factor);
  } else {
    rankone::cuda::launch(sum_group, groups, kGroupThreads, kGroupThreads * sizeof(double), stream,
                          to, partials, parts, stride, static_cast<int>(width), factor);
  }
}

}  // namespace rankone::recurrence::cuda
