#pragma once

// CUDA C++ as plain C++: what core/cuda/language.hpp promises, on a CPU. Every thread of a block is
// a fiber; a block runs its fibers in turn until each has ended, and blocks run one after another.
// A fiber gives way only where it waits for others, so execution is deterministic; the order within
// a turn is shuffled by a seed (set_order), which lets a test find a missing barrier. Where all
// fibers wait for ever the run fails and says where they stand. The blocks of a cluster run
// together.
//
// Included through core/cuda/language.hpp alone.

#include <cmath>
#include <cstring>
#include <functional>

#include "core/cuda_emulation/races.hpp"

// These are CUDA's own names.
// NOLINTBEGIN
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

namespace rankone::cuda {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

namespace emulation {

// What the running fiber sees.
extern Index3 thread_index, block_index, block_size, grid_size;

// Runs `kernel` once per thread of `blocks` blocks, `cluster` of them at a time.
void run(std::int64_t blocks, int cluster, int threads, std::size_t shared_bytes,
         const std::function<void()>& kernel);

// The order in which the fibers of a block take turns: 0 in the order of their numbers, else
// shuffled from this seed, anew in each turn.
void set_order(std::uint64_t seed);

// Gives the other fibers their turn.
void yield();
// Something happened that a waiting fiber may wait for.
void progress();

unsigned char* shared_base();
std::size_t shared_size();
// Of the running cluster: its blocks, the shared memory of one of them, the barrier of all threads.
int cluster_blocks();
unsigned char* shared_base_of(int rank);
void cluster_meet();

// A collective of the warp: every lane of `mask` puts `bytes` and gets those of all 32 lanes, until
// its next collective. Lanes outside the mask read as they were left. It orders no accesses to
// memory; sync_warp() does.
const unsigned char* exchange(std::uint32_t mask, const void* mine, std::size_t bytes);
inline constexpr std::size_t kSlot = 128;  // bytes from lane to lane in the result

void sync_warp(std::uint32_t mask);

void barrier(int id, int count, bool wait);

[[noreturn]] void broken(const char* what);

template <class T>
RANKONE_UNCHECKED T lane_value(const unsigned char* slots, int lane) {
  T value;
  std::memcpy(&value, slots + static_cast<std::size_t>(lane) * kSlot, sizeof value);
  return value;
}

}  // namespace emulation

#define threadIdx (::rankone::cuda::emulation::thread_index)
#define blockIdx (::rankone::cuda::emulation::block_index)
#define blockDim (::rankone::cuda::emulation::block_size)
#define gridDim (::rankone::cuda::emulation::grid_size)

inline unsigned char* shared_memory() { return emulation::shared_base(); }

inline void barrier_sync(int id, int count) { emulation::barrier(id, count, true); }
inline void barrier_arrive(int id, int count) { emulation::barrier(id, count, false); }

inline float bits_to_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t float_to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::size_t shared_bytes, void*, const Arguments&... arguments) {
  if (blocks == 0) return;
  emulation::run(blocks, 1, threads, shared_bytes, [&] { kernel(Parameters(arguments)...); });
}
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), std::int64_t blocks, int cluster, int threads,
                     std::size_t shared_bytes, void*, const Arguments&... arguments) {
  if (blocks == 0) return;
  emulation::run(blocks, cluster, threads, shared_bytes, [&] { kernel(Parameters(arguments)...); });
}

}  // namespace rankone::cuda

// The built-in functions that the kernels use, under their CUDA names.

inline void __syncthreads() {
  ::rankone::cuda::emulation::barrier(0, static_cast<int>(::rankone::cuda::emulation::block_size.x),
                                      true);
}
inline void __syncwarp(std::uint32_t mask = 0xffffffffU) {
  ::rankone::cuda::emulation::sync_warp(mask);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(std::uint32_t mask, T value, int lane, int width = 32) {
  using namespace ::rankone::cuda::emulation;
  const int own = static_cast<int>(thread_index.x % 32);
  return lane_value<T>(exchange(mask, &value, sizeof value), own / width * width + lane % width);
}
template <class T>
T __shfl_xor_sync(std::uint32_t mask, T value, int bits, int width = 32) {
  using namespace ::rankone::cuda::emulation;
  const int own = static_cast<int>(thread_index.x % 32), from = own ^ bits;
  const unsigned char* slots = exchange(mask, &value, sizeof value);
  return from / width == own / width ? lane_value<T>(slots, from) : value;
}
template <class T>
T __shfl_up_sync(std::uint32_t mask, T value, int delta, int width = 32) {
  using namespace ::rankone::cuda::emulation;
  const int own = static_cast<int>(thread_index.x % 32);
  const unsigned char* slots = exchange(mask, &value, sizeof value);
  return own % width >= delta ? lane_value<T>(slots, own - delta) : value;
}
template <class T>
T __shfl_down_sync(std::uint32_t mask, T value, int delta, int width = 32) {
  using namespace ::rankone::cuda::emulation;
  const int own = static_cast<int>(thread_index.x % 32);
  const unsigned char* slots = exchange(mask, &value, sizeof value);
  return own % width + delta < width ? lane_value<T>(slots, own + delta) : value;
}
inline std::uint32_t __ballot_sync(std::uint32_t mask, int predicate) {
  using namespace ::rankone::cuda::emulation;
  const unsigned char* slots = exchange(mask, &predicate, sizeof predicate);
  std::uint32_t result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1U) != 0 && lane_value<int>(slots, lane) != 0) result |= 1U << lane;
  }
  return result;
}
inline int __any_sync(std::uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(std::uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask ? 1 : 0;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint2 {
  std::uint32_t x, y;
};
struct uint4 {
  std::uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(std::uint32_t x, std::uint32_t y) { return {x, y}; }
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
  return {x, y, z, w};
}
// NOLINTEND
