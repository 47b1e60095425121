#include "nn/cpu/blocks.hpp"
#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {

using cpu::for_blocks;
using cpu::rows_per_task;

namespace {

void copy_row(float* to, const float* from, std::int64_t width) {
  std::memcpy(to, from, static_cast<std::size_t>(width) * sizeof(float));
}

}  // namespace

void CpuBackend::repeat_heads(Context& context, const Tensor& x_, std::int64_t repeats,
                              const Tensor& y_) const {
  const std::int64_t width = x_.dim(-1);
  if (context.planning() || y_.count() == 0) return;
  const float* x = x_.data<float>();
  float* y = y_.data<float>();
  for_blocks(context, y_.count() / width, rows_per_task(width),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t row = begin; row < end; ++row) {
                 copy_row(y + row * width, x + row / repeats * width, width);
               }
             });
}

void CpuBackend::repeat_heads_vjp(Context& context, const Tensor& dy_, std::int64_t repeats,
                                  const Tensor& dx_) const {
  const std::int64_t width = dx_.dim(-1);
  if (context.planning() || dx_.count() == 0) return;
  const float* dy = dy_.data<float>();
  float* dx = dx_.data<float>();
  for_blocks(context, dx_.count() / width, rows_per_task(width * repeats),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t row = begin; row < end; ++row) {
                 float* to = dx + row * width;
                 const float* from = dy + row * repeats * width;
                 copy_row(to, from, width);
                 for (std::int64_t i = 1; i < repeats; ++i) {
                   map_kernels().add(width, to, from + i * width, to);
                 }
               }
             });
}

void CpuBackend::columns(Context& context, const Tensor& x_, std::int64_t begin_column,
                         const Tensor& y_) const {
  const std::int64_t width = y_.dim(-1);
  const std::int64_t stride = x_.dim(-1);
  if (context.planning() || y_.count() == 0) return;
  const float* x = x_.data<float>() + begin_column;
  float* y = y_.data<float>();
  for_blocks(context, y_.count() / width, rows_per_task(width),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t row = begin; row < end; ++row) {
                 copy_row(y + row * width, x + row * stride, width);
               }
             });
}

void CpuBackend::columns_vjp(Context& context, const Tensor& dy_, std::int64_t begin_column,
                             const Tensor& dx_) const {
  const std::int64_t width = dy_.dim(-1);
  const std::int64_t stride = dx_.dim(-1);
  if (context.planning() || dx_.count() == 0) return;
  const float* dy = dy_.data<float>();
  float* dx = dx_.data<float>();
  const std::int64_t behind = stride - begin_column - width;
  for_blocks(context, dx_.count() / stride, rows_per_task(stride),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t row = begin; row < end; ++row) {
                 float* to = dx + row * stride;
                 std::fill_n(to, begin_column, 0.0F);
                 if (width > 0) copy_row(to + begin_column, dy + row * width, width);
                 std::fill_n(to + begin_column + width, behind, 0.0F);
               }
             });
}

void CpuBackend::gather_rows(Context& context, const Tensor& x_, std::span<const std::int64_t> rows,
                             const Tensor& y_) const {
  const std::int64_t width = x_.dim(-1);
  if (context.planning()) return;
  const float* x = x_.data<float>();
  float* y = y_.data<float>();
  for_blocks(context, static_cast<std::int64_t>(rows.size()), rows_per_task(width),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t i = begin; i < end; ++i) {
                 copy_row(y + i * width, x + rows[static_cast<std::size_t>(i)] * width, width);
               }
             });
}

}  // namespace rankone::nn
