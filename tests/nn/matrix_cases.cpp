#include "matrix_cases.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "nn/operators.hpp"

namespace rankone::nn::test {
namespace {

// Integers below `bound`; every third negative where `unscored`.
Tensor integers(std::int64_t count, std::uint64_t bound, bool unscored) {
  Random random(11);
  const Tensor result = Tensor::empty({count}, Dtype::i32);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::int32_t>(random.below(bound));
    result.data<std::int32_t>()[i] = unscored && i % 3 == 1 ? -1 : value;
  }
  return result;
}

OperatorCase linear_case(const Shape& x, std::int64_t out, bool biased) {
  Random random(1);
  OperatorCase op;
  op.name = fmt::format("linear {} to {}{}", x.str(), out, biased ? " with bias" : "");
  const double deviation = 1 / std::sqrt(static_cast<double>(x[-1]));
  op.inputs = {normals(random, x), normals(random, {out, x[-1]}, deviation)};
  op.parameters = {false, true};
  if (biased) {
    op.inputs.push_back(normals(random, {out}));
    op.parameters.push_back(true);
  }
  Shape y = x;
  y[-1] = out;
  op.outputs = {y};
  op.forward = [biased](Context& context, const Tensors& in, const Tensors& result) {
    linear(context, {in[0], in[1], biased ? in[2] : Tensor()}, result[0]);
  };
  op.vjp = [biased](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    linear_vjp(context, {in[0], in[1], biased ? in[2] : Tensor()}, dout[0],
               {din[0], din[1], biased ? din[2] : Tensor()});
  };
  return op;
}

OperatorCase embedding_case(std::int64_t rows, std::int64_t table, std::int64_t width) {
  Random random(2);
  OperatorCase op;
  op.name = fmt::format("embedding of {} rows from [{}, {}]", rows, table, width);
  op.inputs = {normals(random, {table, width})};
  op.parameters = {true};
  op.outputs = {{rows, width}};
  const Tensor ids = integers(rows, static_cast<std::uint64_t>(table), false);
  op.forward = [ids](Context& context, const Tensors& in, const Tensors& result) {
    embedding(context, ids, in[0], result[0]);
  };
  op.vjp = [ids](Context& context, const Tensors&, const Tensors& dout, const Tensors& din) {
    embedding_vjp(context, ids, dout[0], din[0]);
  };
  return op;
}

OperatorCase loss_case(std::int64_t rows, std::int64_t width, std::int64_t vocabulary,
                       bool unscored) {
  Random random(3);
  OperatorCase op;
  op.name = fmt::format("cross_entropy [{}, {}] over {}{}", rows, width, vocabulary,
                        unscored ? ", some not scored" : "");
  op.inputs = {normals(random, {rows, width}), normals(random, {vocabulary, width}, 0.5)};
  op.parameters = {false, true};
  op.outputs = {{}};
  const Tensor targets = integers(rows, static_cast<std::uint64_t>(vocabulary), unscored);
  // The cotangent of every loss is one number, the factor: here the sum of losses is the output.
  op.forward = [targets, rows](Context& context, const Tensors& in, const Tensors& result) {
    const ArenaScope scope(context.arena());
    const Tensor losses = context.empty({rows}, in[0].dtype());
    cross_entropy(context, {in[0], in[1], targets}, losses);
    if (context.planning()) return;
    const Tensor wide = losses.to(Dtype::f64);
    double total = 0;
    for (const double loss : wide.span<double>()) total += loss;
    result[0].fill(total);
  };
  op.vjp = [targets](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    const double factor = context.planning() ? 1.0 : dout[0].to(Dtype::f64).data<double>()[0];
    cross_entropy_vjp(context, {in[0], in[1], targets}, factor, {}, {din[0], din[1]});
  };
  return op;
}

OperatorCase rope_case(const Sequences& sequences, std::int64_t heads, std::int64_t width,
                       const Tensor& positions) {
  Random random(4);
  OperatorCase op;
  op.name = fmt::format("rope of {} sequences, {} heads of {}", sequences.count(), heads, width);
  op.inputs = {normals(random, {sequences.rows(), heads, width})};
  op.parameters = {false};
  op.outputs = {op.inputs[0].shape()};
  op.forward = [=](Context& context, const Tensors& in, const Tensors& result) {
    rope(context, sequences, {in[0], positions, 1000.0}, result[0]);
  };
  op.vjp = [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    rope_vjp(context, sequences, {in[0], positions, 1000.0}, dout[0], din[0]);
  };
  return op;
}

struct AttentionSizes {
  std::int64_t heads, key_heads, width, window;
};

OperatorCase attention_case(const Sequences& sequences, const AttentionSizes& sizes) {
  Random random(5);
  const std::int64_t rows = sequences.rows();
  OperatorCase op;
  op.name =
      fmt::format("attention of {} sequences, {} rows, {} of {} heads of {}, window {}",
                  sequences.count(), rows, sizes.heads, sizes.key_heads, sizes.width, sizes.window);
  op.inputs = {normals(random, {rows, sizes.heads, sizes.width}),
               normals(random, {rows, sizes.key_heads, sizes.width}),
               normals(random, {rows, sizes.key_heads, sizes.width})};
  op.parameters = {false, false, false};
  op.outputs = {op.inputs[0].shape()};
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.width));
  const auto args = [=](const Tensors& in) {
    return Attention{in[0], in[1], in[2], sizes.window, scale};
  };
  op.forward = [=](Context& context, const Tensors& in, const Tensors& result) {
    attention(context, sequences, args(in), result[0]);
  };
  op.vjp = [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    const ArenaScope scope(context.arena());
    const Tensor o = context.empty(in[0].shape(), in[0].dtype());
    attention(context, sequences, args(in), o);
    attention_vjp(context, sequences, args(in), o, dout[0], {din[0], din[1], din[2]});
  };
  return op;
}

Sequences packed(std::initializer_list<std::int64_t> boundaries) {
  return Sequences::packed(std::span<const std::int64_t>(boundaries.begin(), boundaries.size()));
}

Tensor positions(std::initializer_list<std::int64_t> values) {
  return Tensor::of(std::span<const std::int64_t>(values.begin(), values.size()),
                    {static_cast<std::int64_t>(values.size())});
}

}  // namespace

std::vector<OperatorCase> linear_cases(Size size) {
  if (size == Size::large) {
    return {linear_case({3, 211, 97}, 130, true), linear_case({1, 70}, 300, true),
            linear_case({600, 64}, 64, false), linear_case({2500, 33}, 17, true),
            embedding_case(700, 50, 37)};
  }
  return {linear_case({2, 3, 5}, 4, true), linear_case({4, 3}, 2, false),
          linear_case({0, 3}, 2, true), embedding_case(7, 4, 3), embedding_case(0, 4, 3)};
}

std::vector<OperatorCase> loss_cases(Size size) {
  if (size == Size::large) {
    return {loss_case(700, 40, 1111, true), loss_case(300, 24, 4500, false),
            loss_case(1, 24, 77, false)};
  }
  return {loss_case(5, 3, 7, false), loss_case(7, 4, 5, true)};
}

std::vector<OperatorCase> rope_cases(Size size) {
  if (size == Size::large) {
    return {rope_case(packed({0, 100, 100, 163, 300}), 3, 32, positions({0, 5, 4000, 17})),
            rope_case(Sequences::dense(3, 90), 2, 10, {})};
  }
  return {rope_case(packed({0, 3, 3, 5}), 2, 4, positions({0, 2, 7}))};
}

std::vector<OperatorCase> attention_cases(Size size) {
  if (size == Size::large) {
    return {attention_case(Sequences::dense(2, 300), {4, 2, 32, 0}),
            attention_case(packed({0, 1, 1, 129, 380}), {3, 3, 19, 0}),
            attention_case(Sequences::dense(1, 450), {6, 2, 16, 100}),
            attention_case(Sequences::dense(1, 200), {2, 1, 8, 1})};
  }
  return {attention_case(packed({0, 4, 4, 9, 10}), {2, 1, 3, 0}),
          attention_case(packed({0, 6, 9}), {2, 2, 2, 3})};
}

std::vector<OperatorCase> matrix_cases(Size size) {
  std::vector<OperatorCase> all;
  for (const auto& cases :
       {linear_cases(size), loss_cases(size), rope_cases(size), attention_cases(size)}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace rankone::nn::test
