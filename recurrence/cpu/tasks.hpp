#pragma once

// The tasks of this backend on the threads of a context.

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "core/context.hpp"
#include "recurrence/cpu/kernels.hpp"

namespace rankone::recurrence::cpu {

// While it lives, this thread takes float32 numbers below 1.2e-38 for zero. Products of strong
// decays are full of them; they carry nothing that a result of this backend promises, and
// processors take some hundred cycles for each.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) {
    constexpr unsigned kInputsAndResults = 0x8040;
    _mm_setcsr(before_ | kInputsAndResults);
  }
  ~FlushDenormals() { _mm_setcsr(before_); }
#else
  FlushDenormals() = default;
  ~FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#endif
};

// Results of more than this have left the second cache before anything reads them, so lines that
// are written once and whole go past the caches: they need not be read first.
inline constexpr std::size_t kStreamed = std::size_t{4} << 20;
// Whether rows that begin at `to`, `row` floats apart, are whole lines.
inline bool whole_lines(const float* to, Index row) {
  return reinterpret_cast<std::uintptr_t>(to) % (kLine * sizeof(float)) == 0 && row % kLine == 0;
}
// Behind what a task has streamed, before other threads read it.
inline void stream_end() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// ThreadPool::run(), every task with denormals flushed: in all recurrences and scans alike, so that
// a call that joins two of them gives the same bits.
template <class Work>
void run_tasks(Context& context, std::int64_t tasks, Work&& work) {
  context.threads().run(tasks, [&work](std::int64_t task, int worker) {
    const FlushDenormals flush;
    work(task, worker);
  });
}

}  // namespace rankone::recurrence::cpu
