#pragma once

// Which instruction set the vector kernels use. A kernel source in a cpu/isa/ folder is compiled
// once for each, in a namespace of its own (RANKONE_ISA), and a table of function pointers is
// chosen at run time.

#include <string_view>

namespace rankone {

enum class Isa { baseline, avx2, avx512 };

// The best this machine has, read once. The environment variable RANKONE_ISA (baseline, avx2,
// avx512) asks for a lower one, so that every kernel can be tested on one machine.
Isa best_isa();
std::string_view name(Isa isa);

}  // namespace rankone
