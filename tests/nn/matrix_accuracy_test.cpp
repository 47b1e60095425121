// Loss and attention of the CPU backend, no worse than float32 has to be: at most twice the error
// of the plain float32 loops over the tensor, and at most four times in any row.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "operator_case.hpp"
#include "plain.hpp"

namespace rankone::nn::test {
namespace {

double rms(double squares, std::int64_t count) {
  return std::sqrt(squares / static_cast<double>(count));
}

void expect_as_good_as_plain(const char* what, const Tensor& got, const std::vector<float>& plain,
                             const std::vector<double>& exact, std::int64_t width) {
  SCOPED_TRACE(what);
  const std::int64_t rows = got.count() / width;
  std::vector<double> errors(rows), plain_errors(rows);
  double error = 0;
  double plain_error = 0;
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double mine = got.data<float>()[i] - exact[i];
    const double other = plain[i] - exact[i];
    errors[i / width] += mine * mine;
    plain_errors[i / width] += other * other;
    error += mine * mine;
    plain_error += other * other;
  }
  const double bound = rms(plain_error, got.count());
  EXPECT_GT(bound, 0);
  EXPECT_LE(rms(error, got.count()), 2 * bound);
  for (std::int64_t r = 0; r < rows; ++r) {
    EXPECT_LE(rms(errors[r], width), 4 * std::max(bound, rms(plain_errors[r], width)))
        << "row " << r;
  }
}

void expect_near(const Tensor& reference, const std::vector<double>& exact) {
  double largest = 0;
  double error = 0;
  for (std::int64_t i = 0; i < reference.count(); ++i) {
    largest = std::max(largest, std::abs(exact[i]));
    error = std::max(error, std::abs(reference.data<double>()[i] - exact[i]));
  }
  EXPECT_LE(error, 1e-12 * (1 + largest));
}

Tensor zeros_like(const Tensor& tensor, Dtype dtype) {
  return Tensor::zeros(tensor.shape(), dtype);
}

void check_loss(std::int64_t rows, std::int64_t width, std::int64_t vocabulary, double deviation) {
  SCOPED_TRACE(fmt::format("{} rows of {} over {}, weight {}", rows, width, vocabulary, deviation));
  Random random(21);
  const Tensor x = normals(random, {rows, width});
  const Tensor weight = normals(random, {vocabulary, width}, deviation);
  const Tensor targets = Tensor::empty({rows}, Dtype::i32);
  for (auto& target : targets.span<std::int32_t>()) {
    target = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
  }
  targets.data<std::int32_t>()[rows / 2] = -1;
  const double factor = 0.25;
  const auto exact = plain_loss<double>(x, weight, targets, factor);
  const auto plain = plain_loss<float>(x, weight, targets, 0.25F);

  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const bool cpu = dtype == Dtype::f32;
    Context context = cpu ? cpu_context() : reference_context();
    const CrossEntropy args = {x.to(dtype), weight.to(dtype), targets};
    const Tensor losses = Tensor::empty({rows}, dtype);
    const Tensor forward = Tensor::empty({rows}, dtype);
    const Tensor dx = Tensor::empty(x.shape(), dtype);
    const Tensor dweight = zeros_like(weight, dtype);
    cross_entropy(context, args, forward);
    cross_entropy_vjp(context, args, factor, losses, {dx, dweight});
    EXPECT_TRUE(same_bits(losses, forward));
    if (cpu) {
      EXPECT_EQ(losses.data<float>()[rows / 2], 0.0F);
      expect_as_good_as_plain("losses", losses, plain.losses, exact.losses, rows);
      expect_as_good_as_plain("dx", dx, plain.dx, exact.dx, width);
      expect_as_good_as_plain("dweight", dweight, plain.dweight, exact.dweight, width);
    } else {
      expect_near(losses, exact.losses);
      expect_near(dx, exact.dx);
      expect_near(dweight, exact.dweight);
    }
  }
}

TEST(MatrixAccuracy, Loss) {
  check_loss(300, 40, 1111, 0.3);
  check_loss(200, 64, 301, 3.0);  // confident and often wrong
}

void check_attention(const Sequences& sequences, std::int64_t heads, std::int64_t key_heads,
                     std::int64_t width, std::int64_t window, double deviation) {
  SCOPED_TRACE(fmt::format("{} rows, {} of {} heads of {}, window {}, deviation {}",
                           sequences.rows(), heads, key_heads, width, window, deviation));
  Random random(22);
  const Shape queries = {sequences.rows(), heads, width};
  const Shape keys = {sequences.rows(), key_heads, width};
  const Tensor q = normals(random, queries, deviation);
  const Tensor k = normals(random, keys);
  const Tensor v = normals(random, keys);
  const Tensor do_ = normals(random, queries);
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  const auto exact = plain_attention<double>(sequences, {q, k, v, window, scale}, do_);
  const auto plain = plain_attention<float>(sequences, {q, k, v, window, scale}, do_);

  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const bool cpu = dtype == Dtype::f32;
    Context context = cpu ? cpu_context() : reference_context();
    const Attention args = {q.to(dtype), k.to(dtype), v.to(dtype), window, scale};
    const Tensor o = Tensor::empty(queries, dtype);
    const Tensor dq = Tensor::empty(queries, dtype);
    const Tensor dk = Tensor::empty(keys, dtype);
    const Tensor dv = Tensor::empty(keys, dtype);
    attention(context, sequences, args, o);
    attention_vjp(context, sequences, args, o, do_.to(dtype), {dq, dk, dv});
    if (cpu) {
      expect_as_good_as_plain("o", o, plain.o, exact.o, width);
      expect_as_good_as_plain("dq", dq, plain.dq, exact.dq, width);
      expect_as_good_as_plain("dk", dk, plain.dk, exact.dk, width);
      expect_as_good_as_plain("dv", dv, plain.dv, exact.dv, width);
    } else {
      expect_near(o, exact.o);
      expect_near(dq, exact.dq);
      expect_near(dk, exact.dk);
      expect_near(dv, exact.dv);
    }
  }
}

TEST(MatrixAccuracy, Attention) {
  const std::int64_t boundaries[] = {0, 1, 1, 129, 420};
  check_attention(Sequences::dense(2, 300), 4, 2, 32, 0, 1.0);
  check_attention(Sequences::packed(boundaries), 3, 3, 19, 0, 1.0);
  check_attention(Sequences::packed(boundaries), 4, 1, 16, 100, 1.0);
  check_attention(Sequences::dense(1, 260), 2, 1, 64, 0, 10.0);  // nearly one-hot
}

}  // namespace
}  // namespace rankone::nn::test
