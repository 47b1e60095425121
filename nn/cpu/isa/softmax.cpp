// Softmax over rows. Sums run in kLanes partial sums from the start of a row, so that lanes which
// hold e^-infinity = 0 change no bits.

#include "nn/cpu/isa/softmax_kernels.hpp"

#include "core/simd.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

// NOLINTNEXTLINE(google-build-using-namespace): the vocabulary of this instruction set
using namespace rankone::RANKONE_ISA;

constexpr float kInfinity = __builtin_inff();

int lanes(std::int64_t left) { return left < kLanes ? static_cast<int>(left) : kLanes; }

// `filler` in the lanes behind the end.
Vec load_row(const float* from, int count, float filler) {
  if (count == kLanes) return load(from);
  Vec value = splat(filler);
  for (int i = 0; i < count; ++i) value[i] = from[i];
  return value;
}

void store_row(float* to, Vec value, int count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    store_part(to, value, count);
  }
}

float maximum(const float* x, std::int64_t count) {
  Vec largest = splat(0.0F) - splat(kInfinity);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    largest = vmax(load_row(x + i, lanes(count - i), -kInfinity), largest);
  }
  float result = largest[0];
  for (int i = 1; i < kLanes; ++i) result = largest[i] > result ? largest[i] : result;
  return result;
}

float exp_sum(const float* x, std::int64_t count, float shift, float* terms) {
  Vec total{};
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const int width = lanes(count - i);
    const Vec term = vexp(load_row(x + i, width, -kInfinity) - splat(shift));
    total += term;
    if (terms != nullptr) store_row(terms + i, term, width);
  }
  return sum(total);
}

float dot(const float* a, const float* b, std::int64_t count) {
  Vec total{};
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const int width = lanes(count - i);
    total += load_row(a + i, width, 0.0F) * load_row(b + i, width, 0.0F);
  }
  return sum(total);
}

void scale(float* x, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void mask(float* x, std::int64_t count, float factor, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = 0; i < begin; ++i) x[i] = -kInfinity;
  for (std::int64_t i = begin; i < end; ++i) x[i] *= factor;
  for (std::int64_t i = end; i < count; ++i) x[i] = -kInfinity;
}

void gradient(float* scores, float* dp, std::int64_t count, float log_sum, float mean,
              float factor) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const int width = lanes(count - i);
    const Vec p = vexp(load_row(scores + i, width, -kInfinity) - splat(log_sum));
    const Vec d = load_row(dp + i, width, 0.0F);
    store_row(scores + i, p, width);
    store_row(dp + i, splat(factor) * p * (d - splat(mean)), width);
  }
}

}  // namespace

extern const SoftmaxKernels kSoftmaxKernels;
const SoftmaxKernels kSoftmaxKernels = {maximum, exp_sum, dot, scale, mask, gradient};

}  // namespace rankone::nn::RANKONE_ISA
