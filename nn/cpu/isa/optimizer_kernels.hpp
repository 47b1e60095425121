#pragma once

// Kernels of the optimiser, once per instruction set. Plain declarations only (see
// gemm_kernels.hpp).

#include <cstdint>

namespace rankone::nn {

// The constants of one AdamW step.
struct AdamWStep {
  float factor;               // of the gradient
  float beta1, beta2;         // decay of the moments
  float share1, share2;       // 1 - beta
  float rate;                 // lr / (1 - beta1^t)
  float inverse_correction2;  // 1 / (1 - beta2^t)
  float eps;
  float decay;  // lr * weight_decay
};

struct OptimizerKernels {
  // In float64, in a fixed order.
  double (*sum)(const float* x, std::int64_t count);
  double (*sum_of_squares)(const float* x, std::int64_t count);
  void (*adamw)(const AdamWStep& step, std::int64_t count, const float* grad, float* m, float* v,
                float* parameter);
};

namespace baseline {
extern const OptimizerKernels kOptimizerKernels;
}
namespace avx2 {
extern const OptimizerKernels kOptimizerKernels;
}
namespace avx512 {
extern const OptimizerKernels kOptimizerKernels;
}

}  // namespace rankone::nn
