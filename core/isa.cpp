#include "core/isa.hpp"

#include <cstdlib>

namespace rankone {
namespace {

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

}  // namespace

Isa best_isa() {
  static const Isa isa = [] {
    const Isa machine = machine_isa();
    const char* wanted = std::getenv("RANKONE_ISA");
    if (wanted == nullptr) return machine;
    for (const Isa lower : {Isa::baseline, Isa::avx2}) {
      if (wanted == name(lower) && lower < machine) return lower;
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
