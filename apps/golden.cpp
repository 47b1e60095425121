#include "apps/golden.hpp"

#include <algorithm>
#include <cmath>

#include "core/isa.hpp"
#include "core/status.hpp"

namespace rankone::apps {
namespace {

double rms(const double* values, std::int64_t count, std::int64_t stride = 1) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i * stride] * values[i * stride];
  return count > 0 ? std::sqrt(sum / static_cast<double>(count)) : 0.0;
}

// The error in units of the bound. An error of zero passes a bound of zero.
double ratio(double error, double bound) {
  if (error == 0.0) return 0.0;
  return bound > 0.0 ? error / bound : INFINITY;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Worst {
  double ratio = 0.0;
  std::string where;

  void take(double value, std::string_view rule, std::int64_t index, double error) {
    if (value <= ratio) return;
    ratio = value;
    where = fmt::format("{} {}: RMS error {:.2e}", rule, index, error);
  }
};

void check_rows(Worst& worst, const double* expected, const double* error, std::int64_t rows,
                std::int64_t width, double bound) {
  std::vector<double> sizes;
  for (std::int64_t i = 0; i < rows; ++i) sizes.push_back(rms(expected + i * width, width));
  const double typical = 0.01 * median(sizes);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double e = rms(error + i * width, width);
    worst.take(ratio(e, bound * (sizes[static_cast<std::size_t>(i)] + typical)), "row", i, e);
  }
}

// [B, T, H]: over the steps of each (batch, head).
void check_scalars(Worst& worst, const double* expected, const double* error, const Shape& shape,
                   double bound) {
  const std::int64_t batch = shape[0], time = shape[1], heads = shape[2];
  for (std::int64_t i = 0; i < batch * heads; ++i) {
    const std::int64_t at = i / heads * time * heads + i % heads;
    const double e = rms(error + at, time, heads);
    worst.take(ratio(e, bound * rms(expected + at, time, heads)), "batch and head", i, e);
  }
}

}  // namespace

bool all_passed(const std::vector<TensorCheck>& checks) {
  return !checks.empty() &&
         std::all_of(checks.begin(), checks.end(), [](const TensorCheck& c) { return c.passed; });
}

GoldenBounds golden_bounds(Dtype dtype) {
  if (dtype == Dtype::f64) return {1e-12, 0.0, 1e-11, 1e-11, 1e-11};
  if (dtype == Dtype::f32) return {2e-5, 1e-7, 2e-5, 5e-5, 2e-5};
  fail(Status::unsupported, "[golden] no backend of this build computes in {} (f32)", name(dtype));
}

GoldenBounds golden_bounds(Dtype dtype, const Context& context, bool channel_decay) {
  const Precision precision = context.precision();
  const bool wanted =
      precision != Precision::f32 && !(precision == Precision::automatic && channel_decay);
  const bool parts = dtype == Dtype::f32 && context.backends().front() == "cpu" && wanted &&
                     tile_unit() != TileUnit::none;
  if (parts) return {4e-5, 1e-7, 4e-4, 4e-4, 1e-4};
  return golden_bounds(dtype);
}

TensorCheck compare_golden(std::string name, const Tensor& expected, const Tensor& got,
                           GoldenRows rows, const GoldenBounds& bounds) {
  TensorCheck check;
  check.name = std::move(name);
  check.error = INFINITY;
  if (!got.defined() || got.shape() != expected.shape()) {
    check.detail = got.defined() ? fmt::format("shape {} where {} is expected", got.shape().str(),
                                               expected.shape().str())
                                 : "missing";
    return check;
  }
  const Tensor want = expected.to(Dtype::f64), have = got.to(Dtype::f64);
  const std::int64_t count = want.count();
  const double* a = want.data<double>();
  const double* b = have.data<double>();
  std::vector<double> error(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(b[i])) {
      check.detail = fmt::format("element {} is {}", i, b[i]);
      return check;
    }
    error[static_cast<std::size_t>(i)] = b[i] - a[i];
  }
  Worst worst;
  const double whole = rms(error.data(), count);
  worst.take(ratio(whole, bounds.tensor * rms(a, count) + bounds.floor), "tensor", 0, whole);
  const std::int64_t width = want.rank() > 0 && count > 0 ? want.dim(-1) : 1;
  if (rows == GoldenRows::scalars && want.rank() == 3) {
    check_scalars(worst, a, error.data(), want.shape(), bounds.scalar);
  } else if (rows != GoldenRows::parameter) {
    const double bound = rows == GoldenRows::channel_gate ? bounds.gate_row : bounds.row;
    check_rows(worst, a, error.data(), count / width, width, bound);
  }
  check.error = worst.ratio;
  check.passed = worst.ratio <= 1.0;
  if (!check.passed) check.detail = worst.where;
  return check;
}

GoldenChecks& golden_checks() {
  static GoldenChecks checks;
  return checks;
}

}  // namespace rankone::apps
