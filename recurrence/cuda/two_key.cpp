// The two-key recurrence on CUDA: the choice of the kernels and their scratch.

#include <limits>

#include "core/status.hpp"
#include "recurrence/cuda/convert.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/cuda/recurrent.hpp"
#include "recurrence/cuda/recurrent_vjp.hpp"
#include "recurrence/cuda/step.hpp"
#include "recurrence/cuda/two_key_chunk.hpp"
#include "recurrence/cuda/workspace.hpp"

namespace rankone::recurrence {
namespace {

constexpr int kChunk = 64;  // rows

}  // namespace

void CudaBackend::two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
                          const TwoKeyOut& out) const {
  const ArenaScope scope(context.arena());
  cuda::TwoKeyCall call = cuda::two_key_call(context, sequences, inputs, out, kChunk);
  bool steps = false, longer = false;
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    (sequences.length(i) <= cuda::kStepTokens ? steps : longer) = true;
  }
  if (longer && call.state_dtype == Dtype::bf16) {
    fail(Status::unsupported,
         "[two_key] the states are bf16 and a sequence has {} rows (on cuda at most {})",
         sequences.longest(), cuda::kStepTokens);
  }
  if (steps) {
    call.most = cuda::kStepTokens;
    if (!context.planning()) cuda::launch_step(call, context.stream());
  }
  const bool saves = out.saved.defined() && out.saved.count() > 0;
  void* const saved = saves ? out.saved.raw() : nullptr;
  if (!longer && saved == nullptr) return;
  call.fewest = cuda::kStepTokens + 1;
  call.most = std::numeric_limits<std::int64_t>::max();
  if (cuda::chunk_path_takes(call))
    return cuda::chunk_forward(context, sequences, call, saves, saved);
  if (!context.planning()) cuda::launch_recurrent(call, context.stream());
}

std::int64_t CudaBackend::two_key_saved(Context&, const Sequences& sequences,
                                        const TwoKey& inputs) const {
  const cuda::TwoKeyCall call = cuda::two_key_inputs(sequences, inputs);
  if (call.state_dtype == Dtype::bf16 || !cuda::chunk_path_takes(call)) return 0;
  return cuda::chunk_saved_bytes(sequences, call) / static_cast<std::int64_t>(sizeof(float));
}

void CudaBackend::two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                              const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) const {
  const ArenaScope scope(context.arena());
  const cuda::TwoKeyCall call = cuda::two_key_call(context, sequences, inputs, {}, kChunk);
  const cuda::TwoKeyBack back = cuda::two_key_back(cotangents, grads);
  if (cuda::chunk_path_takes(call)) {
    const Tensor& saved = cotangents.saved;
    return cuda::chunk_backward(context, sequences, call, back,
                                saved.defined() && saved.count() > 0 ? saved.raw() : nullptr);
  }
  const std::size_t bytes = cuda::recurrent_vjp_bytes(call, sequences.rows());
  void* const workspace = cuda::workspace(context, bytes);
  if (context.planning()) return;
  cuda::launch_recurrent_vjp(call, back, sequences.rows(), workspace, context.stream());
}

}  // namespace rankone::recurrence
