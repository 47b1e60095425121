#include "core/isa.hpp"

#include <cstdlib>
#include <string>

#include "core/status.hpp"
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rankone {
namespace {

constexpr std::string_view kEmulatedTiles = "amx-emulated";

// RANKONE_ISA as it was at the first call; empty: not set.
std::string_view requested() {
  static const std::string text = [] {
    const char* value = std::getenv("RANKONE_ISA");
    std::string set = value != nullptr ? value : "";
    bool known = set.empty() || set == kEmulatedTiles;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) known |= set == name(isa);
    if (!known) {
      fail(Status::invalid_argument, "[isa] RANKONE_ISA is '{}' (baseline, avx2, avx512 or {})",
           set, kEmulatedTiles);
    }
    return set;
  }();
  return text;
}

Isa machine_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) return Isa::avx2;
#endif
  return Isa::baseline;
}

// AMX with bf16, the vectors its kernels are compiled for, and registers that the system saves.
bool machine_has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  if (machine_isa() != Isa::avx512 || __builtin_cpu_supports("avx512bf16") == 0) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTiles = 1U << 24, kBf16 = 1U << 22;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTiles) == 0 || (d & kBf16) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3U << 17;
  if ((low & kTileState) != kTileState) return false;
  // The registers are large, so the kernel wants to be asked once by a process.
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

TileUnit tile_unit() {
  static const TileUnit unit = [] {
    if (requested() == kEmulatedTiles) return TileUnit::emulated;
    return requested().empty() && machine_has_amx() ? TileUnit::amx : TileUnit::none;
  }();
  return unit;
}

std::string_view isa_name(bool tiles) {
  if (!tiles || tile_unit() == TileUnit::none) return name(best_isa());
  return tile_unit() == TileUnit::amx ? "amx" : "amx-emulated";
}

Isa best_isa() {
  static const Isa isa = [] {
    const Isa machine = machine_isa();
    for (const Isa lower : {Isa::baseline, Isa::avx2}) {
      if (requested() == name(lower) && lower < machine) return lower;
    }
    return machine;
  }();
  return isa;
}

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace rankone
