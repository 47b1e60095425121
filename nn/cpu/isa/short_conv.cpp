#include "nn/cpu/elementwise_kernels.hpp"
#include "nn/cpu/isa/lanes.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

// The order of the sum is that of the taps, so a row has the same bits wherever it was cut from.
template <int window>
inline Vec tap_sum(const ConvRow& row, std::int64_t i, int n) {
  Vec total = row.start != nullptr ? get(row.start + i, n) : Vec{};
  for (int j = 0; j < window; ++j) {
    total += get(row.weight + j * row.channels + i, n) * get(row.taps[j] + i, n);
  }
  return total;
}

template <int window>
void forward_as(const ConvRow& row, bool silu, float* y) {
  for_lanes(row.channels, [&](std::int64_t i, int n) {
    const Vec total = tap_sum<window>(row, i, n);
    put(y + i, silu ? activation<Activation::silu>(total) : total, n);
  });
}

template <int window>
void slope_as(const ConvRow& row, bool silu, const float* dy, float* da) {
  for_lanes(row.channels, [&](std::int64_t i, int n) {
    Vec d = get(dy + i, n);
    if (silu) d *= activation_slope<Activation::silu>(tap_sum<window>(row, i, n));
    put(da + i, d, n);
  });
}

void forward(const ConvRow& row, bool silu, float* y) {
  using Kernel = void (*)(const ConvRow&, bool, float*);
  static constexpr Kernel kernels[kMaxWindow] = {forward_as<1>, forward_as<2>, forward_as<3>,
                                                 forward_as<4>, forward_as<5>, forward_as<6>,
                                                 forward_as<7>, forward_as<8>};
  kernels[row.window - 1](row, silu, y);
}

void slope(const ConvRow& row, bool silu, const float* dy, float* da) {
  using Kernel = void (*)(const ConvRow&, bool, const float*, float*);
  static constexpr Kernel kernels[kMaxWindow] = {slope_as<1>, slope_as<2>, slope_as<3>,
                                                 slope_as<4>, slope_as<5>, slope_as<6>,
                                                 slope_as<7>, slope_as<8>};
  kernels[row.window - 1](row, silu, dy, da);
}

void parameters(const ConvRow& row, const float* da, float* dweight, float* dbias) {
  for_lanes(row.channels, [&](std::int64_t i, int n) {
    const Vec d = get(da + i, n);
    for (int j = 0; j < row.window; ++j) {
      float* to = dweight + j * row.channels + i;
      put(to, get(to, n) + d * get(row.taps[j] + i, n), n);
    }
    put(dbias + i, get(dbias + i, n) + d, n);
  });
}

}  // namespace

extern const ConvKernels kConvKernels;
const ConvKernels kConvKernels = {forward, slope, parameters};

}  // namespace rankone::nn::RANKONE_ISA
