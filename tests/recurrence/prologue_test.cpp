// decay() and gain(): values against the formulas of the papers, vjps against finite differences,
// the float32 backend against the reference.

#include "recurrence/presets.hpp"
#include "recurrence/recurrence.hpp"
#include "support/finite_difference.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

Tensor like(const Tensor& tensor) {
  return tensor.defined() ? filled(tensor.shape(), NAN, tensor.dtype()) : Tensor();
}

void add(std::vector<GradientCase::Input>& inputs, const char* name, const Tensor& tensor) {
  if (tensor.defined()) inputs.push_back({name, tensor});
}
std::vector<Tensor> defined(std::initializer_list<Tensor> tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) result.push_back(tensor);
  }
  return result;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(x)); }

// ---- decay -------------------------------------------------------------------------------------

Decay random_decay(Random& random, DecayForm form, bool channel, bool parameters, std::int64_t R) {
  Decay in;
  in.form = form;
  in.channel = channel;
  const Shape row = channel ? Shape{2, 3} : Shape{2};
  if (form != DecayForm::fixed) {
    in.x = normal(random, channel ? Shape{R, 2, 3} : Shape{R, 2});
    if (parameters) in.dt_bias = normal(random, row);
    if (parameters && form != DecayForm::logsigmoid) in.a_log = normal(random, {2});
  }
  in.normalizer = 4.0;
  return in;
}

TEST(DecayFunction, GivesThePublishedFormulas) {
  Random random(1);
  Context context = make_context();
  for (const bool channel : {false, true}) {
    const std::int64_t K = channel ? 3 : 1;
    for (const DecayForm form :
         {DecayForm::softplus, DecayForm::lower_bound, DecayForm::logsigmoid}) {
      const Decay in = random_decay(random, form, channel, true, 5);
      const DecayOut out{like(in.x), form == DecayForm::softplus ? like(in.x) : Tensor()};
      decay(context, in, out);
      for (std::int64_t i = 0; i < in.x.count(); ++i) {
        const std::int64_t head = i / K % 2;
        const double x = in.x.data<double>()[i] + in.dt_bias.data<double>()[i % (2 * K)];
        const double A = in.a_log.defined() ? std::exp(in.a_log.data<double>()[head]) : 1.0;
        double expected = -A * softplus(x);
        if (form == DecayForm::lower_bound) expected = -5.0 * sigmoid(A * x);
        if (form == DecayForm::logsigmoid) expected = std::log(sigmoid(x)) / 4.0;
        EXPECT_NEAR(out.g.data<double>()[i], expected, 1e-14 * (1.0 + std::abs(expected)));
        if (!out.dt.defined()) continue;
        EXPECT_NEAR(out.dt.data<double>()[i], softplus(x), 1e-14);
      }
    }
  }
}

TEST(DecayFunction, FixedIsRetNets) {
  Context context = make_context();
  Decay in;
  in.form = DecayForm::fixed;
  const Tensor g = filled({7, 4}, NAN);
  decay(context, in, {g, Tensor()});
  for (std::int64_t i = 0; i < g.count(); ++i) {
    EXPECT_NEAR(g.data<double>()[i],
                std::log(1.0 - std::pow(2.0, -5.0 - static_cast<double>(i % 4))), 1e-16);
  }
}

TEST(DecayFunction, KeepsItsLimits) {
  Context context = make_context();
  Decay in;
  in.x = Tensor::of<double>(std::vector<double>{-40.0, 0.0, 40.0, 800.0}, {4, 1});
  in.dt_min = 0.01;
  in.dt_max = 10.0;
  const DecayOut out{like(in.x), like(in.x)};
  decay(context, in, out);
  EXPECT_EQ(out.dt.data<double>()[0], 0.01);
  EXPECT_NEAR(out.dt.data<double>()[1], std::log(2.0), 1e-15);
  EXPECT_EQ(out.dt.data<double>()[3], 10.0);
  const Tensor d_x = like(in.x);
  decay_vjp(context, in, {filled(in.x.shape(), 1.0), Tensor()}, {d_x, Tensor(), Tensor()});
  EXPECT_EQ(d_x.data<double>()[0], 0.0);
  EXPECT_EQ(d_x.data<double>()[1], -0.5);
  EXPECT_EQ(d_x.data<double>()[3], 0.0);

  in = Decay{};
  in.form = DecayForm::logsigmoid;
  in.x = Tensor::of<double>(std::vector<double>{-50.0, 2.0}, {2, 1});
  in.clamp = -3.0;
  const Tensor g = like(in.x);
  decay(context, in, {g, Tensor()});
  EXPECT_EQ(g.data<double>()[0], -3.0);
  EXPECT_GT(g.data<double>()[1], -0.2);
}

TEST(DecayFunction, VjpAgreesWithFiniteDifferences) {
  Random random(2);
  Context context = make_context();
  for (const DecayForm form :
       {DecayForm::softplus, DecayForm::lower_bound, DecayForm::logsigmoid}) {
    for (int bits = 0; bits < 8; ++bits) {
      const bool channel = (bits & 1) != 0, parameters = (bits & 2) != 0;
      const bool time_step = (bits & 4) != 0 && form == DecayForm::softplus;
      const Decay in = random_decay(random, form, channel, parameters, 3);
      GradientCase test;
      test.name =
          "form " + std::to_string(static_cast<int>(form)) + " bits " + std::to_string(bits);
      add(test.inputs, "x", in.x);
      add(test.inputs, "a_log", in.a_log);
      add(test.inputs, "dt_bias", in.dt_bias);
      test.forward = [&] {
        const DecayOut out{like(in.x), time_step ? like(in.x) : Tensor()};
        decay(context, in, out);
        return defined({out.g, out.dt});
      };
      test.vjp = [&](const std::vector<Tensor>& cot) {
        const DecayGrads grads{like(in.x), like(in.a_log), like(in.dt_bias)};
        decay_vjp(context, in, {cot[0], time_step ? cot[1] : Tensor()}, grads);
        return defined({grads.x, grads.a_log, grads.dt_bias});
      };
      check_gradients(test, random);
    }
  }
}

// ---- gain --------------------------------------------------------------------------------------

std::vector<GainKind> all_gains() {
  std::vector<GainKind> kinds;
  for (std::size_t i = 0; i < choice_names<GainKind>().size(); ++i) {
    kinds.push_back(static_cast<GainKind>(i));
  }
  return kinds;
}
const std::vector<GainKind> kGains = all_gains();

struct GainProblem {
  Sequences sequences;
  Gain in;

  // Packed sequences of 2, 0 and 3 rows at positions 0, 7 and 3; w = e times positive factors.
  GainProblem(Random& random, GainKind kind, TimeFactor factor, bool grouped, bool additive)
      : sequences(Sequences::packed(std::vector<std::int64_t>{0, 2, 2, 5})) {
    const Sizes sizes{5, 2, grouped ? 4 : 2, 3, 2};
    in.kind = kind;
    in.time_factor = factor;
    in.eps = 1e-2;
    in.positions = Tensor::of<std::int64_t>(std::vector<std::int64_t>{0, 7, 3}, {3});
    if (kind != GainKind::one && kind != GainKind::nlms && kind != GainKind::vector) {
      in.x = normal(random, sizes.gates());
    }
    if (is_key_norm(kind) || (kind == GainKind::vector && !additive)) {
      in.e = normal(random, sizes.keys());
    }
    if (is_key_norm(kind)) in.w = times(in.e, uniform(random, sizes.keys(), 0.6, 1.5));
    if (is_key_norm(kind) || kind == GainKind::vector) in.v = normal(random, sizes.values());
    if (kind == GainKind::vector) {
      if (!additive) in.x = normal(random, sizes.keys());
      in.x_v = normal(random, sizes.values());
    }
    if (kind == GainKind::learned_scalar) in.theta = filled({1}, 0.3);
    values = sizes.gates();
  }
  GainOut outputs() const { return {filled(values, NAN), like(in.e), like(in.w), like(in.v)}; }
  Shape values;
};

TEST(GainFunction, VjpAgreesWithFiniteDifferences) {
  Random random(3);
  Context context = make_context();
  for (const GainKind kind : kGains) {
    for (int bits = 0; bits < 4; ++bits) {
      const auto factor = static_cast<TimeFactor>((static_cast<int>(kind) + bits) % 4);
      const GainProblem problem(random, kind, factor, (bits & 1) != 0, (bits & 2) != 0);
      const Gain& in = problem.in;
      GradientCase test;
      test.name =
          "gain " + std::to_string(static_cast<int>(kind)) + " bits " + std::to_string(bits);
      add(test.inputs, "x", in.x);
      add(test.inputs, "x_v", in.x_v);
      add(test.inputs, "theta", in.theta);
      add(test.inputs, "e", in.e);
      add(test.inputs, "w", in.w);
      add(test.inputs, "v", in.v);
      test.forward = [&] {
        const GainOut out = problem.outputs();
        gain(context, problem.sequences, in, out);
        return defined({out.b, out.e, out.w, out.v});
      };
      test.vjp = [&](const std::vector<Tensor>& cot) {
        GainCotangents cotangents;
        std::size_t i = 0;
        cotangents.b = cot[i++];
        if (in.e.defined()) cotangents.e = cot[i++];
        if (in.w.defined()) cotangents.w = cot[i++];
        if (in.v.defined()) cotangents.v = cot[i++];
        const GainGrads grads{like(in.x), like(in.x_v), like(in.theta),
                              like(in.e), like(in.w),   like(in.v)};
        gain_vjp(context, problem.sequences, in, cotangents, grads);
        return defined({grads.x, grads.x_v, grads.theta, grads.e, grads.w, grads.v});
      };
      check_gradients(test, random);
    }
  }
}

// The gain of the paper from the logit and N.
double published(GainKind kind, double x, double N, double eps, double theta) {
  const double beta = sigmoid(x);
  switch (kind) {
    case GainKind::kaczmarz:
      return beta / (N + eps);
    case GainKind::nlms:
      return 1.0 / (N + eps);
    case GainKind::longhorn:
      return beta / (1.0 + beta * N);
    case GainKind::efla:
      return (1.0 - std::exp(-beta * N)) / N;
    case GainKind::learned_scalar:
      return beta / (softplus(theta) * N + eps);
    case GainKind::sigmoid:
      return beta;
    case GainKind::sigmoid2:
      return 2.0 * beta;
    case GainKind::dt:
      return x;
    case GainKind::one:
    case GainKind::vector:
      break;
  }
  return 1.0;
}

double published(TimeFactor factor, double t) {
  switch (factor) {
    case TimeFactor::none:
      break;
    case TimeFactor::inv_t:
      return 1.0 / t;
    case TimeFactor::inv_sqrt_t:
      return 1.0 / std::sqrt(t);
    case TimeFactor::inv_log_t:
      return 1.0 / std::log(1.0 + t);
  }
  return 1.0;
}

TEST(GainFunction, GivesThePublishedFormulasInTheBoundedForm) {
  Random random(4);
  Context context = make_context();
  const double times_of_rows[] = {1, 2, 4, 5, 6};  // rows 0, 1 from position 0; 2, 3, 4 from 3
  for (const GainKind kind : kGains) {
    for (int f = 0; f < 4; ++f) {
      const auto factor = static_cast<TimeFactor>(f);
      const GainProblem problem(random, kind, factor, true, false);
      const Gain& in = problem.in;
      const GainOut out = problem.outputs();
      gain(context, problem.sequences, in, out);
      for (std::int64_t row = 0; row < 5; ++row) {
        for (std::int64_t j = 0; j < 4; ++j) {
          const std::int64_t key = (row * 2 + j / 2) * 3, at = row * 4 + j;
          double N = 0.0, n = 1.0;
          if (is_key_norm(kind)) {
            for (int d = 0; d < 3; ++d) {
              N += in.e.data<double>()[key + d] * in.w.data<double>()[key + d];
            }
            n = std::sqrt(N + in.eps);
            for (int d = 0; d < 3; ++d) {
              EXPECT_NEAR(out.e.data<double>()[key + d], in.e.data<double>()[key + d] / n, 1e-14);
              EXPECT_NEAR(out.w.data<double>()[key + d], in.w.data<double>()[key + d] / n, 1e-14);
            }
            EXPECT_NEAR(out.v.data<double>()[at * 2], in.v.data<double>()[at * 2] / n, 1e-14);
          }
          const bool scalar = in.x.defined() && kind != GainKind::vector;
          const double x = scalar ? in.x.data<double>()[at] : 0.0;
          const double expected =
              published(kind, x, N, in.eps, 0.3) * published(factor, times_of_rows[row]) * n * n;
          EXPECT_NEAR(out.b.data<double>()[at], expected, 1e-13 * std::abs(expected));
        }
      }
      if (kind != GainKind::vector) continue;
      for (std::int64_t i = 0; i < in.e.count(); ++i) {
        EXPECT_NEAR(out.e.data<double>()[i],
                    in.e.data<double>()[i] * sigmoid(in.x.data<double>()[i]), 1e-15);
      }
      for (std::int64_t i = 0; i < in.v.count(); ++i) {
        EXPECT_NEAR(out.v.data<double>()[i],
                    in.v.data<double>()[i] * sigmoid(in.x_v.data<double>()[i]), 1e-15);
      }
    }
  }
}

TEST(GainFunction, ZeroKeysAreSafe) {
  for (const char* backend : {"reference", "cpu"}) {
    Context context = make_context(backend);
    const Dtype dtype = std::string(backend) == "cpu" ? Dtype::f32 : Dtype::f64;
    for (const double eps : {1e-6, 0.0}) {
      for (const GainKind kind : kGains) {
        if (!is_key_norm(kind)) continue;
        Gain in;
        in.kind = kind;
        in.eps = eps;
        if (kind != GainKind::nlms) in.x = filled({1, 1}, 0.5, dtype);
        if (kind == GainKind::learned_scalar) in.theta = filled({1}, 0.3, dtype);
        in.e = in.w = filled({1, 1, 3}, 0.0, dtype);
        in.v = filled({1, 1, 2}, 1.0, dtype);
        const GainOut out{like(in.v).slice(2, 0, 1).clone().reshape({1, 1}), like(in.e), like(in.w),
                          like(in.v)};
        const Sequences sequences = Sequences::dense(1, 1);
        gain(context, sequences, in, out);
        const GainGrads grads{like(in.x), Tensor(),   like(in.theta),
                              like(in.e), like(in.w), like(in.v)};
        gain_vjp(context, sequences, in,
                 {filled({1, 1}, 1.0, dtype), filled({1, 1, 3}, 1.0, dtype),
                  filled({1, 1, 3}, 1.0, dtype), filled({1, 1, 2}, 1.0, dtype)},
                 grads);
        for (const Tensor& tensor : defined(
                 {out.b, out.e, out.w, out.v, grads.x, grads.theta, grads.e, grads.w, grads.v})) {
          EXPECT_TRUE(std::isfinite(largest(tensor)))
              << backend << " gain " << static_cast<int>(kind) << " eps " << eps;
        }
      }
    }
  }
}

// ---- float32 against float64 -------------------------------------------------------------------

// Errors in units of float32 epsilon of the largest element.
double float_error(const Tensor& got, const Tensor& expected) {
  return difference(got, expected) / (std::max(largest(expected), 1e-30) * 1.2e-7);
}

TEST(PrologueCpu, DecayIsFloat32AccurateForAnyThreadCount) {
  Random random(5);
  Context reference = make_context(), one = make_context("cpu", 1), three = make_context("cpu", 3);
  for (const DecayForm form :
       {DecayForm::softplus, DecayForm::lower_bound, DecayForm::logsigmoid, DecayForm::fixed}) {
    for (const bool channel : {false, true}) {
      if (form == DecayForm::fixed && channel) continue;
      Decay wide = random_decay(random, form, channel, true, 700);
      const Shape shape = wide.x.defined() ? wide.x.shape() : Shape{700, 2};
      const auto narrow = [](const Tensor& t) { return t.defined() ? t.to(Dtype::f32) : t; };
      Decay in = wide;
      in.x = narrow(wide.x);
      in.a_log = narrow(wide.a_log);
      in.dt_bias = narrow(wide.dt_bias);
      const auto widen = [](const Tensor& t) { return t.defined() ? t.to(Dtype::f64) : t; };
      wide.x = widen(in.x);  // the same rounded inputs
      wide.a_log = widen(in.a_log);
      wide.dt_bias = widen(in.dt_bias);
      const Tensor expected = filled(shape, NAN), got = filled(shape, NAN, Dtype::f32),
                   again = filled(shape, NAN, Dtype::f32);
      decay(reference, wide, {expected, Tensor()});
      decay(one, in, {got, Tensor()});
      decay(three, in, {again, Tensor()});
      EXPECT_LT(float_error(got, expected), 4.0);
      EXPECT_TRUE(same_bits(got, again));

      const Tensor cot = normal(random, shape).to(Dtype::f32);
      const DecayGrads d_wide{like(wide.x), like(wide.a_log), like(wide.dt_bias)};
      const DecayGrads d_one{like(in.x), like(in.a_log), like(in.dt_bias)};
      const DecayGrads d_three{like(in.x), like(in.a_log), like(in.dt_bias)};
      decay_vjp(reference, wide, {cot.to(Dtype::f64), Tensor()}, d_wide);
      decay_vjp(one, in, {cot, Tensor()}, d_one);
      decay_vjp(three, in, {cot, Tensor()}, d_three);
      if (!in.x.defined()) continue;
      EXPECT_LT(float_error(d_one.x, d_wide.x), 4.0);
      EXPECT_LT(float_error(d_one.dt_bias, d_wide.dt_bias), 40.0);
      EXPECT_TRUE(same_bits(d_one.x, d_three.x));
      EXPECT_TRUE(same_bits(d_one.dt_bias, d_three.dt_bias));
      if (!in.a_log.defined()) continue;
      EXPECT_LT(float_error(d_one.a_log, d_wide.a_log), 40.0);
      EXPECT_TRUE(same_bits(d_one.a_log, d_three.a_log));
    }
  }
}

TEST(PrologueCpu, GainIsFloat32AccurateForAnyThreadCount) {
  Random random(6);
  Context reference = make_context(), one = make_context("cpu", 1), three = make_context("cpu", 3);
  const Sequences sequences = Sequences::packed(std::vector<std::int64_t>{0, 300, 300, 700});
  for (const GainKind kind : kGains) {
    const GainProblem shape_only(random, kind, TimeFactor::inv_sqrt_t, true, false);
    const auto draw = [&](const Tensor& like_this) {
      if (!like_this.defined()) return Tensor();
      Shape shape = like_this.shape();
      if (shape.rank() > 1) shape[0] = 700;
      return normal(random, shape).to(Dtype::f32);
    };
    Gain in = shape_only.in;
    in.eps = 1e-6;
    in.positions = Tensor();
    in.x = draw(in.x);
    in.x_v = draw(in.x_v);
    in.theta = draw(in.theta);
    in.e = draw(in.e);
    in.w = in.w.defined() ? in.e : Tensor();
    in.v = draw(in.v);
    Gain wide = in;
    for (Tensor* tensor : {&wide.x, &wide.x_v, &wide.theta, &wide.e, &wide.w, &wide.v}) {
      if (tensor->defined()) *tensor = tensor->to(Dtype::f64);
    }
    const auto outputs = [&](const Gain& g, Dtype dtype) {
      return GainOut{filled({700, 4}, NAN, dtype), like(g.e), like(g.w), like(g.v)};
    };
    const GainOut expected = outputs(wide, Dtype::f64), got = outputs(in, Dtype::f32),
                  again = outputs(in, Dtype::f32);
    gain(reference, sequences, wide, expected);
    gain(one, sequences, in, got);
    gain(three, sequences, in, again);
    const auto check = [&](const Tensor& a, const Tensor& b, const Tensor& c, double bound) {
      if (!a.defined()) return;
      EXPECT_LT(float_error(a, c), bound) << "gain " << static_cast<int>(kind);
      EXPECT_TRUE(same_bits(a, b)) << "gain " << static_cast<int>(kind);
    };
    check(got.b, again.b, expected.b, 8.0);
    check(got.e, again.e, expected.e, 4.0);
    check(got.w, again.w, expected.w, 4.0);
    check(got.v, again.v, expected.v, 4.0);

    const GainCotangents cot{normal(random, {700, 4}).to(Dtype::f32), draw(in.e), draw(in.w),
                             draw(in.v)};
    GainCotangents cot_wide = cot;
    for (Tensor* tensor : {&cot_wide.b, &cot_wide.e, &cot_wide.w, &cot_wide.v}) {
      if (tensor->defined()) *tensor = tensor->to(Dtype::f64);
    }
    const auto gradients = [&](const Gain& g) {
      return GainGrads{like(g.x), like(g.x_v), like(g.theta), like(g.e), like(g.w), like(g.v)};
    };
    const GainGrads d_expected = gradients(wide), d_got = gradients(in), d_again = gradients(in);
    gain_vjp(reference, sequences, wide, cot_wide, d_expected);
    gain_vjp(one, sequences, in, cot, d_got);
    gain_vjp(three, sequences, in, cot, d_again);
    check(d_got.x, d_again.x, d_expected.x, 8.0);
    check(d_got.x_v, d_again.x_v, d_expected.x_v, 8.0);
    check(d_got.e, d_again.e, d_expected.e, 16.0);
    check(d_got.w, d_again.w, d_expected.w, 16.0);
    check(d_got.v, d_again.v, d_expected.v, 8.0);
    check(d_got.theta, d_again.theta, d_expected.theta, 400.0);
  }
}

}  // namespace
}  // namespace rankone::test
