#include "nn/cpu/blocks.hpp"
#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {

using cpu::data_or_null;
using cpu::for_blocks;
using cpu::rows_per_task;

namespace {

RmsRows rms_rows(Context& context, const RmsNorm& args) {
  const std::int64_t width = args.x.dim(-1);
  const float* weight = cpu::as_float(context, args.weight);
  std::int64_t pieces = 1;
  if (args.weight.defined()) {
    pieces = args.weight.count() / width;
  } else {
    float* ones = cpu::scratch(context, width);
    if (!context.planning()) std::fill_n(ones, width, 1.0F);
    weight = ones;
  }
  return {args.x.data<float>(), weight,          data_or_null(args.gate),     width, pieces,
          args.activation,      args.gate_first, static_cast<float>(args.eps)};
}

}  // namespace

void CpuBackend::rms_norm(Context& context, const RmsNorm& args, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const RmsRows rows = rms_rows(context, args);
  if (context.planning()) return;
  float* y = y_.data<float>();
  for_blocks(context, args.x.count() / rows.width, rows_per_task(rows.width),
             [&](std::int64_t begin, std::int64_t end, int) {
               norm_kernels().rms_norm(rows, begin, end, y);
             });
}

void CpuBackend::rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy_,
                              const RmsNormGrads& grads) const {
  const ArenaScope scope(context.arena());
  const RmsRows rows = rms_rows(context, args);
  const cpu::WorkerScratch scratch(context, 2 * rows.width);
  const cpu::BlockSums sums(context, args.x.count() / rows.width, rows_per_task(rows.width),
                            rows.width * rows.pieces);
  if (context.planning()) return;
  const float* dy = dy_.data<float>();
  sums.run(context, [&](std::int64_t begin, std::int64_t end, float* dweight, int worker) {
    const RmsRowGrads row_grads{data_or_null(grads.x), data_or_null(grads.gate),
                                grads.weight.defined() ? dweight : nullptr};
    norm_kernels().rms_norm_vjp(rows, begin, end, dy, row_grads, scratch.of(worker));
  });
  if (grads.weight.defined()) sums.add_to(grads.weight.data<float>());
}

void CpuBackend::vector_norm(Context& context, const VectorNorm& args, const Tensor& y_) const {
  if (context.planning()) return;
  const std::int64_t width = args.x.dim(-1);
  const float* x = args.x.data<float>();
  float* y = y_.data<float>();
  for_blocks(context, args.x.count() / width, rows_per_task(width),
             [&](std::int64_t begin, std::int64_t end, int) {
               norm_kernels().vector_norm(args.form, static_cast<float>(args.eps), end - begin,
                                          width, x + begin * width, y + begin * width);
             });
}

void CpuBackend::vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy_,
                                 const Tensor& dx_) const {
  if (context.planning()) return;
  const std::int64_t width = args.x.dim(-1);
  const float* x = args.x.data<float>();
  const float* dy = dy_.data<float>();
  float* dx = dx_.data<float>();
  for_blocks(context, args.x.count() / width, rows_per_task(width),
             [&](std::int64_t begin, std::int64_t end, int) {
               norm_kernels().vector_norm_vjp(args.form, static_cast<float>(args.eps), end - begin,
                                              width, x + begin * width, dy + begin * width,
                                              dx + begin * width);
             });
}

void CpuBackend::feature_map(Context& context, const Tensor& x_, FeatureMap map,
                             const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const std::int64_t width = x_.dim(-1);
  const std::int64_t mapped = y_.dim(-1);
  const cpu::WorkerScratch scratch(context, 2 * width + kDpfpRolls);
  if (context.planning()) return;
  const float* x = x_.data<float>();
  float* y = y_.data<float>();
  for_blocks(context, x_.count() / width, rows_per_task(mapped),
             [&](std::int64_t begin, std::int64_t end, int worker) {
               const float* from = x + begin * width;
               float* to = y + begin * mapped;
               if (map == FeatureMap::hedgehog) {
                 feature_kernels().hedgehog(end - begin, width, from, to);
               } else {
                 feature_kernels().dpfp(end - begin, width, from, to, scratch.of(worker));
               }
             });
}

void CpuBackend::feature_map_vjp(Context& context, const Tensor& x_, FeatureMap map,
                                 const Tensor& dy_, const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const std::int64_t width = x_.dim(-1);
  const std::int64_t mapped = dy_.dim(-1);
  const cpu::WorkerScratch scratch(context, 2 * (2 * width + kDpfpRolls));
  if (context.planning()) return;
  const float* x = x_.data<float>();
  const float* dy = dy_.data<float>();
  float* dx = dx_.data<float>();
  const auto kernel =
      map == FeatureMap::hedgehog ? feature_kernels().hedgehog_vjp : feature_kernels().dpfp_vjp;
  for_blocks(context, x_.count() / width, rows_per_task(mapped),
             [&](std::int64_t begin, std::int64_t end, int worker) {
               kernel(end - begin, width, x + begin * width, dy + begin * mapped,
                      dx + begin * width, scratch.of(worker));
             });
}

}  // namespace rankone::nn
