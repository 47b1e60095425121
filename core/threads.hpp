#pragma once

// A thread pool. Work is cut by the problem, never by the number of threads, so results have the
// same bits for any pool size. Waiting threads spin for a few microseconds and then sleep, so that
// a busy machine costs time in proportion and no more.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace rankone {

// Processors this process may use: its CPU affinity, cut by the quota of its cgroup; at least 1.
int available_threads();

class ThreadPool {
 public:
  // 0: available_threads(). The calling thread is one of them.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls work(task, worker) for every task in [0, tasks), worker in [0, size()); returns when all
  // are done. The calling thread takes tasks from the front, the others from the back, a few at
  // once. The first exception a task throws is rethrown here. Not reentrant: a task must not call
  // run() of the same pool.
  template <class Work>
  void run(std::int64_t tasks, Work&& work) {
    using Function = std::remove_reference_t<Work>;
    run_erased(tasks, const_cast<void*>(static_cast<const void*>(&work)),
               [](void* self, std::int64_t task, int worker) {
                 (*static_cast<Function*>(self))(task, worker);
               });
  }

 private:
  using Call = void (*)(void* self, std::int64_t task, int worker);
  void run_erased(std::int64_t tasks, void* self, Call call);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rankone
