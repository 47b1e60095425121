#include <algorithm>
#include <cstring>

#include "nn/arguments.hpp"
#include "nn/cpu/blocks.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "nn/cpu/gemm.hpp"

namespace rankone::nn {
namespace {

constexpr std::int64_t kRowsPerTask = 256;
constexpr std::int64_t kTableParts = 16;  // a table is filled by so many tasks

template <class Work>
void for_rows(Context& context, std::int64_t rows, Work&& work) {
  cpu::for_blocks(context, rows, kRowsPerTask,
                  [&](std::int64_t begin, std::int64_t end, int) { work(begin, end); });
}

float weight_at(const Tensor& weight, std::int64_t i) {
  switch (weight.dtype()) {
    case Dtype::bf16:
      return to_float(weight.data<bf16>()[i]);
    case Dtype::f16:
      return to_float(weight.data<f16>()[i]);
    default:
      return weight.data<float>()[i];
  }
}

// Elements [begin, begin + count) of a weight as float32.
void widen(const Tensor& weight, std::int64_t begin, std::int64_t count, float* to) {
  if (weight.dtype() == Dtype::f32) {
    std::memcpy(to, weight.data<float>() + begin, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) to[i] = weight_at(weight, begin + i);
}

// dbias += the columns of dy summed.
void add_columns(Context& context, const Tensor& dy, std::int64_t rows, const Tensor& dbias) {
  const std::int64_t width = dbias.count();
  const cpu::BlockSums sums(context, rows, kRowsPerTask, width);
  if (context.planning()) return;
  sums.run(context, [&](std::int64_t begin, std::int64_t end, float* sum, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      map_kernels().add(width, sum, dy.data<float>() + r * width, sum);
    }
  });
  sums.add_to(dbias.data<float>());
}

}  // namespace

void CpuBackend::linear(Context& context, const Linear& args, const Tensor& y) const {
  const ArenaScope scope(context.arena());
  const std::int64_t out = args.weight.dim(0);
  const std::int64_t in = args.weight.dim(1);
  const std::int64_t rows = args.x.count() / in;
  auto* const to = y.data<float>();
  const bool biased = args.bias.defined();
  if (biased) {
    const float* const bias = cpu::as_float(context, args.bias);
    if (!context.planning()) {
      for_rows(context, rows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) std::copy_n(bias, out, to + r * out);
      });
    }
  }
  const GemmMatrix x = {args.x.raw(), in, false, Storage::f32};
  cpu_gemm(context, gemm_kernels(), {rows, out, in}, x, gemm_matrix(args.weight, true), to, out,
           biased);
}

void CpuBackend::linear_vjp(Context& context, const Linear& args, const Tensor& dy,
                            const LinearGrads& grads) const {
  const ArenaScope scope(context.arena());
  const std::int64_t out = args.weight.dim(0);
  const std::int64_t in = args.weight.dim(1);
  const std::int64_t rows = args.x.count() / in;
  if (grads.x.defined()) {
    const GemmMatrix d = {dy.raw(), out, false, Storage::f32};
    cpu_gemm(context, gemm_kernels(), {rows, in, out}, d, gemm_matrix(args.weight, false),
             grads.x.data<float>(), in, false);
  }
  if (grads.weight.defined()) {
    const GemmMatrix d = {dy.raw(), out, true, Storage::f32};
    const GemmMatrix x = {args.x.raw(), in, false, Storage::f32};
    cpu_gemm(context, gemm_kernels(), {out, in, rows}, d, x, grads.weight.data<float>(), in, true);
  }
  if (grads.bias.defined()) add_columns(context, dy, rows, grads.bias);
}

void CpuBackend::embedding(Context& context, const Tensor& ids, const Tensor& table,
                           const Tensor& y) const {
  if (context.planning()) return;
  const std::int64_t width = table.dim(1);
  for_rows(context, ids.count(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t id = ids.data<std::int32_t>()[r];
      Arguments("embedding").index("ids", id, table.dim(0));
      widen(table, id * width, width, y.data<float>() + r * width);
    }
  });
}

void CpuBackend::embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy,
                               const Tensor& dtable) const {
  if (context.planning()) return;
  const std::int64_t rows = dtable.dim(0);
  const std::int64_t width = dtable.dim(1);
  const auto* const id = ids.data<std::int32_t>();
  for (std::int64_t r = 0; r < ids.count(); ++r) {
    Arguments("embedding_vjp").index("ids", id[r], rows);
  }
  // A task owns a part of the table and takes what falls into it in row order.
  context.threads().run(kTableParts, [&](std::int64_t part, int) {
    const std::int64_t begin = rows * part / kTableParts;
    const std::int64_t end = rows * (part + 1) / kTableParts;
    for (std::int64_t r = 0; r < ids.count(); ++r) {
      if (id[r] < begin || id[r] >= end) continue;
      float* const to = dtable.data<float>() + id[r] * width;
      const float* const from = dy.data<float>() + r * width;
      for (std::int64_t i = 0; i < width; ++i) to[i] += from[i];
    }
  });
}

}  // namespace rankone::nn
