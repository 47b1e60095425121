#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/tasks.hpp"
#include "recurrence/cpu/two_key.hpp"
#include "recurrence/cpu/two_key_backward.hpp"
#include "recurrence/cpu/two_key_tiles.hpp"

namespace rankone::recurrence {
namespace cpu {
namespace {

// One worker's memory: the state at the start of every chunk of the longest sequence, and what one
// chunk needs. Linear in the length, one state per chunk.
struct Layout {
  ChunkBackward backward;
  Index state_size;
  float* states;   // [chunks, K, V]
  float* d_state;  // [K, V]
  Index used;

  Layout(const TwoKeySizes& sizes, Index longest, Scratch scratch) : backward(sizes, scratch) {
    state_size = static_cast<Index>(sizes.d_k) * backward.value_row;
    const Index chunks = std::max<Index>(1, (longest + sizes.chunk - 1) / sizes.chunk);
    states = scratch.take(chunks * state_size);
    d_state = scratch.take(state_size);
    used = scratch.used();
  }
};

// All value heads of one key head of one sequence, so that the gradients of the keys are summed by
// one task in one order.
class GroupTask {
 public:
  GroupTask(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
            const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads, Layout layout,
            Index sequence)
      : shape_(shape),
        sizes_(sizes),
        inputs_(inputs),
        cotangents_(cotangents),
        grads_(grads),
        at_(layout),
        sequence_(sequence) {}

  void run(Index key_head, Index begin, Index end) {
    for (Index i = 0; i < shape_.group(); ++i) {
      head_ = key_head * shape_.group() + i;
      head(begin, end, i > 0);
    }
  }

 private:
  Index state_offset() const {
    return (sequence_ * shape_.value_heads + head_) * shape_.d_k * shape_.d_v;
  }

  void load(float* to, const Tensor& state) const {
    std::fill_n(to, at_.state_size, 0.0F);
    if (!state.defined()) return;
    kernels().copy_rows(to, at_.backward.value_row, state.data<float>() + state_offset(),
                        shape_.d_v, nullptr, sizes_.d_k, sizes_.d_v);
  }

  ChunkRows rows_of(Index first, Index end) const {
    return chunk_rows(shape_, inputs_, first,
                      static_cast<int>(std::min<Index>(sizes_.chunk, end - first)), head_);
  }

  void head(Index begin, Index end, bool add) {
    load(at_.states, inputs_.initial_state);
    float* state = at_.states;
    for (Index first = begin; first + sizes_.chunk < end; first += sizes_.chunk) {
      at_.backward.advance(rows_of(first, end), state, state + at_.state_size);
      state += at_.state_size;
    }
    load(at_.d_state, cotangents_.final_state);
    const Index chunks = (end - begin + sizes_.chunk - 1) / sizes_.chunk;
    for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
      const Index first = begin + chunk * sizes_.chunk;
      const ChunkRows rows = rows_of(first, end);
      const Index output = first * rows.value_row + head_ * shape_.d_v;
      at_.backward.run(rows, cotangents_.o.data<float>() + output,
                       at_.states + chunk * at_.state_size, at_.d_state);
      put_gradients({shape_, sizes_, grads_, head_, add}, first, rows, at_.backward);
    }
    if (!grads_.initial_state.defined()) return;
    put_rows(grads_.initial_state, state_offset(), shape_.d_v, at_.d_state, at_.backward.value_row,
             sizes_.d_k, sizes_.d_v, false);
  }

  const TwoKeyShape& shape_;
  const TwoKeySizes& sizes_;
  const TwoKey& inputs_;
  const TwoKeyCotangents& cotangents_;
  const TwoKeyGrads& grads_;
  Layout at_;
  Index sequence_;
  Index head_ = 0;
};

}  // namespace

void put_rows(const Tensor& gradient, Index offset, Index stride, const float* from, Index from_row,
              int rows, int columns, bool add, bool stream) {
  if (!gradient.defined()) return;
  float* to = gradient.data<float>() + offset;
#if defined(__x86_64__)
  if (stream && !add && whole_lines(to, stride) && columns % kLine == 0) {
    for (int i = 0; i < rows; ++i, to += stride, from += from_row) {
      for (int c = 0; c < columns; c += 4) _mm_stream_ps(to + c, _mm_loadu_ps(from + c));
    }
    return;
  }
#else
  static_cast<void>(stream);
#endif
  for (int i = 0; i < rows; ++i, to += stride, from += from_row) {
    if (!add) {
      std::copy_n(from, columns, to);
      continue;
    }
    for (int c = 0; c < columns; ++c) to[c] += from[c];
  }
}

void put_gradients(const GradientPlace& place, Index first, const ChunkRows& rows,
                   const ChunkBackward& back) {
  const TwoKeyShape& shape = place.shape;
  const TwoKeySizes& sizes = place.sizes;
  const TwoKeyGrads& grads = place.grads;
  const Index head = place.head;
  const int n = rows.count;
  const Index key = first * rows.key_row + head / shape.group() * shape.d_k;
  const bool joins = grads.joins_keys();
  const bool streams_keys = place.stream && shape.group() == 1;  // else they are read again
  // Summed before they leave, where nothing is there yet.
  const bool summed = joins && !place.add;
  for (Index at = 0; summed && at < static_cast<Index>(n) * back.key_row; ++at) {
    back.d_erase[at] += back.d_write[at];
  }
  put_rows(grads.q, key, rows.key_row, back.d_query, back.key_row, n, sizes.d_k, place.add,
           streams_keys);
  put_rows(grads.e, key, rows.key_row, back.d_erase, back.key_row, n, sizes.d_k, place.add,
           streams_keys);
  if (!summed) {
    put_rows(grads.w, key, rows.key_row, back.d_write, back.key_row, n, sizes.d_k,
             place.add || joins, streams_keys);
  }
  put_rows(grads.v, first * rows.value_row + head * shape.d_v, rows.value_row, back.d_value,
           back.value_row, n, sizes.d_v, false, place.stream);
  put_rows(grads.b, first * rows.b_row + head, rows.b_row, back.d_gain, 1, n, 1, false);
  const int channels = sizes.decay == DecayKind::channel ? sizes.d_k : 1;
  put_rows(grads.g, first * rows.g_row + head * channels, rows.g_row, back.d_gate,
           channels > 1 ? back.key_row : 1, n, channels, false, place.stream);
}

void two_key_vjp_chunked(Context& context, const Sequences& sequences, const TwoKey& inputs,
                         const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads, int chunk) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  const TwoKeySizes sizes(shape, inputs, chunk);
  const Index longest = sequences.longest();
  const ArenaScope scope(context.arena());
  const WorkerScratch scratch(context.arena(), context.threads().size(),
                              Layout(sizes, longest, Scratch()).used);
  if (context.planning()) return;

  run_tasks(context, shape.sequences * shape.heads, [&](Index task, int worker) {
    const Index sequence = task / shape.heads;
    GroupTask(shape, sizes, inputs, cotangents, grads, Layout(sizes, longest, scratch.of(worker)),
              sequence)
        .run(task % shape.heads, sequences.begin(sequence), sequences.end(sequence));
  });
}

}  // namespace cpu

void CpuBackend::two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                             const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) const {
  const bool channel_decay = shape_of(sequences, inputs).channel_decay;
  if (cpu::tiles_take(context, sequences.longest(), channel_decay)) {
    cpu::two_key_vjp_tiles(context, sequences, inputs, cotangents, grads);
    return;
  }
  cpu::two_key_vjp_chunked(context, sequences, inputs, cotangents, grads, cpu::kChunk);
}

}  // namespace rankone::recurrence
