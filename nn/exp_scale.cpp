#include "nn/arguments.hpp"
#include "nn/backend.hpp"

namespace rankone::nn {
namespace {

void check(const Arguments& arguments, const Tensor& x, const Tensor& g) {
  arguments.floating("x", x, 2);
  arguments.floating("g", g, 1);
  arguments.dtype("g", g, x.dtype());
  const bool per_channel = g.count() == x.count();
  const bool per_head = g.count() * x.dim(-1) == x.count() && g.dim(-1) == x.dim(-2);
  arguments.check(per_channel || per_head, "g has shape {} (must be [R, H] or as x {})",
                  g.shape().str(), x.shape().str());
}

}  // namespace

void exp_scale(Context& context, const Tensor& x, const Tensor& g, double factor, const Tensor& y) {
  const Arguments arguments("exp_scale");
  check(arguments, x, g);
  arguments.alike("y", y, "x", x);
  select_backend(context, x.dtype()).exp_scale(context, x, g, factor, y);
}

void exp_scale_vjp(Context& context, const Tensor& x, const Tensor& g, double factor,
                   const Tensor& dy, const Tensor& dx, const Tensor& dg) {
  const Arguments arguments("exp_scale_vjp");
  check(arguments, x, g);
  arguments.alike("dy", dy, "x", x);
  arguments.gradient("dx", dx, "x", x);
  arguments.gradient("dg", dg, "g", g);
  select_backend(context, x.dtype()).exp_scale_vjp(context, x, g, factor, dy, dx, dg);
}

}  // namespace rankone::nn
