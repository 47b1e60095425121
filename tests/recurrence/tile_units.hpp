#pragma once

// What tests of the tile kernels share.

#include <cstdint>
#include <vector>

#include "core/dtype.hpp"
#include "core/isa.hpp"
#include "recurrence/cpu/tiles.hpp"

namespace rankone::test {

struct Unit {
  const char* name;
  const recurrence::cpu::TileKernels* kernels;
};

// Every implementation that this machine can run.
inline std::vector<Unit> units() {
  std::vector<Unit> list = {{"baseline", &recurrence::cpu::amx_baseline::kTileKernels}};
#if defined(__x86_64__)
  if (best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16") != 0) {
    list.push_back({"avx512", &recurrence::cpu::amx_emulated::kTileKernels});
  }
  if (tile_unit() == TileUnit::amx) list.push_back({"amx", &recurrence::cpu::amx::kTileKernels});
#endif
  return list;
}

// A matrix of tiles with its memory, full of what no kernel leaves there.
class Tiles {
 public:
  Tiles(int outer, int inner, int parts)
      : words_(static_cast<std::size_t>(outer) * inner * parts * recurrence::cpu::kTileHalves + 32,
               0xffff) {
    matrix.data = words_.data();
    while (reinterpret_cast<std::uintptr_t>(matrix.data) % 64 != 0) ++matrix.data;
    matrix.outer = outer;
    matrix.inner = inner;
    matrix.parts = parts;
  }
  std::vector<std::uint16_t> words() const {
    return {matrix.data, matrix.data + matrix.part_size() * matrix.parts};
  }
  double row_value(int row, int column, int part) const {
    return word(part, row / 16, column / 32, row % 16 * 32 + column % 32);
  }
  double pair_value(int row, int column, int part) const {
    return word(part, column / 16, row / 32, row % 32 / 2 * 32 + column % 16 * 2 + row % 2);
  }
  recurrence::cpu::TileMatrix matrix;

 private:
  double word(int part, int outer, int inner, int at) const {
    const std::uint16_t* tile = matrix.data + part * matrix.part_size() +
                                (outer * matrix.inner + inner) * recurrence::cpu::kTileHalves;
    return to_float(bf16{tile[at]});
  }
  std::vector<std::uint16_t> words_;
};

}  // namespace rankone::test
