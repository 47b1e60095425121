#include <algorithm>

#include "recurrence/cpu/tasks.hpp"
#include "recurrence/cpu/tile_backward.hpp"
#include "recurrence/cpu/two_key_tiles.hpp"

namespace rankone::recurrence::cpu {
namespace {

// One worker's memory: the state at the start of every chunk of the longest sequence and what its
// tokens found wrong, and what one chunk needs.
struct Layout {
  TileBackward backward;
  ChunkBackward rest;  // of a sequence, on the float32 kernels
  Index state_size, errors_size;
  float* states;   // [chunks + 1, K, V]
  float* errors;   // [chunks, C, V]
  float* d_state;  // [K, V]
  Index used;

  Layout(const TwoKeySizes& sizes, int parts, Index longest, Scratch scratch)
      : backward(sizes, parts, scratch), rest(sizes, scratch) {
    const Index chunks = (longest + kChunk - 1) / kChunk;
    state_size = static_cast<Index>(sizes.padded_k()) * backward.results.value_row;
    errors_size = static_cast<Index>(kChunk) * backward.results.value_row;
    states = scratch.take((chunks + 1) * state_size);
    errors = scratch.take(chunks * errors_size);
    d_state = scratch.take(state_size);
    used = scratch.used();
  }
};

// All value heads of one key head of one sequence, as in two_key_vjp.cpp.
class GroupTask {
 public:
  GroupTask(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
            const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads, Layout& layout,
            Index sequence)
      : shape_(shape),
        sizes_(sizes),
        inputs_(inputs),
        cotangents_(cotangents),
        grads_(grads),
        at_(layout),
        sequence_(sequence),
        stream_(cotangents.o.bytes() > kStreamed) {}

  void run(Index key_head, Index begin, Index end) {
    tile_kernels()->begin();
    for (Index i = 0; i < shape_.group(); ++i) {
      head_ = key_head * shape_.group() + i;
      head(begin, end, i > 0);
    }
    tile_kernels()->end();
    if (stream_) stream_end();
  }

 private:
  Index state_offset() const {
    return (sequence_ * shape_.value_heads + head_) * shape_.d_k * shape_.d_v;
  }

  // Padding is zero.
  void load(float* to, const Tensor& state) const {
    std::fill_n(to, at_.state_size, 0.0F);
    if (!state.defined()) return;
    kernels().copy_rows(to, at_.backward.results.value_row, state.data<float>() + state_offset(),
                        shape_.d_v, nullptr, sizes_.d_k, sizes_.d_v);
  }

  ChunkRows rows_at(Index first, Index end) const {
    return chunk_rows(shape_, inputs_, first,
                      static_cast<int>(std::min<Index>(kChunk, end - first)), head_);
  }

  const float* d_output(Index first) const {
    return cotangents_.o.data<float>() + (first * shape_.value_heads + head_) * shape_.d_v;
  }

  // The rows of the chunk at `first` that the next call will read and, on the way back, write.
  void look_ahead(Index begin, Index first, Index end, bool back) const {
    TileAhead& ahead = at_.backward.ahead;
    if (first < begin || first >= end) {
      ahead.start(0, 0);
      return;
    }
    const ChunkRows rows = rows_at(first, end);
    const Index keys = first * rows.key_row + head_ / shape_.group() * shape_.d_k;
    const auto gradient = [&](const Tensor& tensor, Index offset, Index row, int columns) {
      if (tensor.defined()) ahead.add(tensor.data<float>() + offset, row, columns);
    };
    ahead.start(rows.count, back ? 4 : 3);
    ahead.add(rows.w, rows.key_row, sizes_.d_k);
    if (rows.e != rows.w) ahead.add(rows.e, rows.key_row, sizes_.d_k);
    if (!back) {
      ahead.add(rows.v, rows.value_row, sizes_.d_v);
      return;
    }
    ahead.add(rows.q, rows.key_row, sizes_.d_k);
    ahead.add(d_output(first), rows.value_row, sizes_.d_v);
    if (stream_ && shape_.group() == 1) return;
    gradient(grads_.q, keys, rows.key_row, sizes_.d_k);
    gradient(grads_.e, keys, rows.key_row, sizes_.d_k);
    gradient(grads_.w, keys, rows.key_row, sizes_.d_k);
    if (stream_) return;
    gradient(grads_.v, first * rows.value_row + head_ * shape_.d_v, rows.value_row, sizes_.d_v);
  }

  void head(Index begin, Index end, bool add) {
    const Index middle = end - tile_rest(end - begin);
    const Index chunks = (middle - begin + kChunk - 1) / kChunk;
    const GradientPlace place{shape_, sizes_, grads_, head_, add, stream_};
    load(at_.states, inputs_.initial_state);
    for (Index chunk = 0; chunk < chunks; ++chunk) {
      const Index first = begin + chunk * kChunk;
      float* state = at_.states + chunk * at_.state_size;
      look_ahead(begin, first + kChunk, middle, false);
      at_.backward.advance(rows_at(first, middle), state,
                           first + kChunk < end ? state + at_.state_size : nullptr,
                           at_.errors + chunk * at_.errors_size);
    }
    load(at_.d_state, cotangents_.final_state);
    if (middle < end) {
      const ChunkRows rows = rows_at(middle, end);
      at_.rest.run(rows, d_output(middle), at_.states + chunks * at_.state_size, at_.d_state);
      put_gradients(place, middle, rows, at_.rest);
    }
    for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
      const Index first = begin + chunk * kChunk;
      const ChunkRows rows = rows_at(first, middle);
      look_ahead(begin, first - kChunk, middle, true);
      at_.backward.run(rows, d_output(first), at_.states + chunk * at_.state_size,
                       at_.errors + chunk * at_.errors_size, at_.d_state);
      put_gradients(place, first, rows, at_.backward.results);
    }
    put_rows(grads_.initial_state, state_offset(), shape_.d_v, at_.d_state,
             at_.backward.results.value_row, sizes_.d_k, sizes_.d_v, false);
  }

  const TwoKeyShape& shape_;
  const TwoKeySizes& sizes_;
  const TwoKey& inputs_;
  const TwoKeyCotangents& cotangents_;
  const TwoKeyGrads& grads_;
  Layout& at_;
  Index sequence_;
  bool stream_;
  Index head_ = 0;
};

}  // namespace

void two_key_vjp_tiles(Context& context, const Sequences& sequences, const TwoKey& inputs,
                       const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  const TwoKeySizes sizes = tile_sizes(shape, inputs);
  const int parts = parts_of(context.precision());
  const auto layout = [&](Scratch scratch) {
    return Layout(sizes, parts, sequences.longest(), scratch);
  };
  const ArenaScope scope(context.arena());
  const WorkerScratch scratch(context.arena(), context.threads().size(), layout(Scratch()).used);
  if (context.planning()) return;

  run_tasks(context, shape.sequences * shape.heads, [&](Index task, int worker) {
    const Index sequence = task / shape.heads;
    Layout at = layout(scratch.of(worker));
    GroupTask(shape, sizes, inputs, cotangents, grads, at, sequence)
        .run(task % shape.heads, sequences.begin(sequence), sequences.end(sequence));
  });
}

}  // namespace rankone::recurrence::cpu
