#include "recurrence/cpu/kernels.hpp"

#include "recurrence/cpu/tiles.hpp"

namespace rankone::recurrence::cpu {

const Kernels& kernels() {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::avx512:
      return avx512::kKernels;
    case Isa::avx2:
      return avx2::kKernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::kKernels;
}

const TileKernels* tile_kernels() {
  switch (tile_unit()) {
    case TileUnit::none:
      return nullptr;
    case TileUnit::emulated:
#if defined(__x86_64__)
      if (best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16") != 0) {
        return &amx_emulated::kTileKernels;
      }
#endif
      return &amx_baseline::kTileKernels;
    case TileUnit::amx:
#if defined(__x86_64__)
      return &amx::kTileKernels;
#else
      break;
#endif
  }
  return nullptr;
}

}  // namespace rankone::recurrence::cpu
