// gemm, linear, embedding, loss, RoPE and attention: every vjp against finite differences, the CPU
// backend against the reference, and what holds for each of them.

#include <gtest/gtest.h>

#include <cmath>

#include "core/status.hpp"
#include "matrix_cases.hpp"
#include "nn/operators.hpp"

namespace rankone::nn::test {
namespace {

TEST(Matrix, GradientsMatchFiniteDifferences) {
  for (const OperatorCase& op : matrix_cases(Size::small)) expect_gradients_match_differences(op);
}

// Sums over hundreds of rows have single elements far from the mean, so that only the RMS is
// compared here; matrix_accuracy_test.cpp compares row by row with the plain float32 loops.
TEST(MatrixCpu, MatchesReference) {
  Context reference = reference_context();
  Context cpu = cpu_context();
  for (const Size size : {Size::small, Size::large}) {
    for (const OperatorCase& op : matrix_cases(size)) {
      SCOPED_TRACE(op.name);
      const Results right = run(reference, op, Dtype::f64);
      const Results got = run(cpu, op, Dtype::f32);
      for (std::size_t i = 0; i < right.outputs.size(); ++i) {
        EXPECT_LE(difference(got.outputs[i], right.outputs[i]).rms, 8 * 0x1p-24) << "output " << i;
      }
      for (std::size_t i = 0; i < right.gradients.size(); ++i) {
        EXPECT_LE(difference(got.gradients[i], right.gradients[i]).rms, 8 * 0x1p-24)
            << "gradient " << i;
      }
    }
  }
}

TEST(MatrixCpu, SameBitsForAnyThreadCount) {
  for (const OperatorCase& op : matrix_cases(Size::large))
    expect_same_bits_for_any_thread_count(op);
}

TEST(Matrix, PlanIsWhatARunUses) {
  for (const OperatorCase& op : matrix_cases(Size::large)) expect_plan_is_what_a_run_uses(op);
}

// The number of scored rows is known to the backend alone: the plan holds for every one.
TEST(MatrixCpu, PlanOfTheLossHoldsForAnyTargets) {
  constexpr std::int64_t kRows = 150;
  constexpr std::int64_t kVocabulary = 2500;
  Random random(6);
  const Tensor x = normals(random, {kRows, 8}).to(Dtype::f32);
  const Tensor weight = normals(random, {kVocabulary, 8}).to(Dtype::f32);
  const Tensor targets = Tensor::empty({kRows}, Dtype::i32);
  const Tensor dx = Tensor::zeros(x.shape(), Dtype::f32);
  const Tensor dweight = Tensor::zeros(weight.shape(), Dtype::f32);
  Context context = cpu_context(3);
  const auto step = [&] {
    cross_entropy_vjp(context, {x, weight, targets}, 1.0, {}, {dx, dweight});
  };
  context.arena().set_planning(true);
  step();
  const std::size_t peak = context.arena().peak();
  context.arena().set_planning(false);
  context.arena().reserve(peak);
  const std::size_t capacity = context.arena().capacity();
  for (std::int64_t scored = 0; scored <= kRows; ++scored) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      targets.data<std::int32_t>()[r] = r < scored ? static_cast<std::int32_t>(r * 7) : -1;
    }
    step();
    ASSERT_EQ(context.arena().capacity(), capacity) << scored << " scored rows";
  }
}

TEST(Matrix, GradientsThatAreNotWantedMayBeLeftOut) {
  Random random(8);
  for (const bool cpu : {true, false}) {
    Context context = cpu ? cpu_context() : reference_context();
    const Dtype dtype = cpu ? Dtype::f32 : Dtype::f64;
    const auto normal = [&](const Shape& shape) { return normals(random, shape).to(dtype); };
    const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, dtype); };

    const Linear project = {normal({9, 5}), normal({4, 5}), normal({4})};
    const Tensor dy = normal({9, 4});
    const LinearGrads all = {zeros({9, 5}), zeros({4, 5}), zeros({4})};
    const LinearGrads one = {zeros({9, 5}), zeros({4, 5}), zeros({4})};
    linear_vjp(context, project, dy, all);
    linear_vjp(context, project, dy, {one.x, {}, {}});
    linear_vjp(context, project, dy, {{}, one.weight, {}});
    linear_vjp(context, project, dy, {{}, {}, one.bias});
    EXPECT_TRUE(same_bits(one.x, all.x) && same_bits(one.weight, all.weight) &&
                same_bits(one.bias, all.bias));

    const Tensor targets = Tensor::zeros({9}, Dtype::i32);
    const CrossEntropy loss = {project.x, project.weight, targets};
    const CrossEntropyGrads both = {zeros({9, 5}), zeros({4, 5})};
    const CrossEntropyGrads single = {zeros({9, 5}), zeros({4, 5})};
    cross_entropy_vjp(context, loss, 0.5, {}, both);
    cross_entropy_vjp(context, loss, 0.5, {}, {single.x, {}});
    cross_entropy_vjp(context, loss, 0.5, {}, {{}, single.weight});
    EXPECT_TRUE(same_bits(single.x, both.x) && same_bits(single.weight, both.weight));

    const Sequences sequences = Sequences::dense(1, 9);
    const Attention heads = {normal({9, 2, 3}), normal({9, 1, 3}), normal({9, 1, 3})};
    const Tensor o = zeros({9, 2, 3});
    attention(context, sequences, heads, o);
    const Tensor do_ = normal({9, 2, 3});
    const AttentionGrads every = {zeros({9, 2, 3}), zeros({9, 1, 3}), zeros({9, 1, 3})};
    const AttentionGrads each = {zeros({9, 2, 3}), zeros({9, 1, 3}), zeros({9, 1, 3})};
    attention_vjp(context, sequences, heads, o, do_, every);
    attention_vjp(context, sequences, heads, o, do_, {each.q, {}, {}});
    attention_vjp(context, sequences, heads, o, do_, {{}, each.k, {}});
    attention_vjp(context, sequences, heads, o, do_, {{}, {}, each.v});
    EXPECT_TRUE(same_bits(each.q, every.q) && same_bits(each.k, every.k) &&
                same_bits(each.v, every.v));
  }
}

TEST(Matrix, NoRowsAreLegal) {
  for (const bool cpu : {true, false}) {
    Context context = cpu ? cpu_context() : reference_context();
    const Dtype dtype = cpu ? Dtype::f32 : Dtype::f64;
    const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, dtype); };
    const Tensor none = zeros({0, 5});
    const Tensor weight = zeros({4, 5});
    const Tensor ids = Tensor::zeros({0}, Dtype::i32);
    linear(context, {none, weight, zeros({4})}, zeros({0, 4}));
    linear_vjp(context, {none, weight, zeros({4})}, zeros({0, 4}), {none, weight, zeros({4})});
    embedding(context, ids, weight, none);
    embedding_vjp(context, ids, none, weight);
    cross_entropy(context, {none, weight, ids}, zeros({0}));
    cross_entropy_vjp(context, {none, weight, ids}, 1.0, zeros({0}), {none, weight});
    const Tensor heads = zeros({0, 2, 4});
    const Sequences empty = Sequences::dense(3, 0);
    rope(context, empty, {heads}, heads);
    rope_vjp(context, empty, {heads}, heads, heads);
    attention(context, empty, {heads, heads, heads}, heads);
    attention_vjp(context, empty, {heads, heads, heads}, heads, heads, {heads, heads, heads});
    const Tensor untouched = weight.to(Dtype::f64);
    for (const double value : untouched.span<double>()) EXPECT_EQ(value, 0);
  }
}

// Half storage of a weight changes nothing but the values it can hold.
TEST(MatrixCpu, HalfWeightsGiveTheBitsOfTheirWidenedValues) {
  Random random(9);
  Context context = cpu_context();
  const Tensor x = normals(random, {30, 40}).to(Dtype::f32);
  const Tensor ids = Tensor::zeros({30}, Dtype::i32);
  for (std::int32_t r = 0; r < 30; ++r) ids.data<std::int32_t>()[r] = r * 2;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const Tensor weight = normals(random, {70, 40}).to(dtype);
    const Tensor bias = normals(random, {70}).to(dtype);
    const Tensor wide = weight.to(Dtype::f32);
    const Tensor wide_bias = bias.to(Dtype::f32);
    const auto result = [](const Shape& shape) { return Tensor::zeros(shape, Dtype::f32); };
    const Tensor y = result({30, 70}), wide_y = result({30, 70});
    linear(context, {x, weight, bias}, y);
    linear(context, {x, wide, wide_bias}, wide_y);
    EXPECT_TRUE(same_bits(y, wide_y));
    const Tensor row = result({1, 70}), wide_row = result({1, 70});
    linear(context, {x.slice(0, 0, 1), weight, bias}, row);
    EXPECT_TRUE(same_bits(row, wide_y.slice(0, 0, 1)));
    const Tensor dx = result({30, 40}), wide_dx = result({30, 40});
    linear_vjp(context, {x, weight, bias}, y, {dx, {}, {}});
    linear_vjp(context, {x, wide, wide_bias}, y, {wide_dx, {}, {}});
    EXPECT_TRUE(same_bits(dx, wide_dx));
    const Tensor rows = result({30, 40}), wide_rows = result({30, 40});
    embedding(context, ids, weight, rows);
    embedding(context, ids, wide, wide_rows);
    EXPECT_TRUE(same_bits(rows, wide_rows));
    const Tensor losses = result({30}), wide_losses = result({30});
    cross_entropy(context, {x, weight, ids}, losses);
    cross_entropy(context, {x, wide, ids}, wide_losses);
    EXPECT_TRUE(same_bits(losses, wide_losses));
  }
}

TEST(Matrix, GemmOfTheReference) {
  Random random(10);
  Context context = reference_context();
  for (int layout = 0; layout < 4; ++layout) {
    const bool transpose_a = (layout & 1) != 0;
    const bool transpose_b = (layout & 2) != 0;
    const Tensor a =
        normals(random, transpose_a ? Shape{5, 9} : Shape{3, 9}).slice(1, 2, transpose_a ? 5 : 7);
    const Tensor b =
        normals(random, transpose_b ? Shape{4, 9} : Shape{5, 9}).slice(1, 1, transpose_b ? 6 : 5);
    const Tensor c = normals(random, {3, 6}).slice(1, 1, 5);
    const Tensor before = c.clone();
    gemm(context, {a, b, c, transpose_a, transpose_b, true});
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < 4; ++j) {
        double sum = before.data<double>()[i * 4 + j];
        for (std::int64_t k = 0; k < 5; ++k) {
          sum += a.data<double>()[transpose_a ? k * 9 + i : i * 9 + k] *
                 b.data<double>()[transpose_b ? j * 9 + k : k * 9 + j];
        }
        EXPECT_NEAR(c.data<double>()[i * 6 + j], sum, 1e-14);
      }
    }
  }
}

// Logits far beyond what e^x can hold.
TEST(Matrix, LossOfHugeLogits) {
  for (const bool cpu : {true, false}) {
    Context context = cpu ? cpu_context() : reference_context();
    const Dtype dtype = cpu ? Dtype::f32 : Dtype::f64;
    const Tensor x = Tensor::zeros({2, 1}, dtype);
    x.fill(1000);
    const Tensor weight = Tensor::zeros({3, 1}, dtype);
    weight.slice(0, 0, 1).fill(50);
    weight.slice(0, 1, 2).fill(-50);
    const Tensor targets = Tensor::zeros({2}, Dtype::i32);
    targets.data<std::int32_t>()[1] = 1;
    const Tensor losses = Tensor::zeros({2}, dtype);
    const Tensor dx = Tensor::zeros({2, 1}, dtype);
    cross_entropy_vjp(context, {x, weight, targets}, 1.0, losses, {dx, {}});
    const Tensor got = losses.to(Dtype::f64);
    EXPECT_EQ(got.data<double>()[0], 0);
    EXPECT_EQ(got.data<double>()[1], 100000);
    const Tensor gradient = dx.to(Dtype::f64);
    EXPECT_EQ(gradient.data<double>()[0], 0);
    EXPECT_EQ(gradient.data<double>()[1], 100);
  }
}

// A non-finite activation must reach the loss and the gradient norm, not vanish in a maximum.
TEST(Matrix, LossOfNonFiniteLogitsIsNotFinite) {
  for (const bool cpu : {true, false}) {
    Context context = cpu ? cpu_context() : reference_context();
    const Dtype dtype = cpu ? Dtype::f32 : Dtype::f64;
    for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
      const Tensor x = Tensor::zeros({1, 2}, dtype);
      x.fill(bad);
      const Tensor weight = Tensor::zeros({40, 2}, dtype);
      weight.fill(1);
      const Tensor losses = Tensor::zeros({1}, dtype);
      const Tensor dx = Tensor::zeros({1, 2}, dtype);
      cross_entropy_vjp(context, {x, weight, Tensor::zeros({1}, Dtype::i32)}, 1.0, losses,
                        {dx, {}});
      EXPECT_FALSE(std::isfinite(losses.to(Dtype::f64).data<double>()[0]));
      EXPECT_FALSE(std::isfinite(dx.to(Dtype::f64).data<double>()[0]));
    }
  }
}

}  // namespace
}  // namespace rankone::nn::test
