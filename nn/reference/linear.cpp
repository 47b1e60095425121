#include <algorithm>

#include "nn/arguments.hpp"
#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

namespace {

// A float64 tensor is used where it lies, with its row stride; others are widened without one.
std::int64_t row_stride(const Tensor& tensor) {
  return tensor.dtype() == Dtype::f64 ? tensor.stride(0) : tensor.dim(1);
}

}  // namespace

// c_ij = sum_k op(a)_ik op(b)_kj
void ReferenceBackend::gemm(Context& context, const Gemm& args) const {
  const ArenaScope scope(context.arena());
  const Wide a(context, args.a), b(context, args.b), c(context, args.c, Wide::Use::accumulate);
  if (context.planning()) return;
  const std::int64_t a_stride = row_stride(args.a);
  const std::int64_t b_stride = row_stride(args.b);
  const std::int64_t c_stride = row_stride(args.c);
  const std::int64_t depth = args.a.dim(args.transpose_a ? 0 : 1);
  for (std::int64_t i = 0; i < args.c.dim(0); ++i) {
    for (std::int64_t j = 0; j < args.c.dim(1); ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const double left = args.transpose_a ? a[k * a_stride + i] : a[i * a_stride + k];
        sum += left * (args.transpose_b ? b[j * b_stride + k] : b[k * b_stride + j]);
      }
      double& element = c[i * c_stride + j];
      element = args.accumulate ? element + sum : sum;
    }
  }
  c.store();
}

// y_ro = sum_i x_ri weight_oi + bias_o
void ReferenceBackend::linear(Context& context, const Linear& args, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), weight(context, args.weight), bias(context, args.bias);
  const Wide y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t in = args.weight.dim(1);
  const std::int64_t out = args.weight.dim(0);
  for (std::int64_t r = 0; r < args.x.count() / in; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = bias ? bias[o] : 0.0;
      for (std::int64_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[o * in + i];
      y[r * out + o] = sum;
    }
  }
  y.store();
}

// dx_ri = sum_o dy_ro weight_oi,  dweight_oi += sum_r dy_ro x_ri,  dbias_o += sum_r dy_ro
void ReferenceBackend::linear_vjp(Context& context, const Linear& args, const Tensor& dy_,
                                  const LinearGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), weight(context, args.weight), dy(context, dy_);
  const Wide dx(context, grads.x, Wide::Use::write);
  const Wide dweight(context, grads.weight, Wide::Use::accumulate);
  const Wide dbias(context, grads.bias, Wide::Use::accumulate);
  if (context.planning()) return;
  const std::int64_t in = args.weight.dim(1);
  const std::int64_t out = args.weight.dim(0);
  if (dx) std::fill_n(dx.data(), args.x.count(), 0.0);
  for (std::int64_t r = 0; r < args.x.count() / in; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      const double d = dy[r * out + o];
      for (std::int64_t i = 0; i < in; ++i) {
        if (dx) dx[r * in + i] += d * weight[o * in + i];
        if (dweight) dweight[o * in + i] += d * x[r * in + i];
      }
      if (dbias) dbias[o] += d;
    }
  }
  dx.store();
  dweight.store();
  dbias.store();
}

void ReferenceBackend::embedding(Context& context, const Tensor& ids, const Tensor& table_,
                                 const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide table(context, table_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t width = table_.dim(1);
  for (std::int64_t r = 0; r < ids.count(); ++r) {
    const std::int32_t id = ids.data<std::int32_t>()[r];
    Arguments("embedding").index("ids", id, table_.dim(0));
    for (std::int64_t i = 0; i < width; ++i) y[r * width + i] = table[id * width + i];
  }
  y.store();
}

void ReferenceBackend::embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy_,
                                     const Tensor& dtable_) const {
  const ArenaScope scope(context.arena());
  const Wide dy(context, dy_), dtable(context, dtable_, Wide::Use::accumulate);
  if (context.planning()) return;
  const std::int64_t width = dtable_.dim(1);
  for (std::int64_t r = 0; r < ids.count(); ++r) {
    const std::int32_t id = ids.data<std::int32_t>()[r];
    Arguments("embedding_vjp").index("ids", id, dtable_.dim(0));
    for (std::int64_t i = 0; i < width; ++i) dtable[id * width + i] += dy[r * width + i];
  }
  dtable.store();
}

}  // namespace rankone::nn
