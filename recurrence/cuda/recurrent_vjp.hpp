#pragma once

// Gradients of the recurrence for everything that has no chunk kernel, in float32 arithmetic.

#include <cstddef>

#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

// Bytes of workspace for `rows` rows in all. Per row and value head about 8 (K V / 32 + V), 5 kB
// for K = V = 128, and 12 K more where value heads share keys.
std::size_t recurrent_vjp_bytes(const TwoKeyCall& call, std::int64_t rows);

// `workspace`: aligned to 256 bytes. call.rows.chunk is a multiple of 32. The outputs of the call
// are not looked at.
void launch_recurrent_vjp(const TwoKeyCall& call, const TwoKeyBack& back, std::int64_t rows,
                          void* workspace, void* stream);

}  // namespace rankone::recurrence::cuda
