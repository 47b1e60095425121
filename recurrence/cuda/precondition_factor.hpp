#pragma once

// The factors of axes/preconditioner.hpp in the fewest instructions: with binary logarithms and the
// GPU's own logarithm, exponential and reciprocal. Their arguments are far from the denormal
// numbers.

#include "core/cuda/instructions.hpp"
#include "recurrence/cuda/precondition.hpp"

namespace rankone::recurrence::cuda {

constexpr float kLog2OfE = 1.44269504089F, kLn2 = 0.69314718056F;

// With rho = r log2(e): 1 + |r| = 1 + ln(2) |rho|, and for p = -ln(x) / (1 + |r|)
//     factor = 2^(p rho);   d factor / dr = factor p / (1 + |r|)
struct AtkFactor {
  float center, eps, power;

  __device__ AtkFactor(float of_head, const PreconditionCall& call)
      : center(kLog2OfE * of_head), eps(call.eps), power(-call.log_x) {}

  __device__ __forceinline__ float value(float state, int /*channel*/) const {
    const float rho = rankone::cuda::log2_fast(state + eps) - center;
    const float inverse = rankone::cuda::reciprocal_fast(1.0F + kLn2 * std::abs(rho));
    return rankone::cuda::exp2_fast(power * inverse * rho);
  }
  // `d` is the cotangent of factor * target and becomes that of target. The derivative by A goes to
  // `d_state`, that by the center is added to `d_parameter`.
  __device__ __forceinline__ void back(float state, int /*channel*/, float target, float& d,
                                       float& d_state, float& d_parameter) const {
    const float with_eps = state + eps;
    const float rho = rankone::cuda::log2_fast(with_eps) - center;
    const float inverse = rankone::cuda::reciprocal_fast(1.0F + kLn2 * std::abs(rho));
    const float of_rho = power * inverse;
    d *= rankone::cuda::exp2_fast(of_rho * rho);
    const float d_r = d * target * (of_rho * inverse);
    d_parameter -= d_r;
    d_state = d_r * rankone::cuda::reciprocal_fast(with_eps);
  }
};

// factor = 1 / (A + ridge), for the Size channels of a lane.
template <int Size>
struct AtqFactor {
  float ridge[Size];

  __device__ __forceinline__ float value(float state, int channel) const {
    return rankone::cuda::reciprocal_fast(state + ridge[channel]);
  }
  __device__ __forceinline__ void back(float state, int channel, float target, float& d,
                                       float& d_state, float& d_parameter) const {
    const float factor = value(state, channel);
    d *= factor;
    d_state = -d * target * factor;
    d_parameter += d_state;
  }
};

}  // namespace rankone::recurrence::cuda
