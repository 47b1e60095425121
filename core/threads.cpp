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

struct ThreadPool::Impl {
  // A run is published by the generation; workers take tasks from `next` until none is left.
  std::atomic<std::uint64_t> generation{0};
  std::atomic<std::int64_t> next{0};
  std::atomic<int> running{0};
  std::int64_t tasks = 0;
  void* self = nullptr;
  Call call = nullptr;
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void work(int worker) {
    while (true) {
      const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      try {
        call(self, task, worker);
      } catch (...) {
        next.store(tasks, std::memory_order_relaxed);
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
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
    std::uint64_t seen = 0;
    while (true) {
      const auto ready = [&] {
        return stop.load(std::memory_order_acquire) ||
               generation.load(std::memory_order_acquire) != seen;
      };
      if (!spin(ready)) {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, ready);
      }
      if (stop.load(std::memory_order_acquire)) return;
      seen = generation.load(std::memory_order_acquire);
      work(worker);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard<std::mutex> lock(mutex);
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  require(threads >= 0, "[threads] {} threads (0 for as many as the machine allows, or more)",
          threads);
  const int count = threads == 0 ? available_threads() : threads;
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
  impl.tasks = tasks;
  impl.self = self;
  impl.call = call;
  impl.error = nullptr;
  impl.next.store(0, std::memory_order_relaxed);
  impl.running.store(static_cast<int>(impl.threads.size()), std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> lock(impl.mutex);
    impl.generation.fetch_add(1, std::memory_order_release);
  }
  impl.wake.notify_all();
  impl.work(0);
  const auto finished = [&] { return impl.running.load(std::memory_order_acquire) == 0; };
  if (!Impl::spin(finished)) {
    std::unique_lock<std::mutex> lock(impl.mutex);
    impl.done.wait(lock, finished);
  }
  if (impl.error) std::rethrow_exception(std::exchange(impl.error, nullptr));
}

}  // namespace rankone
