#include "nn/cpu/elementwise_kernels.hpp"
#include "nn/cpu/isa/lanes.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

template <Activation kind>
void activate(std::int64_t count, const float* x, float* y) {
  for_lanes(count, [&](std::int64_t i, int n) { put(y + i, activation<kind>(get(x + i, n)), n); });
}

template <Activation kind>
void activate_vjp(std::int64_t count, const float* x, const float* dy, float* dx) {
  for_lanes(count, [&](std::int64_t i, int n) {
    put(dx + i, get(dy + i, n) * activation_slope<kind>(get(x + i, n)), n);
  });
}

void swiglu(std::int64_t count, const float* gate, const float* up, float* y) {
  for_lanes(count, [&](std::int64_t i, int n) {
    put(y + i, activation<Activation::silu>(get(gate + i, n)) * get(up + i, n), n);
  });
}

void swiglu_vjp(std::int64_t count, const float* gate, const float* up, const float* dy,
                float* dgate, float* dup) {
  for_lanes(count, [&](std::int64_t i, int n) {
    const Vec one = splat(1.0F);
    const Vec g = get(gate + i, n);
    const Vec d = get(dy + i, n);
    const Vec s = vsigmoid(g);
    if (dgate != nullptr) put(dgate + i, d * get(up + i, n) * (s * (one + g * (one - s))), n);
    if (dup != nullptr) put(dup + i, d * (g * s), n);
  });
}

void multiply(std::int64_t count, const float* a, const float* b, float* y) {
  for_lanes(count, [&](std::int64_t i, int n) { put(y + i, get(a + i, n) * get(b + i, n), n); });
}

void add(std::int64_t count, const float* a, const float* b, float* y) {
  for_lanes(count, [&](std::int64_t i, int n) { put(y + i, get(a + i, n) + get(b + i, n), n); });
}

void scale(std::int64_t count, const float* a, float factor, float* y) {
  for_lanes(count, [&](std::int64_t i, int n) { put(y + i, get(a + i, n) * splat(factor), n); });
}

void multiply_add(std::int64_t count, const float* a, const float* b, const float* c, float* y) {
  for_lanes(count, [&](std::int64_t i, int n) {
    put(y + i, get(c + i, n) + get(a + i, n) * get(b + i, n), n);
  });
}

}  // namespace

// In the order of Activation.
extern const MapKernels kMapKernels;
const MapKernels kMapKernels = {
    {activate<Activation::none>, activate<Activation::silu>, activate<Activation::sigmoid>,
     activate<Activation::relu>, activate<Activation::elu1>},
    {activate_vjp<Activation::none>, activate_vjp<Activation::silu>,
     activate_vjp<Activation::sigmoid>, activate_vjp<Activation::relu>,
     activate_vjp<Activation::elu1>},
    swiglu,
    swiglu_vjp,
    multiply,
    add,
    scale,
    multiply_add,
};

}  // namespace rankone::nn::RANKONE_ISA
