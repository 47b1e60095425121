#pragma once

// The decode step: a few tokens per sequence, the states updated in place.

#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kStepTokens = 8;  // of a sequence, at most

// States of call.state_dtype: f32, or bf16 with float32 arithmetic between reading and writing. No
// workspace.
void launch_step(const TwoKeyCall& call, void* stream);

}  // namespace rankone::recurrence::cuda
