#pragma once

// The chunk path of the two-key recurrence: which calls it takes, and its kernels in order.

#include "core/context.hpp"
#include "core/sequences.hpp"
#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

// 16-bit formats, d_k a multiple of 8 up to 128, d_v one up to 1024, on a GPU with the shared
// memory for it. The rest goes token by token.
bool chunk_path_takes(const TwoKeyCall& call);

// Bytes of what a forward pass can leave for the backward one of the same inputs, a multiple of 16:
// the records of the chunks. 0 where they would be more than 700 a row and value head: with channel
// decay, where they hold the scaled keys too, and where most sequences are short.
std::int64_t chunk_saved_bytes(const Sequences& sequences, const TwoKeyCall& call);

// Both take their scratch from the arena and return when planning. `saved` may be null. What is
// saved is of all sequences, also of those that the call leaves out. `saves`: whether something is,
// which in a planning pass `saved` does not say.
void chunk_forward(Context& context, const Sequences& sequences, const TwoKeyCall& call, bool saves,
                   void* saved);
void chunk_backward(Context& context, const Sequences& sequences, const TwoKeyCall& call,
                    const TwoKeyBack& back, const void* saved);

}  // namespace rankone::recurrence::cuda
