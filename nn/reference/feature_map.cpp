#include <algorithm>
#include <cmath>

#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

namespace {

constexpr std::int64_t kRolls = 4;

// p = softmax([2 x, -2 x])
void hedgehog(const double* x, std::int64_t width, double* p) {
  double largest = 0;  // of |2 x|, which both signs reach
  for (std::int64_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(2 * x[i]));
  double total = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    p[i] = std::exp(2 * x[i] - largest);
    p[width + i] = std::exp(-2 * x[i] - largest);
    total += p[i] + p[width + i];
  }
  for (std::int64_t i = 0; i < 2 * width; ++i) p[i] /= total;
}

// dz = p (dp - p . dp);  dx = 2 dz_first - 2 dz_second
void hedgehog_vjp(const double* p, std::int64_t width, const double* dp, double* dx) {
  double p_dp = 0;
  for (std::int64_t i = 0; i < 2 * width; ++i) p_dp += p[i] * dp[i];
  for (std::int64_t i = 0; i < width; ++i) {
    const double first = p[i] * (dp[i] - p_dp);
    const double second = p[width + i] * (dp[width + i] - p_dp);
    dx[i] = 2 * first - 2 * second;
  }
}

// z = [relu(x), -relu(x)]
void dpfp_pair(const double* x, std::int64_t width, double* z) {
  for (std::int64_t i = 0; i < width; ++i) {
    z[i] = x[i] > 0 ? x[i] : 0.0;
    z[width + i] = -z[i];
  }
}

// The element of z that roll j brings to place i.
std::int64_t rolled(std::int64_t i, std::int64_t j, std::int64_t width) {
  return (i - j + kRolls * width) % width;
}

}  // namespace

void ReferenceBackend::feature_map(Context& context, const Tensor& x_, FeatureMap map,
                                   const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), y(context, y_, Wide::Use::write);
  const std::int64_t width = x_.dim(-1);
  const Tensor pair = context.empty({2 * width}, Dtype::f64);
  if (context.planning()) return;
  const std::int64_t rows = x_.count() / width;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* from = x.data() + row * width;
    if (map == FeatureMap::hedgehog) {
      hedgehog(from, width, y.data() + row * 2 * width);
      continue;
    }
    double* z = pair.data<double>();
    dpfp_pair(from, width, z);
    for (std::int64_t j = 1; j <= kRolls; ++j) {
      double* to = y.data() + (row * kRolls + j - 1) * 2 * width;
      for (std::int64_t i = 0; i < 2 * width; ++i) to[i] = z[i] * z[rolled(i, j, 2 * width)];
    }
  }
  y.store();
}

void ReferenceBackend::feature_map_vjp(Context& context, const Tensor& x_, FeatureMap map,
                                       const Tensor& dy_, const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), dy(context, dy_), dx(context, dx_, Wide::Use::write);
  const std::int64_t width = x_.dim(-1);
  const Tensor z_ = context.empty({2 * width}, Dtype::f64);
  const Tensor dz_ = context.empty({2 * width}, Dtype::f64);
  if (context.planning()) return;
  double* z = z_.data<double>();
  double* dz = dz_.data<double>();
  const std::int64_t rows = x_.count() / width;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* from = x.data() + row * width;
    double* to = dx.data() + row * width;
    if (map == FeatureMap::hedgehog) {
      hedgehog(from, width, z);
      hedgehog_vjp(z, width, dy.data() + row * 2 * width, to);
      continue;
    }
    dpfp_pair(from, width, z);
    std::fill_n(dz, 2 * width, 0.0);
    for (std::int64_t j = 1; j <= kRolls; ++j) {
      const double* d = dy.data() + (row * kRolls + j - 1) * 2 * width;
      for (std::int64_t i = 0; i < 2 * width; ++i) {
        const std::int64_t other = rolled(i, j, 2 * width);
        dz[i] += d[i] * z[other];
        dz[other] += d[i] * z[i];
      }
    }
    for (std::int64_t i = 0; i < width; ++i) to[i] = from[i] > 0 ? dz[i] - dz[width + i] : 0.0;
  }
  dx.store();
}

}  // namespace rankone::nn
