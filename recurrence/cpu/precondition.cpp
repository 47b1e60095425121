#include "recurrence/cpu/precondition.hpp"

#include <algorithm>
#include <cmath>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/tasks.hpp"

namespace rankone::recurrence {
namespace cpu {

ScanLayout::ScanLayout(int d_k, Index longest, bool backward, Scratch& scratch)
    : row(leading(d_k)) {
  for (float** one : {&state, &ridge}) *one = scratch.take(row);
  for (float** one : {&decay, &gain, &inverse_square}) *one = scratch.take(kChunk);
  if (!backward) return;
  for (float** one : {&d_decay, &d_gain}) *one = scratch.take(kChunk);
  for (float** one : {&d_state, &unwanted}) *one = scratch.take(row);
  history = scratch.rows(kChunk + 1, d_k);
  kept = scratch.rows((longest + kChunk - 1) / kChunk, d_k);
}

HeadScan::HeadScan(const PreconditionShape& shape, const Precondition& inputs,
                   const ScanLayout& layout, Index sequence, Index head)
    : shape_(shape),
      in_(inputs),
      at_(layout),
      head_(head),
      state_at_((sequence * shape.heads + head) * shape.d_k),
      key_row_(shape.heads * shape.d_k),
      channels_(static_cast<int>(shape.d_k)) {
  scan_.gate_row = shape.heads;
  scan_.k_row = scan_.target_row = key_row_;
  scan_.channels = channels_;
  scan_.state = at_.state;
  scan_.decay = at_.decay;
  scan_.gain = at_.gain;
  scan_.inverse_square = inputs.normalize ? at_.inverse_square : nullptr;
  std::fill_n(at_.ridge, at_.row, 1.0F);
  scan_.ridge = at_.ridge;
  scan_.atk = inputs.kind == PreconditionerKind::atk;
  if (scan_.atk) {
    scan_.center = inputs.center.data<float>()[head];
    scan_.log_x = static_cast<float>(std::log(inputs.x));
    scan_.eps = static_cast<float>(inputs.eps);
  } else {
    std::copy_n(inputs.ridge.data<float>() + head * shape.d_k, channels_, at_.ridge);
  }
}

void HeadScan::begin() { load_state(at_.state, in_.initial); }

void HeadScan::rows(Index first, int count, float* out, Index out_row, float* copy,
                    Index copy_row) {
  at_rows(first, count);
  scan_.out = out;
  scan_.out_row = out_row;
  scan_.copy = copy;
  scan_.copy_row = copy_row;
  kernels().precondition(scan_);
}

void HeadScan::finish(const PreconditionOut& out) { store_state(out.final, at_.state); }

void HeadScan::fetch_gates(Index first, int count) const {
  for (const Tensor* gates : {&in_.g, &in_.b}) {
    if (!gates->defined()) continue;
    const float* from = gates->data<float>() + first * shape_.heads + head_;
    for (int i = 0; i < count; ++i) __builtin_prefetch(from + i * shape_.heads, 0, 2);
  }
}

void HeadScan::forward(Index begin, Index end, const PreconditionOut& out) {
  this->begin();
  for (Index first = begin; first < end; first += kChunk) {
    rows(first, static_cast<int>(std::min<Index>(kChunk, end - first)),
         out.out.defined() ? out.out.data<float>() + key_at(first) : nullptr, key_row_);
  }
  finish(out);
}

void HeadScan::backward(Index begin, Index end, const PreconditionCotangents& cotangents,
                        const PreconditionGrads& grads, float* d_parameter) {
  this->begin();
  float* kept = at_.kept;
  for (Index first = begin; first < end; first += kChunk, kept += at_.row) {
    std::copy_n(at_.state, at_.row, kept);
    rows(first, static_cast<int>(std::min<Index>(kChunk, end - first)), nullptr, 0);
  }
  load_state(at_.d_state, cotangents.final);
  const Index chunks = (end - begin + kChunk - 1) / kChunk;
  for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
    const Index first = begin + chunk * kChunk;
    std::copy_n(at_.kept + chunk * at_.row, at_.row, at_.state);
    at_rows(first, static_cast<int>(std::min<Index>(kChunk, end - first)));
    PreconditionScanBack back{};
    back.scan = scan_;
    back.history = at_.history;
    back.history_row = at_.row;
    back.d_out = cotangents.out.data<float>() + key_at(first);
    back.d_out_row = key_row_;
    back.d_state = at_.d_state;
    back.d_decay = at_.d_decay;
    back.d_gain = at_.d_gain;
    back.d_parameter = d_parameter;
    wanted(grads.k, first, back.d_k, back.d_k_row);
    wanted(grads.target, first, back.d_target, back.d_target_row);
    back.joined = grads.joins_target();
    if (cotangents.k.defined()) back.other = cotangents.k.data<float>() + key_at(first);
    back.other_row = key_row_;
    kernels().precondition_back(back);
    store_gates(grads.g, first, at_.d_decay);
    store_gates(grads.b, first, at_.d_gain);
  }
  store_state(grads.initial, at_.d_state);
}

void HeadScan::load_state(float* to, const Tensor& state) const {
  std::fill_n(to, at_.row, 0.0F);
  if (state.defined()) std::copy_n(state.data<float>() + state_at_, channels_, to);
}

void HeadScan::store_state(const Tensor& to, const float* state) const {
  if (to.defined()) std::copy_n(state, channels_, to.data<float>() + state_at_);
}

void HeadScan::at_rows(Index first, int count) {
  const Index gate = first * shape_.heads + head_;
  scan_.n = count;
  scan_.k = in_.k.data<float>() + key_at(first);
  scan_.target = in_.target.data<float>() + key_at(first);
  scan_.g = in_.g.defined() ? in_.g.data<float>() + gate : nullptr;
  scan_.b = in_.b.defined() ? in_.b.data<float>() + gate : nullptr;
}

// Where a gradient goes: one row over and over where nobody wants it.
void HeadScan::wanted(const Tensor& to, Index first, float*& rows, Index& row) const {
  rows = to.defined() ? to.data<float>() + key_at(first) : at_.unwanted;
  row = to.defined() ? key_row_ : 0;
}

void HeadScan::store_gates(const Tensor& to, Index first, const float* from) const {
  if (!to.defined()) return;
  for (int i = 0; i < scan_.n; ++i) to.data<float>()[(first + i) * shape_.heads + head_] = from[i];
}

namespace {

Index scratch_of(int d_k, Index longest, bool backward) {
  Scratch scratch;
  const ScanLayout layout(d_k, longest, backward, scratch);
  return scratch.used();
}

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
                                   cpu::scratch_of(d_k, 0, false));
  if (context.planning()) return;
  cpu::run_tasks(context, shape.sequences * shape.heads, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads;
    cpu::Scratch mine = scratch.of(worker);
    cpu::HeadScan(shape, inputs, cpu::ScanLayout(d_k, 0, false, mine), sequence, task % shape.heads)
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
                                   cpu::scratch_of(d_k, longest, true));
  const cpu::WorkerScratch parts(context.arena(), static_cast<int>(tasks), row);
  if (context.planning()) return;
  cpu::run_tasks(context, tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task / shape.heads;
    float* part = parts.of(static_cast<int>(task)).take(row);
    std::fill_n(part, row, 0.0F);
    cpu::Scratch mine = scratch.of(worker);
    cpu::HeadScan(shape, inputs, cpu::ScanLayout(d_k, longest, true, mine), sequence,
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
