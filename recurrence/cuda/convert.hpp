#pragma once

// From the tensors of recurrence.hpp to what the kernels take.

#include "recurrence/cuda/call.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::recurrence::cuda {

// Kernels move rows of keys, queries, values and states in pieces of 16 bytes where the size of a
// row allows it, so such a tensor must start at a multiple of 16. Fails with invalid_argument where
// it does not. Gates need the alignment of their elements only.
void require_aligned(std::string_view operation, std::string_view name, const Tensor& tensor);

Gate gate_of(const Tensor& tensor);

// The sizes, kinds and inputs of a validated call; of its rows only their number and that of the
// sequences.
TwoKeyCall two_key_inputs(const Sequences& sequences, const TwoKey& inputs);
// A validated call; boundaries go to the arena of the context, cut into chunks of `chunk` rows. In
// a planning pass the pointers mean nothing. Gradients only: `out` has no tensors.
TwoKeyCall two_key_call(Context& context, const Sequences& sequences, const TwoKey& inputs,
                        const TwoKeyOut& out, int chunk);
TwoKeyBack two_key_back(const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads);

}  // namespace rankone::recurrence::cuda
