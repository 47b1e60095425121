#pragma once

// What every function of the C interface does around its work: tensors in and out, the workspace,
// and exceptions turned into a status and a message.

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/context.hpp"
#include "core/device.hpp"
#include "core/sequences.hpp"
#include "core/status.hpp"
#include "rankone/rankone.h"

namespace rankone::capi {

// A thread pool serves one call at a time.
struct Pool {
  explicit Pool(int count) : threads(std::make_shared<ThreadPool>(count)) {}
  std::shared_ptr<ThreadPool> threads;
  std::mutex busy;
};

// The tensors of one call. Those that are not row-major are copied through the arena of the
// context.
class Call {
 public:
  Call(Context& context, std::string_view function) : context_(context), function_(function) {}

  Context& context() const { return context_; }
  Tensor in(const char* name, const rankone_tensor& tensor);
  Tensor out(const char* name, const rankone_tensor& tensor);
  // Fails unless 0 <= value < count; returns it as the enumeration that mirrors the C one.
  template <class Enum>
  Enum choice(const char* name, int value, int count) const {
    that(value >= 0 && value < count, "{} is {} (0 to {})", name, value, count - 1);
    return static_cast<Enum>(value);
  }
  template <class... Args>
  void that(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(Status::invalid_argument, "[{}] {}", function_,
         fmt::format(format, std::forward<Args>(args)...));
  }
  // A pointer to a struct of the call.
  template <class T>
  const T& given(const char* name, const T* pointer) const {
    that(pointer != nullptr, "{} is null (it must be given)", name);
    return *pointer;
  }
  void copy_back() const;  // of the outputs that were not row-major

 private:
  Tensor view(const char* name, const rankone_tensor& tensor) const;
  void row_major_on_cuda(const char* name) const;

  Context& context_;
  std::string_view function_;
  std::vector<std::pair<Tensor, Tensor>> copies_;  // the caller's, ours
};

rankone_status to_c(Status status);

}  // namespace rankone::capi

struct rankone_context {
  rankone_context(rankone::ContextOptions options, std::shared_ptr<rankone::capi::Pool> shared)
      : context(std::move(options), shared->threads), pool(std::move(shared)) {}
  rankone::Context context;
  std::shared_ptr<rankone::capi::Pool> pool;
  std::string message;
};

struct rankone_sequences {
  rankone::Sequences sequences;
};

namespace rankone::capi {

// Notes the message of a failure; without memory for it, an empty one.
void note(rankone_context& context, const char* message) noexcept;

// The one way out of an exception: `work()` returns nothing.
template <class Work>
rankone_status guarded(rankone_context* context, Work&& work) noexcept {
  if (context == nullptr) return RANKONE_INVALID_ARGUMENT;
  try {
    context->message.clear();
    work();
    return RANKONE_OK;
  } catch (const Error& error) {
    note(*context, error.what());
    return to_c(error.status());
  } catch (const std::bad_alloc&) {
    note(*context, "out of memory");
    return RANKONE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    note(*context, error.what());
    return RANKONE_FAILED;
  } catch (...) {
    note(*context, "unknown error");
    return RANKONE_FAILED;
  }
}

// Gives the context of a call its stream and workspace for as long as it lives; in a query it
// plans.
class Workspace {
 public:
  Workspace(rankone_context& context, const Call& call, const rankone_call& how);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

 private:
  rankone_context& context_;
  std::unique_lock<std::mutex> turn_;
  DeviceScope device_;
};

// Runs `work(call)`, or in a query plans it. A workspace that is too small is answered with the
// size that the call needs.
template <class Work>
rankone_status run(rankone_context* context, std::string_view function, const rankone_call* how,
                   Work&& work) noexcept {
  return guarded(context, [&] {
    Context& inner = context->context;
    Call call(inner, function);
    const rankone_call given = call.given("call", how);
    const auto needed = [&] {
      std::size_t bytes = 0;
      Call plan(inner, function);
      const Workspace workspace(*context, plan, rankone_call{given.stream, nullptr, 0, &bytes});
      work(plan);
      return std::max<std::size_t>(inner.arena().peak(), 1);
    };
    if (given.query != nullptr) {
      *given.query = needed();
      return;
    }
    try {
      const Workspace workspace(*context, call, given);
      work(call);
      call.copy_back();
      return;
    } catch (const Error& error) {
      if (error.status() != Status::out_of_memory) throw;
    }
    fail(Status::out_of_memory, "[{}] the workspace has {} bytes (this call needs {})", function,
         given.workspace_bytes, needed());
  });
}

}  // namespace rankone::capi
