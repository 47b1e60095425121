#include "recurrence/cpu/two_key.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/two_key_chunk.hpp"

namespace rankone::recurrence {
namespace cpu {
namespace {

// Below this many tokens a sequence is read token by token: one pass over the state to read and one
// to write each, where a chunk would also copy the state in and out.
constexpr Index kStepRows = 4;

// Value columns are independent, so a head is cut where heads alone would leave threads idle.
// Results do not depend on the cut.
struct ColumnCut {
  Index pieces;
  int width;

  ColumnCut(Index heads, int threads, int d_v) {
    constexpr int kNarrowest = 2 * kLine;
    const Index wanted = heads > 0 ? (2 * threads + heads - 1) / heads : 1;
    const Index most = (d_v + kNarrowest - 1) / kNarrowest;
    const auto count = static_cast<int>(std::clamp<Index>(threads > 1 ? wanted : 1, 1, most));
    width = round_up((d_v + count - 1) / count, kNarrowest);
    pieces = (d_v + width - 1) / width;
  }
};

// One worker's matrices.
struct Layout {
  ChunkFactors factors;
  int value_row;
  float* state;   // [K, V]
  float* values;  // [C, V]: X, then U
  float* output;  // [C, V]
  float* decay;   // [K]: of one step

  Layout(const TwoKeySizes& sizes, Scratch scratch)
      : factors(sizes, ChunkFactors::For::output, scratch), value_row(leading(sizes.d_v)) {
    state = scratch.rows(sizes.d_k, sizes.d_v);
    values = scratch.rows(sizes.chunk, sizes.d_v);
    output = scratch.rows(sizes.chunk, sizes.d_v);
    decay = scratch.rows(1, sizes.d_k);
    used = scratch.used();
  }
  Index used;
};

// The columns [column, column + width) of one value head of one sequence.
class HeadTask {
 public:
  HeadTask(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
           const TwoKeyOut& out, Layout layout, Index sequence, Index head, int column, int width)
      : shape_(shape),
        sizes_(sizes),
        inputs_(inputs),
        out_(out),
        at_(layout),
        head_(head),
        column_(column),
        width_(width) {
    const Index offset = (sequence * shape.value_heads + head) * shape.d_k * shape.d_v + column;
    if (inputs.initial_state.defined()) initial_ = inputs.initial_state.data<float>() + offset;
    if (out.final_state.defined()) final_ = out.final_state.data<float>() + offset;
  }

  void run(Index begin, Index end) {
    if (begin == end) {
      load_state();
      if (initial_ != final_) store_state();
    } else if (end - begin < std::min<Index>(kStepRows, sizes_.chunk)) {
      steps(begin, end);
    } else {
      load_state();
      for (Index first = begin; first < end; first += sizes_.chunk) {
        chunk(first, static_cast<int>(std::min<Index>(sizes_.chunk, end - first)),
              first + sizes_.chunk >= end);
      }
      store_state();
    }
  }

 private:
  void load_state() {
    live_ = initial_ != nullptr;
    if (!live_) return;
    kernels().copy_rows(at_.state, at_.value_row, initial_, shape_.d_v, nullptr, sizes_.d_k,
                        width_);
  }

  void store_state() {
    if (final_ == nullptr) return;
    for (int d = 0; d < sizes_.d_k; ++d) {
      float* to = final_ + d * shape_.d_v;
      if (live_) {
        std::copy_n(at_.state + d * at_.value_row, width_, to);
      } else {
        std::fill_n(to, width_, 0.0F);
      }
    }
  }

  float* output_row(Index row) const {
    return out_.o.data<float>() + (row * shape_.value_heads + head_) * shape_.d_v + column_;
  }

  void chunk(Index first, int n, bool last) {
    const Kernels& k = kernels();
    ChunkFactors& f = at_.factors;
    const ChunkRows rows = chunk_rows(shape_, inputs_, first, n, head_);
    f.build(rows, out_.o.defined() ? ChunkFactors::For::output : ChunkFactors::For::state);
    const int v_row = at_.value_row;
    const bool erases = sizes_.delta && live_;
    k.copy_rows(at_.values, v_row, rows.v + column_, rows.value_row, erases ? nullptr : f.gain, n,
                width_);
    if (erases) {
      k.product({f.erase, f.key_row, 1, at_.state, v_row, at_.values, v_row, n, width_, sizes_.d_k,
                 Into::add});
      k.copy_rows(at_.values, v_row, at_.values, v_row, f.gain, n, width_);
    }
    if (sizes_.delta) {
      k.solve_lower({f.solve, f.square_row, at_.values, v_row, at_.values, v_row, n, width_});
    }
    if (out_.o.defined()) {
      k.product({f.query, f.key_row, 1, at_.state, v_row, at_.output, v_row, n, width_,
                 live_ ? sizes_.d_k : 0});
      k.add_lower({f.seen, f.square_row, at_.values, v_row, at_.output, v_row, n, width_});
      for (int i = 0; i < n; ++i) {
        std::copy_n(at_.output + i * v_row, width_, output_row(first + i));
      }
    }
    if (last && final_ == nullptr) return;
    k.product({f.write, 1, f.key_row, at_.values, v_row, at_.state, v_row, sizes_.d_k, width_, n,
               live_ ? Into::add : Into::overwrite, f.keep});
    live_ = true;
  }

  const float* step_decay(const ChunkRows& rows) const {
    if (rows.g == nullptr) return nullptr;
    for (int d = 0; d < sizes_.d_k; ++d) {
      const float g = rows.g[sizes_.decay == DecayKind::channel ? d : 0];
      at_.decay[d] = d > 0 && sizes_.decay == DecayKind::scalar
                         ? at_.decay[0]
                         : static_cast<float>(std::exp(static_cast<double>(g)));
    }
    return at_.decay;
  }

  void steps(Index begin, Index end) {
    // In the caller's memory where there is a final state, else in scratch.
    const bool outside = final_ != nullptr;
    if (!outside) load_state();
    const float* state = outside ? initial_ : (live_ ? at_.state : nullptr);
    float* target = outside ? final_ : at_.state;
    for (Index row = begin; row < end; ++row) {
      const ChunkRows rows = chunk_rows(shape_, inputs_, row, 1, head_);
      kernels().step({rows.q, rows.e, rows.w, rows.v + column_, step_decay(rows),
                      rows.b == nullptr ? 1.0F : *rows.b, sizes_.scale, state, target,
                      outside ? shape_.d_v : at_.value_row,
                      out_.o.defined() ? output_row(row) : at_.output, sizes_.d_k, width_});
      state = target;
    }
  }

  const TwoKeyShape& shape_;
  const TwoKeySizes& sizes_;
  const TwoKey& inputs_;
  const TwoKeyOut& out_;
  Layout at_;
  Index head_;
  int column_;
  int width_;
  const float* initial_ = nullptr;
  float* final_ = nullptr;
  bool live_ = false;  // the state in scratch is not known to be zero
};

}  // namespace

void two_key_chunked(Context& context, const Sequences& sequences, const TwoKey& inputs,
                     const TwoKeyOut& out, int chunk) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  const TwoKeySizes sizes(shape, inputs, chunk);
  const ArenaScope scope(context.arena());
  const int threads = context.threads().size();
  const WorkerScratch scratch(context.arena(), threads, Layout(sizes, Scratch()).used);
  if (context.planning()) return;

  const Index heads = shape.sequences * shape.value_heads;
  const ColumnCut cut(heads, threads, sizes.d_v);
  context.threads().run(heads * cut.pieces, [&](Index task, int worker) {
    const Index sequence = task / cut.pieces / shape.value_heads;
    const int column = static_cast<int>(task % cut.pieces) * cut.width;
    HeadTask(shape, sizes, inputs, out, Layout(sizes, scratch.of(worker)), sequence,
             task / cut.pieces % shape.value_heads, column, std::min(cut.width, sizes.d_v - column))
        .run(sequences.begin(sequence), sequences.end(sequence));
  });
}

}  // namespace cpu

void CpuBackend::two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
                         const TwoKeyOut& out) const {
  cpu::two_key_chunked(context, sequences, inputs, out, cpu::kChunk);
}

}  // namespace rankone::recurrence
