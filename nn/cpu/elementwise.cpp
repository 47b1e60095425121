#include "nn/cpu/blocks.hpp"
#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {

using cpu::data_or_null;
using cpu::for_blocks;
using cpu::kElementsPerTask;

namespace {

// kernel(begin, count) over blocks of the elements.
template <class Kernel>
void map(Context& context, std::int64_t count, Kernel&& kernel) {
  if (context.planning()) return;
  for_blocks(context, count, kElementsPerTask,
             [&](std::int64_t begin, std::int64_t end, int) { kernel(begin, end - begin); });
}

}  // namespace

void CpuBackend::activate(Context& context, const Tensor& x_, Activation activation,
                          const Tensor& y_) const {
  const float* x = x_.data<float>();
  float* y = y_.data<float>();
  const auto kernel = map_kernels().activate[static_cast<int>(activation)];
  map(context, x_.count(), [&](auto at, auto count) { kernel(count, x + at, y + at); });
}

void CpuBackend::activate_vjp(Context& context, const Tensor& x_, Activation activation,
                              const Tensor& dy_, const Tensor& dx_) const {
  const float* x = x_.data<float>();
  const float* dy = dy_.data<float>();
  float* dx = dx_.data<float>();
  const auto kernel = map_kernels().activate_vjp[static_cast<int>(activation)];
  map(context, x_.count(), [&](auto at, auto count) { kernel(count, x + at, dy + at, dx + at); });
}

void CpuBackend::swiglu(Context& context, const Tensor& gate_, const Tensor& up_,
                        const Tensor& y_) const {
  const float* gate = gate_.data<float>();
  const float* up = up_.data<float>();
  float* y = y_.data<float>();
  map(context, y_.count(),
      [&](auto at, auto count) { map_kernels().swiglu(count, gate + at, up + at, y + at); });
}

void CpuBackend::swiglu_vjp(Context& context, const Tensor& gate_, const Tensor& up_,
                            const Tensor& dy_, const Tensor& dgate_, const Tensor& dup_) const {
  const float* gate = gate_.data<float>();
  const float* up = up_.data<float>();
  const float* dy = dy_.data<float>();
  float* dgate = data_or_null(dgate_);
  float* dup = data_or_null(dup_);
  map(context, dy_.count(), [&](auto at, auto count) {
    map_kernels().swiglu_vjp(count, gate + at, up + at, dy + at,
                             dgate != nullptr ? dgate + at : nullptr,
                             dup != nullptr ? dup + at : nullptr);
  });
}

void CpuBackend::multiply(Context& context, const Tensor& a_, const Tensor& b_,
                          const Tensor& y_) const {
  const float* a = a_.data<float>();
  const float* b = b_.data<float>();
  float* y = y_.data<float>();
  map(context, y_.count(),
      [&](auto at, auto count) { map_kernels().multiply(count, a + at, b + at, y + at); });
}

void CpuBackend::multiply_vjp(Context& context, const Tensor& a, const Tensor& b, const Tensor& dy,
                              const Tensor& da, const Tensor& db) const {
  if (da.defined()) multiply(context, dy, b, da);
  if (db.defined()) multiply(context, dy, a, db);
}

void CpuBackend::add(Context& context, const Tensor& a_, const Tensor& b_, const Tensor& y_) const {
  const float* a = a_.data<float>();
  const float* b = b_.data<float>();
  float* y = y_.data<float>();
  map(context, y_.count(),
      [&](auto at, auto count) { map_kernels().add(count, a + at, b + at, y + at); });
}

void CpuBackend::scale(Context& context, const Tensor& a_, double factor, const Tensor& y_) const {
  const float* a = a_.data<float>();
  float* y = y_.data<float>();
  const auto narrow = static_cast<float>(factor);
  map(context, y_.count(),
      [&](auto at, auto count) { map_kernels().scale(count, a + at, narrow, y + at); });
}

void CpuBackend::fill(Context& context, const Tensor& y_, double value) const {
  float* y = y_.data<float>();
  const auto narrow = static_cast<float>(value);
  map(context, y_.count(), [&](auto at, auto count) { std::fill_n(y + at, count, narrow); });
}

void CpuBackend::copy(Context& context, const Tensor& from_, const Tensor& to_) const {
  const Tensor from = from_.reshape({from_.count()});
  const Tensor to = to_.reshape({to_.count()});
  map(context, to.count(), [&](auto at, auto count) {
    to.slice(0, at, at + count).copy_from(from.slice(0, at, at + count));
  });
}

namespace {

// skip as one row over all channels of all heads.
const float* skip_row(Context& context, const Tensor& skip_, std::int64_t per_entry) {
  const float* skip = cpu::as_float(context, skip_);
  if (per_entry == 1) return skip;
  float* row = cpu::scratch(context, skip_.count() * per_entry);
  if (context.planning()) return row;
  for (std::int64_t i = 0; i < skip_.count(); ++i)
    std::fill_n(row + i * per_entry, per_entry, skip[i]);
  return row;
}

}  // namespace

void CpuBackend::head_skip(Context& context, const Tensor& o_, const Tensor& x_,
                           const Tensor& skip_, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const std::int64_t width = x_.dim(-2) * x_.dim(-1);
  const float* skip = skip_row(context, skip_, skip_.rank() == 1 ? x_.dim(-1) : 1);
  if (context.planning() || width == 0) return;
  const float* o = o_.data<float>();
  const float* x = x_.data<float>();
  float* y = y_.data<float>();
  for_blocks(context, x_.count() / width, cpu::rows_per_task(width),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t at = begin * width; at < end * width; at += width) {
                 map_kernels().multiply_add(width, skip, x + at, o + at, y + at);
               }
             });
}

void CpuBackend::head_skip_vjp(Context& context, const Tensor& x_, const Tensor& skip_,
                               const Tensor& dy_, const Tensor& dx_, const Tensor& dskip_) const {
  const ArenaScope scope(context.arena());
  const std::int64_t width = x_.dim(-2) * x_.dim(-1);
  const std::int64_t per_entry = skip_.rank() == 1 ? x_.dim(-1) : 1;
  const float* skip = skip_row(context, skip_, per_entry);
  const std::int64_t rows = width == 0 ? 0 : x_.count() / width;
  const cpu::BlockSums sums(context, rows, cpu::rows_per_task(width), width);
  if (context.planning()) return;
  const float* x = x_.data<float>();
  const float* dy = dy_.data<float>();
  float* dx = data_or_null(dx_);
  sums.run(context, [&](std::int64_t begin, std::int64_t end, float* sum, int) {
    for (std::int64_t at = begin * width; at < end * width; at += width) {
      if (dx != nullptr) map_kernels().multiply(width, skip, dy + at, dx + at);
      if (dskip_.defined()) map_kernels().multiply_add(width, x + at, dy + at, sum, sum);
    }
  });
  const float* total = sums.total();
  if (!dskip_.defined() || total == nullptr) return;
  float* dskip = dskip_.data<float>();
  for (std::int64_t i = 0; i < width; ++i) dskip[i / per_entry] += total[i];
}

}  // namespace rankone::nn
