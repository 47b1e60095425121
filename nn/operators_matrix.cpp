// The public functions of the operators around a matrix product, of softmax attention, of the loss
// and of the optimiser: arguments are checked here, once for all backends, and the first backend
// that accepts the call runs it.

#include <cmath>

#include "nn/arguments.hpp"
#include "nn/backend.hpp"
#include "nn/operators.hpp"

namespace rankone::nn {
namespace {

// The dtypes an operator computes in; halves are storage of weights.
void check_compute(const Arguments& arguments, std::string_view name, const Tensor& tensor) {
  arguments.check(tensor.dtype() == Dtype::f32 || tensor.dtype() == Dtype::f64,
                  "{} has dtype {} (must be f32 or f64)", name, rankone::name(tensor.dtype()));
}

void check_weight_dtype(const Arguments& arguments, std::string_view name, const Tensor& weight,
                        Dtype activations) {
  const Dtype dtype = weight.dtype();
  arguments.check(dtype == activations || dtype == Dtype::bf16 || dtype == Dtype::f16,
                  "{} has dtype {} (must be {}, bf16 or f16)", name, rankone::name(dtype),
                  rankone::name(activations));
}

void check_integers(const Arguments& arguments, std::string_view name, const Tensor& tensor,
                    std::int64_t count, Dtype dtype) {
  arguments.check(tensor.defined(), "{} is missing", name);
  arguments.dtype(name, tensor, dtype);
  arguments.check(tensor.count() == count && tensor.contiguous(),
                  "{} has shape {} (must be {} contiguous elements)", name, tensor.shape().str(),
                  count);
}

void check_scalar(const Arguments& arguments, std::string_view name, const Tensor& tensor,
                  Dtype dtype) {
  check_integers(arguments, name, tensor, 1, dtype);
}

void check_matrix(const Arguments& arguments, std::string_view name, const Tensor& matrix) {
  arguments.check(matrix.defined(), "{} is missing", name);
  arguments.check(is_floating(matrix.dtype()), "{} has dtype {} (must be f64, f32, bf16 or f16)",
                  name, rankone::name(matrix.dtype()));
  arguments.check(matrix.rank() == 2, "{} has shape {} (must have 2 axes)", name,
                  matrix.shape().str());
  const bool in_rows = matrix.dim(1) <= 1 || matrix.stride(1) == 1;
  arguments.check(in_rows && (matrix.dim(0) <= 1 || matrix.stride(0) >= matrix.dim(1)),
                  "{} has strides [{}, {}] for shape {} (the last must be 1 and rows apart)", name,
                  matrix.stride(0), matrix.stride(1), matrix.shape().str());
}

std::int64_t check_linear(const Arguments& arguments, const Linear& args) {
  arguments.floating("weight", args.weight, 2);
  arguments.check(args.weight.rank() == 2, "weight has shape {} (must be [out, in])",
                  args.weight.shape().str());
  arguments.floating("x", args.x, 1);
  check_compute(arguments, "x", args.x);
  const std::int64_t in = args.weight.dim(1);
  arguments.check(args.x.dim(-1) == in, "x has shape {} (its last axis must be {})",
                  args.x.shape().str(), in);
  check_weight_dtype(arguments, "weight", args.weight, args.x.dtype());
  if (args.bias.defined()) {
    arguments.shaped("bias", args.bias, {args.weight.dim(0)});
    check_weight_dtype(arguments, "bias", args.bias, args.x.dtype());
  }
  arguments.check(in > 0, "weight has shape {} (its axes must not be empty)",
                  args.weight.shape().str());
  return args.x.count() / in;
}

void check_table(const Arguments& arguments, const Tensor& table) {
  arguments.floating("table", table, 2);
  arguments.check(table.rank() == 2, "table has shape {} (must be [rows, width])",
                  table.shape().str());
}

void check(const Arguments& arguments, const Sequences& sequences, const Rope& args) {
  arguments.floating("x", args.x, 2);
  check_compute(arguments, "x", args.x);
  const std::int64_t heads = args.x.dim(-2);
  const std::int64_t width = args.x.dim(-1);
  arguments.rows("x", args.x, sequences.rows(), {heads, width}, args.x.dtype());
  arguments.check(width % 2 == 0, "x has shape {} (its last axis must be even)",
                  args.x.shape().str());
  arguments.check(std::isfinite(args.theta) && args.theta > 0, "theta is {} (must be positive)",
                  args.theta);
  if (args.positions.defined()) {
    check_integers(arguments, "positions", args.positions, sequences.count(), Dtype::i64);
  }
}

void check(const Arguments& arguments, const Sequences& sequences, const Attention& args) {
  arguments.floating("q", args.q, 2);
  check_compute(arguments, "q", args.q);
  arguments.floating("k", args.k, 2);
  const std::int64_t heads = args.q.dim(-2);
  const std::int64_t width = args.q.dim(-1);
  const std::int64_t key_heads = args.k.dim(-2);
  arguments.check(key_heads > 0 && heads % key_heads == 0 && heads > 0,
                  "q has {} heads and k has {} (must divide)", heads, key_heads);
  arguments.check(width > 0, "q has shape {} (its last axis must not be empty)",
                  args.q.shape().str());
  const Dtype dtype = args.q.dtype();
  arguments.rows("q", args.q, sequences.rows(), {heads, width}, dtype);
  arguments.rows("k", args.k, sequences.rows(), {key_heads, width}, dtype);
  arguments.rows("v", args.v, sequences.rows(), {key_heads, width}, dtype);
  arguments.check(args.window >= 0, "window is {} (must not be negative)", args.window);
  arguments.check(std::isfinite(args.scale), "scale is {} (must be finite)", args.scale);
  const bool cached = args.cache_k.defined();
  arguments.check(args.cache_v.defined() == cached && args.positions.defined() == cached,
                  "cache_k, cache_v and positions go together");
  if (!cached) return;
  arguments.floating("cache_k", args.cache_k, 4);
  const std::int64_t capacity = args.cache_k.dim(2);
  const Shape shape = {sequences.count(), key_heads, capacity, width};
  arguments.shaped("cache_k", args.cache_k, shape);
  arguments.shaped("cache_v", args.cache_v, shape);
  arguments.dtype("cache_k", args.cache_k, dtype);
  arguments.dtype("cache_v", args.cache_v, dtype);
  arguments.check(capacity >= sequences.longest(),
                  "cache_k holds {} rows (must hold the {} of the longest sequence)", capacity,
                  sequences.longest());
  check_integers(arguments, "positions", args.positions, sequences.count(), Dtype::i64);
}

std::int64_t check(const Arguments& arguments, const CrossEntropy& args) {
  const std::int64_t rows = check_linear(arguments, {args.x, args.weight, {}});
  arguments.check(args.weight.dim(0) > 0, "weight has shape {} (the vocabulary must not be empty)",
                  args.weight.shape().str());
  check_integers(arguments, "targets", args.targets, rows, Dtype::i32);
  return rows;
}

}  // namespace

void gemm(Context& context, const Gemm& args) {
  const Arguments arguments("gemm");
  check_matrix(arguments, "a", args.a);
  check_matrix(arguments, "b", args.b);
  check_matrix(arguments, "c", args.c);
  check_compute(arguments, "c", args.c);
  check_weight_dtype(arguments, "a", args.a, args.c.dtype());
  check_weight_dtype(arguments, "b", args.b, args.c.dtype());
  const std::int64_t m = args.c.dim(0);
  const std::int64_t n = args.c.dim(1);
  const std::int64_t k = args.a.dim(args.transpose_a ? 0 : 1);
  const Shape a = args.transpose_a ? Shape{k, m} : Shape{m, k};
  const Shape b = args.transpose_b ? Shape{n, k} : Shape{k, n};
  arguments.check(args.a.shape() == a, "a has shape {} (must be {} for c of shape {})",
                  args.a.shape().str(), a.str(), args.c.shape().str());
  arguments.check(args.b.shape() == b, "b has shape {} (must be {} for a {} and c {})",
                  args.b.shape().str(), b.str(), args.a.shape().str(), args.c.shape().str());
  select_backend(context, args.c.dtype()).gemm(context, args);
}

void linear(Context& context, const Linear& args, const Tensor& y) {
  const Arguments arguments("linear");
  const std::int64_t rows = check_linear(arguments, args);
  arguments.rows("y", y, rows, {args.weight.dim(0)}, args.x.dtype());
  select_backend(context, args.x.dtype()).linear(context, args, y);
}

void linear_vjp(Context& context, const Linear& args, const Tensor& dy, const LinearGrads& grads) {
  const Arguments arguments("linear_vjp");
  const std::int64_t rows = check_linear(arguments, args);
  arguments.rows("dy", dy, rows, {args.weight.dim(0)}, args.x.dtype());
  arguments.gradient("dx", grads.x, "x", args.x);
  arguments.parameter_gradient("dweight", grads.weight, args.weight, args.x.dtype());
  arguments.parameter_gradient("dbias", grads.bias, args.bias, args.x.dtype());
  select_backend(context, args.x.dtype()).linear_vjp(context, args, dy, grads);
}

void embedding(Context& context, const Tensor& ids, const Tensor& table, const Tensor& y) {
  const Arguments arguments("embedding");
  check_table(arguments, table);
  check_integers(arguments, "ids", ids, ids.count(), Dtype::i32);
  arguments.floating("y", y, 1);
  check_compute(arguments, "y", y);
  arguments.rows("y", y, ids.count(), {table.dim(1)}, y.dtype());
  check_weight_dtype(arguments, "table", table, y.dtype());
  select_backend(context, y.dtype()).embedding(context, ids, table, y);
}

void embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy, const Tensor& dtable) {
  const Arguments arguments("embedding_vjp");
  check_table(arguments, dtable);
  check_integers(arguments, "ids", ids, ids.count(), Dtype::i32);
  check_compute(arguments, "dtable", dtable);
  arguments.rows("dy", dy, ids.count(), {dtable.dim(1)}, dtable.dtype());
  select_backend(context, dy.dtype()).embedding_vjp(context, ids, dy, dtable);
}

void rope(Context& context, const Sequences& sequences, const Rope& args, const Tensor& y) {
  const Arguments arguments("rope");
  check(arguments, sequences, args);
  arguments.alike("y", y, "x", args.x);
  select_backend(context, args.x.dtype()).rope(context, sequences, args, y);
}

void rope_vjp(Context& context, const Sequences& sequences, const Rope& args, const Tensor& dy,
              const Tensor& dx) {
  const Arguments arguments("rope_vjp");
  check(arguments, sequences, args);
  arguments.alike("dy", dy, "x", args.x);
  arguments.alike("dx", dx, "x", args.x);
  select_backend(context, args.x.dtype()).rope_vjp(context, sequences, args, dy, dx);
}

void attention(Context& context, const Sequences& sequences, const Attention& args,
               const Tensor& o) {
  const Arguments arguments("attention");
  check(arguments, sequences, args);
  arguments.alike("o", o, "q", args.q);
  select_backend(context, args.q.dtype()).attention(context, sequences, args, o);
}

void attention_vjp(Context& context, const Sequences& sequences, const Attention& args,
                   const Tensor& o, const Tensor& do_, const AttentionGrads& grads) {
  const Arguments arguments("attention_vjp");
  check(arguments, sequences, args);
  arguments.check(!args.cache_k.defined(), "cache_k is given (a cache has no gradient)");
  arguments.alike("o", o, "q", args.q);
  arguments.alike("do", do_, "q", args.q);
  arguments.gradient("dq", grads.q, "q", args.q);
  arguments.gradient("dk", grads.k, "k", args.k);
  arguments.gradient("dv", grads.v, "v", args.v);
  select_backend(context, args.q.dtype()).attention_vjp(context, sequences, args, o, do_, grads);
}

void cross_entropy(Context& context, const CrossEntropy& args, const Tensor& losses) {
  const Arguments arguments("cross_entropy");
  const std::int64_t rows = check(arguments, args);
  arguments.rows("losses", losses, rows, {}, args.x.dtype());
  select_backend(context, args.x.dtype()).cross_entropy(context, args, losses);
}

void cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                       const Tensor& losses, const CrossEntropyGrads& grads) {
  const Arguments arguments("cross_entropy_vjp");
  const std::int64_t rows = check(arguments, args);
  if (losses.defined()) arguments.rows("losses", losses, rows, {}, args.x.dtype());
  arguments.gradient("dx", grads.x, "x", args.x);
  arguments.parameter_gradient("dweight", grads.weight, args.weight, args.x.dtype());
  select_backend(context, args.x.dtype()).cross_entropy_vjp(context, args, factor, losses, grads);
}

void add_sum_of_squares(Context& context, const Tensor& x, const Tensor& sum) {
  const Arguments arguments("add_sum_of_squares");
  arguments.floating("x", x);
  check_compute(arguments, "x", x);
  check_scalar(arguments, "sum", sum, Dtype::f64);
  select_backend(context, x.dtype()).add_sum_of_squares(context, x, sum);
}

void add_sum(Context& context, const Tensor& x, double factor, const Tensor& sum) {
  const Arguments arguments("add_sum");
  arguments.floating("x", x);
  check_compute(arguments, "x", x);
  check_scalar(arguments, "sum", sum, Dtype::f64);
  select_backend(context, x.dtype()).add_sum(context, x, factor, sum);
}

void clip_factor(Context& context, const Tensor& sum, double limit, const Tensor& factor,
                 const Tensor& ok) {
  const Arguments arguments("clip_factor");
  check_scalar(arguments, "sum", sum, Dtype::f64);
  check_scalar(arguments, "factor", factor, Dtype::f32);
  check_scalar(arguments, "ok", ok, Dtype::i32);
  arguments.check(limit > 0, "limit is {} (must be positive)", limit);
  select_backend(context, factor.dtype()).clip_factor(context, sum, limit, factor, ok);
}

void adamw(Context& context, const AdamW& args) {
  const Arguments arguments("adamw");
  arguments.floating("parameter", args.parameter);
  check_compute(arguments, "parameter", args.parameter);
  for (const auto& [name, tensor] :
       {std::pair{"grad", &args.grad}, std::pair{"m", &args.m}, std::pair{"v", &args.v}}) {
    arguments.shaped(name, *tensor, args.parameter.shape());
    arguments.dtype(name, *tensor, args.parameter.dtype());
  }
  check_scalar(arguments, "factor", args.factor, Dtype::f32);
  check_scalar(arguments, "ok", args.ok, Dtype::i32);
  const bool betas = args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1;
  arguments.check(betas, "beta1 is {} and beta2 {} (must be in [0, 1))", args.beta1, args.beta2);
  arguments.check(args.eps > 0, "eps is {} (must be positive)", args.eps);
  arguments.check(std::isfinite(args.lr) && std::isfinite(args.weight_decay),
                  "lr is {} and weight_decay {} (must be finite)", args.lr, args.weight_decay);
  arguments.check(args.step >= 1, "step is {} (must be at least 1)", args.step);
  select_backend(context, args.parameter.dtype()).adamw(context, args);
}

}  // namespace rankone::nn
