#include <algorithm>
#include <cmath>

#include "nn/reference/activation.hpp"
#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::activation;
using reference::activation_slope;
using reference::Wide;

void ReferenceBackend::activate(Context& context, const Tensor& x_, Activation kind,
                                const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < x_.count(); ++i) y[i] = activation(kind, x[i]);
  y.store();
}

void ReferenceBackend::activate_vjp(Context& context, const Tensor& x_, Activation kind,
                                    const Tensor& dy_, const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), dy(context, dy_), dx(context, dx_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < x_.count(); ++i) dx[i] = dy[i] * activation_slope(kind, x[i]);
  dx.store();
}

void ReferenceBackend::swiglu(Context& context, const Tensor& gate_, const Tensor& up_,
                              const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide gate(context, gate_), up(context, up_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < y_.count(); ++i)
    y[i] = activation(Activation::silu, gate[i]) * up[i];
  y.store();
}

void ReferenceBackend::swiglu_vjp(Context& context, const Tensor& gate_, const Tensor& up_,
                                  const Tensor& dy_, const Tensor& dgate_,
                                  const Tensor& dup_) const {
  const ArenaScope scope(context.arena());
  const Wide gate(context, gate_), up(context, up_), dy(context, dy_);
  const Wide dgate(context, dgate_, Wide::Use::write), dup(context, dup_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < dy_.count(); ++i) {
    const double from_gate = dy[i] * up[i] * activation_slope(Activation::silu, gate[i]);
    const double from_up = dy[i] * activation(Activation::silu, gate[i]);
    if (dgate) dgate[i] = from_gate;
    if (dup) dup[i] = from_up;
  }
  dgate.store();
  dup.store();
}

void ReferenceBackend::multiply(Context& context, const Tensor& a_, const Tensor& b_,
                                const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide a(context, a_), b(context, b_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < y_.count(); ++i) y[i] = a[i] * b[i];
  y.store();
}

void ReferenceBackend::multiply_vjp(Context& context, const Tensor& a_, const Tensor& b_,
                                    const Tensor& dy_, const Tensor& da_, const Tensor& db_) const {
  const ArenaScope scope(context.arena());
  const Wide a(context, a_), b(context, b_), dy(context, dy_);
  const Wide da(context, da_, Wide::Use::write), db(context, db_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < dy_.count(); ++i) {
    const double from_a = dy[i] * b[i];
    const double from_b = dy[i] * a[i];
    if (da) da[i] = from_a;
    if (db) db[i] = from_b;
  }
  da.store();
  db.store();
}

void ReferenceBackend::add(Context& context, const Tensor& a_, const Tensor& b_,
                           const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide a(context, a_), b(context, b_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < y_.count(); ++i) y[i] = a[i] + b[i];
  y.store();
}

void ReferenceBackend::scale(Context& context, const Tensor& a_, double factor,
                             const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide a(context, a_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  for (std::int64_t i = 0; i < y_.count(); ++i) y[i] = factor * a[i];
  y.store();
}

void ReferenceBackend::fill(Context& context, const Tensor& y, double value) const {
  if (!context.planning()) y.fill(value);
}

void ReferenceBackend::copy(Context& context, const Tensor& from, const Tensor& to) const {
  if (!context.planning()) to.copy_from(from.reshape(to.shape()));
}

// y = o + D_h x, D one number per head or one per channel of the head.
void ReferenceBackend::head_skip(Context& context, const Tensor& o_, const Tensor& x_,
                                 const Tensor& skip_, const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide o(context, o_), x(context, x_), skip(context, skip_), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  const std::int64_t per_entry = skip_.rank() == 1 ? x_.dim(-1) : 1;
  for (std::int64_t i = 0; i < y_.count(); ++i) {
    y[i] = o[i] + skip[i / per_entry % skip_.count()] * x[i];
  }
  y.store();
}

void ReferenceBackend::head_skip_vjp(Context& context, const Tensor& x_, const Tensor& skip_,
                                     const Tensor& dy_, const Tensor& dx_,
                                     const Tensor& dskip_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, x_), skip(context, skip_), dy(context, dy_);
  const Wide dx(context, dx_, Wide::Use::write), dskip(context, dskip_, Wide::Use::accumulate);
  if (context.planning()) return;
  const std::int64_t per_entry = skip_.rank() == 1 ? x_.dim(-1) : 1;
  for (std::int64_t i = 0; i < dy_.count(); ++i) {
    const std::int64_t entry = i / per_entry % skip_.count();
    if (dskip) dskip[entry] += dy[i] * x[i];
    if (dx) dx[i] = dy[i] * skip[entry];
  }
  dx.store();
  dskip.store();
}

}  // namespace rankone::nn
