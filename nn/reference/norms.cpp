#include <cmath>

#include "nn/reference/activation.hpp"
#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::activation;
using reference::activation_slope;
using reference::Wide;

namespace {

// z = x act(gate) where the gate comes first, else x;  r = (mean(z^2) + eps)^(-1/2);  n = z r;
// y = n w [act(gate)].
struct RmsRow {
  const RmsNorm& args;
  const double* x;
  const double* weight;  // the piece of this row, or null
  const double* gate;    // or null
  std::int64_t width;

  double a(std::int64_t i) const { return gate ? activation(args.activation, gate[i]) : 1.0; }
  double w(std::int64_t i) const { return weight ? weight[i] : 1.0; }
  double before(std::int64_t i) const { return args.gate_first ? a(i) : 1.0; }
  double after(std::int64_t i) const { return args.gate_first ? 1.0 : a(i); }
  double z(std::int64_t i) const { return x[i] * before(i); }
  double r() const {
    double squares = 0;
    for (std::int64_t i = 0; i < width; ++i) squares += z(i) * z(i);
    return 1.0 / std::sqrt(squares / static_cast<double>(width) + args.eps);
  }
};

template <class Work>
void for_each_rms_row(const RmsNorm& args, const Wide& x, const Wide& weight, const Wide& gate,
                      Work&& work) {
  const std::int64_t width = args.x.dim(-1);
  const std::int64_t rows = args.x.count() / width;
  const std::int64_t pieces = weight ? args.weight.count() / width : 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * width;
    const std::int64_t weight_at = row % pieces * width;
    work(at, weight_at,
         RmsRow{args, x.data() + at, weight ? weight.data() + weight_at : nullptr,
                gate ? gate.data() + at : nullptr, width});
  }
}

}  // namespace

void ReferenceBackend::rms_norm(Context& context, const RmsNorm& args, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), weight(context, args.weight), gate(context, args.gate);
  const Wide y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  for_each_rms_row(args, x, weight, gate, [&](std::int64_t at, std::int64_t, const RmsRow& row) {
    const double r = row.r();
    for (std::int64_t i = 0; i < row.width; ++i) y[at + i] = row.z(i) * r * row.w(i) * row.after(i);
  });
  y.store();
}

// With c = dy w after:  dz = r (c - n mean(c n));  dw += dy n after.
void ReferenceBackend::rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy_,
                                    const RmsNormGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), weight(context, args.weight), gate(context, args.gate);
  const Wide dy(context, dy_);
  const Wide dx(context, grads.x, Wide::Use::write), dgate(context, grads.gate, Wide::Use::write);
  const Wide dweight(context, grads.weight, Wide::Use::accumulate);
  if (context.planning()) return;
  for_each_rms_row(
      args, x, weight, gate, [&](std::int64_t at, std::int64_t weight_at, const RmsRow& row) {
        const double r = row.r();
        double mean_cn = 0;
        for (std::int64_t i = 0; i < row.width; ++i) {
          mean_cn += dy[at + i] * row.w(i) * row.after(i) * row.z(i) * r;
        }
        mean_cn /= static_cast<double>(row.width);
        for (std::int64_t i = 0; i < row.width; ++i) {
          const double n = row.z(i) * r;
          const double c = dy[at + i] * row.w(i) * row.after(i);
          const double dz = r * (c - n * mean_cn);
          if (dx) dx[at + i] = dz * row.before(i);
          if (dweight) dweight[weight_at + i] += dy[at + i] * n * row.after(i);
          if (dgate) {
            const double da = args.gate_first ? dz * row.x[i] : dy[at + i] * n * row.w(i);
            dgate[at + i] = da * activation_slope(args.activation, row.gate[i]);
          }
        }
      });
  dx.store();
  dgate.store();
  dweight.store();
}

namespace {

struct Divisor {
  double value;   // y = x / value
  bool constant;  // does not depend on x
};

Divisor divisor_of(const VectorNorm& args, const double* x, std::int64_t width) {
  double squares = 0;
  double total = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    squares += x[i] * x[i];
    total += x[i];
  }
  if (args.form == VectorNormForm::rsqrt) return {std::sqrt(squares + args.eps), false};
  if (args.form == VectorNormForm::sum) return {total + args.eps, false};
  const double length = std::sqrt(squares);
  return length > args.eps ? Divisor{length, false} : Divisor{args.eps, true};
}

}  // namespace

void ReferenceBackend::vector_norm(Context& context, const VectorNorm& args,
                                   const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t width = args.x.dim(-1);
  for (std::int64_t at = 0; at < args.x.count(); at += width) {
    const double divisor = divisor_of(args, x.data() + at, width).value;
    for (std::int64_t i = 0; i < width; ++i) y[at + i] = x[at + i] / divisor;
  }
  y.store();
}

// y = x / m(x):  dx = (dy - (y . dy) grad m) / m;  grad m = x / m for rsqrt and clamp, 1 for sum,
// 0 where the clamp holds.
void ReferenceBackend::vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy_,
                                       const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), dy(context, dy_), dx(context, dx_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t width = args.x.dim(-1);
  for (std::int64_t at = 0; at < args.x.count(); at += width) {
    const auto [m, constant] = divisor_of(args, x.data() + at, width);
    double y_dy = 0;
    for (std::int64_t i = 0; i < width; ++i) y_dy += x[at + i] / m * dy[at + i];
    for (std::int64_t i = 0; i < width; ++i) {
      const double slope = args.form == VectorNormForm::sum ? 1.0 : x[at + i] / m;
      dx[at + i] = (dy[at + i] - (constant ? 0.0 : y_dy * slope)) / m;
    }
  }
  dx.store();
}

}  // namespace rankone::nn
