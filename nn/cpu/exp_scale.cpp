#include <algorithm>
#include <cmath>

#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {
namespace {

constexpr float kLargest = 80.0F;            // exponent
constexpr std::int64_t kGatesPerTask = 256;  // of g, whatever the number of threads

template <class Work>
void for_gates(Context& context, const Tensor& g, const Work& work) {
  const std::int64_t gates = g.count();
  context.threads().run((gates + kGatesPerTask - 1) / kGatesPerTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(gates, (task + 1) * kGatesPerTask);
    for (std::int64_t j = task * kGatesPerTask; j < end; ++j) work(j);
  });
}

}  // namespace

void CpuBackend::exp_scale(Context& context, const Tensor& x, const Tensor& g, double factor,
                           const Tensor& y) const {
  if (context.planning() || x.count() == 0) return;
  const std::int64_t shared = x.count() / g.count();  // channels that share one g
  const float* x_ = x.data<float>();
  const float* g_ = g.data<float>();
  float* y_ = y.data<float>();
  for_gates(context, g, [&](std::int64_t j) {
    const float growth = std::exp(std::min(static_cast<float>(factor) * g_[j], kLargest));
    for (std::int64_t i = j * shared; i < (j + 1) * shared; ++i) y_[i] = x_[i] * growth;
  });
}

void CpuBackend::exp_scale_vjp(Context& context, const Tensor& x, const Tensor& g, double factor,
                               const Tensor& dy, const Tensor& dx, const Tensor& dg) const {
  if (context.planning() || x.count() == 0) return;
  const std::int64_t shared = x.count() / g.count();
  const float* x_ = x.data<float>();
  const float* g_ = g.data<float>();
  const float* dy_ = dy.data<float>();
  float* dx_ = dx.defined() ? dx.data<float>() : nullptr;
  float* dg_ = dg.defined() ? dg.data<float>() : nullptr;
  for_gates(context, g, [&](std::int64_t j) {
    const float exponent = static_cast<float>(factor) * g_[j];
    const float growth = std::exp(std::min(exponent, kLargest));
    float sum = 0.0F;
    for (std::int64_t i = j * shared; i < (j + 1) * shared; ++i) {
      if (dx_ != nullptr) dx_[i] = dy_[i] * growth;
      sum += dy_[i] * x_[i];
    }
    if (dg_ != nullptr) {
      dg_[j] = exponent > kLargest ? 0.0F : static_cast<float>(factor) * growth * sum;
    }
  });
}

}  // namespace rankone::nn
