#pragma once

#include "core/isa.hpp"
#include "nn/cpu/isa/softmax_kernels.hpp"

namespace rankone::nn {

// The kernels of an instruction set; those of best_isa() where not given.
const SoftmaxKernels& softmax_kernels(Isa isa);
const SoftmaxKernels& softmax_kernels();

}  // namespace rankone::nn
