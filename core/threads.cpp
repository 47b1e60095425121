#include "core/threads.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/status.hpp"

namespace rankone {
namespace {

// Longer than a step between two parallel regions, shorter than a scheduler tick.
constexpr auto kSpin = std::chrono::microseconds(20);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Quota of cgroup v2 ("max 100000" or "150000 100000") or v1, in processors; 0 where there is none.
double cgroup_quota() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) {
    char* end = nullptr;
    const double value = std::strtod(quota.c_str(), &end);
    return *end == '\0' ? value / period : 0;
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double value = 0;
  if (v1_quota >> value && v1_period >> period && value > 0 && period > 0) return value / period;
  return 0;
}

}  // namespace

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    count = CPU_COUNT(&set);
  } else {
    count = static_cast<int>(std::thread::hardware_concurrency());
  }
  const double quota = cgroup_quota();
  if (quota > 0) count = std::min(count, static_cast<int>(quota + 0.999));
  return std::max(count, 1);
}

// What one thread writes often lies apart from what others read: a line that moves between caches
// takes as long as a small task.
constexpr std::size_t kApart = 128;
constexpr std::int64_t kMostTasks = (std::int64_t{1} << 31) - 1;

struct ThreadPool::Impl {
  // A run ends when its tasks are done, not when every worker has looked: a worker that the system
  // does not let run holds up nothing but the tasks it is in. So a worker may look late, during
  // another run: it takes tasks by a compare and exchange of `left`, which are then tasks of that
  // run, and reads the rest of the run only afterwards.
  struct alignas(kApart) {
    void* self = nullptr;
    Call call = nullptr;
  } run;
  // The tasks that nobody has taken: the first in the low half, the end in the high half.
  alignas(kApart) std::atomic<std::int64_t> left{0};
  alignas(kApart) std::atomic<std::int64_t> unfinished{0};  // tasks that are not done
  alignas(kApart) std::atomic<std::int64_t> sleeping{0};    // workers
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::exception_ptr error;
  std::int64_t halves = 2;  // half shares of the threads
  std::vector<std::thread> threads;

  struct Range {
    std::int64_t first, end;
    static Range of(std::int64_t packed) { return {packed & 0xffffffff, packed >> 32}; }
    std::int64_t packed() const { return end << 32 | first; }
    std::int64_t count() const { return end - first; }
  };

  // The calling thread takes from the front, the others from the back: in calls that repeat, a
  // thread of two meets the tasks again whose memory its caches hold. At once no more than half of
  // a thread's share of what is left.
  bool take(Range& mine, int worker) {
    std::int64_t packed = left.load(std::memory_order_acquire);
    while (true) {
      Range rest = Range::of(packed);
      if (rest.count() == 0) return false;
      mine = rest;
      const std::int64_t count = std::max<std::int64_t>(1, rest.count() / halves);
      if (worker == 0) {
        rest.first = mine.end = mine.first + count;
      } else {
        rest.end = mine.first = mine.end - count;
      }
      if (left.compare_exchange_weak(packed, rest.packed(), std::memory_order_acq_rel)) return true;
    }
  }

  void work(int worker) {
    Range mine{};
    std::int64_t finished = 0;
    while (take(mine, worker)) {
      finished += mine.count();
      try {
        for (std::int64_t task = mine.first; task < mine.end; ++task) {
          run.call(run.self, task, worker);
        }
      } catch (...) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!error) error = std::current_exception();
        }
        finished += Range::of(left.exchange(0, std::memory_order_acq_rel)).count();
      }
    }
    if (finished == 0) return;
    // Either this sees that the caller sleeps, or the caller that all is done.
    const bool last = unfinished.fetch_sub(finished) == finished;
    if (last && worker > 0 && caller_sleeps.load()) {
      const std::lock_guard<std::mutex> lock(mutex);
      done.notify_one();
    }
  }

  template <class Ready>
  static bool spin(Ready&& ready) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < end);
    return ready();
  }

  void serve(int worker) {
    const auto ready = [&] {
      return Range::of(left.load()).count() != 0 || stop.load(std::memory_order_acquire);
    };
    while (true) {
      if (!spin(ready)) {
        std::unique_lock<std::mutex> lock(mutex);
        ++sleeping;
        wake.wait(lock, ready);
        --sleeping;
      }
      if (stop.load(std::memory_order_acquire)) return;
      work(worker);
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  require(threads >= 0, "[threads] {} threads (0 for as many as the machine allows, or more)",
          threads);
  const int count = threads == 0 ? available_threads() : threads;
  impl_->halves = 2 * count;
  for (int worker = 1; worker < count; ++worker) {
    impl_->threads.emplace_back([impl = impl_.get(), worker] { impl->serve(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop.store(true, std::memory_order_release);
  }
  impl_->wake.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

int ThreadPool::size() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::run_erased(std::int64_t tasks, void* self, Call call) {
  Impl& impl = *impl_;
  if (tasks <= 1 || impl.threads.empty()) {
    for (std::int64_t task = 0; task < tasks; ++task) call(self, task, 0);
    return;
  }
  require(tasks <= kMostTasks, "[threads] {} tasks in one run (at most {})", tasks, kMostTasks);
  impl.error = nullptr;
  impl.run.self = self;
  impl.run.call = call;
  impl.unfinished.store(tasks, std::memory_order_relaxed);
  // Either this sees a worker asleep, or the worker sees these tasks before it sleeps.
  impl.left.store(Impl::Range{0, tasks}.packed());
  const std::int64_t sleepers = impl.sleeping.load();
  if (sleepers > 0) {
    // A worker between its last look and its sleep holds this.
    { const std::lock_guard<std::mutex> lock(impl.mutex); }
    for (std::int64_t i = std::min(sleepers, tasks - 1); i > 0; --i) impl.wake.notify_one();
  }
  impl.work(0);
  const auto finished = [&] { return impl.unfinished.load() == 0; };
  if (!Impl::spin(finished)) {
    std::unique_lock<std::mutex> lock(impl.mutex);
    impl.caller_sleeps.store(true);
    impl.done.wait(lock, finished);
    impl.caller_sleeps.store(false);
  }
  if (impl.error) std::rethrow_exception(std::exchange(impl.error, nullptr));
}

}  // namespace rankone
