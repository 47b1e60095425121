#include "recurrence/cpu/two_key_tiles.hpp"

#include <algorithm>

#include "recurrence/cpu/state_at.hpp"
#include "recurrence/cpu/tasks.hpp"
#include "recurrence/cpu/tile_values.hpp"
#include "recurrence/cpu/two_key_rows.hpp"

namespace rankone::recurrence::cpu {
namespace {

// Value heads of one key head that share its tiles in one task, and so much state at a time.
constexpr Index kMostHeads = 4;

// Value columns that go through a chunk at a time, so that their state and tiles stay close.
constexpr int kWidest = 128;

// One worker's matrices.
struct Layout {
  TileChunk chunk;
  TileValues values;
  int value_row;
  Index state_size;
  float* states;  // [heads, K, V], K and V in whole pairs of tiles
  float* handed;  // [K, d_v]: a state for the float32 kernels
  Scratch rest;
  Index used;

  Layout(const TwoKeySizes& sizes, int parts, int width, Index heads, Scratch scratch)
      : chunk(sizes, TileChunk::For::output, parts, scratch),
        values(sizes, std::min(width, kWidest), parts, scratch),
        value_row(leading(round_up(width, kTileInner))) {
    state_size = static_cast<Index>(round_up(sizes.d_k, kTileInner)) * value_row;
    states = scratch.take(heads * state_size);
    // The rest of a sequence comes behind its chunks, in memory of its own but for the state.
    handed = scratch.take(static_cast<Index>(sizes.d_k) * sizes.d_v);
    rest = scratch;
    used = scratch.used() + rows_scratch(sizes);
  }
};

// Columns [column, column + width) of value heads [first, first + count) of one key head.
struct Part {
  Index sequence, first, count;
  int column, width;
};

class PartTask {
 public:
  PartTask(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
           const TwoKeyOut& out, const Layout& layout, const Part& part)
      : shape_(shape),
        sizes_(sizes),
        inputs_(inputs),
        out_(out),
        at_(layout),
        part_(part),
        stream_(out.o.defined() && out.o.bytes() > kStreamed) {}

  void run(Index begin, Index end) {
    const Index middle = end - tile_rest(end - begin);
    if (begin < middle) {
      live_ = inputs_.initial_state.defined();
      for (Index i = 0; i < part_.count; ++i) load_state(i);
      end_ = middle;
      at_.chunk.ahead = &ahead_;
      ahead_.wanted = at_.values.parts() > 1;  // one part multiplies too little to pay for it
      tile_kernels()->begin();
      for (Index first = begin; first < middle; first += kChunk) {
        const bool last = first + kChunk >= end && !out_.final_state.defined();
        chunk(first, static_cast<int>(std::min<Index>(kChunk, middle - first)), last);
      }
      tile_kernels()->end();
      if (stream_) stream_end();
      for (Index i = 0; i < part_.count; ++i) {
        store_state(i, StateAt(out_.final_state, state_offset(i) + part_.column));
      }
      if (middle == end) return;
    }
    for (Index i = 0; i < part_.count; ++i) {
      HeadRows rows{part_.sequence, part_.first + i, part_.column, part_.width, middle, end};
      if (begin < middle) {
        StateAt handed;
        handed.wide = at_.handed + part_.column;
        store_state(i, handed);
        rows.state = at_.handed;
      }
      run_rows(shape_, sizes_, inputs_, out_, at_.rest, rows);
    }
  }

 private:
  Index state_offset(Index i) const {
    return (part_.sequence * shape_.value_heads + part_.first + i) * shape_.d_k * shape_.d_v;
  }

  // The padding is zero and stays so.
  void load_state(Index i) {
    float* state = at_.states + i * at_.state_size;
    std::fill_n(state, at_.state_size, 0.0F);
    StateAt(inputs_.initial_state, state_offset(i) + part_.column)
        .load(state, at_.value_row, shape_.d_v, sizes_.d_k, part_.width);
  }

  void store_state(Index i, const StateAt& to) const {
    to.store(at_.states + i * at_.state_size, at_.value_row, shape_.d_v, sizes_.d_k, part_.width);
  }

  void chunk(Index first, int n, bool last) {
    using For = TileChunk::For;
    const bool outputs = out_.o.defined();
    for (Index i = 0; i < part_.count; ++i) {
      const Index head = part_.first + i;
      const ChunkRows rows = chunk_rows(shape_, inputs_, first, n, head);
      ahead_.start(n, 8);
      if (outputs && (i == 0 || sizes_.decay == DecayKind::channel)) {
        ahead_.add(rows.q, rows.key_row, sizes_.d_k);
      }
      at_.chunk.build(rows, outputs ? For::output : For::state, i > 0);
      for (int column = 0; column < part_.width; column += kWidest) {
        const int columns = std::min(kWidest, part_.width - column);
        float* state = at_.states + i * at_.state_size + column;
        ahead_.start(n, 3);
        ahead_.add(rows.v + part_.column + column, rows.value_row, columns);
        at_.values.solve(at_.chunk, rows, rows.v + part_.column + column, columns,
                         live_ ? state : nullptr, at_.value_row, outputs);
        if (outputs) {
          ahead_.start(n, 16);
          if (!stream_) ahead_.add(output_row(first, i) + column, rows.value_row, columns);
          at_.values.outputs(at_.chunk, rows, columns, live_, output_row(first, i) + column,
                             stream_);
        }
        if (!last) {
          if (column + kWidest >= part_.width) look_ahead(first, i);
          at_.values.update(at_.chunk, n, columns, live_ ? state : nullptr, state, at_.value_row);
        }
      }
    }
    live_ = true;
  }

  float* output_row(Index row, Index i) const {
    return out_.o.data<float>() + (row * shape_.value_heads + part_.first + i) * shape_.d_v +
           part_.column;
  }

  // What the next head or chunk reads first.
  void look_ahead(Index first, Index i) {
    const bool next = i + 1 == part_.count;
    if (next) first += kChunk;
    i = next ? 0 : i + 1;
    ahead_.start(0, 0);
    if (first >= end_) return;
    const int n = static_cast<int>(std::min<Index>(kChunk, end_ - first));
    ahead_.start(n, 0);
    const bool channel = sizes_.decay == DecayKind::channel;
    if (!next && !channel) return;
    const ChunkRows rows = chunk_rows(shape_, inputs_, first, n, part_.first + i);
    if (channel) ahead_.add(rows.g, rows.g_row, sizes_.d_k);
    ahead_.add(rows.w, rows.key_row, sizes_.d_k);
    if (rows.e != rows.w) ahead_.add(rows.e, rows.key_row, sizes_.d_k);
    ahead_.each = 4 * ahead_.count;
  }

  const TwoKeyShape& shape_;
  const TwoKeySizes& sizes_;
  const TwoKey& inputs_;
  const TwoKeyOut& out_;
  Layout at_;
  Part part_;
  Index end_ = 0;
  TileAhead ahead_;
  bool stream_;        // the outputs, past the caches
  bool live_ = false;  // the states are not known to be zero
};

// As many heads to a task as keep every thread busy.
Index heads_of(const TwoKeyShape& shape, int threads) {
  const Index keys = shape.sequences * shape.heads;
  Index heads = std::min(shape.group(), kMostHeads);
  while (heads > 1 && threads > 1 && keys * ((shape.group() + heads - 1) / heads) < 2 * threads) {
    --heads;
  }
  return heads;
}

}  // namespace

bool tiles_take(const Context& context, Index longest, bool channel_decay) {
  const Precision precision = context.precision();
  if (precision == Precision::f32 || (precision == Precision::automatic && channel_decay)) {
    return false;
  }
  return tile_kernels() != nullptr && longest >= kTileRest;
}

void two_key_tiles(Context& context, const Sequences& sequences, const TwoKey& inputs,
                   const TwoKeyOut& out) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  const TwoKeySizes sizes(shape, inputs, kChunk);
  const int threads = context.threads().size();
  const Index heads = heads_of(shape, threads);
  const Index slices = (shape.group() + heads - 1) / heads;  // of the value heads of a key head
  const Index tasks = shape.sequences * shape.heads * slices;
  const ColumnCut cut(tasks, threads, sizes.d_v);
  const int parts = parts_of(context.precision());
  const ArenaScope scope(context.arena());
  const auto layout = [&](Scratch scratch) {
    return Layout(sizes, parts, std::min(cut.width, sizes.d_v), heads, scratch);
  };
  const WorkerScratch scratch(context.arena(), threads, layout(Scratch()).used);
  if (context.planning()) return;

  run_tasks(context, tasks * cut.pieces, [&](Index task, int worker) {
    const Index piece = task % cut.pieces;
    const Index slice = task / cut.pieces % slices;
    const Index key = task / cut.pieces / slices;
    Part part{};
    part.sequence = key / shape.heads;
    part.first = key % shape.heads * shape.group() + slice * heads;
    part.count = std::min(heads, shape.group() - slice * heads);
    part.column = static_cast<int>(piece) * cut.width;
    part.width = std::min(cut.width, sizes.d_v - part.column);
    PartTask(shape, sizes, inputs, out, layout(scratch.of(worker)), part)
        .run(sequences.begin(part.sequence), sequences.end(part.sequence));
  });
}

}  // namespace rankone::recurrence::cpu
