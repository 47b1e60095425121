#include <cmath>

#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

namespace {
constexpr double kLargest = 80.0;  // exponent
}

void ReferenceBackend::exp_scale(Context& context, const Tensor& x_, const Tensor& g_,
                                 double factor, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), g(context, g_), y(context, y_, Wide::Use::write);
  if (context.planning() || x_.count() == 0) return;
  const std::int64_t shared = x_.count() / g_.count();  // channels that share one g
  for (std::int64_t i = 0; i < x_.count(); ++i) {
    y[i] = x[i] * std::exp(std::min(factor * g[i / shared], kLargest));
  }
  y.store();
}

void ReferenceBackend::exp_scale_vjp(Context& context, const Tensor& x_, const Tensor& g_,
                                     double factor, const Tensor& dy_, const Tensor& dx_,
                                     const Tensor& dg_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), g(context, g_), dy(context, dy_);
  const Wide dx(context, dx_, Wide::Use::write), dg(context, dg_, Wide::Use::write);
  if (context.planning() || x_.count() == 0) return;
  const std::int64_t shared = x_.count() / g_.count();
  for (std::int64_t j = 0; j < g_.count(); ++j) {
    const bool bounded = factor * g[j] > kLargest;
    const double growth = std::exp(bounded ? kLargest : factor * g[j]);
    double sum = 0.0;
    for (std::int64_t i = j * shared; i < (j + 1) * shared; ++i) {
      if (dx) dx[i] = dy[i] * growth;
      sum += dy[i] * x[i];
    }
    if (dg) dg[j] = bounded ? 0.0 : factor * growth * sum;
  }
  dx.store();
  dg.store();
}

}  // namespace rankone::nn
