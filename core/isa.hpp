#pragma once

// Which instruction set the vector kernels use. A kernel source in a cpu/isa/ folder is compiled
// once for each, in a namespace of its own (RANKONE_ISA), and a table of function pointers is
// chosen at run time.

#include <string_view>

namespace rankone {

enum class Isa { baseline, avx2, avx512 };

// The best this machine has, read once. The environment variable RANKONE_ISA (baseline, avx2,
// avx512) asks for a lower one, so that every kernel can be tested on one machine; more than the
// machine has is not refused. A value that is none of these, nor amx-emulated, fails with
// invalid_argument; so does the first Context, which reads it before there is any work.
Isa best_isa();
std::string_view name(Isa isa);

// A unit for products of tiles of bf16 beside the vectors: AMX, or the same instructions in
// software, for tests (core/tiles.hpp).
enum class TileUnit { none, emulated, amx };

// Read once; on a machine with AMX this also asks the system for the use of its registers.
// RANKONE_ISA=amx-emulated asks for the software; every name of an Isa means none.
TileUnit tile_unit();

// The instruction set a kernel of this process ran with, tiles included: "avx512", "amx" and so on.
std::string_view isa_name(bool tiles);

}  // namespace rankone
