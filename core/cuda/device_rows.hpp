#pragma once

// From Sequences to what kernels take.

#include "core/context.hpp"
#include "core/cuda/rows.hpp"
#include "core/sequences.hpp"

namespace rankone::cuda {

// The chunks of all sequences, each cut into chunks of `chunk` rows of its own, the last perhaps
// shorter.
std::int64_t count_chunks(const Sequences& sequences, int chunk);

// The rows of a call, cut into chunks of `chunk` rows. Sequences of one length need no memory;
// others put their boundaries into the arena, in the order of the stream: the values travel as
// parameters of a kernel, so nothing waits, no host memory must outlive the call, and a CUDA graph
// holds them. In a planning pass only the arena moves.
Rows device_rows(Context& context, const Sequences& sequences, int chunk);

}  // namespace rankone::cuda
