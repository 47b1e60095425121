#include "core/peaks.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "core/isa.hpp"
#include "core/tensor.hpp"

namespace rankone {

// core/cpu/isa/peaks.cpp
#define RANKONE_PEAKS(isa)                               \
  namespace isa {                                        \
  float multiply_adds(std::int64_t rounds);              \
  std::int64_t multiply_add_operations();                \
  float read_all(const float* data, std::int64_t count); \
  void update_all(float* data, std::int64_t count);      \
  }
RANKONE_PEAKS(baseline)
#if defined(__x86_64__)
RANKONE_PEAKS(avx2)
RANKONE_PEAKS(avx512)
#endif
#undef RANKONE_PEAKS
#if defined(__x86_64__)
namespace amx {  // core/cpu/tiles/peaks.cpp
void tile_products(std::int64_t rounds, const void* tiles);
void tile_products_from_cache(std::int64_t rounds, const void* tiles);
}  // namespace amx
#endif

namespace {

constexpr std::int64_t kKibibyte = 1024;
constexpr std::int64_t kMebibyte = 1024 * kKibibyte;

struct Loops {
  float (*multiply_adds)(std::int64_t rounds);
  std::int64_t (*operations)();
  float (*read_all)(const float* data, std::int64_t count);
  void (*update_all)(float* data, std::int64_t count);
};

Loops loops() {
#define RANKONE_LOOPS(isa) \
  Loops { isa::multiply_adds, isa::multiply_add_operations, isa::read_all, isa::update_all }
#if defined(__x86_64__)
  if (best_isa() == Isa::avx512) return RANKONE_LOOPS(avx512);
  if (best_isa() == Isa::avx2) return RANKONE_LOOPS(avx2);
#endif
  return RANKONE_LOOPS(baseline);
#undef RANKONE_LOOPS
}

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of a few: a peak is what the machine can do when nothing disturbs it.
template <class Work>
double best_seconds(int tries, Work&& work) {
  double best = 1e9;
  for (int i = 0; i < tries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, since(start));
  }
  return best;
}

// A task works on its share `rounds` times: long enough for the start of a task not to matter, and
// well below a time slice of a busy machine where the share is small.
Bandwidth bandwidth(ThreadPool& threads, const Loops& run, const Tensor& data, int tries) {
  const int workers = threads.size();
  const std::int64_t share = data.count() / workers / 256 * 256;
  const std::int64_t rounds = std::max<std::int64_t>(1, 2 * kMebibyte / share);
  const double moved = static_cast<double>(share * workers * rounds) * sizeof(float) * 1e-9;
  std::atomic<float> sink{0.0F};  // keeps the results alive
  const double read = best_seconds(tries, [&] {
    threads.run(workers, [&](std::int64_t part, int) {
      float total = 0;
      for (std::int64_t i = 0; i < rounds; ++i) {
        total += run.read_all(data.data<float>() + part * share, share);
      }
      sink = total;
    });
  });
  const double update = best_seconds(tries, [&] {
    threads.run(workers, [&](std::int64_t part, int) {
      for (std::int64_t i = 0; i < rounds; ++i) {
        run.update_all(data.data<float>() + part * share, share);
      }
    });
  });
  return {moved / read, 2 * moved / update};
}

// Twice the last level of the cache, within reason.
std::int64_t beyond_caches() {
  std::int64_t cache = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return std::clamp(2 * cache, 256 * kMebibyte, 1024 * kMebibyte);
}

void measure_tiles([[maybe_unused]] ThreadPool& threads, [[maybe_unused]] Peaks& peaks) {
#if defined(__x86_64__)
  if (tile_unit() != TileUnit::amx) return;
  constexpr std::int64_t kRounds = 20'000;
  constexpr double kOperations = 4.0 * 2 * 16 * 16 * 32;
  const Tensor tiles = Tensor::zeros({threads.size(), 4 * kKibibyte}, Dtype::f32);
  const auto gflops = [&](void (*run)(std::int64_t, const void*)) {
    const double seconds = best_seconds(100, [&] {
      threads.run(threads.size(), [&](std::int64_t part, int) {
        run(kRounds, tiles.data<float>() + part * 4 * kKibibyte);
      });
    });
    return kOperations * static_cast<double>(kRounds * threads.size()) / seconds * 1e-9;
  };
  peaks.amx_gflops = gflops(amx::tile_products);
  peaks.amx_l1_gflops = gflops(amx::tile_products_from_cache);
#endif
}

}  // namespace

Bandwidth measure_bandwidth(ThreadPool& threads, std::int64_t bytes) {
  bytes = std::max(bytes, 4 * kKibibyte * threads.size());
  const Tensor data = Tensor::zeros({bytes / 4}, Dtype::f32);
  const int tries = static_cast<int>(std::clamp<std::int64_t>(kMebibyte * 1024 / bytes, 4, 100));
  return bandwidth(threads, loops(), data, tries);
}

Peaks measure_peaks(ThreadPool& threads) {
  const Loops run = loops();
  const int workers = threads.size();
  std::atomic<float> sink{0.0F};
  Peaks peaks{.memory_bytes = beyond_caches(), .threads = workers};

  constexpr std::int64_t kRounds = 200'000;  // well below a time slice of a busy machine
  const double compute = best_seconds(100, [&] {
    threads.run(workers, [&](std::int64_t, int) { sink = run.multiply_adds(kRounds); });
  });
  peaks.gflops = static_cast<double>(kRounds * run.operations() * workers) / compute * 1e-9;
  measure_tiles(threads, peaks);
  peaks.l1 = measure_bandwidth(threads, 16 * kKibibyte * workers);
  peaks.l2 = measure_bandwidth(threads, 256 * kKibibyte * workers);
  peaks.memory = measure_bandwidth(threads, peaks.memory_bytes);
  return peaks;
}

}  // namespace rankone
