#pragma once

// The recurrence token by token, for everything that has no chunk kernel: any format, any sizes.

#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

// No workspace. States are f32.
void launch_recurrent(const TwoKeyCall& call, void* stream);

}  // namespace rankone::recurrence::cuda
