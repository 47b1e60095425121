// Version, contexts and sequences.

#include <cstring>

#include "capi/call.hpp"
#include "core/device.hpp"

namespace rankone::capi {
namespace {

// One pool for all contexts that ask for no number of threads, as long as there is one of them.
std::shared_ptr<Pool> default_pool() {
  static std::mutex mutex;
  static std::weak_ptr<Pool> shared;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Pool> pool = shared.lock();
  if (!pool) shared = pool = std::make_shared<Pool>(0);
  return pool;
}

Precision precision_of(std::int32_t precision) {
  switch (precision) {
    case RANKONE_PRECISION_F32:
      return Precision::f32;
    case RANKONE_PRECISION_BF16X3:
      return Precision::bf16x3;
    case RANKONE_PRECISION_BF16:
      return Precision::bf16;
    default:
      return Precision::automatic;
  }
}

std::unique_ptr<rankone_context> make_context(const rankone_options& options) {
  constexpr std::string_view kName = "rankone_context_create";
  constexpr int kMostThreads = 4096;
  require(options.device == RANKONE_CPU || options.device == RANKONE_CUDA,
          "[{}] device is {} (0 for the CPU, 1 for CUDA)", kName, options.device);
  const bool cuda = options.device == RANKONE_CUDA;
  if (cuda) {
    const std::string problem = gpu_problem(options.device_index);
    if (!problem.empty()) fail(Status::unsupported, "[{}] {}", kName, problem);
  }
  require(cuda || options.device_index == 0, "[{}] device_index is {} (0 on the CPU)", kName,
          options.device_index);
  require(options.threads >= 0 && options.threads <= kMostThreads, "[{}] threads is {} (0 to {})",
          kName, options.threads, kMostThreads);
  require(options.precision >= RANKONE_PRECISION_AUTOMATIC &&
              options.precision <= RANKONE_PRECISION_BF16,
          "[{}] precision is {} (0 to {})", kName, options.precision,
          static_cast<int>(RANKONE_PRECISION_BF16));
  // Calls on a GPU have no work for threads of the CPU, and need not take turns.
  auto pool = cuda                   ? std::make_shared<Pool>(1)
              : options.threads == 0 ? default_pool()
                                     : std::make_shared<Pool>(options.threads);
  ContextOptions inner;
  inner.device = cuda ? Device::cuda : Device::cpu;
  inner.device_index = options.device_index;
  inner.threads = options.threads;
  inner.precision = precision_of(options.precision);
  return std::make_unique<rankone_context>(std::move(inner), std::move(pool));
}

void write_message(const char* text, char* message, std::size_t bytes) {
  if (message == nullptr || bytes == 0) return;
  const std::size_t length = std::min(std::strlen(text), bytes - 1);
  std::memcpy(message, text, length);
  message[length] = '\0';
}

}  // namespace
}  // namespace rankone::capi

using rankone::capi::guarded;

const char* rankone_version(void) { return RANKONE_VERSION; }

rankone_tensor rankone_row_major(void* data, rankone_dtype dtype, int32_t rank,
                                 const int64_t* shape) {
  rankone_tensor tensor{};
  if (rank < 1 || rank > RANKONE_MAX_RANK || shape == nullptr) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  // Unsigned: absurd extents wrap here and are refused by the call.
  std::uint64_t stride = 1;
  for (int32_t i = rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<std::uint64_t>(shape[i]);
  }
  return tensor;
}

rankone_status rankone_context_create(const rankone_options* options, rankone_context** context,
                                      char* message, size_t message_bytes) {
  namespace capi = rankone::capi;
  capi::write_message("", message, message_bytes);
  if (context == nullptr) {
    capi::write_message("[rankone_context_create] context is null (it receives the handle)",
                        message, message_bytes);
    return RANKONE_INVALID_ARGUMENT;
  }
  *context = nullptr;
  try {
    *context = capi::make_context(options != nullptr ? *options : rankone_options{}).release();
    return RANKONE_OK;
  } catch (const rankone::Error& error) {
    capi::write_message(error.what(), message, message_bytes);
    return capi::to_c(error.status());
  } catch (const std::bad_alloc&) {
    capi::write_message("out of memory", message, message_bytes);
    return RANKONE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {  // a thread that can not be started
    capi::write_message(error.what(), message, message_bytes);
    return RANKONE_FAILED;
  }
}

void rankone_context_free(rankone_context* context) { delete context; }

const char* rankone_last_error(const rankone_context* context) {
  return context != nullptr ? context->message.c_str() : "the context is null";
}

rankone_status rankone_sequences_dense(rankone_context* context, int64_t batch, int64_t time,
                                       rankone_sequences** sequences) {
  return guarded(context, [&] {
    rankone::require(sequences != nullptr,
                     "[rankone_sequences_dense] sequences is null (it receives the handle)");
    *sequences = nullptr;
    *sequences = new rankone_sequences{rankone::Sequences::dense(batch, time)};
  });
}

rankone_status rankone_sequences_packed(rankone_context* context, const int64_t* cu_seqlens,
                                        int64_t count, rankone_sequences** sequences) {
  return guarded(context, [&] {
    rankone::require(sequences != nullptr,
                     "[rankone_sequences_packed] sequences is null (it receives the handle)");
    *sequences = nullptr;
    rankone::require(cu_seqlens != nullptr && count >= 1,
                     "[rankone_sequences_packed] cu_seqlens is {} with {} numbers (at least one)",
                     cu_seqlens != nullptr ? "given" : "null", count);
    *sequences = new rankone_sequences{
        rankone::Sequences::packed({cu_seqlens, static_cast<std::size_t>(count)})};
  });
}

void rankone_sequences_free(rankone_sequences* sequences) { delete sequences; }
