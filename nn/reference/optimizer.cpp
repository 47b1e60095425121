#include <algorithm>
#include <cmath>

#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

void ReferenceBackend::add_sum_of_squares(Context& context, const Tensor& x_,
                                          const Tensor& sum) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_);
  if (context.planning()) return;
  double total = 0;
  for (std::int64_t i = 0; i < x_.count(); ++i) total += x[i] * x[i];
  *sum.data<double>() += total;
}

void ReferenceBackend::add_sum(Context& context, const Tensor& x_, double factor,
                               const Tensor& sum) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_);
  if (context.planning()) return;
  double total = 0;
  for (std::int64_t i = 0; i < x_.count(); ++i) total += x[i];
  *sum.data<double>() += factor * total;
}

void ReferenceBackend::clip_factor(Context& context, const Tensor& sum, double limit,
                                   const Tensor& factor, const Tensor& ok) const {
  if (context.planning()) return;
  const double square = *sum.data<double>();
  const bool finite = std::isfinite(square);
  *ok.data<std::int32_t>() = finite ? 1 : 0;
  *factor.data<float>() = finite ? static_cast<float>(std::min(1.0, limit / std::sqrt(square))) : 0;
}

// The equations stand at AdamW in nn/operators.hpp.
void ReferenceBackend::adamw(Context& context, const AdamW& args) const {
  const ArenaScope scope(context.arena());
  const Wide parameter(context, args.parameter, Wide::Use::accumulate), grad(context, args.grad);
  const Wide m(context, args.m, Wide::Use::accumulate), v(context, args.v, Wide::Use::accumulate);
  if (context.planning() || *args.ok.data<std::int32_t>() == 0) return;
  const double factor = *args.factor.data<float>();
  const double correction1 = 1 - std::pow(args.beta1, static_cast<double>(args.step));
  const double correction2 = 1 - std::pow(args.beta2, static_cast<double>(args.step));
  for (std::int64_t i = 0; i < args.parameter.count(); ++i) {
    const double g = factor * grad[i];
    m[i] = args.beta1 * m[i] + (1 - args.beta1) * g;
    v[i] = args.beta2 * v[i] + (1 - args.beta2) * g * g;
    const double direction = m[i] / correction1 / (std::sqrt(v[i] / correction2) + args.eps);
    parameter[i] -= args.lr * (direction + args.weight_decay * parameter[i]);
  }
  parameter.store();
  m.store();
  v.store();
}

}  // namespace rankone::nn
