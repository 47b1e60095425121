#pragma once

// Kernels over rows of logits, once per instruction set. Plain declarations only (see
// gemm_kernels.hpp).

#include <cstdint>

namespace rankone::nn {

struct SoftmaxKernels {
  float (*maximum)(const float* x, std::int64_t count);  // -infinity for none; NaN is passed over
  // sum of e^(x - shift); the terms are stored in `terms` unless it is null. terms may be x.
  float (*exp_sum)(const float* x, std::int64_t count, float shift, float* terms);
  float (*dot)(const float* a, const float* b, std::int64_t count);
  void (*scale)(float* x, std::int64_t count, float factor);
  // x = factor * x for begin <= i < end, -infinity elsewhere.
  void (*mask)(float* x, std::int64_t count, float factor, std::int64_t begin, std::int64_t end);
  // With p = e^(scores - log_sum): scores = p and dp = factor * p * (dp - mean).
  void (*gradient)(float* scores, float* dp, std::int64_t count, float log_sum, float mean,
                   float factor);
};

namespace baseline {
extern const SoftmaxKernels kSoftmaxKernels;
}
namespace avx2 {
extern const SoftmaxKernels kSoftmaxKernels;
}
namespace avx512 {
extern const SoftmaxKernels kSoftmaxKernels;
}

}  // namespace rankone::nn
