// The diagonal preconditioner: a scan with one lane a channel, a task for every head of every
// sequence. Rows are taken kChunk at a time through padded scratch.

#include <algorithm>
#include <cmath>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/scratch.hpp"
#include "recurrence/cpu/two_key_chunk.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cpu {
namespace {

// One worker's rows.
struct Layout {
  int row;
  float *k, *target, *out, *state, *parameter;
  float *inverse_norm, *decay, *gain;
  float *d_state, *d_decay, *d_gain;
  // For the way back only.
  float *history = nullptr, *d_out = nullptr, *d_k = nullptr, *d_target = nullptr, *kept = nullptr;
  Index used;

  Layout(int d_k_size, Index longest, bool backward, Scratch scratch) : row(leading(d_k_size)) {
    for (float** rows : {&k, &target, &out}) *rows = scratch.rows(kChunk, d_k_size);
    for (float** one : {&state, &parameter, &d_state}) *one = scratch.rows(1, d_k_size);
    for (float** one : {&inverse_norm, &decay, &gain, &d_decay, &d_gain})
      *one = scratch.take(kChunk);
    if (backward) {
      for (float** rows : {&d_out, &d_k, &d_target}) *rows = scratch.rows(kChunk, d_k_size);
      history = scratch.rows(kChunk + 1, d_k_size);
      kept = scratch.rows((longest + kChunk - 1) / kChunk + 1, d_k_size);
    }
    used = scratch.used();
  }
};

class HeadScan {
 public:
  HeadScan(const PreconditionShape& shape, const Precondition& inputs, Layout layout,
           Index sequence, Index head)
      : shape_(shape),
        in_(inputs),
        at_(layout),
        head_(head),
        state_at_((sequence * shape.heads + head) * shape.d_k),
        channels_(static_cast<int>(shape.d_k)) {
    const bool atk = inputs.kind == PreconditionerKind::atk;
    // Channels behind the last stay at a harmless point of the factor: A = 0, k = 0.
    std::fill_n(at_.parameter, round_up(channels_, kLine), 1.0F);
    if (atk) {
      std::fill_n(at_.parameter, channels_, inputs.center.data<float>()[head]);
    } else {
      std::copy_n(inputs.ridge.data<float>() + head * shape.d_k, channels_, at_.parameter);
    }
    scan_ = {.atk = atk,
             .log_x = static_cast<float>(std::log(inputs.x)),
             .eps = static_cast<float>(inputs.eps),
             .parameter = at_.parameter,
             .k = at_.k,
             .target = at_.target,
             .row = at_.row,
             .decay = at_.decay,
             .gain = at_.gain,
             .n = 0,
             .channels = channels_,
             .state = at_.state,
             .out = nullptr,
             .history = nullptr};
  }

  void forward(Index begin, Index end, const PreconditionOut& out) {
    load_state(at_.state, in_.initial);
    for (Index first = begin; first < end; first += kChunk) {
      load(first, end);
      scan_.out = out.out.defined() ? at_.out : nullptr;
      kernels().precondition(scan_);
      if (out.out.defined()) store(out.out, first, at_.out);
    }
    store_state(out.final, at_.state);
  }

  // d_parameter: [K] of this sequence and head.
  void backward(Index begin, Index end, const PreconditionCotangents& cotangents,
                const PreconditionGrads& grads, float* d_parameter) {
    load_state(at_.state, in_.initial);
    float* kept = at_.kept;
    for (Index first = begin; first < end; first += kChunk, kept += at_.row) {
      std::copy_n(at_.state, at_.row, kept);
      load(first, end);
      scan_.out = nullptr;
      kernels().precondition(scan_);
    }
    load_state(at_.d_state, cotangents.final);
    const Index chunks = (end - begin + kChunk - 1) / kChunk;
    for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
      const Index first = begin + chunk * kChunk;
      std::copy_n(at_.kept + chunk * at_.row, at_.row, at_.state);
      load(first, end);
      scan_.history = at_.history;
      kernels().precondition(scan_);
      kernels().copy_rows(at_.d_out, at_.row, cotangents.out.data<float>() + key_at(first),
                          shape_.heads * shape_.d_k, nullptr, scan_.n, channels_);
      kernels().precondition_back({scan_, at_.d_out, at_.d_state, at_.d_k, at_.d_target,
                                   at_.d_decay, at_.d_gain, d_parameter});
      scan_.history = nullptr;
      put(first, grads);
    }
    store_state(grads.initial, at_.d_state);
  }

 private:
  Index key_at(Index row) const { return (row * shape_.heads + head_) * shape_.d_k; }

  void load_state(float* to, const Tensor& state) const {
    std::fill_n(to, at_.row, 0.0F);
    if (state.defined()) std::copy_n(state.data<float>() + state_at_, channels_, to);
  }
  void store_state(const Tensor& to, const float* state) const {
    if (to.defined()) std::copy_n(state, channels_, to.data<float>() + state_at_);
  }

  void load(Index first, Index end) {
    const int n = static_cast<int>(std::min<Index>(kChunk, end - first));
    const Index stride = shape_.heads * shape_.d_k;
    const float* k = in_.k.data<float>() + key_at(first);
    scan_.n = n;
    for (int i = 0; i < n; ++i) {
      const Index gate = (first + i) * shape_.heads + head_;
      const float* key = k + i * stride;
      at_.inverse_norm[i] =
          in_.normalize ? 1.0F / std::sqrt(kernels().dot(key, key, channels_) + 1e-6F) : 1.0F;
      at_.decay[i] = in_.g.defined() ? std::exp(in_.g.data<float>()[gate]) : 1.0F;
      at_.gain[i] = in_.b.defined() ? in_.b.data<float>()[gate] : 1.0F;
    }
    kernels().copy_rows(at_.k, at_.row, k, stride, at_.inverse_norm, n, channels_);
    kernels().copy_rows(at_.target, at_.row, in_.target.data<float>() + key_at(first), stride,
                        nullptr, n, channels_);
  }

  void store(const Tensor& to, Index first, const float* rows) const {
    for (int i = 0; i < scan_.n; ++i) {
      std::copy_n(rows + i * static_cast<Index>(at_.row), channels_,
                  to.data<float>() + key_at(first + i));
    }
  }

  void put(Index first, const PreconditionGrads& grads) const {
    for (int i = 0; i < scan_.n; ++i) {
      const Index row = i * static_cast<Index>(at_.row);
      const Index gate = (first + i) * shape_.heads + head_;
      if (in_.normalize) through_norm(at_.d_k + row, at_.k + row, at_.inverse_norm[i]);
      if (grads.g.defined()) grads.g.data<float>()[gate] = at_.d_decay[i];
      if (grads.b.defined()) grads.b.data<float>()[gate] = at_.d_gain[i];
    }
    if (grads.k.defined()) store(grads.k, first, at_.d_k);
    if (grads.target.defined()) store(grads.target, first, at_.d_target);
  }

  void through_norm(float* d_k, const float* k_hat, float inverse_norm) const {
    const float along = kernels().dot(k_hat, d_k, channels_);
    for (int d = 0; d < channels_; ++d) d_k[d] = inverse_norm * (d_k[d] - k_hat[d] * along);
  }

  const PreconditionShape& shape_;
  const Precondition& in_;
  Layout at_;
  Index head_;
  Index state_at_;
  int channels_;
  PreconditionScan scan_;
};

// Sums the parts of the sequences in their order: center [H] over the channels too, ridge [H, K].
void reduce_parameter(const PreconditionShape& shape, const Precondition& inputs, int row,
                      const float* parts, const PreconditionGrads& grads) {
  const bool atk = inputs.kind == PreconditionerKind::atk;
  const Tensor& to = atk ? grads.center : grads.ridge;
  if (!to.defined()) return;
  for (Index head = 0; head < shape.heads; ++head) {
    double total = 0.0;
    for (Index d = 0; d < shape.d_k; ++d) {
      double channel = 0.0;
      for (Index sequence = 0; sequence < shape.sequences; ++sequence) {
        channel += static_cast<double>(parts[(sequence * shape.heads + head) * row + d]);
      }
      if (!atk) to.data<float>()[head * shape.d_k + d] = static_cast<float>(channel);
      total += channel;
    }
    if (atk) to.data<float>()[head] = static_cast<float>(total);
  }
}

}  // namespace
}  // namespace cpu

void CpuBackend::precondition(Context& context, const Sequences& sequences,
                              const Precondition& inputs, const PreconditionOut& out) const {
  const PreconditionShape shape = shape_of(sequences, inputs);
  const int d_k = static_cast<int>(shape.d_k);
  const ArenaScope scope(context.arena());
  const cpu::WorkerScratch scratch(context.arena(), context.threads().size(),
                                   cpu::Layout(d_k, 0, false, cpu::Scratch()).used);
  if (context.planning()) return;
  context.threads().run(shape.sequences * shape.heads, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads;
    cpu::HeadScan(shape, inputs, cpu::Layout(d_k, 0, false, scratch.of(worker)), sequence,
                  task % shape.heads)
        .forward(sequences.begin(sequence), sequences.end(sequence), out);
  });
}

void CpuBackend::precondition_vjp(Context& context, const Sequences& sequences,
                                  const Precondition& inputs,
                                  const PreconditionCotangents& cotangents,
                                  const PreconditionGrads& grads) const {
  const PreconditionShape shape = shape_of(sequences, inputs);
  const int d_k = static_cast<int>(shape.d_k);
  const std::int64_t longest = sequences.longest();
  const std::int64_t tasks = shape.sequences * shape.heads;
  const int row = cpu::leading(d_k);
  const ArenaScope scope(context.arena());
  const cpu::WorkerScratch scratch(context.arena(), context.threads().size(),
                                   cpu::Layout(d_k, longest, true, cpu::Scratch()).used);
  const cpu::WorkerScratch parts(context.arena(), static_cast<int>(tasks), row);
  if (context.planning()) return;
  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads;
    float* part = parts.of(static_cast<int>(task)).take(row);
    std::fill_n(part, row, 0.0F);
    cpu::HeadScan(shape, inputs, cpu::Layout(d_k, longest, true, scratch.of(worker)), sequence,
                  task % shape.heads)
        .backward(sequences.begin(sequence), sequences.end(sequence), cotangents, grads, part);
  });
  if (tasks > 0) {
    cpu::reduce_parameter(shape, inputs, row, parts.of(0).take(row), grads);
  } else {
    for (const Tensor& none : {grads.center, grads.ridge}) {
      if (none.defined()) none.fill(0.0);
    }
  }
}

}  // namespace rankone::recurrence
