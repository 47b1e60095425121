#include <algorithm>
#include <cmath>

#include "core/isa.hpp"
#include "nn/cpu/blocks.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "nn/cpu/isa/optimizer_kernels.hpp"

namespace rankone::nn {
namespace {

const OptimizerKernels& kernels() {
#if defined(__x86_64__)
  if (best_isa() == Isa::avx512) return avx512::kOptimizerKernels;
  if (best_isa() == Isa::avx2) return avx2::kOptimizerKernels;
#endif
  return baseline::kOptimizerKernels;
}

// Blocks of fixed size, each summed by one thread, then added up in order.
double ordered_sum(Context& context, const Tensor& x,
                   double (*sum)(const float* x, std::int64_t count)) {
  const ArenaScope scope(context.arena());
  const std::int64_t blocks = (x.count() + cpu::kElementsPerTask - 1) / cpu::kElementsPerTask;
  auto* const sums = context.empty({blocks}, Dtype::f64).data<double>();
  if (context.planning()) return 0;
  cpu::for_blocks(context, x.count(), cpu::kElementsPerTask,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    sums[begin / cpu::kElementsPerTask] = sum(x.data<float>() + begin, end - begin);
                  });
  double total = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += sums[block];
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
  cpu::for_blocks(context, args.parameter.count(), cpu::kElementsPerTask,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    kernels().adamw(step, end - begin, args.grad.data<float>() + begin,
                                    args.m.data<float>() + begin, args.v.data<float>() + begin,
                                    args.parameter.data<float>() + begin);
                  });
}

}  // namespace rankone::nn
