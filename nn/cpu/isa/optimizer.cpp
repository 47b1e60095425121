#include "nn/cpu/isa/optimizer_kernels.hpp"

#include "core/simd.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

// NOLINTNEXTLINE(google-build-using-namespace): the vocabulary of this instruction set
using namespace rankone::RANKONE_ISA;

// Four chains of half as many doubles as there are floats in a vector.
constexpr int kWide = kLanes / 2;
constexpr int kChains = 4;
using WideVec = double __attribute__((vector_size(kWide * 8)));
// A typedef, as LooseVec of core/simd.hpp.
// NOLINTNEXTLINE(modernize-use-using)
typedef float Narrow __attribute__((vector_size(kWide * 4), aligned(4), may_alias));

template <bool Square>
double total(const float* x, std::int64_t count) {
  WideVec sums[kChains] = {};
  std::int64_t i = 0;
  for (; i + kChains * kWide <= count; i += kChains * kWide) {
    for (int c = 0; c < kChains; ++c) {
      const auto* const from = reinterpret_cast<const Narrow*>(x + i + c * kWide);
      const WideVec value = __builtin_convertvector(*from, WideVec);
      sums[c] += Square ? value * value : value;
    }
  }
  const WideVec pairs = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double result = 0;
  for (int lane = 0; lane < kWide; ++lane) result += pairs[lane];
  for (; i < count; ++i) {
    const double value = x[i];
    result += Square ? value * value : value;
  }
  return result;
}

void adamw(const AdamWStep& step, std::int64_t count, const float* grad, float* m, float* v,
           float* parameter) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = step.factor * grad[i];
    m[i] = step.beta1 * m[i] + step.share1 * g;
    v[i] = step.beta2 * v[i] + step.share2 * g * g;
    const float root = __builtin_sqrtf(v[i] * step.inverse_correction2) + step.eps;
    parameter[i] -= step.rate * m[i] / root + step.decay * parameter[i];
  }
}

}  // namespace

extern const OptimizerKernels kOptimizerKernels;
const OptimizerKernels kOptimizerKernels = {total<false>, total<true>, adamw};

}  // namespace rankone::nn::RANKONE_ISA
