#include "elementwise_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace rankone::nn::test {
namespace {

constexpr Activation kAll[] = {Activation::none, Activation::silu, Activation::sigmoid,
                               Activation::relu, Activation::elu1};

OperatorCase rms_case(Random& random, const Shape& x, std::int64_t weight, bool gated,
                      Activation activation, bool gate_first) {
  OperatorCase op;
  op.name = fmt::format("rms_norm {} weight {} gate {} activation {} first {}", x.str(), weight,
                        gated, static_cast<int>(activation), gate_first);
  op.inputs = {normals(random, x)};
  op.parameters = {false};
  if (weight > 0) {
    op.inputs.push_back(normals(random, {weight}));
    op.parameters.push_back(true);
  }
  if (gated) {
    op.inputs.push_back(normals(random, x));
    op.parameters.push_back(false);
  }
  op.outputs = {x};
  const auto split = [=](const Tensors& t) {
    return RmsNormGrads{t[0], weight > 0 ? t[1] : Tensor{}, gated ? t.back() : Tensor{}};
  };
  const auto args = [=](const Tensors& in) {
    const RmsNormGrads parts = split(in);
    return RmsNorm{parts.x, parts.weight, parts.gate, activation, gate_first, 1e-5};
  };
  op.forward = [=](Context& context, const Tensors& in, const Tensors& out) {
    rms_norm(context, args(in), out[0]);
  };
  op.vjp = [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    rms_norm_vjp(context, args(in), dout[0], split(din));
  };
  return op;
}

OperatorCase vector_norm_case(Random& random, const Shape& x, VectorNormForm form, double eps) {
  OperatorCase op;
  op.name = fmt::format("vector_norm {} form {} eps {}", x.str(), static_cast<int>(form), eps);
  op.inputs = {normals(random, x)};
  // A sum near zero would be ill-conditioned; feature maps give positive elements.
  if (form == VectorNormForm::sum) {
    for (double& value : op.inputs[0].span<double>()) value = std::abs(value) + 0.125;
  }
  op.inputs[0] = op.inputs[0].to(Dtype::f32).to(Dtype::f64);
  op.parameters = {false};
  op.outputs = {x};
  if (x[-1] == 1) {
    for (const double value : op.inputs[0].span<double>()) {
      op.cancelling_terms = std::max(op.cancelling_terms, 1 / std::abs(value));
    }
  }
  op.forward = [=](Context& context, const Tensors& in, const Tensors& out) {
    vector_norm(context, {in[0], form, eps}, out[0]);
  };
  op.vjp = [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    vector_norm_vjp(context, {in[0], form, eps}, dout[0], din[0]);
  };
  return op;
}

OperatorCase feature_case(Random& random, const Shape& x, FeatureMap map) {
  OperatorCase op;
  op.name =
      fmt::format("feature_map {} {}", x.str(), map == FeatureMap::hedgehog ? "hedgehog" : "dpfp");
  op.inputs = {normals(random, x)};
  op.parameters = {false};
  // p (dp - p . dp) with p near one.
  if (x[-1] == 1 && map == FeatureMap::hedgehog) op.cancelling_terms = 2;
  Shape y = x;
  y[-1] *= map == FeatureMap::hedgehog ? 2 : 8;
  op.outputs = {y};
  op.forward = [=](Context& context, const Tensors& in, const Tensors& out) {
    feature_map(context, in[0], map, out[0]);
  };
  op.vjp = [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    feature_map_vjp(context, in[0], map, dout[0], din[0]);
  };
  return op;
}

}  // namespace

std::vector<OperatorCase> norm_cases(Size size) {
  Random random(3);
  const bool small = size == Size::small;
  const Shape flat = small ? Shape{3, 5} : Shape{300, 257};
  const Shape heads = small ? Shape{2, 3, 4} : Shape{200, 6, 48};
  std::vector<OperatorCase> cases;
  const std::int64_t d = flat[-1];
  cases.push_back(rms_case(random, flat, 0, false, Activation::silu, false));
  cases.push_back(rms_case(random, flat, d, false, Activation::silu, false));
  for (const Activation activation : {Activation::silu, Activation::sigmoid}) {
    for (const bool first : {false, true}) {
      cases.push_back(rms_case(random, flat, d, true, activation, first));
      cases.push_back(rms_case(random, heads, heads[-2] * heads[-1], true, activation, first));
    }
  }
  cases.push_back(rms_case(random, heads, heads[-1], false, Activation::silu, false));
  for (const Shape& shape : {flat, heads, Shape{7, 1}}) {
    cases.push_back(vector_norm_case(random, shape, VectorNormForm::rsqrt, 1e-6));
    cases.push_back(vector_norm_case(random, shape, VectorNormForm::clamp, 1e-12));
    cases.push_back(vector_norm_case(random, shape, VectorNormForm::clamp, 100.0));  // holds
    cases.push_back(vector_norm_case(random, shape, VectorNormForm::sum, 1e-6));
    cases.push_back(feature_case(random, shape, FeatureMap::hedgehog));
    cases.push_back(feature_case(random, shape, FeatureMap::dpfp));
  }
  return cases;
}

std::vector<OperatorCase> map_cases(Size size) {
  Random random(4);
  const Shape shape = size == Size::small ? Shape{3, 7} : Shape{313, 211};
  std::vector<OperatorCase> cases;
  for (const Activation activation : kAll) {
    cases.push_back(
        {fmt::format("activate {}", static_cast<int>(activation)),
         {normals(random, shape, 3.0)},
         {false},
         {shape},
         [=](Context& context, const Tensors& in, const Tensors& out) {
           activate(context, in[0], activation, out[0]);
         },
         [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
           activate_vjp(context, in[0], activation, dout[0], din[0]);
         }});
  }
  cases.push_back(
      {"swiglu",
       {normals(random, shape, 2.0), normals(random, shape)},
       {false, false},
       {shape},
       [](Context& context, const Tensors& in, const Tensors& out) {
         swiglu(context, in[0], in[1], out[0]);
       },
       [](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
         swiglu_vjp(context, in[0], in[1], dout[0], din[0], din[1]);
       }});
  cases.push_back(
      {"multiply",
       {normals(random, shape), normals(random, shape)},
       {false, false},
       {shape},
       [](Context& context, const Tensors& in, const Tensors& out) {
         multiply(context, in[0], in[1], out[0]);
       },
       [](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
         multiply_vjp(context, in[0], in[1], dout[0], din[0], din[1]);
       }});
  // The vjps of add and scale are copy and scale.
  cases.push_back({"add, copy",
                   {normals(random, shape), normals(random, shape)},
                   {false, false},
                   {shape},
                   [](Context& context, const Tensors& in, const Tensors& out) {
                     add(context, in[0], in[1], out[0]);
                   },
                   [](Context& context, const Tensors&, const Tensors& dout, const Tensors& din) {
                     copy(context, dout[0], din[0]);
                     copy(context, dout[0], din[1]);
                   }});
  cases.push_back({"scale",
                   {normals(random, shape)},
                   {false},
                   {shape},
                   [](Context& context, const Tensors& in, const Tensors& out) {
                     scale(context, in[0], 0.625, out[0]);
                   },
                   [](Context& context, const Tensors&, const Tensors& dout, const Tensors& din) {
                     scale(context, dout[0], 0.625, din[0]);
                   }});
  return cases;
}

std::vector<OperatorCase> layout_cases(Size size) {
  Random random(5);
  const bool small = size == Size::small;
  const std::int64_t rows = small ? 3 : 250;
  const std::int64_t heads = small ? 2 : 5;
  const std::int64_t width = small ? 3 : 37;
  const Shape x{rows, heads, width};
  std::vector<OperatorCase> cases;
  for (const Shape& skip : {Shape{heads}, Shape{heads, width}}) {
    cases.push_back(
        {"head_skip " + skip.str(),
         {normals(random, x), normals(random, x), normals(random, skip)},
         {false, false, true},
         {x},
         [](Context& context, const Tensors& in, const Tensors& out) {
           head_skip(context, in[0], in[1], in[2], out[0]);
         },
         [](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
           copy(context, dout[0], din[0]);
           head_skip_vjp(context, in[1], in[2], dout[0], din[1], din[2]);
         }});
  }
  cases.push_back({"repeat_heads",
                   {normals(random, x)},
                   {false},
                   {Shape{rows, heads * 3, width}},
                   [](Context& context, const Tensors& in, const Tensors& out) {
                     repeat_heads(context, in[0], 3, out[0]);
                   },
                   [](Context& context, const Tensors&, const Tensors& dout, const Tensors& din) {
                     repeat_heads_vjp(context, dout[0], 3, din[0]);
                   }});
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, width - 2}) {
    cases.push_back({fmt::format("columns from {}", begin),
                     {normals(random, {rows, width})},
                     {false},
                     {Shape{rows, 2}},
                     [=](Context& context, const Tensors& in, const Tensors& out) {
                       columns(context, in[0], begin, out[0]);
                     },
                     [=](Context& context, const Tensors&, const Tensors& dout,
                         const Tensors& din) { columns_vjp(context, dout[0], begin, din[0]); }});
  }
  return cases;
}

namespace {

OperatorCase conv_case(Random& random, const Sequences& sequences, std::int64_t channels,
                       std::int64_t window, bool bias, bool history, Activation activation) {
  const Shape x{sequences.rows(), channels};
  const Shape past{sequences.count(), channels, window - 1};
  OperatorCase op;
  op.name =
      fmt::format("short_conv {} sequences, {} window {} bias {} history {} activation {}",
                  sequences.count(), x.str(), window, bias, history, static_cast<int>(activation));
  op.inputs = {normals(random, x), normals(random, {channels, window}), normals(random, {channels}),
               normals(random, past)};
  op.parameters = {false, true, true, false};
  op.outputs = {x, past};
  const auto args = [=](const Tensors& in) {
    return ShortConv{in[0], in[1], bias ? in[2] : Tensor{}, history ? in[3] : Tensor{}, activation};
  };
  op.forward = [=](Context& context, const Tensors& in, const Tensors& out) {
    short_conv(context, sequences, args(in), {out[0], out[1]});
  };
  op.vjp = [=](Context& context, const Tensors& in, const Tensors& dout, const Tensors& din) {
    short_conv_vjp(context, sequences, args(in), {dout[0], dout[1]},
                   {din[0], din[1], bias ? din[2] : Tensor{}, din[3]});
    // What is not an argument of the call has no influence on it.
    if (!history) fill(context, din[3], 0);
  };
  return op;
}

}  // namespace

std::vector<OperatorCase> conv_cases(Size size) {
  Random random(6);
  const bool small = size == Size::small;
  std::vector<OperatorCase> cases;
  const std::vector<std::int64_t> small_cu{0, 0, 1, 3, 3, 8, 11, 11};
  const std::vector<std::int64_t> large_cu{0, 1, 1, 3, 200, 203, 600, 600};
  const std::vector<Sequences> layouts = {Sequences::packed(small ? small_cu : large_cu),
                                          Sequences::dense(2, small ? 2 : 190),
                                          Sequences::dense(3, 1)};
  const std::int64_t channels = small ? 3 : 133;
  for (const Sequences& sequences : layouts) {
    for (const std::int64_t window : {1, 2, 4, 8}) {
      cases.push_back(conv_case(random, sequences, channels, window, true, true, Activation::silu));
    }
    cases.push_back(conv_case(random, sequences, channels, 4, false, true, Activation::none));
    cases.push_back(conv_case(random, sequences, channels, 4, true, false, Activation::silu));
  }
  return cases;
}

std::vector<OperatorCase> all_cases(Size size) {
  std::vector<OperatorCase> cases;
  for (const auto& make : {norm_cases, map_cases, layout_cases, conv_cases}) {
    for (OperatorCase& op : make(size)) cases.push_back(std::move(op));
  }
  return cases;
}

}  // namespace rankone::nn::test
