#include <algorithm>

#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

void ReferenceBackend::repeat_heads(Context& context, const Tensor& x_, std::int64_t repeats,
                                    const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t width = y_.dim(-1);
  for (std::int64_t i = 0; i < y_.count(); ++i) {
    const std::int64_t head = i / width / repeats;
    y[i] = x[head * width + i % width];
  }
  y.store();
}

void ReferenceBackend::repeat_heads_vjp(Context& context, const Tensor& dy_, std::int64_t repeats,
                                        const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const Wide dy(context, dy_), dx(context, dx_, Wide::Use::write);
  if (context.planning()) return;
  std::fill_n(dx.data(), dx_.count(), 0.0);
  const std::int64_t width = dy_.dim(-1);
  for (std::int64_t i = 0; i < dy_.count(); ++i) {
    const std::int64_t head = i / width / repeats;
    dx[head * width + i % width] += dy[i];
  }
  dx.store();
}

void ReferenceBackend::columns(Context& context, const Tensor& x_, std::int64_t begin,
                               const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t width = y_.dim(-1);
  for (std::int64_t i = 0; i < y_.count(); ++i) {
    y[i] = x[i / width * x_.dim(-1) + begin + i % width];
  }
  y.store();
}

void ReferenceBackend::columns_vjp(Context& context, const Tensor& dy_, std::int64_t begin,
                                   const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const Wide dy(context, dy_), dx(context, dx_, Wide::Use::write);
  if (context.planning()) return;
  std::fill_n(dx.data(), dx_.count(), 0.0);
  const std::int64_t width = dy_.dim(-1);
  for (std::int64_t i = 0; i < dy_.count(); ++i) {
    dx[i / width * dx_.dim(-1) + begin + i % width] = dy[i];
  }
  dx.store();
}

void ReferenceBackend::gather_rows(Context& context, const Tensor& x_,
                                   std::span<const std::int64_t> rows, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t width = x_.dim(-1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(x.data() + rows[i] * width, width, y.data() + static_cast<std::int64_t>(i) * width);
  }
  y.store();
}

}  // namespace rankone::nn
