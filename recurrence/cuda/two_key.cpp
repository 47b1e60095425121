// The two-key recurrence on CUDA: the choice of the kernels and their scratch.

#include "core/status.hpp"
#include "recurrence/cuda/convert.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/cuda/recurrent.hpp"
#include "recurrence/cuda/step.hpp"

namespace rankone::recurrence {
namespace {

constexpr int kChunk = 64;  // rows
constexpr std::int64_t kMostStepTokens = 8;

}  // namespace

void CudaBackend::two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
                          const TwoKeyOut& out) const {
  const ArenaScope scope(context.arena());
  const cuda::TwoKeyCall call = cuda::two_key_call(context, sequences, inputs, out, kChunk);
  if (context.planning()) return;
  if (sequences.longest() <= kMostStepTokens) {
    cuda::launch_step(call, context.stream());
  } else {
    cuda::launch_recurrent(call, context.stream());
  }
}

void CudaBackend::two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                              const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) const {
  const ArenaScope scope(context.arena());
  const cuda::TwoKeyCall call = cuda::two_key_call(context, sequences, inputs, {}, kChunk);
  const cuda::TwoKeyBack back = cuda::two_key_back(cotangents, grads);
  static_cast<void>(call);
  static_cast<void>(back);
  fail(Status::unsupported, "[two_key_vjp] this call is not available on cuda (use the CPU)");
}

}  // namespace rankone::recurrence
