#include "operator_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace rankone::nn::test {
namespace {

constexpr std::int64_t kGuard = 64;  // elements on each side
constexpr unsigned char kPattern = 0xA5;

Tensors cotangents(const OperatorCase& op, Dtype dtype) {
  Random random(7, 1);
  Tensors result;
  for (const Shape& shape : op.outputs) result.push_back(normals(random, shape).to(dtype));
  return result;
}

Tensors converted(const Tensors& tensors, Dtype dtype) {
  Tensors result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.to(dtype));
  return result;
}

Tensors views(const std::vector<Guarded>& guarded) {
  Tensors result;
  for (const Guarded& one : guarded) result.push_back(one.tensor());
  return result;
}

Tensor halved(const Tensor& tensor) {
  const Tensor result = tensor.to(Dtype::f64);
  for (double& value : result.span<double>()) value /= 2;
  return result;
}

}  // namespace

Tensor normals(Random& random, const Shape& shape, double deviation) {
  const Tensor result = Tensor::empty(shape, Dtype::f64);
  for (double& value : result.span<double>()) {
    value = static_cast<double>(static_cast<float>(random.normal() * deviation));
  }
  return result;
}

Guarded::Guarded(const Shape& shape, Dtype dtype)
    : memory_(Tensor::empty({shape.count() + 2 * kGuard}, dtype)),
      tensor_(memory_.slice(0, kGuard, kGuard + shape.count()).reshape(shape)) {
  std::memset(memory_.raw(), kPattern, memory_.bytes());
}

bool Guarded::overrun() const {
  const auto* bytes = static_cast<const unsigned char*>(memory_.raw());
  const std::size_t guard = kGuard * size_of(memory_.dtype());
  for (std::size_t i = 0; i < guard; ++i) {
    if (bytes[i] != kPattern || bytes[memory_.bytes() - 1 - i] != kPattern) return true;
  }
  return false;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

Difference difference(const Tensor& a, const Tensor& b, double floor) {
  if (a.count() == 0) return {};
  const Tensor wide_a = a.to(Dtype::f64);
  const Tensor wide_b = b.to(Dtype::f64);
  const auto mean_square = [&](auto&& at) {
    double total = 0;
    for (std::int64_t i = 0; i < a.count(); ++i) total += at(i) * at(i);
    return total / static_cast<double>(a.count());
  };
  const double* right = wide_b.data<double>();
  const auto error = [&](std::int64_t i) { return std::abs(wide_a.data<double>()[i] - right[i]); };
  double scale = std::max(std::sqrt(mean_square([&](auto i) { return right[i]; })), floor);
  if (scale == 0) scale = 1;
  Difference result{std::sqrt(mean_square(error)) / scale, 0};
  for (std::int64_t i = 0; i < a.count(); ++i) {
    const double relative = error(i) / std::max(scale, std::abs(right[i]));
    if (!(relative <= result.largest)) result.largest = relative;  // a NaN wins
  }
  return result;
}

Results run(Context& context, const OperatorCase& op, Dtype dtype) {
  const Tensors inputs = converted(op.inputs, dtype);
  const Tensors before = converted(inputs, dtype);
  const Tensors dout = cotangents(op, dtype);
  std::vector<Guarded> outputs;
  for (const Shape& shape : op.outputs) outputs.emplace_back(shape, dtype);
  std::vector<Guarded> gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    gradients.emplace_back(inputs[i].shape(), dtype);
    if (op.parameters[i]) gradients.back().tensor().fill(0);
  }
  op.forward(context, inputs, views(outputs));
  op.vjp(context, inputs, dout, views(gradients));
  const Tensors once = converted(views(gradients), dtype);
  op.vjp(context, inputs, dout, views(gradients));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(same_bits(inputs[i], before[i])) << op.name << ": input " << i << " was changed";
    EXPECT_FALSE(gradients[i].overrun()) << op.name << ": gradient " << i;
    const Tensor& twice = gradients[i].tensor();
    if (op.parameters[i]) {
      EXPECT_LE(difference(halved(twice), once[i]).largest, 1e-6)
          << op.name << ": gradient " << i << " does not accumulate";
    } else {
      EXPECT_TRUE(same_bits(twice, once[i])) << op.name << ": gradient " << i;
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_FALSE(outputs[i].overrun()) << op.name << ": output " << i;
  }
  return {views(outputs), once};
}

namespace {

// sum of the outputs times their cotangents
double objective(Context& context, const OperatorCase& op, const Tensors& inputs,
                 const Tensors& dout) {
  Tensors outputs;
  for (const Shape& shape : op.outputs) outputs.push_back(Tensor::empty(shape, Dtype::f64));
  op.forward(context, inputs, outputs);
  double total = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::int64_t j = 0; j < outputs[i].count(); ++j) {
      total += outputs[i].data<double>()[j] * dout[i].data<double>()[j];
    }
  }
  return total;
}

}  // namespace

void expect_gradients_match_differences(const OperatorCase& op) {
  SCOPED_TRACE(op.name);
  constexpr double kStep = 1e-5;
  Context context = reference_context();
  const Results results = run(context, op, Dtype::f64);
  const Tensors dout = cotangents(op, Dtype::f64);
  const Tensors inputs = converted(op.inputs, Dtype::f64);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::int64_t j = 0; j < inputs[i].count(); ++j) {
      double& element = inputs[i].data<double>()[j];
      const double value = element;
      element = value + kStep;
      const double above = objective(context, op, inputs, dout);
      element = value - kStep;
      const double below = objective(context, op, inputs, dout);
      element = value;
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(results.gradients[i].data<double>()[j], expected, 1e-7 * (1 + std::abs(expected)))
          << "input " << i << ", element " << j;
    }
  }
}

void expect_cpu_matches_reference(const OperatorCase& op) {
  SCOPED_TRACE(op.name);
  Context reference = reference_context();
  Context cpu = cpu_context();
  const Results right = run(reference, op, Dtype::f64);
  const Results got = run(cpu, op, Dtype::f32);
  // Eight float32 roundings in the mean, and the spread of single elements around that.
  constexpr double kRms = 8 * 0x1p-24;
  constexpr double kLargest = 40 * 0x1p-24;
  const auto compare = [&](const Tensors& a, const Tensors& b, double floor, const char* what) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Difference error = difference(a[i], b[i], floor);
      EXPECT_LE(error.rms, kRms) << what << ' ' << i;
      EXPECT_LE(error.largest, kLargest) << what << ' ' << i;
    }
  };
  compare(got.outputs, right.outputs, 0, "output");
  compare(got.gradients, right.gradients, op.cancelling_terms, "gradient");
}

void expect_same_bits_for_any_thread_count(const OperatorCase& op) {
  SCOPED_TRACE(op.name);
  Context one = cpu_context(1);
  const Results first = run(one, op, Dtype::f32);
  for (const int threads : {2, 5}) {
    Context context = cpu_context(threads);
    const Results other = run(context, op, Dtype::f32);
    for (std::size_t i = 0; i < first.outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(first.outputs[i], other.outputs[i])) << threads << " threads";
    }
    for (std::size_t i = 0; i < first.gradients.size(); ++i) {
      EXPECT_TRUE(same_bits(first.gradients[i], other.gradients[i])) << threads << " threads";
    }
  }
}

void expect_plan_is_what_a_run_uses(const OperatorCase& op) {
  SCOPED_TRACE(op.name);
  for (const bool reference : {true, false}) {
    Context context = reference ? reference_context() : cpu_context();
    const auto shapes_only = [&](const Tensors& tensors) {
      Tensors result;
      for (const Tensor& t : tensors) {
        result.push_back(Tensor::view(nullptr, t.shape(), Dtype::f32));
      }
      return result;
    };
    const Tensors dout = cotangents(op, Dtype::f32);
    context.arena().set_planning(true);
    op.forward(context, shapes_only(op.inputs), shapes_only(dout));
    op.vjp(context, shapes_only(op.inputs), shapes_only(dout), shapes_only(op.inputs));
    const std::size_t peak = context.arena().peak();
    context.arena().set_planning(false);
    context.arena().reserve(peak);
    run(context, op, Dtype::f32);
    EXPECT_EQ(context.arena().peak(), peak);
  }
}

}  // namespace rankone::nn::test
