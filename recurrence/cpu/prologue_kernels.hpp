#pragma once

// The vector kernels of the prologue: the equations of axes/decay.hpp on vectors of floats, and the
// gates of the vector gain. Compiled once per instruction set (isa/prologue.cpp).

#include <cstdint>

#include "recurrence/decay_block.hpp"

namespace rankone::recurrence::cpu {

struct PrologueKernels {
  void (*decay)(const DecayBlock<float>&);
  void (*decay_back)(const DecayBlockBack<float>&);
  // to[i] = from[i] sigmoid(x[i])
  void (*gate)(float* to, const float* from, const float* x, std::int64_t count);
  // d_from[i] = d[i] sigmoid(x[i]); d_x[i] = d[i] from[i] sigmoid'(x[i]); outputs and d may be
  // null.
  void (*gate_back)(float* d_from, float* d_x, const float* from, const float* x, const float* d,
                    std::int64_t count);
};

namespace baseline {
extern const PrologueKernels kPrologueKernels;
}
namespace avx2 {
extern const PrologueKernels kPrologueKernels;
}
namespace avx512 {
extern const PrologueKernels kPrologueKernels;
}

}  // namespace rankone::recurrence::cpu
