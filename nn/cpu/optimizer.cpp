#include <algorithm>
#include <cmath>

#include "core/isa.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "nn/cpu/isa/optimizer_kernels.hpp"

namespace rankone::nn {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;

const OptimizerKernels& kernels() {
#if defined(__x86_64__)
  if (best_isa() == Isa::avx512) return avx512::kOptimizerKernels;
  if (best_isa() == Isa::avx2) return avx2::kOptimizerKernels;
#endif
  return baseline::kOptimizerKernels;
}

std::int64_t tasks(std::int64_t count) { return (count + kElementsPerTask - 1) / kElementsPerTask; }

// Blocks of fixed size, each summed by one thread, then added up in order.
double ordered_sum(Context& context, const Tensor& x,
                   double (*sum)(const float* x, std::int64_t count)) {
  const ArenaScope scope(context.arena());
  const std::int64_t count = x.count();
  auto* const sums = context.empty({tasks(count)}, Dtype::f64).data<double>();
  if (context.planning()) return 0;
  context.threads().run(tasks(count), [&](std::int64_t task, int) {
    const std::int64_t begin = task * kElementsPerTask;
    sums[task] = sum(x.data<float>() + begin, std::min(kElementsPerTask, count - begin));
  });
  double total = 0;
  for (std::int64_t task = 0; task < tasks(count); ++task) total += sums[task];
  return total;
}

}  // namespace

void CpuBackend::add_sum_of_squares(Context& context, const Tensor& x, const Tensor& sum) const {
  const double total = ordered_sum(context, x, kernels().sum_of_squares);
  if (!context.planning()) *sum.data<double>() += total;
}

void CpuBackend::add_sum(Context& context, const Tensor& x, double factor,
                         const Tensor& sum) const {
  const double total = ordered_sum(context, x, kernels().sum);
  if (!context.planning()) *sum.data<double>() += factor * total;
}

void CpuBackend::clip_factor(Context& context, const Tensor& sum, double limit,
                             const Tensor& factor, const Tensor& ok) const {
  if (context.planning()) return;
  const double square = *sum.data<double>();
  const bool finite = std::isfinite(square);
  *ok.data<std::int32_t>() = finite ? 1 : 0;
  *factor.data<float>() = finite ? static_cast<float>(std::min(1.0, limit / std::sqrt(square))) : 0;
}

void CpuBackend::adamw(Context& context, const AdamW& args) const {
  if (context.planning() || *args.ok.data<std::int32_t>() == 0) return;
  const double correction1 = 1 - std::pow(args.beta1, static_cast<double>(args.step));
  const double correction2 = 1 - std::pow(args.beta2, static_cast<double>(args.step));
  const AdamWStep step = {*args.factor.data<float>(),
                          static_cast<float>(args.beta1),
                          static_cast<float>(args.beta2),
                          static_cast<float>(1 - args.beta1),
                          static_cast<float>(1 - args.beta2),
                          static_cast<float>(args.lr / correction1),
                          static_cast<float>(1 / correction2),
                          static_cast<float>(args.eps),
                          static_cast<float>(args.lr * args.weight_decay)};
  const std::int64_t count = args.parameter.count();
  context.threads().run(tasks(count), [&](std::int64_t task, int) {
    const std::int64_t i = task * kElementsPerTask;
    kernels().adamw(step, std::min(kElementsPerTask, count - i), args.grad.data<float>() + i,
                    args.m.data<float>() + i, args.v.data<float>() + i,
                    args.parameter.data<float>() + i);
  });
}

}  // namespace rankone::nn
