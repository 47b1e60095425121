// decay() and gain() on CUDA against float64, in every format, for rows that are and are no whole
// words; the values of the published formulas are the business of
// tests/recurrence/prologue_test.cpp.

#include "operators.hpp"
#include "recurrence/presets.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

// A float32 rounding error or two, relative to the RMS of the tensor.
constexpr double kElement = 5e-7;
// A sum over all rows.
constexpr double kSum = 4e-6;

struct DecaySetting {
  DecayForm form;
  bool channel, parameters, time_step;
  std::int64_t rows, heads, d_k;
};

class CudaDecay : public testing::TestWithParam<std::tuple<Dtype, bool, DecaySetting>> {
 protected:
  void SetUp() override { RANKONE_NEEDS_CUDA(); }
  const Dtype dtype_ = std::get<0>(GetParam());
  const bool wide_gates_ = std::get<1>(GetParam());  // outputs and parameters are float32
  const DecaySetting s_ = std::get<2>(GetParam());
};

TEST_P(CudaDecay, AgreesWithFloat64) {
  if (wide_gates_ && dtype_ == Dtype::f32) GTEST_SKIP() << "the same call";
  Random random(5);
  Context cuda = cuda_context(), reference = reference_context();
  const Shape row = s_.channel ? Shape{s_.heads, s_.d_k} : Shape{s_.heads};
  const Shape all = s_.channel ? Shape{s_.rows, s_.heads, s_.d_k} : Shape{s_.rows, s_.heads};
  Decay in;
  in.form = s_.form;
  in.channel = s_.channel;
  in.normalizer = 4.0;
  if (s_.form != DecayForm::fixed) in.x = normal(all, random);
  if (s_.parameters) in.dt_bias = normal(row, random);
  if (s_.parameters && s_.form != DecayForm::logsigmoid) in.a_log = normal({s_.heads}, random);
  const Dtype gate = wide_gates_ ? Dtype::f32 : dtype_;
  round_all(dtype_, {&in.x});
  round_all(gate, {&in.dt_bias, &in.a_log});
  const Dtype first = s_.form == DecayForm::fixed ? dtype_ : gate;  // g leads where there is no x
  DecayCotangents cot{normal(all, random).to(first), Tensor()};
  if (s_.time_step) cot.dt = normal(all, random).to(gate);

  Decay exact = in;
  for (Tensor* tensor : {&exact.x, &exact.dt_bias, &exact.a_log}) *tensor = wide(*tensor);
  const DecayOut expected{wide_like(cot.g), wide_like(cot.dt)};
  decay(reference, exact, expected);
  const DecayGrads d_expected{wide_like(in.x), wide_like(in.a_log), wide_like(in.dt_bias)};
  decay_vjp(reference, exact, {wide(cot.g), wide(cot.dt)}, d_expected);

  for (Tensor* tensor : {&in.x, &in.dt_bias, &in.a_log, &cot.g, &cot.dt}) {
    *tensor = to_device(*tensor, cuda);
  }
  const std::vector<Tensor> got = run_in_two_orders(cuda, [&] {
    const DecayOut out{output_like(cot.g, cuda), output_like(cot.dt, cuda)};
    decay(cuda, in, out);
    const DecayGrads grads{output_like(in.x, cuda), output_like(in.a_log, cuda),
                           output_like(in.dt_bias, cuda)};
    decay_vjp(cuda, in, cot, grads);
    return std::vector<Tensor>{out.g, out.dt, grads.x, grads.a_log, grads.dt_bias};
  });
  expect_close("g", got[0], expected.g, kElement);
  expect_close("dt", got[1], expected.dt, kElement);
  expect_close("dx", got[2], d_expected.x, kElement);
  expect_close("da_log", got[3], d_expected.a_log, kSum);
  expect_close("d dt_bias", got[4], d_expected.dt_bias, kSum);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CudaDecay,
    testing::Combine(
        testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16), testing::Bool(),
        testing::Values(DecaySetting{DecayForm::softplus, false, true, true, 700, 3, 1},
                        DecaySetting{DecayForm::softplus, false, true, false, 9000, 16, 1},
                        DecaySetting{DecayForm::softplus, true, true, false, 130, 2, 24},
                        DecaySetting{DecayForm::softplus, true, true, false, 70, 9, 256},
                        DecaySetting{DecayForm::lower_bound, true, true, false, 130, 2, 5},
                        DecaySetting{DecayForm::lower_bound, false, false, false, 64, 8, 1},
                        DecaySetting{DecayForm::logsigmoid, true, false, false, 65, 2, 16},
                        DecaySetting{DecayForm::logsigmoid, true, true, false, 65, 1, 7},
                        DecaySetting{DecayForm::fixed, false, false, false, 40, 4, 1})));

// ---- gain --------------------------------------------------------------------------------------

struct GainSizes {
  std::int64_t heads, value_heads, d_k, d_v;
  bool own_write_key;
};

class CudaGain : public testing::TestWithParam<std::tuple<Dtype, GainKind, GainSizes>> {
 protected:
  void SetUp() override { RANKONE_NEEDS_CUDA(); }
  const Dtype dtype_ = std::get<0>(GetParam());
  const GainKind kind_ = std::get<1>(GetParam());
  const GainSizes s_ = std::get<2>(GetParam());
};

Gain gain_inputs(GainKind kind, const GainSizes& s, std::int64_t rows, Random& random) {
  const Shape keys{rows, s.heads, s.d_k}, values{rows, s.value_heads, s.d_v};
  Gain in;
  in.kind = kind;
  in.time_factor = static_cast<TimeFactor>(static_cast<int>(kind) % 4);
  if (kind != GainKind::one && kind != GainKind::nlms && kind != GainKind::vector) {
    in.x = normal({rows, s.value_heads}, random);
  }
  if (is_key_norm(kind) || kind == GainKind::vector) {
    in.e = normal(keys, random);
    in.v = normal(values, random);
  }
  if (is_key_norm(kind)) {
    in.w = in.e;
    if (s.own_write_key) {  // e times positive factors
      in.w = uniform(keys, random, 0.6, 1.5);
      for (std::int64_t i = 0; i < in.w.count(); ++i) {
        in.w.data<float>()[i] *= in.e.data<float>()[i];
      }
    }
  }
  if (kind == GainKind::vector) {
    in.x = normal(keys, random);
    in.x_v = normal(values, random);
  }
  if (kind == GainKind::learned_scalar) in.theta = filled({1}, [] { return 0.3; });
  return in;
}

TEST_P(CudaGain, AgreesWithFloat64) {
  Random random(6);
  Context cuda = cuda_context(), reference = reference_context();
  const Sequences sequences = Sequences::packed(std::vector<std::int64_t>{0, 30, 30, 131, 131});
  Gain in = gain_inputs(kind_, s_, sequences.rows(), random);
  const Shape gains{sequences.rows(), s_.value_heads};
  const bool leading = !in.v.defined() && !in.x.defined();  // b alone has a dtype
  const Dtype gate = leading ? dtype_ : Dtype::f32;
  const bool tied = in.e.raw() == in.w.raw();
  round_all(dtype_, {&in.x, &in.x_v, &in.e, &in.v});
  round_all(tied ? Dtype::f32 : dtype_, {&in.w});
  if (tied) in.w = in.e;
  const std::vector<std::int64_t> start{0, 5, 100, 7};
  in.positions = Tensor::of<std::int64_t>(start, {4});
  const auto draw = [&](const Tensor& like) {
    return like.defined() ? normal(like.shape(), random).to(dtype_) : Tensor();
  };
  GainCotangents cot{normal(gains, random).to(gate), draw(in.e), draw(in.w), draw(in.v)};

  Gain exact = in;
  for (Tensor* tensor : {&exact.x, &exact.x_v, &exact.theta, &exact.e, &exact.w, &exact.v}) {
    *tensor = wide(*tensor);
  }
  const GainOut expected{wide_like(cot.b), wide_like(in.e), wide_like(in.w), wide_like(in.v)};
  gain(reference, sequences, exact, expected);
  const GainGrads d_expected{wide_like(in.x), wide_like(in.x_v), wide_like(in.theta),
                             wide_like(in.e), wide_like(in.w),   wide_like(in.v)};
  gain_vjp(reference, sequences, exact, {wide(cot.b), wide(cot.e), wide(cot.w), wide(cot.v)},
           d_expected);

  for (Tensor* tensor :
       {&in.x, &in.x_v, &in.theta, &in.e, &in.v, &in.positions, &cot.b, &cot.e, &cot.w, &cot.v}) {
    *tensor = to_device(*tensor, cuda);
  }
  in.w = tied ? in.e : to_device(in.w, cuda);
  const std::vector<Tensor> got = run_in_two_orders(cuda, [&] {
    const GainOut out{output_like(cot.b, cuda), output_like(in.e, cuda), output_like(in.w, cuda),
                      output_like(in.v, cuda)};
    gain(cuda, sequences, in, out);
    const GainGrads grads{output_like(in.x, cuda),     output_like(in.x_v, cuda),
                          output_like(in.theta, cuda), output_like(in.e, cuda),
                          output_like(in.w, cuda),     output_like(in.v, cuda)};
    gain_vjp(cuda, sequences, in, cot, grads);
    return std::vector<Tensor>{out.b,     out.e,       out.w,   out.v,   grads.x,
                               grads.x_v, grads.theta, grads.e, grads.w, grads.v};
  });
  expect_close("b", got[0], expected.b, kElement);
  expect_close("e", got[1], expected.e, kElement);
  expect_close("w", got[2], expected.w, kElement);
  expect_close("v", got[3], expected.v, kElement);
  expect_close("dx", got[4], d_expected.x, kElement);
  expect_close("dx_v", got[5], d_expected.x_v, kElement);
  expect_close("dtheta", got[6], d_expected.theta, 1e-5);  // a sum that cancels
  expect_close("de", got[7], d_expected.e, 2e-6);
  expect_close("dw", got[8], d_expected.w, 2e-6);
  expect_close("dv", got[9], d_expected.v, kElement);
}

std::vector<GainKind> all_gains() {
  std::vector<GainKind> kinds;
  for (std::size_t i = 0; i < choice_names<GainKind>().size(); ++i) {
    kinds.push_back(static_cast<GainKind>(i));
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaGain,
                         testing::Combine(testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16),
                                          testing::ValuesIn(all_gains()),
                                          testing::Values(GainSizes{2, 4, 7, 5, true},
                                                          GainSizes{1, 1, 128, 64, false},
                                                          GainSizes{2, 2, 200, 264, true})));

// Keys of wild norms, as the published model may have them, and one of zero.
TEST(CudaGainEdges, NormsOfAnySizeAreSafe) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context(), reference = reference_context();
  Random random(7);
  const Sequences sequences = Sequences::dense(1, 40);
  Gain in = gain_inputs(GainKind::kaczmarz, {1, 1, 16, 8, false}, 40, random);
  for (std::int64_t row = 0; row < 40; ++row) {
    const double norm = row == 3 ? 0.0 : std::pow(10.0, static_cast<double>(row % 25) - 12.0);
    for (int i = 0; i < 16; ++i) in.e.data<float>()[row * 16 + i] *= static_cast<float>(norm);
  }
  const GainCotangents cot{normal({40, 1}, random), normal({40, 1, 16}, random),
                           normal({40, 1, 16}, random), normal({40, 1, 8}, random)};
  Gain exact = in;
  for (Tensor* tensor : {&exact.x, &exact.e, &exact.w, &exact.v}) *tensor = wide(*tensor);
  const GainGrads expected{wide_like(in.x), {}, {}, wide_like(in.e), wide_like(in.w),
                           wide_like(in.v)};
  gain_vjp(reference, sequences, exact, {wide(cot.b), wide(cot.e), wide(cot.w), wide(cot.v)},
           expected);
  for (Tensor* tensor : {&in.x, &in.e, &in.v}) *tensor = to_device(*tensor, cuda);
  in.w = in.e;
  const GainGrads grads{
      output_like(in.x, cuda), {}, {}, output_like(in.e, cuda), output_like(in.w, cuda),
      output_like(in.v, cuda)};
  gain_vjp(cuda, sequences, in,
           {to_device(cot.b, cuda), to_device(cot.e, cuda), to_device(cot.w, cuda),
            to_device(cot.v, cuda)},
           grads);
  // Row by row: the gradients span as many decades as the norms.
  const Tensor d_e = to_host(grads.e, cuda);
  for (std::int64_t row = 0; row < 40; ++row) {
    EXPECT_LE(relative_error(d_e.slice(0, row, row + 1), expected.e.slice(0, row, row + 1)), 3e-6)
        << row;
  }
}

TEST(CudaGainEdges, NothingToDoIsFine) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context();
  const Sequences sequences = Sequences::packed(std::vector<std::int64_t>{0, 0});
  Random random(8);
  Gain in = gain_inputs(GainKind::learned_scalar, {1, 1, 16, 8, false}, 0, random);
  for (Tensor* tensor : {&in.x, &in.theta, &in.e, &in.v}) *tensor = to_device(*tensor, cuda);
  in.w = in.e;
  const GainGrads grads{{}, {}, output_like(in.theta, cuda), {}, {}, {}};
  gain_vjp(cuda, sequences, in, {{}, in.e, {}, {}}, grads);
  EXPECT_EQ(to_host(grads.theta, cuda).data<float>()[0], 0.0F);
}

}  // namespace
}  // namespace rankone::test
