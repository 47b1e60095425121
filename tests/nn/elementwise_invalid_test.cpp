// Invalid calls: each is refused with a message that names operator and tensor, before anything is
// written.

#include <gtest/gtest.h>

#include "core/status.hpp"
#include "nn/operators.hpp"

namespace rankone::nn {
namespace {

Tensor f32(const Shape& shape) { return Tensor::zeros(shape, Dtype::f32); }
Tensor f64(const Shape& shape) { return Tensor::zeros(shape, Dtype::f64); }

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

class Invalid : public testing::Test {
 protected:
  Context context_{{.threads = 1}};
  Tensor x_ = f32({4, 6});
  Tensor y_ = f32({4, 6});
};

TEST_F(Invalid, Norms) {
  expect_refused([&] { rms_norm(context_, {}, y_); }, "[rms_norm] x is missing");
  expect_refused([&] { rms_norm(context_, {.x = x_}, {}); }, "[rms_norm] y is missing");
  expect_refused([&] { rms_norm(context_, {.x = f32({4, 0})}, f32({4, 0})); }, "last axis");
  expect_refused([&] { rms_norm(context_, {.x = f32({})}, f32({})); }, "at least 1 axes");
  expect_refused([&] { rms_norm(context_, {.x = x_}, f64({4, 6})); }, "y has dtype f64");
  expect_refused([&] { rms_norm(context_, {.x = x_}, f32({6, 4})); }, "y has shape [6, 4]");
  expect_refused([&] { rms_norm(context_, {.x = x_, .weight = f32({4})}, y_); }, "weight");
  expect_refused([&] { rms_norm(context_, {.x = x_, .weight = f32({2, 6})}, y_); }, "weight");
  expect_refused([&] { rms_norm(context_, {.x = x_, .weight = f32({0})}, y_); }, "weight");
  expect_refused([&] { rms_norm(context_, {.x = x_, .gate = f32({3, 6})}, y_); }, "gate");
  expect_refused(
      [&] { rms_norm(context_, {.x = x_, .gate = x_, .activation = Activation::relu}, y_); },
      "activation of the gate");
  expect_refused([&] { rms_norm(context_, {.x = x_, .eps = -1}, y_); }, "eps is -1");
  expect_refused(
      [&] {
        rms_norm(context_, {.x = f32({6, 8}).slice(1, 0, 4)}, f32({6, 4}));
      },
      "not contiguous");
  expect_refused(
      [&] {
        rms_norm(context_, {.x = Tensor::zeros({4, 6}, Dtype::i32)}, y_);
      },
      "dtype i32");
  const RmsNorm plain{.x = x_};
  expect_refused([&] { rms_norm_vjp(context_, plain, {}, {}); }, "[rms_norm_vjp] dy is missing");
  expect_refused([&] { rms_norm_vjp(context_, plain, y_, {f32({4, 5}), {}, {}}); }, "dx");
  expect_refused([&] { rms_norm_vjp(context_, plain, y_, {{}, f32({6}), {}}); }, "dweight");
  expect_refused([&] { rms_norm_vjp(context_, plain, y_, {{}, {}, y_}); }, "dgate");
  const RmsNorm weighted{.x = x_, .weight = f32({6})};
  expect_refused([&] { rms_norm_vjp(context_, weighted, y_, {{}, f32({5}), {}}); }, "dweight");
  expect_refused([&] { rms_norm_vjp(context_, weighted, y_, {{}, f64({6}), {}}); }, "dweight");
  expect_refused([&] { vector_norm(context_, {.x = x_, .eps = -1e-9}, y_); }, "[vector_norm] eps");
  expect_refused([&] { vector_norm_vjp(context_, {.x = x_}, y_, {}); }, "dx is missing");
}

TEST_F(Invalid, ShortConv) {
  const Sequences four = Sequences::dense(2, 2);
  const Tensor weight = f32({6, 4});
  const auto refuse = [&](const ShortConv& args, const ShortConvOut& out, const char* words) {
    expect_refused([&] { short_conv(context_, four, args, out); }, words);
  };
  refuse({.x = x_, .weight = {}}, {y_, {}}, "[short_conv] weight is missing");
  refuse({.x = x_, .weight = f32({6, 9})}, {y_, {}}, "window 1 to 8");
  refuse({.x = x_, .weight = f32({6, 0})}, {y_, {}}, "window 1 to 8");
  refuse({.x = x_, .weight = f32({5, 4})}, {y_, {}}, "x has shape [4, 6]");
  refuse({.x = f32({5, 6}), .weight = weight}, {f32({5, 6}), {}}, "x has shape [5, 6]");
  refuse({.x = x_, .weight = weight, .bias = f32({5})}, {y_, {}}, "bias");
  refuse({.x = x_, .weight = weight, .history = f32({2, 6, 4})}, {y_, {}}, "history");
  refuse({.x = x_, .weight = weight, .history = f64({2, 6, 3})}, {y_, {}}, "history");
  refuse({.x = x_, .weight = weight, .activation = Activation::relu}, {y_, {}}, "activation");
  refuse({.x = x_, .weight = weight}, {y_, f32({1, 6, 3})}, "out history");
  refuse({.x = x_, .weight = weight}, {{}, {}}, "y is missing");
  const ShortConv args{.x = x_, .weight = weight};
  const auto refuse_vjp = [&](const ShortConvCotangents& cotangents, const ShortConvGrads& grads,
                              const char* words) {
    expect_refused([&] { short_conv_vjp(context_, four, args, cotangents, grads); }, words);
  };
  refuse_vjp({{}, {}}, {}, "[short_conv_vjp] dy is missing");
  refuse_vjp({y_, f32({2, 6, 2})}, {}, "cotangent of history");
  refuse_vjp({y_, {}}, {{}, {}, f32({6}), {}}, "dbias");
  refuse_vjp({y_, {}}, {{}, f32({4, 6}), {}, {}}, "dweight");
  refuse_vjp({y_, {}}, {{}, {}, {}, f32({2, 3, 6})}, "dhistory");
}

TEST_F(Invalid, Maps) {
  expect_refused([&] { activate(context_, {}, Activation::silu, y_); }, "[activate] x is missing");
  expect_refused([&] { activate(context_, x_, Activation::silu, f32({4, 5})); }, "y has shape");
  expect_refused([&] { activate_vjp(context_, x_, Activation::silu, {}, y_); }, "dy is missing");
  expect_refused([&] { swiglu(context_, x_, f32({4, 5}), y_); }, "[swiglu] up");
  expect_refused([&] { swiglu_vjp(context_, x_, x_, y_, f64({4, 6}), {}); }, "dgate");
  expect_refused([&] { multiply(context_, x_, f64({4, 6}), y_); }, "[multiply] b has dtype");
  expect_refused([&] { multiply_vjp(context_, x_, x_, y_, {}, f32({1})); }, "db");
  // As many elements, but another order.
  expect_refused([&] { add(context_, x_, f32({6, 4}), y_); }, "[add] b has shape [6, 4]");
  expect_refused([&] { scale(context_, x_, 2, f32({25})); }, "[scale] y");
  expect_refused([&] { fill(context_, Tensor::zeros({3}, Dtype::i64), 0); }, "[fill] y has dtype");
  expect_refused([&] { copy(context_, x_, f64({4, 7})); }, "[copy] to");
  expect_refused([&] { copy(context_, Tensor::zeros({3}, Dtype::i64), f32({3})); }, "[copy] from");
}

TEST_F(Invalid, AxesMayBeMergedButNotReordered) {
  EXPECT_NO_THROW(add(context_, f32({2, 3, 4}), f32({6, 4}), f32({2, 12})));
  EXPECT_NO_THROW(add(context_, f32({24}), f32({2, 3, 4}), f32({1, 2, 3, 4})));
  EXPECT_THROW(add(context_, f32({2, 3, 4}), f32({3, 2, 4}), f32({24})), Error);
  EXPECT_THROW(add(context_, f32({4, 6}), f32({3, 8}), f32({24})), Error);
}

TEST_F(Invalid, HeadsColumnsRowsAndFeatures) {
  const Tensor heads = f32({4, 2, 3});
  expect_refused([&] { head_skip(context_, heads, heads, f32({3}), heads); }, "[head_skip] skip");
  expect_refused([&] { head_skip(context_, heads, heads, f32({2, 2}), heads); }, "skip");
  expect_refused([&] { head_skip(context_, f32({4, 2, 2}), heads, f32({2}), heads); }, "o has");
  expect_refused(
      [&] {
        head_skip_vjp(context_, heads, f32({2}), heads, heads, f32({2, 3}));
      },
      "dskip");
  expect_refused([&] { repeat_heads(context_, heads, 0, heads); }, "repeats is 0");
  expect_refused([&] { repeat_heads(context_, heads, 2, heads); }, "[repeat_heads] y");
  expect_refused([&] { repeat_heads(context_, heads, 2, f32({4, 3, 4})); }, "[repeat_heads] y");
  expect_refused([&] { repeat_heads_vjp(context_, heads, 2, heads); }, "[repeat_heads_vjp] dy");
  expect_refused([&] { columns(context_, x_, 4, f32({4, 3})); }, "columns 4 to 7 are not in x");
  expect_refused([&] { columns(context_, x_, -1, f32({4, 3})); }, "columns -1 to 2");
  expect_refused([&] { columns(context_, x_, 0, f32({3, 3})); }, "y has shape [3, 3]");
  expect_refused([&] { columns_vjp(context_, f32({4, 7}), 0, x_); }, "[columns_vjp] columns");
  const std::vector<std::int64_t> beyond{0, 4};
  const std::vector<std::int64_t> negative{-1};
  expect_refused([&] { gather_rows(context_, x_, beyond, f32({2, 6})); }, "row 4 is not in x of 4");
  expect_refused([&] { gather_rows(context_, x_, negative, f32({1, 6})); }, "row -1");
  expect_refused([&] { gather_rows(context_, x_, {}, f32({1, 6})); }, "[gather_rows] y");
  expect_refused([&] { feature_map(context_, x_, FeatureMap::hedgehog, y_); }, "[feature_map] y");
  expect_refused([&] { feature_map(context_, x_, FeatureMap::dpfp, f32({4, 12})); }, "y has");
  expect_refused(
      [&] {
        feature_map_vjp(context_, x_, FeatureMap::dpfp, f32({4, 48}), f32({4, 5}));
      },
      "dx");
}

}  // namespace
}  // namespace rankone::nn
