// The public functions of the operators without a matrix product: arguments are checked here, once
// for all backends, and the first backend that accepts the call runs it.

#include "nn/operators.hpp"

#include "nn/arguments.hpp"
#include "nn/backend.hpp"

namespace rankone::nn {
namespace {

void check_width(const Arguments& arguments, const Tensor& x) {
  arguments.floating("x", x, 1);
  arguments.check(x.dim(-1) >= 1, "x has shape {} (its last axis must not be empty)",
                  x.shape().str());
}

// tensor [..., trailing], as many elements as `rows` times that, dtype as `like`.
void check_rows(const Arguments& arguments, std::string_view name, const Tensor& tensor,
                std::int64_t rows, std::initializer_list<std::int64_t> trailing,
                const Tensor& like) {
  const int rank = static_cast<int>(trailing.size());
  arguments.floating(name, tensor, rank);
  const Shape right(trailing);
  bool fits = tensor.count() == rows * right.count();
  for (int i = 0; i < rank; ++i) fits = fits && tensor.dim(i - rank) == right[i];
  arguments.check(fits, "{} has shape {} (must be {} rows of {})", name, tensor.shape().str(), rows,
                  right.str());
  arguments.dtype(name, tensor, like.dtype());
}

void check(const Arguments& arguments, const RmsNorm& args) {
  check_width(arguments, args.x);
  if (args.weight.defined()) {
    arguments.floating("weight", args.weight, 1);
    const std::int64_t width = args.x.dim(-1);
    const std::int64_t length = args.weight.count();
    arguments.check(args.weight.rank() == 1 && length >= width && length % width == 0,
                    "weight has shape {} (must be one axis, a multiple of {} long)",
                    args.weight.shape().str(), width);
  }
  if (args.gate.defined()) arguments.alike("gate", args.gate, "x", args.x);
  arguments.check(args.activation == Activation::silu || args.activation == Activation::sigmoid,
                  "the activation of the gate must be silu or sigmoid");
  arguments.check(args.eps >= 0, "eps is {} (must not be negative)", args.eps);
}

void check(const Arguments& arguments, const VectorNorm& args) {
  check_width(arguments, args.x);
  arguments.check(args.eps >= 0, "eps is {} (must not be negative)", args.eps);
}

void check(const Arguments& arguments, const Sequences& sequences, const ShortConv& args) {
  arguments.floating("weight", args.weight, 2);
  const std::int64_t channels = args.weight.dim(0);
  const std::int64_t window = args.weight.dim(1);
  arguments.check(args.weight.rank() == 2 && window >= 1 && window <= 8,
                  "weight has shape {} (must be [channels, window], window 1 to 8)",
                  args.weight.shape().str());
  check_rows(arguments, "x", args.x, sequences.rows(), {channels}, args.x);
  if (args.bias.defined()) arguments.shaped("bias", args.bias, {channels});
  if (args.history.defined()) {
    arguments.shaped("history", args.history, {sequences.count(), channels, window - 1});
    arguments.dtype("history", args.history, args.x.dtype());
  }
  arguments.check(args.activation == Activation::none || args.activation == Activation::silu,
                  "the activation must be none or silu");
}

Shape history_shape(const Sequences& sequences, const ShortConv& args) {
  return {sequences.count(), args.weight.dim(0), args.weight.dim(1) - 1};
}

void check_head_skip(const Arguments& arguments, const Tensor& x, const Tensor& skip) {
  arguments.floating("x", x, 2);
  arguments.floating("skip", skip, 1);
  const bool per_head = skip.rank() == 1 && skip.dim(0) == x.dim(-2);
  const bool per_channel = skip.rank() == 2 && skip.dim(0) == x.dim(-2) && skip.dim(1) == x.dim(-1);
  arguments.check(per_head || per_channel, "skip has shape {} (must be [{}] or [{}, {}])",
                  skip.shape().str(), x.dim(-2), x.dim(-2), x.dim(-1));
}

std::int64_t mapped_width(FeatureMap map, std::int64_t width) {
  return map == FeatureMap::hedgehog ? 2 * width : 8 * width;
}

}  // namespace

void rms_norm(Context& context, const RmsNorm& args, const Tensor& y) {
  const Arguments arguments("rms_norm");
  check(arguments, args);
  arguments.alike("y", y, "x", args.x);
  select_backend(context, args.x.dtype()).rms_norm(context, args, y);
}

void rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy,
                  const RmsNormGrads& grads) {
  const Arguments arguments("rms_norm_vjp");
  check(arguments, args);
  arguments.alike("dy", dy, "x", args.x);
  arguments.gradient("dx", grads.x, "x", args.x);
  arguments.gradient("dgate", grads.gate, "gate", args.gate);
  arguments.parameter_gradient("dweight", grads.weight, args.weight, args.x.dtype());
  select_backend(context, args.x.dtype()).rms_norm_vjp(context, args, dy, grads);
}

void vector_norm(Context& context, const VectorNorm& args, const Tensor& y) {
  const Arguments arguments("vector_norm");
  check(arguments, args);
  arguments.alike("y", y, "x", args.x);
  select_backend(context, args.x.dtype()).vector_norm(context, args, y);
}

void vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy, const Tensor& dx) {
  const Arguments arguments("vector_norm_vjp");
  check(arguments, args);
  arguments.alike("dy", dy, "x", args.x);
  arguments.alike("dx", dx, "x", args.x);
  select_backend(context, args.x.dtype()).vector_norm_vjp(context, args, dy, dx);
}

void short_conv(Context& context, const Sequences& sequences, const ShortConv& args,
                const ShortConvOut& out) {
  const Arguments arguments("short_conv");
  check(arguments, sequences, args);
  arguments.alike("y", out.y, "x", args.x);
  if (out.history.defined()) {
    arguments.shaped("out history", out.history, history_shape(sequences, args));
    arguments.dtype("out history", out.history, args.x.dtype());
  }
  select_backend(context, args.x.dtype()).short_conv(context, sequences, args, out);
}

void short_conv_vjp(Context& context, const Sequences& sequences, const ShortConv& args,
                    const ShortConvCotangents& cotangents, const ShortConvGrads& grads) {
  const Arguments arguments("short_conv_vjp");
  check(arguments, sequences, args);
  arguments.alike("dy", cotangents.y, "x", args.x);
  if (cotangents.history.defined()) {
    arguments.shaped("cotangent of history", cotangents.history, history_shape(sequences, args));
    arguments.dtype("cotangent of history", cotangents.history, args.x.dtype());
  }
  arguments.gradient("dx", grads.x, "x", args.x);
  // The gradient of a history that was left out is that of a zero history.
  if (grads.history.defined()) {
    arguments.shaped("dhistory", grads.history, history_shape(sequences, args));
    arguments.dtype("dhistory", grads.history, args.x.dtype());
  }
  arguments.parameter_gradient("dweight", grads.weight, args.weight, args.x.dtype());
  arguments.parameter_gradient("dbias", grads.bias, args.bias, args.x.dtype());
  select_backend(context, args.x.dtype())
      .short_conv_vjp(context, sequences, args, cotangents, grads);
}

void activate(Context& context, const Tensor& x, Activation activation, const Tensor& y) {
  const Arguments arguments("activate");
  arguments.floating("x", x);
  arguments.alike("y", y, "x", x);
  select_backend(context, x.dtype()).activate(context, x, activation, y);
}

void activate_vjp(Context& context, const Tensor& x, Activation activation, const Tensor& dy,
                  const Tensor& dx) {
  const Arguments arguments("activate_vjp");
  arguments.floating("x", x);
  arguments.alike("dy", dy, "x", x);
  arguments.alike("dx", dx, "x", x);
  select_backend(context, x.dtype()).activate_vjp(context, x, activation, dy, dx);
}

void swiglu(Context& context, const Tensor& gate, const Tensor& up, const Tensor& y) {
  const Arguments arguments("swiglu");
  arguments.floating("gate", gate);
  arguments.alike("up", up, "gate", gate);
  arguments.alike("y", y, "gate", gate);
  select_backend(context, gate.dtype()).swiglu(context, gate, up, y);
}

void swiglu_vjp(Context& context, const Tensor& gate, const Tensor& up, const Tensor& dy,
                const Tensor& dgate, const Tensor& dup) {
  const Arguments arguments("swiglu_vjp");
  arguments.floating("gate", gate);
  arguments.alike("up", up, "gate", gate);
  arguments.alike("dy", dy, "gate", gate);
  arguments.gradient("dgate", dgate, "gate", gate);
  arguments.gradient("dup", dup, "up", up);
  select_backend(context, gate.dtype()).swiglu_vjp(context, gate, up, dy, dgate, dup);
}

void multiply(Context& context, const Tensor& a, const Tensor& b, const Tensor& y) {
  const Arguments arguments("multiply");
  arguments.floating("a", a);
  arguments.alike("b", b, "a", a);
  arguments.alike("y", y, "a", a);
  select_backend(context, a.dtype()).multiply(context, a, b, y);
}

void multiply_vjp(Context& context, const Tensor& a, const Tensor& b, const Tensor& dy,
                  const Tensor& da, const Tensor& db) {
  const Arguments arguments("multiply_vjp");
  arguments.floating("a", a);
  arguments.alike("b", b, "a", a);
  arguments.alike("dy", dy, "a", a);
  arguments.gradient("da", da, "a", a);
  arguments.gradient("db", db, "b", b);
  select_backend(context, a.dtype()).multiply_vjp(context, a, b, dy, da, db);
}

void add(Context& context, const Tensor& a, const Tensor& b, const Tensor& y) {
  const Arguments arguments("add");
  arguments.floating("a", a);
  arguments.alike("b", b, "a", a);
  arguments.alike("y", y, "a", a);
  select_backend(context, a.dtype()).add(context, a, b, y);
}

void scale(Context& context, const Tensor& a, double factor, const Tensor& y) {
  const Arguments arguments("scale");
  arguments.floating("a", a);
  arguments.alike("y", y, "a", a);
  select_backend(context, a.dtype()).scale(context, a, factor, y);
}

void fill(Context& context, const Tensor& y, double value) {
  const Arguments arguments("fill");
  arguments.floating("y", y);
  select_backend(context, y.dtype()).fill(context, y, value);
}

void copy(Context& context, const Tensor& from, const Tensor& to) {
  const Arguments arguments("copy");
  arguments.floating("from", from);
  arguments.floating("to", to);
  // The dtypes may differ, so only the shape is compared.
  arguments.alike("to", Tensor::view(nullptr, to.shape(), from.dtype()), "from", from);
  select_backend(context, to.dtype()).copy(context, from, to);
}

void head_skip(Context& context, const Tensor& o, const Tensor& x, const Tensor& skip,
               const Tensor& y) {
  const Arguments arguments("head_skip");
  check_head_skip(arguments, x, skip);
  arguments.alike("o", o, "x", x);
  arguments.alike("y", y, "x", x);
  select_backend(context, x.dtype()).head_skip(context, o, x, skip, y);
}

void head_skip_vjp(Context& context, const Tensor& x, const Tensor& skip, const Tensor& dy,
                   const Tensor& dx, const Tensor& dskip) {
  const Arguments arguments("head_skip_vjp");
  check_head_skip(arguments, x, skip);
  arguments.alike("dy", dy, "x", x);
  arguments.gradient("dx", dx, "x", x);
  arguments.parameter_gradient("dskip", dskip, skip, x.dtype());
  select_backend(context, x.dtype()).head_skip_vjp(context, x, skip, dy, dx, dskip);
}

void feature_map(Context& context, const Tensor& x, FeatureMap map, const Tensor& y) {
  const Arguments arguments("feature_map");
  check_width(arguments, x);
  check_rows(arguments, "y", y, x.count() / x.dim(-1), {mapped_width(map, x.dim(-1))}, x);
  select_backend(context, x.dtype()).feature_map(context, x, map, y);
}

void feature_map_vjp(Context& context, const Tensor& x, FeatureMap map, const Tensor& dy,
                     const Tensor& dx) {
  const Arguments arguments("feature_map_vjp");
  check_width(arguments, x);
  check_rows(arguments, "dy", dy, x.count() / x.dim(-1), {mapped_width(map, x.dim(-1))}, x);
  arguments.alike("dx", dx, "x", x);
  select_backend(context, x.dtype()).feature_map_vjp(context, x, map, dy, dx);
}

void repeat_heads(Context& context, const Tensor& x, std::int64_t repeats, const Tensor& y) {
  const Arguments arguments("repeat_heads");
  arguments.floating("x", x, 2);
  arguments.check(repeats >= 1, "repeats is {} (must be at least 1)", repeats);
  const std::int64_t heads = x.dim(-2);
  const std::int64_t width = x.dim(-1);
  const std::int64_t rows = heads * width == 0 ? 0 : x.count() / (heads * width);
  check_rows(arguments, "y", y, rows, {heads * repeats, width}, x);
  select_backend(context, x.dtype()).repeat_heads(context, x, repeats, y);
}

void repeat_heads_vjp(Context& context, const Tensor& dy, std::int64_t repeats, const Tensor& dx) {
  const Arguments arguments("repeat_heads_vjp");
  arguments.floating("dx", dx, 2);
  arguments.check(repeats >= 1, "repeats is {} (must be at least 1)", repeats);
  const std::int64_t heads = dx.dim(-2);
  const std::int64_t width = dx.dim(-1);
  const std::int64_t rows = heads * width == 0 ? 0 : dx.count() / (heads * width);
  check_rows(arguments, "dy", dy, rows, {heads * repeats, width}, dx);
  select_backend(context, dy.dtype()).repeat_heads_vjp(context, dy, repeats, dx);
}

namespace {

// part [R, width] lies in whole [R, C] from column `begin` on.
void check_columns(const Arguments& arguments, std::string_view part_name, const Tensor& part,
                   std::string_view whole_name, const Tensor& whole, std::int64_t begin) {
  arguments.floating(whole_name, whole, 1);
  arguments.floating(part_name, part, 1);
  const std::int64_t width = part.dim(-1);
  arguments.check(begin >= 0 && begin <= whole.dim(-1) && width <= whole.dim(-1) - begin,
                  "columns {} to {} are not in {} of shape {}", begin, begin + width, whole_name,
                  whole.shape().str());
  const std::int64_t rows = whole.dim(-1) == 0 ? 0 : whole.count() / whole.dim(-1);
  check_rows(arguments, part_name, part, rows, {width}, whole);
}

}  // namespace

void columns(Context& context, const Tensor& x, std::int64_t begin, const Tensor& y) {
  check_columns(Arguments("columns"), "y", y, "x", x, begin);
  select_backend(context, x.dtype()).columns(context, x, begin, y);
}

void columns_vjp(Context& context, const Tensor& dy, std::int64_t begin, const Tensor& dx) {
  check_columns(Arguments("columns_vjp"), "dy", dy, "dx", dx, begin);
  select_backend(context, dy.dtype()).columns_vjp(context, dy, begin, dx);
}

void gather_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                 const Tensor& y) {
  const Arguments arguments("gather_rows");
  check_width(arguments, x);
  const std::int64_t available = x.count() / x.dim(-1);
  for (const std::int64_t row : rows) {
    arguments.check(row >= 0 && row < available, "row {} is not in x of {} rows", row, available);
  }
  check_rows(arguments, "y", y, static_cast<std::int64_t>(rows.size()), {x.dim(-1)}, x);
  select_backend(context, x.dtype()).gather_rows(context, x, rows, y);
}

}  // namespace rankone::nn
