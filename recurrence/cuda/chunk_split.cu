#include "recurrence/cuda/chunk_split.hpp"

#include <algorithm>

#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kRows = 8;       // value columns of a block
constexpr int kThreads = 128;  // a key channel each, d_k / 128 times

__global__ void __launch_bounds__(kThreads)
    segment_starts(SegmentMaps maps, float* starts, int segments, int d_k, int d_v,
                   int blocks_per_head) {
  float* const state = reinterpret_cast<float*>(shared_memory());  // [kRows, d_k]
  const std::int64_t head = blockIdx.x / blocks_per_head;
  const int first = static_cast<int>(blockIdx.x % blocks_per_head) * kRows;
  const int rows = d_v - first < kRows ? d_v - first : kRows;
  const std::int64_t state_size = static_cast<std::int64_t>(d_v) * d_k;
  const std::int64_t map_size = static_cast<std::int64_t>(d_k) * d_k;
  const auto place = [&](int segment) {
    return (head * segments + segment) * state_size + first * d_k;
  };
  for (int i = static_cast<int>(threadIdx.x); i < kRows * d_k; i += kThreads) {
    const float h = i < rows * d_k ? maps.h[place(0) + i] : 0.0F;
    state[i] = h;
    if (i < rows * d_k) starts[place(1) + i] = h;
  }
  for (int segment = 1; segment + 1 < segments; ++segment) {
    const float* map = maps.m + (head * segments + segment) * map_size;
    __syncthreads();
    float sums[2][kRows];  // of up to 256 channels
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      const int k = static_cast<int>(threadIdx.x) + pass * kThreads;
      if (k >= d_k) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        sums[pass][row] = row < rows ? maps.h[place(segment) + row * d_k + k] : 0.0F;
      }
#pragma unroll 8
      for (int c = 0; c < d_k; ++c) {
        const float m = map[static_cast<std::int64_t>(c) * d_k + k];
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[pass][row] += state[row * d_k + c] * m;
      }
    }
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      const int k = static_cast<int>(threadIdx.x) + pass * kThreads;
      if (k >= d_k) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        state[row * d_k + k] = sums[pass][row];
        if (row < rows) starts[place(segment + 1) + row * d_k + k] = sums[pass][row];
      }
    }
  }
}

}  // namespace

int segment_count(std::int64_t sequences, std::int64_t value_heads, int d_k, int d_v,
                  std::int64_t chunks, int multiprocessors) {
  constexpr int kMost = 16, kFewestChunks = 4;
  // Measured on an H200, in units of the state's part of a chunk: a chunk with outputs, and what a
  // further segment costs in the kernel between.
  constexpr double kOutput = 1.3, kStart = 2.0, kLaunches = 6.0;
  const std::int64_t heads = sequences * value_heads, tiles = value_tiles(d_v),
                     map_tiles = value_tiles(d_k);
  const auto waves = [&](std::int64_t blocks) {
    return static_cast<double>((blocks + multiprocessors - 1) / multiprocessors);
  };
  int best = 1;
  double least = waves(heads * tiles) * static_cast<double>(chunks) * kOutput;
  for (int count = 2; count <= kMost && chunks >= count * kFewestChunks; ++count) {
    const auto length = static_cast<double>((chunks + count - 1) / count);
    const double cost = waves(heads * (tiles + (count - 2) * (tiles + map_tiles))) * length +
                        waves(heads * tiles * count) * length * kOutput + kStart * count +
                        kLaunches;
    if (cost < least) {
      least = cost;
      best = count;
    }
  }
  return best;
}

void launch_segment_starts(const ChunkCall& chunk, int segments, const SegmentMaps& maps,
                           float* starts, void* stream) {
  const TwoKeyCall& call = chunk.call;
  const int blocks_per_head = (call.d_v + kRows - 1) / kRows;
  launch(segment_starts, call.rows.sequences * call.value_heads * blocks_per_head, kThreads,
         static_cast<std::size_t>(kRows * call.d_k) * sizeof(float), stream, maps, starts, segments,
         call.d_k, call.d_v, blocks_per_head);
}

}  // namespace rankone::recurrence::cuda
