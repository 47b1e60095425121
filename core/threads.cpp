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
  // A run ends when its tasks are done, not when every worker has looked: a worker that the system
  // does not let run holds up nothing but the task it is in. So a worker may look late, during
  // another run: it takes a task by a compare and exchange of `left`, which is then a task of that
  // run, and reads the rest of the run only afterwards.
  std::atomic<std::int64_t> left{0};        // tasks that nobody has taken
  std::atomic<std::int64_t> unfinished{0};  // tasks that are not done
  std::int64_t tasks = 0;
  void* self = nullptr;
  Call call = nullptr;
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::int64_t sleeping = 0;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  // `left` holds the first task in its low half and the end of the tasks in its high half.
  static std::int64_t count_of(std::int64_t range) { return (range >> 32) - (range & 0xffffffff); }

  // The calling thread takes from the front, the others from the back: in calls that repeat, a
  // thread of two meets the tasks again whose memory its caches hold.
  bool take(std::int64_t& task, int worker) {
    std::int64_t range = left.load(std::memory_order_acquire);
    while (count_of(range) > 0) {
      const std::int64_t rest = worker == 0 ? range + 1 : range - (std::int64_t{1} << 32);
      if (left.compare_exchange_weak(range, rest, std::memory_order_acq_rel)) {
        task = worker == 0 ? range & 0xffffffff : (range >> 32) - 1;
        return true;
      }
    }
    return false;
  }

  void work(int worker) {
    std::int64_t task = 0;
    while (take(task, worker)) {
      std::int64_t finished = 1;
      try {
        call(self, task, worker);
      } catch (...) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!error) error = std::current_exception();
        }
        finished += count_of(left.exchange(0, std::memory_order_acq_rel));
      }
      if (unfinished.fetch_sub(finished, std::memory_order_acq_rel) == finished && worker > 0) {
        const std::lock_guard<std::mutex> lock(mutex);
        done.notify_one();
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
    const auto ready = [&] {
      return stop.load(std::memory_order_acquire) ||
             count_of(left.load(std::memory_order_acquire)) > 0;
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
  std::int64_t sleepers = 0;
  {
    const std::lock_guard<std::mutex> lock(impl.mutex);
    impl.tasks = tasks;
    impl.self = self;
    impl.call = call;
    impl.error = nullptr;
    impl.unfinished.store(tasks, std::memory_order_relaxed);
    impl.left.store(tasks << 32, std::memory_order_release);
    sleepers = impl.sleeping;
  }
  for (std::int64_t i = std::min(sleepers, tasks - 1); i > 0; --i) impl.wake.notify_one();
  impl.work(0);
  const auto finished = [&] { return impl.unfinished.load(std::memory_order_acquire) == 0; };
  if (!Impl::spin(finished)) {
    std::unique_lock<std::mutex> lock(impl.mutex);
    impl.done.wait(lock, finished);
  }
  if (impl.error) std::rethrow_exception(std::exchange(impl.error, nullptr));
}

}  // namespace rankone
