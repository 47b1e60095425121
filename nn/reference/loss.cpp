#include <algorithm>
#include <cmath>

#include "nn/arguments.hpp"
#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

namespace {

// logits_v = sum_i x_i weight_vi; returns log sum_v exp(logits_v).
double project(const Wide& weight, const double* x, std::int64_t width, std::int64_t vocabulary,
               double* logits) {
  for (std::int64_t v = 0; v < vocabulary; ++v) {
    logits[v] = 0;
    for (std::int64_t i = 0; i < width; ++i) logits[v] += x[i] * weight[v * width + i];
  }
  const double largest = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logits[v] - largest);
  return largest + std::log(sum);
}

}  // namespace

// loss_r = log sum_v exp(x_r . weight_v) - x_r . weight_target
void ReferenceBackend::cross_entropy(Context& context, const CrossEntropy& args,
                                     const Tensor& losses) const {
  cross_entropy_vjp(context, args, 1.0, losses, {});
}

// With p_v = softmax(logits)_v and d_v = factor (p_v - [v = target]):
//   dx_r = sum_v d_v weight_v,  dweight_v += d_v x_r
void ReferenceBackend::cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                                         const Tensor& losses_,
                                         const CrossEntropyGrads& grads) const {
  const ArenaScope scope(context.arena());
  const std::int64_t vocabulary = args.weight.dim(0);
  const std::int64_t width = args.weight.dim(1);
  const Wide x(context, args.x), weight(context, args.weight);
  const Wide losses(context, losses_, Wide::Use::write);
  const Wide dx(context, grads.x, Wide::Use::write);
  const Wide dweight(context, grads.weight, Wide::Use::accumulate);
  const Tensor scratch = context.empty({vocabulary}, Dtype::f64);
  if (context.planning()) return;
  auto* const logits = scratch.data<double>();
  if (losses) std::fill_n(losses.data(), args.targets.count(), 0.0);
  if (dx) std::fill_n(dx.data(), args.x.count(), 0.0);
  for (std::int64_t r = 0; r < args.targets.count(); ++r) {
    const std::int32_t target = args.targets.data<std::int32_t>()[r];
    if (target < 0) continue;
    Arguments("cross_entropy").index("targets", target, vocabulary);
    const double log_sum = project(weight, x.data() + r * width, width, vocabulary, logits);
    if (losses) losses[r] = log_sum - logits[target];
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const double d = factor * (std::exp(logits[v] - log_sum) - (v == target ? 1.0 : 0.0));
      for (std::int64_t i = 0; i < width; ++i) {
        if (dx) dx[r * width + i] += d * weight[v * width + i];
        if (dweight) dweight[v * width + i] += d * x[r * width + i];
      }
    }
  }
  losses.store();
  dx.store();
  dweight.store();
}

}  // namespace rankone::nn
