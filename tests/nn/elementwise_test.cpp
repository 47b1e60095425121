// The element-wise operators: every vjp against finite differences, the CPU backend against the
// reference, and what holds for each of them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "core/isa.hpp"
#include "core/status.hpp"
#include "elementwise_cases.hpp"
#include "nn/backend.hpp"
#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {
namespace {

using test::Size;
using test::Tensors;

TEST(Elementwise, GradientsMatchFiniteDifferences) {
  for (const auto& op : test::all_cases(Size::small)) test::expect_gradients_match_differences(op);
}

TEST(ElementwiseCpu, MatchesReference) {
  for (const Size size : {Size::small, Size::large}) {
    for (const auto& op : test::all_cases(size)) test::expect_cpu_matches_reference(op);
  }
}

TEST(ElementwiseCpu, SameBitsForAnyThreadCount) {
  for (const auto& op : test::all_cases(Size::large)) {
    test::expect_same_bits_for_any_thread_count(op);
  }
}

TEST(Elementwise, PlanIsWhatARunUses) {
  for (const auto& op : test::all_cases(Size::large)) test::expect_plan_is_what_a_run_uses(op);
}

TEST(Elementwise, NoRowsAreLegal) {
  Context cpu = test::cpu_context();
  Context reference = test::reference_context();
  Random random(1);
  for (Context* context : {&cpu, &reference}) {
    const Dtype dtype = context == &cpu ? Dtype::f32 : Dtype::f64;
    const Tensor none = Tensor::empty({0, 4}, dtype);
    const Tensor weight = test::normals(random, {4}).to(dtype);
    const Tensor dweight = Tensor::zeros({4}, dtype);
    rms_norm(*context, {.x = none, .weight = weight}, none);
    rms_norm_vjp(*context, {.x = none, .weight = weight}, none, {none, dweight, {}});
    vector_norm(*context, {.x = none}, none);
    vector_norm_vjp(*context, {.x = none}, none, none);
    activate(*context, none, Activation::silu, none);
    swiglu(*context, none, none, none);
    multiply(*context, none, none, none);
    fill(*context, none, 1.0);
    copy(*context, none, none);
    const Tensor wide = Tensor::empty({0, 32}, dtype);
    feature_map(*context, none, FeatureMap::dpfp, wide);
    feature_map_vjp(*context, none, FeatureMap::dpfp, wide, none);
    columns(*context, none, 4, Tensor::empty({0, 0}, dtype));
    columns(*context, weight.reshape({1, 4}), 4, Tensor::empty({1, 0}, dtype));
    gather_rows(*context, none, {}, none);
    const Tensor heads = Tensor::empty({0, 2, 2}, dtype);
    const Tensor skip = test::normals(random, {2}).to(dtype);
    const Tensor dskip = Tensor::zeros({2}, dtype);
    head_skip(*context, heads, heads, skip, heads);
    head_skip_vjp(*context, heads, skip, heads, heads, dskip);
    repeat_heads(*context, heads, 3, Tensor::empty({0, 6, 2}, dtype));
    repeat_heads_vjp(*context, Tensor::empty({0, 6, 2}, dtype), 3, heads);
    for (const Tensor& gradient : {dweight, dskip}) {
      for (std::int64_t i = 0; i < gradient.count(); ++i) {
        EXPECT_EQ(gradient.to(Dtype::f64).data<double>()[i], 0);
      }
    }
  }
}

TEST(Elementwise, GradientsThatAreNotWantedMayBeLeftOut) {
  Context cpu = test::cpu_context();
  Context reference = test::reference_context();
  Random random(2);
  for (Context* context : {&cpu, &reference}) {
    const Dtype dtype = context == &cpu ? Dtype::f32 : Dtype::f64;
    const auto make = [&](const Shape& shape) { return test::normals(random, shape).to(dtype); };
    const Tensor x = make({5, 6}), gate = make({5, 6}), weight = make({6}), dy = make({5, 6});
    const RmsNorm norm{.x = x, .weight = weight, .gate = gate};
    const Tensor all = make({5, 6}), one = make({5, 6});
    rms_norm_vjp(*context, norm, dy, {all, {}, make({5, 6})});
    rms_norm_vjp(*context, norm, dy, {one, {}, {}});
    EXPECT_TRUE(test::same_bits(all, one));
    rms_norm_vjp(*context, norm, dy, {make({5, 6}), {}, all});
    rms_norm_vjp(*context, norm, dy, {{}, {}, one});
    EXPECT_TRUE(test::same_bits(all, one));
    swiglu_vjp(*context, x, gate, dy, all, make({5, 6}));
    swiglu_vjp(*context, x, gate, dy, one, {});
    EXPECT_TRUE(test::same_bits(all, one));
    multiply_vjp(*context, x, gate, dy, make({5, 6}), all);
    multiply_vjp(*context, x, gate, dy, {}, one);
    EXPECT_TRUE(test::same_bits(all, one));
  }
}

TEST(Elementwise, AddAndScaleWorkInPlace) {
  Context cpu = test::cpu_context();
  Context reference = test::reference_context();
  Random random(3);
  for (Context* context : {&cpu, &reference}) {
    const Dtype dtype = context == &cpu ? Dtype::f32 : Dtype::bf16;
    const Tensor a = test::normals(random, {41, 11}).to(dtype);
    const Tensor b = test::normals(random, {41, 11}).to(dtype);
    const Tensor y = Tensor::empty({41, 11}, dtype);
    add(*context, a, b, y);
    const Tensor first = a.clone();
    add(*context, first, b, first);
    EXPECT_TRUE(test::same_bits(first, y));
    const Tensor second = b.clone();
    add(*context, a, second, second);
    EXPECT_TRUE(test::same_bits(second, y));
    scale(*context, a, -0.3, y);
    scale(*context, a, -0.3, a);
    EXPECT_TRUE(test::same_bits(a, y));
  }
}

// The reference computes in float64 whatever the dtype is, and rounds once.
TEST(ElementwiseReference, HalfPrecisionsAreRoundedOnce) {
  Context context = test::reference_context();
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    for (auto op : test::all_cases(Size::small)) {
      SCOPED_TRACE(op.name);
      Tensors narrow, out, wide_out;
      for (Tensor& input : op.inputs) {
        narrow.push_back(input.to(dtype));
        input = narrow.back().to(Dtype::f64);
      }
      for (const Shape& shape : op.outputs) {
        out.push_back(Tensor::empty(shape, dtype));
        wide_out.push_back(Tensor::empty(shape, Dtype::f64));
      }
      op.forward(context, narrow, out);
      op.forward(context, op.inputs, wide_out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        EXPECT_TRUE(test::same_bits(out[i], wide_out[i].to(dtype)));
      }
    }
  }
}

// Parameters may be stored in half precision for inference.
TEST(ElementwiseCpu, WidensHalfPrecisionParameters) {
  Context context = test::cpu_context();
  Random random(4);
  const Tensor x = test::normals(random, {9, 20}).to(Dtype::f32);
  const Tensor weight = test::normals(random, {20}).to(Dtype::bf16);
  const Tensor taps = test::normals(random, {20, 4}).to(Dtype::f16);
  const Tensor y = Tensor::empty({9, 20}, Dtype::f32);
  const Tensor z = Tensor::empty({9, 20}, Dtype::f32);
  rms_norm(context, {.x = x, .weight = weight}, y);
  rms_norm(context, {.x = x, .weight = weight.to(Dtype::f32)}, z);
  EXPECT_TRUE(test::same_bits(y, z));
  const Sequences sequences = Sequences::dense(1, 9);
  short_conv(context, sequences, {.x = x, .weight = taps, .bias = weight}, {y, {}});
  short_conv(context, sequences,
             {.x = x, .weight = taps.to(Dtype::f32), .bias = weight.to(Dtype::f32)}, {z, {}});
  EXPECT_TRUE(test::same_bits(y, z));
}

TEST(Elementwise, GatherTakesRowsInTheirOrder) {
  Context cpu = test::cpu_context();
  Context reference = test::reference_context();
  Random random(5);
  for (Context* context : {&cpu, &reference}) {
    const Tensor x = test::normals(random, {6, 3}).to(Dtype::f32);
    const std::vector<std::int64_t> rows{5, 0, 5, 2};
    const Tensor y = Tensor::empty({4, 3}, Dtype::f32);
    gather_rows(*context, x, rows, y);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(test::same_bits(y.slice(0, static_cast<int>(i), static_cast<int>(i) + 1),
                                  x.slice(0, rows[i], rows[i] + 1)));
    }
  }
}

TEST(Elementwise, CopyConvertsBetweenFloatingDtypes) {
  Context context;
  Random random(6);
  const Tensor x = test::normals(random, {70, 513});
  for (const Dtype from : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const Dtype to : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
      const Tensor source = x.to(from);
      const Tensor target = Tensor::empty({70, 513}, to);
      copy(context, source, target);
      EXPECT_TRUE(test::same_bits(target, source.to(to)));
    }
  }
}

TEST(Elementwise, ExtremeInputsGiveTheLimits) {
  Context context = test::cpu_context();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{-1000.0F, -90.0F, 0.0F, 90.0F, 1000.0F, infinity, -infinity};
  const Tensor x = Tensor::of<float>(values, {7});
  const Tensor y = Tensor::empty({7}, Dtype::f32);
  activate(context, x, Activation::sigmoid, y);
  const float sigmoids[] = {0, 0, 0.5F, 1, 1, 1, 0};
  for (int i = 0; i < 7; ++i) EXPECT_NEAR(y.data<float>()[i], sigmoids[i], 1e-30);
  activate(context, x, Activation::elu1, y);
  const float elus[] = {0, 0, 1, 91, 1001, infinity, 0};
  for (int i = 0; i < 7; ++i) {
    if (!std::isinf(elus[i])) {
      EXPECT_NEAR(y.data<float>()[i], elus[i], 1e-30);
    } else {
      EXPECT_EQ(y.data<float>()[i], elus[i]);
    }
  }
  const Tensor zero = Tensor::zeros({2, 8}, Dtype::f32);
  const Tensor normed = Tensor::empty({2, 8}, Dtype::f32);
  for (const VectorNormForm form : {VectorNormForm::rsqrt, VectorNormForm::clamp}) {
    vector_norm(context, {zero, form, 1e-12}, normed);
    for (const float value : normed.span<float>()) EXPECT_EQ(value, 0.0F);
  }
}

// A NaN must come out again: the training loop looks for it.
TEST(ElementwiseCpu, NotANumberPasses) {
  Context context = test::cpu_context();
  const float nan = std::nanf("");
  const Tensor x = Tensor::zeros({1, 5}, Dtype::f32);
  x.data<float>()[2] = nan;
  const Tensor y = Tensor::empty({1, 5}, Dtype::f32);
  for (const Activation activation :
       {Activation::none, Activation::silu, Activation::sigmoid, Activation::elu1}) {
    activate(context, x, activation, y);
    EXPECT_TRUE(std::isnan(y.data<float>()[2])) << static_cast<int>(activation);
  }
  rms_norm(context, {.x = x}, y);
  EXPECT_TRUE(std::isnan(y.data<float>()[0]));
  vector_norm(context, {.x = x}, y);
  EXPECT_TRUE(std::isnan(y.data<float>()[0]));
}

// The set is read once per process, so the lower ones are tested in processes of their own.
TEST(Elementwise, RunsOnEveryLowerInstructionSet) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const Isa isa : {Isa::baseline, Isa::avx2}) {
    if (isa >= best_isa()) continue;
    const std::string command = fmt::format(
        "RANKONE_ISA={} '{}' --gtest_brief=1 '--gtest_filter=ElementwiseCpu.*'", name(isa), self);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST(Registry, ChoosesTheFirstBackendThatAccepts) {
  Context context;
  EXPECT_EQ(&select_backend(context, Dtype::f32), &cpu_backend());
  EXPECT_EQ(&select_backend(context, Dtype::f64), &reference_backend());
  EXPECT_EQ(&select_backend(context, Dtype::bf16), &reference_backend());
  Context reference({.backends = {"reference", "cpu"}});
  EXPECT_EQ(&select_backend(reference, Dtype::f32), &reference_backend());
  Context unknown({.backends = {"quantum"}});
  EXPECT_EQ(&select_backend(unknown, Dtype::f32), &reference_backend());
  {
    const CpuBackend mine;
    const RegisteredBackend registration(mine);
    EXPECT_EQ(&select_backend(context, Dtype::f32), &mine);
    EXPECT_EQ(&select_backend(context, Dtype::f64), &reference_backend());
  }
  EXPECT_EQ(&select_backend(context, Dtype::f32), &cpu_backend());
  const auto on_cuda = [] {
    Context cuda({.device = Device::cuda});  // fails itself where there is no GPU
    select_backend(cuda, Dtype::f32);
  };
  EXPECT_THROW(on_cuda(), Error);
}

}  // namespace
}  // namespace rankone::nn
