#include "nn/cpu/elementwise_kernels.hpp"
#include "nn/cpu/isa/lanes.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

float root(float x) { return __builtin_sqrtf(x); }

// ---- RmsNorm: formulas in nn/reference/norms.cpp --------------------------------------------

// Activation::none stands for no gate.
template <Activation kind, bool gate_first>
void rms_norm_as(const RmsRows& rows, std::int64_t begin, std::int64_t end, float* y) {
  constexpr bool gated = kind != Activation::none;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = rows.x + row * rows.width;
    const float* weight = rows.weight + row % rows.pieces * rows.width;
    const float* gate = gated ? rows.gate + row * rows.width : nullptr;
    float* to = y + row * rows.width;
    const float* z = x;
    if constexpr (gate_first) {
      for_lanes(rows.width, [&](std::int64_t i, int n) {
        put(to + i, get(x + i, n) * activation<kind>(get(gate + i, n)), n);
      });
      z = to;
    }
    const float mean = dot(rows.width, z, z) / static_cast<float>(rows.width);
    const Vec r = splat(1.0F / root(mean + rows.eps));
    for_lanes(rows.width, [&](std::int64_t i, int n) {
      Vec value = get(z + i, n) * r * get(weight + i, n);
      if constexpr (gated && !gate_first) value *= activation<kind>(get(gate + i, n));
      put(to + i, value, n);
    });
  }
}

void rms_norm(const RmsRows& rows, std::int64_t begin, std::int64_t end, float* y) {
  const bool silu = rows.activation == Activation::silu;
  if (rows.gate == nullptr) {
    rms_norm_as<Activation::none, false>(rows, begin, end, y);
  } else if (rows.gate_first) {
    (silu ? rms_norm_as<Activation::silu, true>
          : rms_norm_as<Activation::sigmoid, true>)(rows, begin, end, y);
  } else {
    (silu ? rms_norm_as<Activation::silu, false>
          : rms_norm_as<Activation::sigmoid, false>)(rows, begin, end, y);
  }
}

// s = sigmoid(gate) of the first pass is kept for the second, in scratch; so is z.
template <Activation kind, bool gate_first>
void rms_norm_vjp_as(const RmsRows& rows, std::int64_t begin, std::int64_t end, const float* dy,
                     const RmsRowGrads& grads, float* scratch) {
  constexpr bool gated = kind != Activation::none;
  constexpr bool silu = kind == Activation::silu;
  const Vec one = splat(1.0F);
  const std::int64_t width = rows.width;
  float* kept_s = scratch;
  float* kept_z = scratch + width;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * width;
    const std::int64_t weight_at = row % rows.pieces * width;
    const float* x = rows.x + at;
    const float* weight = rows.weight + weight_at;
    const float* gate = gated ? rows.gate + at : nullptr;
    const float* d = dy + at;
    Vec squares{};
    Vec cz_sum{};
    for_lanes(width, [&](std::int64_t i, int n) {
      Vec z = get(x + i, n);
      Vec c = get(d + i, n) * get(weight + i, n);
      if constexpr (gated) {
        const Vec g = get(gate + i, n);
        const Vec s = vsigmoid(g);
        put(kept_s + i, s, n);
        (gate_first ? z : c) *= silu ? g * s : s;
      }
      put(kept_z + i, z, n);
      squares += z * z;
      cz_sum += c * z;
    });
    const float r = 1.0F / root(sum(squares) / static_cast<float>(width) + rows.eps);
    const Vec vr = splat(r);
    const Vec mean_cn = splat(sum(cz_sum) * r / static_cast<float>(width));
    for_lanes(width, [&](std::int64_t i, int n) {
      const Vec w = get(weight + i, n);
      const Vec normed = get(kept_z + i, n) * vr;
      Vec s = one;
      Vec g = one;
      Vec a = one;
      if constexpr (gated) {
        s = get(kept_s + i, n);
        g = get(gate + i, n);
        a = silu ? g * s : s;
      }
      const Vec dv = get(d + i, n);
      const Vec dv_after = gate_first ? dv : dv * a;
      const Vec dz = vr * (dv_after * w - normed * mean_cn);
      if (grads.x != nullptr) put(grads.x + at + i, gate_first ? dz * a : dz, n);
      if (grads.weight != nullptr) {
        float* dw = grads.weight + weight_at + i;
        put(dw, get(dw, n) + dv_after * normed, n);
      }
      if constexpr (gated) {
        if (grads.gate != nullptr) {
          const Vec slope = silu ? s * (one + g * (one - s)) : s * (one - s);
          const Vec da = gate_first ? dz * get(x + i, n) : dv * normed * w;
          put(grads.gate + at + i, da * slope, n);
        }
      }
    });
  }
}

void rms_norm_vjp(const RmsRows& rows, std::int64_t begin, std::int64_t end, const float* dy,
                  const RmsRowGrads& grads, float* scratch) {
  const bool silu = rows.activation == Activation::silu;
  if (rows.gate == nullptr) {
    rms_norm_vjp_as<Activation::none, false>(rows, begin, end, dy, grads, scratch);
  } else if (rows.gate_first) {
    (silu ? rms_norm_vjp_as<Activation::silu, true>
          : rms_norm_vjp_as<Activation::sigmoid, true>)(rows, begin, end, dy, grads, scratch);
  } else {
    (silu ? rms_norm_vjp_as<Activation::silu, false>
          : rms_norm_vjp_as<Activation::sigmoid, false>)(rows, begin, end, dy, grads, scratch);
  }
}

// ---- VectorNorm -----------------------------------------------------------------------------

// y = x * inverse; constant: inverse does not depend on x.
struct Inverse {
  float value;
  bool constant;
};

Inverse inverse_of(VectorNormForm form, float eps, std::int64_t width, const float* x) {
  if (form == VectorNormForm::sum) {
    Vec total{};
    for_lanes(width, [&](std::int64_t i, int n) { total += get(x + i, n); });
    return {1.0F / (sum(total) + eps), false};
  }
  const float squares = dot(width, x, x);
  if (form == VectorNormForm::rsqrt) return {1.0F / root(squares + eps), false};
  const float length = root(squares);
  return length > eps ? Inverse{1.0F / length, false} : Inverse{1.0F / eps, true};
}

void vector_norm(VectorNormForm form, float eps, std::int64_t rows, std::int64_t width,
                 const float* x, float* y) {
  for (std::int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Vec inverse = splat(inverse_of(form, eps, width, x).value);
    for_lanes(width, [&](std::int64_t i, int n) { put(y + i, get(x + i, n) * inverse, n); });
  }
}

// dx = m (dy - (y . dy) slope), m the inverse; slope = x m, or 1 for the sum.
void vector_norm_vjp(VectorNormForm form, float eps, std::int64_t rows, std::int64_t width,
                     const float* x, const float* dy, float* dx) {
  for (std::int64_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
    const Inverse inverse = inverse_of(form, eps, width, x);
    const float y_dy = inverse.constant ? 0.0F : dot(width, x, dy) * inverse.value;
    const Vec m = splat(inverse.value);
    const bool sums = form == VectorNormForm::sum;
    const Vec constant = splat(sums ? y_dy : 0.0F);
    const Vec factor = splat(sums ? 0.0F : y_dy * inverse.value);
    for_lanes(width, [&](std::int64_t i, int n) {
      put(dx + i, m * (get(dy + i, n) - constant - factor * get(x + i, n)), n);
    });
  }
}

}  // namespace

extern const NormKernels kNormKernels;
const NormKernels kNormKernels = {
    rms_norm,
    rms_norm_vjp,
    vector_norm,
    vector_norm_vjp,
};

}  // namespace rankone::nn::RANKONE_ISA
