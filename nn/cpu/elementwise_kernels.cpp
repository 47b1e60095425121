#include "nn/cpu/elementwise_kernels.hpp"

#include "core/isa.hpp"

namespace rankone::nn {

#define RANKONE_DECLARE_KERNELS(isa)           \
  namespace isa {                              \
  extern const MapKernels kMapKernels;         \
  extern const NormKernels kNormKernels;       \
  extern const FeatureKernels kFeatureKernels; \
  extern const ConvKernels kConvKernels;       \
  }

RANKONE_DECLARE_KERNELS(baseline)
#if defined(__x86_64__)
RANKONE_DECLARE_KERNELS(avx2)
RANKONE_DECLARE_KERNELS(avx512)
#endif
#undef RANKONE_DECLARE_KERNELS

namespace {

template <class Table>
const Table& pick(const Table& lowest, [[maybe_unused]] const Table* middle,
                  [[maybe_unused]] const Table* highest) {
  switch (best_isa()) {
    case Isa::avx512:
      return *highest;
    case Isa::avx2:
      return *middle;
    case Isa::baseline:
      break;
  }
  return lowest;
}

}  // namespace

#if defined(__x86_64__)
#define RANKONE_PICK(table) pick(baseline::table, &avx2::table, &avx512::table)
#else
#define RANKONE_PICK(table) pick(baseline::table, &baseline::table, &baseline::table)
#endif

const MapKernels& map_kernels() {
  static const MapKernels& kernels = RANKONE_PICK(kMapKernels);
  return kernels;
}

const NormKernels& norm_kernels() {
  static const NormKernels& kernels = RANKONE_PICK(kNormKernels);
  return kernels;
}

const FeatureKernels& feature_kernels() {
  static const FeatureKernels& kernels = RANKONE_PICK(kFeatureKernels);
  return kernels;
}

const ConvKernels& conv_kernels() {
  static const ConvKernels& kernels = RANKONE_PICK(kConvKernels);
  return kernels;
}

#undef RANKONE_PICK

}  // namespace rankone::nn
