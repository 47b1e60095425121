#include "nn/reference/activation.hpp"
#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::activation;
using reference::activation_slope;
using reference::Wide;

namespace {

// One channel of one sequence. E is its input with the history in front, W - 1 + T long:
//   y_t = act(bias + sum_j w_j E_{t+j}),  history out_i = E_{T+i}.
struct Channel {
  std::int64_t channels, window, length;
  std::int64_t first;             // element of x at time 0
  std::int64_t history_at;        // element of history
  std::int64_t weight_at, index;  // element of weight and of bias

  std::int64_t at(std::int64_t time) const { return first + time * channels; }
};

template <class Work>
void for_each_channel(const Sequences& sequences, const ShortConv& args, Work&& work) {
  const std::int64_t channels = args.weight.dim(0);
  const std::int64_t window = args.weight.dim(1);
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    for (std::int64_t c = 0; c < channels; ++c) {
      work(Channel{channels, window, sequences.length(n), sequences.begin(n) * channels + c,
                   (n * channels + c) * (window - 1), c * window, c});
    }
  }
}

double extended(const Channel& channel, const Wide& x, const Wide& history, std::int64_t i) {
  if (i >= channel.window - 1) return x[channel.at(i - (channel.window - 1))];
  return history ? history[channel.history_at + i] : 0.0;
}

double before_activation(const Channel& channel, const Wide& x, const Wide& history,
                         const Wide& weight, const Wide& bias, std::int64_t t) {
  double sum = bias ? bias[channel.index] : 0.0;
  for (std::int64_t j = 0; j < channel.window; ++j) {
    sum += weight[channel.weight_at + j] * extended(channel, x, history, t + j);
  }
  return sum;
}

}  // namespace

void ReferenceBackend::short_conv(Context& context, const Sequences& sequences,
                                  const ShortConv& args, const ShortConvOut& out) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), weight(context, args.weight), bias(context, args.bias);
  const Wide history(context, args.history);
  const Wide y(context, out.y, Wide::Use::write), after(context, out.history, Wide::Use::write);
  if (context.planning()) return;
  for_each_channel(sequences, args, [&](const Channel& channel) {
    for (std::int64_t t = 0; t < channel.length; ++t) {
      y[channel.at(t)] =
          activation(args.activation, before_activation(channel, x, history, weight, bias, t));
    }
    if (!after) return;
    // Upwards, because `after` may be the memory of `history`: what is read lies ahead.
    for (std::int64_t i = 0; i < channel.window - 1; ++i) {
      after[channel.history_at + i] = extended(channel, x, history, channel.length + i);
    }
  });
  y.store();
  after.store();
}

// dE_{t+j} += w_j da_t with da_t = dy_t act'(a_t);  dE_{T+i} += d(history out)_i;
// dw_j += sum_t da_t E_{t+j};  dbias += sum_t da_t.
void ReferenceBackend::short_conv_vjp(Context& context, const Sequences& sequences,
                                      const ShortConv& args, const ShortConvCotangents& cotangents,
                                      const ShortConvGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), weight(context, args.weight), bias(context, args.bias);
  const Wide history(context, args.history);
  const Wide dy(context, cotangents.y), dafter(context, cotangents.history);
  const Wide dx(context, grads.x, Wide::Use::write),
      dbefore(context, grads.history, Wide::Use::write);
  const Wide dweight(context, grads.weight, Wide::Use::accumulate);
  const Wide dbias(context, grads.bias, Wide::Use::accumulate);
  const Tensor de_ = context.empty({sequences.longest() + args.weight.dim(1)}, Dtype::f64);
  if (context.planning()) return;
  double* de = de_.data<double>();
  for_each_channel(sequences, args, [&](const Channel& channel) {
    const std::int64_t past = channel.window - 1;
    for (std::int64_t i = 0; i < past + channel.length; ++i) {
      de[i] = dafter && i >= channel.length ? dafter[channel.history_at + i - channel.length] : 0.0;
    }
    for (std::int64_t t = 0; t < channel.length; ++t) {
      const double a = before_activation(channel, x, history, weight, bias, t);
      const double da = dy[channel.at(t)] * activation_slope(args.activation, a);
      if (dbias) dbias[channel.index] += da;
      for (std::int64_t j = 0; j < channel.window; ++j) {
        de[t + j] += weight[channel.weight_at + j] * da;
        if (dweight) dweight[channel.weight_at + j] += da * extended(channel, x, history, t + j);
      }
    }
    for (std::int64_t i = 0; dbefore && i < past; ++i) dbefore[channel.history_at + i] = de[i];
    for (std::int64_t t = 0; dx && t < channel.length; ++t) dx[channel.at(t)] = de[past + t];
  });
  dx.store();
  dbefore.store();
  dweight.store();
  dbias.store();
}

}  // namespace rankone::nn
