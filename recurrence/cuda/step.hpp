#pragma once

// The decode step: a few tokens per sequence, the states updated in place.

#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

// Any number of tokens per sequence is right, one to eight is what it is for. States of
// call.state_dtype: f32, or bf16 with float32 arithmetic between reading and writing. No workspace.
void launch_step(const TwoKeyCall& call, void* stream);

}  // namespace rankone::recurrence::cuda
