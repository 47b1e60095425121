#include "nn/cpu/elementwise_kernels.hpp"
#include "nn/cpu/isa/lanes.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

// p = softmax([2 x, -2 x])
void hedgehog_row(std::int64_t width, const float* x, float* p) {
  const Vec two = splat(2.0F);
  Vec largest{};  // of |2 x|, which one of the signs reaches
  for_lanes(width, [&](std::int64_t i, int n) {
    const Vec z = get(x + i, n) * two;
    largest = vmax(largest, vmax(z, -z));
  });
  float shift = 0;
  for (int lane = 0; lane < kLanes; ++lane) shift = largest[lane] > shift ? largest[lane] : shift;
  Vec total{};
  for_lanes(width, [&](std::int64_t i, int n) {
    const Vec z = get(x + i, n) * two;
    const Vec up = vexp(z - splat(shift));
    const Vec down = vexp(-z - splat(shift));
    put(p + i, up, n);
    put(p + width + i, down, n);
    // The lanes behind n hold e^-shift of no element.
    total += n == kLanes ? up + down : get(p + i, n) + get(p + width + i, n);
  });
  const Vec inverse = splat(1.0F / sum(total));
  for_lanes(2 * width, [&](std::int64_t i, int n) { put(p + i, get(p + i, n) * inverse, n); });
}

void hedgehog(std::int64_t rows, std::int64_t width, const float* x, float* y) {
  for (std::int64_t row = 0; row < rows; ++row) {
    hedgehog_row(width, x + row * width, y + row * 2 * width);
  }
}

// dz = p (dp - p . dp);  dx = 2 dz_first - 2 dz_second
void hedgehog_vjp(std::int64_t rows, std::int64_t width, const float* x, const float* dy, float* dx,
                  float* scratch) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* dp = dy + row * 2 * width;
    float* to = dx + row * width;
    const float* p = scratch;
    hedgehog_row(width, x + row * width, scratch);
    const Vec p_dp = splat(dot(2 * width, p, dp));
    for_lanes(width, [&](std::int64_t i, int n) {
      const Vec first = get(p + i, n) * (get(dp + i, n) - p_dp);
      const Vec second = get(p + width + i, n) * (get(dp + width + i, n) - p_dp);
      put(to + i, splat(2.0F) * (first - second), n);
    });
  }
}

// z = [relu(x), -relu(x)] with its last kDpfpRolls elements once more in front, so that roll j of z
// is the piece that starts j earlier. z points at the first of the 2 * width elements.
void dpfp_pair(std::int64_t width, const float* x, float* z) {
  for_lanes(width, [&](std::int64_t i, int n) {
    const Vec positive = activation<Activation::relu>(get(x + i, n));
    put(z + i, positive, n);
    put(z + width + i, -positive, n);
  });
  for (int j = 1; j <= kDpfpRolls; ++j) z[-j] = z[(2 * kDpfpRolls * width - j) % (2 * width)];
}

void dpfp(std::int64_t rows, std::int64_t width, const float* x, float* y, float* scratch) {
  float* z = scratch + kDpfpRolls;
  for (std::int64_t row = 0; row < rows; ++row) {
    dpfp_pair(width, x + row * width, z);
    for (int j = 1; j <= kDpfpRolls; ++j, y += 2 * width) {
      for_lanes(2 * width,
                [&](std::int64_t i, int n) { put(y + i, get(z + i, n) * get(z + i - j, n), n); });
    }
  }
}

// y_j[i] = z[i] z[i - j]:  dz[i] += dy_j[i] z[i - j] and dz[i - j] += dy_j[i] z[i].
void dpfp_vjp(std::int64_t rows, std::int64_t width, const float* x, const float* dy, float* dx,
              float* scratch) {
  const std::int64_t pair = 2 * width;
  float* z = scratch + kDpfpRolls;
  float* dz = z + pair + kDpfpRolls;
  for (std::int64_t row = 0; row < rows; ++row, x += width, dx += width) {
    dpfp_pair(width, x, z);
    for (std::int64_t i = -kDpfpRolls; i < pair; ++i) dz[i] = 0;
    for (int j = 1; j <= kDpfpRolls; ++j, dy += pair) {
      for_lanes(pair, [&](std::int64_t i, int n) {
        const Vec d = get(dy + i, n);
        put(dz + i, get(dz + i, n) + d * get(z + i - j, n), n);
      });
      for_lanes(pair, [&](std::int64_t i, int n) {
        put(dz + i - j, get(dz + i - j, n) + get(dy + i, n) * get(z + i, n), n);
      });
    }
    for (int j = 1; j <= kDpfpRolls; ++j) dz[(2 * kDpfpRolls * width - j) % pair] += dz[-j];
    for_lanes(width, [&](std::int64_t i, int n) {
      const Vec slope = activation_slope<Activation::relu>(get(x + i, n));
      put(dx + i, slope * (get(dz + i, n) - get(dz + width + i, n)), n);
    });
  }
}

}  // namespace

extern const FeatureKernels kFeatureKernels;
const FeatureKernels kFeatureKernels = {hedgehog, hedgehog_vjp, dpfp, dpfp_vjp};

}  // namespace rankone::nn::RANKONE_ISA
