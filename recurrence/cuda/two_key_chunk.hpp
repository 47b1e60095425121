#pragma once

// The chunk path of the two-key recurrence: which calls it takes, and its kernels in order.

#include "core/context.hpp"
#include "core/sequences.hpp"
#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

// 16-bit formats, d_k a multiple of 8 up to 128, d_v one up to 1024, on a GPU with the shared
// memory for it. The rest goes token by token.
bool chunk_path_takes(const TwoKeyCall& call);

// Both take their scratch from the arena and return when planning.
void chunk_forward(Context& context, const Sequences& sequences, const TwoKeyCall& call);
void chunk_backward(Context& context, const Sequences& sequences, const TwoKeyCall& call,
                    const TwoKeyBack& back);

}  // namespace rankone::recurrence::cuda
