// Invalid calls of the operators around a matrix product, attention, loss and optimiser: each is
// refused with a message that names operator and tensor.

#include <gtest/gtest.h>

#include <cmath>

#include "core/status.hpp"
#include "nn/operators.hpp"

namespace rankone::nn {
namespace {

Tensor f32(const Shape& shape) { return Tensor::zeros(shape, Dtype::f32); }
Tensor f64(const Shape& shape) { return Tensor::zeros(shape, Dtype::f64); }
Tensor i32(const Shape& shape) { return Tensor::zeros(shape, Dtype::i32); }
Tensor i64(const Shape& shape) { return Tensor::zeros(shape, Dtype::i64); }
Tensor bf(const Shape& shape) { return Tensor::zeros(shape, Dtype::bf16); }

template <class Call>
void expect_refused(Call&& call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
  }
}

class InvalidMatrix : public testing::Test {
 protected:
  Context context_{{.threads = 1}};
};

TEST_F(InvalidMatrix, Gemm) {
  const Tensor a = f32({2, 3});
  const Tensor b = f32({3, 4});
  const Tensor c = f32({2, 4});
  const auto refused = [&](const Gemm& args, const char* words) {
    expect_refused([&] { gemm(context_, args); }, words);
  };
  refused({{}, b, c}, "[gemm] a is missing");
  refused({a, {}, c}, "[gemm] b is missing");
  refused({a, b, {}}, "[gemm] c is missing");
  refused({f32({6}), b, c}, "a has shape [6] (must have 2 axes)");
  refused({i32({2, 3}), b, c}, "a has dtype i32");
  refused({f64({2, 3}), b, c}, "a has dtype f64");
  refused({a, b, bf({2, 4})}, "c has dtype bf16");
  refused({a, b, f32({3, 4})}, "a has shape [2, 3] (must be [3, 3]");
  refused({a, b, f32({2, 5})}, "b has shape [3, 4] (must be [3, 5]");
  refused({a, b, c, true}, "a has shape [2, 3]");
  refused({a, b, c, false, true}, "b has shape [3, 4]");
  const std::int64_t columns_first[] = {1, 2};
  refused({Tensor::view(a.raw(), {2, 3}, Dtype::f32, columns_first), b, c}, "strides [1, 2]");
  const std::int64_t overlapping[] = {1, 1};
  refused({a, b, Tensor::view(c.raw(), {2, 4}, Dtype::f32, overlapping)}, "strides [1, 1]");
}

TEST_F(InvalidMatrix, Linear) {
  const Linear right = {f32({2, 3}), f32({4, 3}), f32({4})};
  const Tensor y = f32({2, 4});
  const auto refused = [&](const Linear& args, const Tensor& result, const char* words) {
    expect_refused([&] { linear(context_, args, result); }, words);
  };
  refused({{}, right.weight, {}}, y, "[linear] x is missing");
  refused({right.x, {}, {}}, y, "[linear] weight is missing");
  refused(right, {}, "[linear] y is missing");
  refused({right.x, f32({12}), {}}, y, "weight has shape [12]");
  refused({right.x, f32({4, 0}), {}}, y, "x has shape [2, 3]");
  refused({f32({2, 0}), f32({4, 0}), {}}, y, "must not be empty");
  refused({bf({2, 3}), right.weight, {}}, y, "x has dtype bf16");
  refused({right.x, f64({4, 3}), {}}, y, "weight has dtype f64");
  refused({right.x, right.weight, f32({3})}, y, "bias has shape [3]");
  refused({right.x, right.weight, f64({4})}, y, "bias has dtype f64");
  refused({f32({2, 6}).slice(1, 0, 3), right.weight, {}}, y, "not contiguous");
  refused(right, f32({4, 2}), "y has shape [4, 2]");
  refused(right, f64({2, 4}), "y has dtype f64");
  const auto vjp_refused = [&](const Linear& args, const Tensor& dy, const LinearGrads& grads,
                               const char* words) {
    expect_refused([&] { linear_vjp(context_, args, dy, grads); }, words);
  };
  vjp_refused(right, {}, {}, "[linear_vjp] dy is missing");
  vjp_refused(right, y, {f32({3, 2}), {}, {}}, "dx has shape");
  vjp_refused(right, y, {{}, f32({3, 4}), {}}, "dweight has shape");
  vjp_refused(right, y, {{}, bf({4, 3}), {}}, "dweight has dtype bf16");
  vjp_refused(right, y, {{}, {}, f32({3})}, "dbias has shape");
  vjp_refused({right.x, right.weight, {}}, y, {{}, {}, f32({4})}, "no such parameter");
}

TEST_F(InvalidMatrix, Embedding) {
  const Tensor ids = i32({2});
  const Tensor table = f32({4, 3});
  const Tensor y = f32({2, 3});
  const auto refused = [&](const Tensor& i, const Tensor& t, const Tensor& result,
                           const char* words) {
    expect_refused([&] { embedding(context_, i, t, result); }, words);
  };
  refused({}, table, y, "[embedding] ids is missing");
  refused(ids, {}, y, "[embedding] table is missing");
  refused(ids, table, {}, "[embedding] y is missing");
  refused(i64({2}), table, y, "ids has dtype i64");
  refused(ids, f32({12}), y, "table has shape [12]");
  refused(ids, table, f32({3, 2}), "y has shape [3, 2]");
  refused(ids, table, bf({2, 3}), "y has dtype bf16");
  refused(ids, f64({4, 3}), y, "table has dtype f64");
  expect_refused([&] { embedding_vjp(context_, ids, f32({3, 3}), table); }, "dy has shape");
  expect_refused([&] { embedding_vjp(context_, ids, y, bf({4, 3})); }, "dtable has dtype bf16");
  for (const std::int32_t bad : {4, -1}) {
    ids.data<std::int32_t>()[1] = bad;
    for (const char* backend : {"cpu", "reference"}) {
      Context context({.threads = 2, .backends = {backend}});
      expect_refused([&] { embedding(context, ids, table, y); }, "[embedding] ids holds");
      expect_refused([&] { embedding_vjp(context, ids, y, table); }, "[embedding_vjp] ids holds");
    }
  }
}

TEST_F(InvalidMatrix, Rope) {
  const Sequences two = Sequences::dense(2, 3);
  const Tensor x = f32({2, 3, 5, 4});
  const auto refused = [&](const Rope& args, const Tensor& y, const char* words) {
    expect_refused([&] { rope(context_, two, args, y); }, words);
  };
  refused({}, x, "[rope] x is missing");
  refused({x}, {}, "[rope] y is missing");
  refused({f32({7, 5, 4})}, f32({7, 5, 4}), "must be 6 rows");
  refused({f32({6, 5, 3})}, f32({6, 5, 3}), "must be even");
  refused({bf({6, 5, 4})}, bf({6, 5, 4}), "x has dtype bf16");
  refused({x, i64({3})}, x, "positions has shape [3]");
  refused({x, i32({2})}, x, "positions has dtype i32");
  refused({x, {}, 0.0}, x, "theta is 0");
  refused({x, {}, std::nan("")}, x, "theta is nan");
  refused({x}, f32({6, 4, 5}), "y has shape");
  expect_refused([&] { rope_vjp(context_, two, {x}, {}, x); }, "[rope_vjp] dy is missing");
  expect_refused([&] { rope_vjp(context_, two, {x}, x, f64({2, 3, 5, 4})); }, "dx has dtype f64");
}

TEST_F(InvalidMatrix, Attention) {
  const Sequences two = Sequences::dense(2, 3);
  const Tensor q = f32({6, 4, 5});
  const Tensor k = f32({6, 2, 5});
  const Attention right = {q, k, k};
  const auto refused = [&](const Attention& args, const char* words) {
    expect_refused([&] { attention(context_, two, args, q); }, words);
  };
  refused({{}, k, k}, "[attention] q is missing");
  refused({q, {}, k}, "[attention] k is missing");
  refused({q, k, {}}, "[attention] v is missing");
  refused({q, f32({6, 3, 5}), k}, "q has 4 heads and k has 3");
  refused({q, f32({6, 0, 5}), k}, "k has 0");
  refused({f32({5, 4, 5}), k, k}, "q has shape [5, 4, 5]");
  refused({q, f32({6, 2, 4}), k}, "k has shape [6, 2, 4]");
  refused({q, k, f64({6, 2, 5})}, "v has dtype f64");
  refused({q, k, k, -1}, "window is -1");
  refused({q, k, k, 0, INFINITY}, "scale is inf");
  expect_refused([&] { attention(context_, two, right, k); }, "o has shape");
  const Tensor cache = f32({2, 2, 7, 5});
  refused({q, k, k, 0, 1.0, cache, cache, {}}, "go together");
  refused({q, k, k, 0, 1.0, {}, cache, i64({2})}, "go together");
  refused({q, k, k, 0, 1.0, f32({3, 2, 7, 5}), cache, i64({2})}, "cache_k has shape");
  refused({q, k, k, 0, 1.0, cache, f32({2, 2, 6, 5}), i64({2})}, "cache_v has shape");
  refused({q, k, k, 0, 1.0, f32({2, 2, 2, 5}), f32({2, 2, 2, 5}), i64({2})}, "cache_k holds 2");
  refused({q, k, k, 0, 1.0, cache, cache, i64({3})}, "positions has shape [3]");
  const auto vjp_refused = [&](const Attention& args, const Tensor& o, const Tensor& do_,
                               const AttentionGrads& grads, const char* words) {
    expect_refused([&] { attention_vjp(context_, two, args, o, do_, grads); }, words);
  };
  vjp_refused({q, k, k, 0, 1.0, cache, cache, i64({2})}, q, q, {}, "[attention_vjp] cache_k");
  vjp_refused(right, {}, q, {}, "o is missing");
  vjp_refused(right, q, {}, {}, "do is missing");
  vjp_refused(right, q, q, {k, {}, {}}, "dq has shape");
  vjp_refused(right, q, q, {{}, q, {}}, "dk has shape");
  vjp_refused(right, q, q, {{}, {}, f64({6, 2, 5})}, "dv has dtype f64");
}

TEST_F(InvalidMatrix, CrossEntropy) {
  const Tensor x = f32({2, 3});
  const Tensor weight = f32({4, 3});
  const Tensor targets = i32({2});
  const Tensor losses = f32({2});
  const auto refused = [&](const CrossEntropy& args, const Tensor& result, const char* words) {
    expect_refused([&] { cross_entropy(context_, args, result); }, words);
  };
  refused({{}, weight, targets}, losses, "[cross_entropy] x is missing");
  refused({x, {}, targets}, losses, "[cross_entropy] weight is missing");
  refused({x, weight, {}}, losses, "[cross_entropy] targets is missing");
  refused({x, weight, targets}, {}, "[cross_entropy] losses is missing");
  refused({x, f32({0, 3}), targets}, losses, "vocabulary must not be empty");
  refused({x, weight, i32({3})}, losses, "targets has shape [3]");
  refused({x, weight, i64({2})}, losses, "targets has dtype i64");
  refused({x, weight, targets}, f32({3}), "losses has shape [3]");
  refused({x, weight, targets}, f64({2}), "losses has dtype f64");
  const CrossEntropy right = {x, weight, targets};
  expect_refused([&] { cross_entropy_vjp(context_, right, 1, {}, {weight, {}}); }, "dx has shape");
  expect_refused([&] { cross_entropy_vjp(context_, right, 1, {}, {{}, x}); }, "dweight has shape");
  targets.data<std::int32_t>()[1] = 4;
  for (const char* backend : {"cpu", "reference"}) {
    Context context({.threads = 2, .backends = {backend}});
    expect_refused([&] { cross_entropy(context, right, losses); }, "targets holds 4");
  }
}

TEST_F(InvalidMatrix, Optimizer) {
  const Tensor x = f32({5});
  const Tensor sum = f64({1});
  const Tensor factor = f32({1});
  const Tensor ok = i32({1});
  expect_refused([&] { add_sum_of_squares(context_, {}, sum); }, "[add_sum_of_squares] x");
  expect_refused([&] { add_sum_of_squares(context_, x, factor); }, "sum has dtype f32");
  expect_refused([&] { add_sum(context_, bf({5}), 1, sum); }, "[add_sum] x has dtype bf16");
  expect_refused([&] { add_sum(context_, x, 1, f64({2})); }, "sum has shape [2]");
  expect_refused([&] { clip_factor(context_, sum, 0, factor, ok); }, "limit is 0");
  expect_refused([&] { clip_factor(context_, sum, 1, ok, ok); }, "factor has dtype i32");
  expect_refused([&] { clip_factor(context_, sum, 1, factor, {}); }, "ok is missing");
  const auto refused = [&](auto&& change, const char* words) {
    AdamW args{.parameter = x, .grad = x, .m = x, .v = x, .factor = factor, .ok = ok};
    change(args);
    expect_refused([&] { adamw(context_, args); }, words);
  };
  refused([](AdamW& args) { args.parameter = {}; }, "[adamw] parameter is missing");
  refused([](AdamW& args) { args.grad = f32({4}); }, "grad has shape [4]");
  refused([](AdamW& args) { args.m = f64({5}); }, "m has dtype f64");
  refused([](AdamW& args) { args.v = {}; }, "v is missing");
  refused([](AdamW& args) { args.factor = f64({1}); }, "factor has dtype f64");
  refused([](AdamW& args) { args.ok = f32({1}); }, "ok has dtype f32");
  refused([](AdamW& args) { args.beta1 = 1; }, "beta1 is 1");
  refused([](AdamW& args) { args.beta2 = -0.5; }, "beta2 -0.5");
  refused([](AdamW& args) { args.eps = 0; }, "eps is 0");
  refused([](AdamW& args) { args.lr = NAN; }, "lr is nan");
  refused([](AdamW& args) { args.step = 0; }, "step is 0");
}

}  // namespace
}  // namespace rankone::nn
