#include "core/peaks.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/isa.hpp"
#include "core/tensor.hpp"

namespace rankone {

// core/cpu/isa/peaks.cpp
#define RANKONE_PEAKS(isa)                           \
  namespace isa {                                    \
  float multiply_adds(std::int64_t rounds);          \
  std::int64_t multiply_add_operations();            \
  float read_all(const float* data, std::int64_t n); \
  }
RANKONE_PEAKS(baseline)
#if defined(__x86_64__)
RANKONE_PEAKS(avx2)
RANKONE_PEAKS(avx512)
#endif
#undef RANKONE_PEAKS

namespace {

struct Loops {
  float (*multiply_adds)(std::int64_t rounds);
  std::int64_t (*operations)();
  float (*read_all)(const float* data, std::int64_t n);
};

Loops loops() {
#if defined(__x86_64__)
  if (best_isa() == Isa::avx512) {
    return {avx512::multiply_adds, avx512::multiply_add_operations, avx512::read_all};
  }
  if (best_isa() == Isa::avx2) {
    return {avx2::multiply_adds, avx2::multiply_add_operations, avx2::read_all};
  }
#endif
  return {baseline::multiply_adds, baseline::multiply_add_operations, baseline::read_all};
}

// The best of a few: a peak is what the machine can do when nothing disturbs it.
template <class Work>
double best_seconds(int tries, Work&& work) {
  double best = 1e9;
  for (int i = 0; i < tries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Peaks measure_peaks(ThreadPool& threads) {
  const Loops run = loops();
  const int workers = threads.size();
  std::atomic<float> sink{0.0F};  // keeps the results alive
  Peaks peaks{.threads = workers};

  constexpr std::int64_t kRounds = 200'000;  // well below a time slice of a busy machine
  const double compute = best_seconds(100, [&] {
    threads.run(workers, [&](std::int64_t, int) { sink = run.multiply_adds(kRounds); });
  });
  peaks.gflops = static_cast<double>(kRounds * run.operations() * workers) / compute * 1e-9;

  const Tensor memory = Tensor::zeros({std::int64_t{64} << 20}, Dtype::f32);
  const std::int64_t share = memory.count() / workers / 64 * 64;
  const double read = best_seconds(6, [&] {
    threads.run(workers, [&](std::int64_t worker, int) {
      sink = run.read_all(memory.data<float>() + worker * share, share);
    });
  });
  peaks.gb_per_s = static_cast<double>(share * workers) * sizeof(float) / read * 1e-9;
  return peaks;
}

}  // namespace rankone
