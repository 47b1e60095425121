#include "nn/cpu/blocks.hpp"
#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {

using cpu::data_or_null;
using cpu::for_blocks;
using cpu::rows_per_task;

namespace {

// to [columns, rows] = from [rows, columns] transposed.
void transpose(std::int64_t rows, std::int64_t columns, const float* from, float* to) {
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) to[j * rows + i] = from[i * columns + j];
  }
}

// A history [N, C, W-1] as rows over channels, [N, W-1, C]; null where it is undefined.
const float* history_rows(Context& context, const Tensor& history) {
  if (!history.defined()) return nullptr;
  float* rows = cpu::scratch(context, history.count());
  if (context.planning()) return rows;
  const std::int64_t one = history.dim(1) * history.dim(2);
  for_blocks(context, history.dim(0), rows_per_task(one),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t n = begin; n < end; ++n) {
                 transpose(history.dim(1), history.dim(2), history.data<float>() + n * one,
                           rows + n * one);
               }
             });
  return rows;
}

// What the rows of a call look like from the window: E, the history of a sequence followed by its
// rows (see nn/reference/short_conv.cpp).
struct Window {
  const Sequences& sequences;
  std::int64_t channels;
  std::int64_t past;     // window - 1
  const float* history;  // [N, past, C] or null: zero
  const float* zeros;    // [C]

  const float* extended(const float* x, std::int64_t n, std::int64_t i) const {
    if (i >= past) return x + (sequences.begin(n) + i - past) * channels;
    return history != nullptr ? history + (n * past + i) * channels : zeros;
  }
};

struct Parameters {
  const float* weight;  // [W, C]
  const float* bias;    // [C] or null
};

Window make_window(Context& context, const Sequences& sequences, const ShortConv& args) {
  const std::int64_t channels = args.weight.dim(0);
  float* zeros = cpu::scratch(context, channels);
  if (!context.planning()) std::fill_n(zeros, channels, 0.0F);
  return {sequences, channels, args.weight.dim(1) - 1, history_rows(context, args.history), zeros};
}

Parameters make_parameters(Context& context, const ShortConv& args) {
  const float* weight = cpu::as_float(context, args.weight);
  float* rows = cpu::scratch(context, args.weight.count());
  if (!context.planning()) transpose(args.weight.dim(0), args.weight.dim(1), weight, rows);
  return {rows, cpu::as_float(context, args.bias)};
}

ConvRow forward_row(const Window& window, const Parameters& parameters, const float* x,
                    std::int64_t n, std::int64_t t) {
  ConvRow row{window.channels, window.past + 1, {}, parameters.weight, parameters.bias};
  for (std::int64_t j = 0; j <= window.past; ++j) row.taps[j] = window.extended(x, n, t + j);
  return row;
}

// work(n, t) for the rows [begin, end) of the call, t the time within sequence n.
template <class Work>
void for_rows(const Sequences& sequences, std::int64_t begin, std::int64_t end, Work&& work) {
  const auto boundaries = sequences.boundaries();
  const auto next = std::upper_bound(boundaries.begin(), boundaries.end(), begin);
  std::int64_t n = next - boundaries.begin() - 1;
  for (std::int64_t row = begin; row < end; ++row) {
    while (row >= sequences.end(n)) ++n;
    work(n, row - sequences.begin(n));
  }
}

}  // namespace

void CpuBackend::short_conv(Context& context, const Sequences& sequences, const ShortConv& args,
                            const ShortConvOut& out) const {
  const ArenaScope scope(context.arena());
  const Window window = make_window(context, sequences, args);
  const Parameters parameters = make_parameters(context, args);
  if (context.planning()) return;
  const std::int64_t channels = window.channels;
  const float* x = args.x.data<float>();
  float* y = out.y.data<float>();
  const bool silu = args.activation == Activation::silu;
  for_blocks(context, sequences.rows(), rows_per_task(channels),
             [&](std::int64_t begin, std::int64_t end, int) {
               for_rows(sequences, begin, end, [&](std::int64_t n, std::int64_t t) {
                 conv_kernels().forward(forward_row(window, parameters, x, n, t), silu,
                                        y + (sequences.begin(n) + t) * channels);
               });
             });
  if (!out.history.defined()) return;
  float* history = out.history.data<float>();
  for_blocks(context, sequences.count(), rows_per_task(window.past * channels),
             [&](std::int64_t begin, std::int64_t end, int) {
               for (std::int64_t n = begin; n < end; ++n) {
                 float* to = history + n * channels * window.past;
                 for (std::int64_t i = 0; i < window.past; ++i) {
                   const float* from = window.extended(x, n, sequences.length(n) + i);
                   for (std::int64_t c = 0; c < channels; ++c) to[c * window.past + i] = from[c];
                 }
               }
             });
}

namespace {

// dE_i = sum_j w_j da_{i-j} + d(history out)_{i-T}, one row of it.
ConvRow backward_row(const Window& window, const Parameters& parameters, const float* da,
                     const float* dafter, std::int64_t n, std::int64_t i) {
  const std::int64_t length = window.sequences.length(n);
  ConvRow row{window.channels, window.past + 1, {}, parameters.weight, nullptr};
  for (std::int64_t j = 0; j <= window.past; ++j) {
    const std::int64_t t = i - j;
    row.taps[j] = t >= 0 && t < length ? da + (window.sequences.begin(n) + t) * window.channels
                                       : window.zeros;
  }
  if (dafter != nullptr && i >= length) {
    row.start = dafter + (n * window.past + i - length) * window.channels;
  }
  return row;
}

// The parameter gradients of all rows, dweight as [W, C] with dbias as a last row.
void add_parameter_gradients(Context& context, const cpu::BlockSums& sums, const Window& window,
                             const Parameters& parameters, const float* x, const float* da,
                             const ShortConvGrads& grads) {
  const std::int64_t channels = window.channels;
  const std::int64_t taps = window.past + 1;
  sums.run(context, [&](std::int64_t begin, std::int64_t end, float* sum, int) {
    for_rows(window.sequences, begin, end, [&](std::int64_t n, std::int64_t t) {
      conv_kernels().parameters(forward_row(window, parameters, x, n, t),
                                da + (window.sequences.begin(n) + t) * channels, sum,
                                sum + taps * channels);
    });
  });
  const float* total = sums.total();
  if (total == nullptr) return;
  if (grads.weight.defined()) {
    float* dweight = grads.weight.data<float>();
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t j = 0; j < taps; ++j) dweight[c * taps + j] += total[j * channels + c];
    }
  }
  if (grads.bias.defined()) {
    float* dbias = grads.bias.data<float>();
    map_kernels().add(channels, dbias, total + taps * channels, dbias);
  }
}

}  // namespace

void CpuBackend::short_conv_vjp(Context& context, const Sequences& sequences, const ShortConv& args,
                                const ShortConvCotangents& cotangents,
                                const ShortConvGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Window window = make_window(context, sequences, args);
  const Parameters parameters = make_parameters(context, args);
  const float* dafter = history_rows(context, cotangents.history);
  const std::int64_t channels = window.channels;
  const std::int64_t block = rows_per_task(channels);
  float* da = cpu::scratch(context, sequences.rows() * channels);
  float* dbefore_rows = cpu::scratch(context, window.past * channels);
  const cpu::BlockSums sums(context, sequences.rows(), block, (window.past + 2) * channels);
  if (context.planning()) return;
  const float* x = args.x.data<float>();
  const float* dy = cotangents.y.data<float>();
  const bool silu = args.activation == Activation::silu;
  for_blocks(context, sequences.rows(), block, [&](std::int64_t begin, std::int64_t end, int) {
    for_rows(sequences, begin, end, [&](std::int64_t n, std::int64_t t) {
      const std::int64_t at = (sequences.begin(n) + t) * channels;
      conv_kernels().slope(forward_row(window, parameters, x, n, t), silu, dy + at, da + at);
    });
  });
  if (grads.weight.defined() || grads.bias.defined()) {
    add_parameter_gradients(context, sums, window, parameters, x, da, grads);
  }
  if (float* dx = data_or_null(grads.x)) {
    for_blocks(context, sequences.rows(), block, [&](std::int64_t begin, std::int64_t end, int) {
      for_rows(sequences, begin, end, [&](std::int64_t n, std::int64_t t) {
        conv_kernels().forward(backward_row(window, parameters, da, dafter, n, window.past + t),
                               false, dx + (sequences.begin(n) + t) * channels);
      });
    });
  }
  if (!grads.history.defined()) return;
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    for (std::int64_t i = 0; i < window.past; ++i) {
      conv_kernels().forward(backward_row(window, parameters, da, dafter, n, i), false,
                             dbefore_rows + i * channels);
    }
    transpose(window.past, channels, dbefore_rows,
              grads.history.data<float>() + n * channels * window.past);
  }
}

}  // namespace rankone::nn
