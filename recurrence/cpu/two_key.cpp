#include "recurrence/cpu/two_key.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/precondition.hpp"
#include "recurrence/cpu/state_at.hpp"
#include "recurrence/cpu/tasks.hpp"
#include "recurrence/cpu/two_key_rows.hpp"
#include "recurrence/cpu/two_key_span.hpp"
#include "recurrence/cpu/two_key_tiles.hpp"

namespace rankone::recurrence {
namespace cpu {
namespace {

constexpr Index pieces_of(int columns) {
  return round_up(columns, kAhead * kLine) / (kAhead * kLine);
}

// One worker's matrices.
struct Layout {
  SpanFactors factors;
  float* state;         // [panels, K, kPanel]
  float* work;          // of PanelBlock
  float* values;        // [kSpan, kPanel]
  float* output;        // [kSpan, kPanel]
  float* decay;         // [K]: of one step
  const float** ahead;  // of PanelBlock, for a whole span
  // With a preconditioner.
  std::optional<ScanLayout> scan;
  float* made = nullptr;  // [kSpan, K]: its rows
  Index used;

  Layout(const TwoKeySizes& sizes, bool preconditioned, Scratch scratch) : factors(sizes, scratch) {
    state = scratch.take(static_cast<Index>(sizes.d_k) * round_up(sizes.d_v, kPanel));
    work = scratch.take(3 * kBlock * kPanel);
    values = scratch.take(kSpan * kPanel);
    output = scratch.take(kSpan * kPanel);
    decay = scratch.rows(1, sizes.d_k);
    // Six matrices with rows of d_k, two of d_v; a pointer takes two floats.
    const Index pieces = 6 * pieces_of(sizes.d_k) + 2 * pieces_of(sizes.d_v);
    ahead = reinterpret_cast<const float**>(scratch.take(2 * kSpan * pieces));
    if (preconditioned) {
      scan.emplace(sizes.d_k, 0, false, scratch);
      made = scratch.rows(kSpan, sizes.d_k);
    }
    used = scratch.used();
  }
};

// The columns [column, column + width) of one value head of one sequence.
class HeadTask {
 public:
  HeadTask(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
           const TwoKeyOut& out, const Layout& layout, Index sequence, Index head, int column,
           int width)
      : shape_(shape),
        sizes_(sizes),
        inputs_(inputs),
        out_(out),
        at_(layout),
        head_(head),
        column_(column),
        width_(width) {
    const Index offset = (sequence * shape.value_heads + head) * shape.d_k * shape.d_v + column;
    initial_ = StateAt(inputs.initial_state, offset);
    final_ = StateAt(out.final_state, offset);
  }

  // Continues from `state`, with rows of d_v floats: what came before ended there. It may be
  // written over.
  void continue_from(float* state) {
    initial_ = StateAt();
    initial_.wide = state + column_;
  }

  void run(Index begin, Index end) {
    if (scan_ != nullptr) scan_->begin();
    read_rows(begin, end);
    if (scan_ != nullptr) scan_->finish(keys_->out);
  }

  // The preconditioner of the head runs along.
  void precondition(const PreconditionedKeys* keys, HeadScan* scan) {
    keys_ = keys;
    scan_ = scan;
  }

 private:
  void read_rows(Index begin, Index end) {
    if (begin == end) {
      no_rows();
    } else if (begin + 1 == end) {
      step(begin);
    } else {
      Index first = begin;
      for (; first + 1 < end; first += kSpan) span(first, begin, end);
      // A row that is left is a step, as in a call of its own.
      if (first < end) last_step(first);
    }
  }

  bool makes_query() const { return keys_->inputs.kind == PreconditionerKind::atq; }

  void clear_padding(float* rows, int count) const {
    const int padding = round_up(sizes_.d_k, kLine) - sizes_.d_k;
    for (int i = 0; i < count && padding > 0; ++i) {
      std::fill_n(rows + i * at_.factors.key_row() + sizes_.d_k, padding, 0.0F);
    }
  }

  // Rows [first, first + count), those of the preconditioner made now.
  ChunkRows rows_at(Index first, int count) {
    ChunkRows rows = chunk_rows(shape_, inputs_, first, count, head_);
    if (scan_ == nullptr) return rows;
    const Tensor& wanted = keys_->out.out;
    const bool scalar_write = !makes_query() && sizes_.decay != DecayKind::channel;
    float* made = scalar_write ? at_.factors.write_keys() : at_.made;
    const Index scratch_row = at_.factors.key_row();
    Index row = scratch_row;
    if (wanted.defined()) {
      made = wanted.data<float>() + scan_->key_at(first);
      row = scan_->key_row();
    } else {
      clear_padding(made, count);
    }
    // The erase keys are the target as a rule: then they are read once.
    rows.e_copied = scalar_write && count > 1 && sizes_.delta &&
                    rows.e == keys_->inputs.target.data<float>() + scan_->key_at(first);
    float* const copy = rows.e_copied ? at_.factors.erase_keys() : nullptr;
    if (rows.e_copied) clear_padding(copy, 2 * kSpan);
    scan_->rows(first, count, made, row, copy, scratch_row);
    (makes_query() ? rows.q : rows.w) = made;
    (makes_query() ? rows.q_row : rows.w_row) = row;
    return rows;
  }

  void no_rows() const {
    if (!final_.defined() || initial_.data() == final_.data()) return;
    for (Index d = 0; d < sizes_.d_k; ++d) {
      const Index row = d * shape_.d_v;
      if (final_.narrow != nullptr) {
        copy_or_clear(initial_.narrow, final_.narrow, row);
      } else {
        copy_or_clear(initial_.wide, final_.wide, row);
      }
    }
  }
  template <class Number>
  void copy_or_clear(const Number* from, Number* to, Index row) const {
    if (from != nullptr) {
      std::copy_n(from + row, width_, to + row);
    } else {
      std::fill_n(to + row, width_, Number{});
    }
  }

  float* output_row(Index row) const {
    return out_.o.data<float>() + (row * shape_.value_heads + head_) * shape_.d_v + column_;
  }

  // The rows of the span at `first` of the sequence [begin, end).
  void span(Index first, Index begin, Index end) {
    const int n = static_cast<int>(std::min<Index>(kSpan, end - first));
    const ChunkRows rows = rows_at(first, n);
    at_.factors.build(rows, out_.o.defined());
    look_ahead(first + kSpan, end);
    for (int column = 0; column < width_; column += kPanel) {
      panel(rows, column, first, first == begin, first + n == end);
    }
  }

  // Rows of one head are far apart, so nothing else brings those of the next span nearer.
  void look_ahead(Index first, Index end) {
    ahead_ = at_.ahead;
    ahead_end_ = at_.ahead;
    const int n = static_cast<int>(std::min<Index>(kSpan, end - first));
    if (n <= 0) return;
    ChunkRows rows = chunk_rows(shape_, inputs_, first, n, head_);
    const auto list = [&](const float* from, Index row, int columns) {
      if (from == nullptr) return;
      for (int i = 0; i < n; ++i, from += row) {
        for (int c = 0; c < columns; c += kAhead * kLine) *ahead_end_++ = from + c;
      }
    };
    if (scan_ != nullptr) {
      // In place of what is made, what it is made of, and where it goes.
      const Index key = scan_->key_at(first);
      (makes_query() ? rows.q : rows.w) = keys_->inputs.target.data<float>() + key;
      const float* k = keys_->inputs.k.data<float>() + key;
      if (k != rows.w && k != rows.e && k != rows.q) list(k, rows.key_row, sizes_.d_k);
      const Tensor& wanted = keys_->out.out;
      if (wanted.defined()) list(wanted.data<float>() + key, rows.key_row, sizes_.d_k);
      scan_->fetch_gates(first, n);
    }
    list(rows.w, rows.key_row, sizes_.d_k);
    if (rows.e != rows.w) list(rows.e, rows.key_row, sizes_.d_k);
    list(rows.q, rows.key_row, sizes_.d_k);
    list(rows.v + column_, rows.value_row, width_);
    if (sizes_.decay == DecayKind::channel) list(rows.g, rows.g_row, sizes_.d_k);
    if (out_.o.defined()) list(output_row(first), rows.value_row, width_);
  }

  // One panel of columns over all blocks of a span. Between the first and the last block of the
  // sequence its state is kept in scratch; those two read and write the caller's memory.
  void panel(const ChunkRows& rows, int column, Index first, bool is_first, bool is_last) {
    const Kernels& k = kernels();
    const int width = std::min(kPanel, width_ - column);
    const bool ragged = width % kLine != 0;  // then rows of the caller are no whole vectors
    // The state of the caller can be worked on where it is.
    const bool outside = !ragged && initial_.narrow == nullptr && final_.narrow == nullptr;
    float* const state = at_.state + static_cast<Index>(column) * sizes_.d_k;
    const float* values = rows.v + column_ + column;
    Index value_row = rows.value_row;
    if (ragged) {
      k.copy_rows(at_.values, kPanel, values, value_row, nullptr, rows.count, width);
      values = at_.values;
      value_row = kPanel;
    }
    if (is_first && !outside) {
      initial_.from(column).load(state, kPanel, shape_.d_v, sizes_.d_k, width);
    }
    for (int row = 0; row < rows.count; row += kBlock) {
      const bool start = is_first && row == 0;
      const bool last = is_last && row + kBlock >= rows.count;
      PanelBlock block = at_.factors.block(row);
      block.v = values + row * value_row;
      block.value_row = value_row;
      if (block.outputs) {
        block.o = ragged ? at_.output + row * kPanel : output_row(first + row) + column;
        block.output_row = ragged ? kPanel : rows.value_row;
      }
      block.state = state;
      block.state_row = kPanel;
      if (start && (outside || !initial_.defined())) {
        block.state = initial_.defined() ? initial_.wide + column : nullptr;
        block.state_row = shape_.d_v;
      }
      block.next = state;
      block.next_row = kPanel;
      if (last && (outside || !final_.defined())) {
        block.next = final_.defined() ? final_.wide + column : nullptr;
        block.next_row = shape_.d_v;
      }
      block.work = at_.work;
      // An even share of what is left for each block and panel that is left.
      const int blocks_left = (rows.count - row + kBlock - 1) / kBlock;
      const int panels_left = (width_ - column - 1) / kPanel;
      const int calls = blocks_left + panels_left * ((rows.count + kBlock - 1) / kBlock);
      block.ahead = ahead_;
      block.ahead_count = static_cast<int>(ahead_end_ - ahead_ + calls - 1) / calls;
      ahead_ += block.ahead_count;
      block.columns = round_up(width, kLine);
      k.panel_block(block);
    }
    for (int i = 0; ragged && i < rows.count && out_.o.defined(); ++i) {
      std::copy_n(at_.output + i * kPanel, width, output_row(first + i) + column);
    }
    if (is_last && !outside) {
      final_.from(column).store(state, kPanel, shape_.d_v, sizes_.d_k, width);
    }
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

  // One token, in the caller's memory, or where another kernel left a state.
  void step(Index row) {
    const ChunkRows rows = rows_at(row, 1);
    if (initial_.wide == nullptr || final_.narrow == nullptr) {
      const bool narrow = initial_.narrow != nullptr || final_.narrow != nullptr;
      step_on(rows, row, 0, width_, narrow, initial_.data(), final_.data(), shape_.d_v);
      return;
    }
    step_on(rows, row, 0, width_, false, initial_.wide, initial_.wide, shape_.d_v);
    final_.store(initial_.wide, shape_.d_v, shape_.d_v, sizes_.d_k, width_);
  }

  // The last token, from the panels of scratch.
  void last_step(Index row) {
    const ChunkRows rows = rows_at(row, 1);
    for (int column = 0; column < width_; column += kPanel) {
      const int width = std::min(kPanel, width_ - column);
      float* const state = at_.state + static_cast<Index>(column) * sizes_.d_k;
      step_on(rows, row, column, width, false, state, final_.defined() ? state : nullptr, kPanel);
      final_.from(column).store(state, kPanel, shape_.d_v, sizes_.d_k, width);
    }
  }

  // Columns [column, column + width) of a token.
  void step_on(const ChunkRows& rows, Index row, int column, int width, bool narrow,
               const void* state, void* next, Index state_row) {
    kernels().step({rows.q, rows.e, rows.w, rows.v + column_ + column, step_decay(rows),
                    rows.b == nullptr ? 1.0F : *rows.b, sizes_.scale, narrow, state, next,
                    state_row, out_.o.defined() ? output_row(row) + column : nullptr, sizes_.d_k,
                    width});
  }

  const TwoKeyShape& shape_;
  const TwoKeySizes& sizes_;
  const TwoKey& inputs_;
  const TwoKeyOut& out_;
  Layout at_;
  Index head_;
  int column_;
  int width_;
  const PreconditionedKeys* keys_ = nullptr;
  HeadScan* scan_ = nullptr;
  StateAt initial_, final_;
  const float* const* ahead_ = nullptr;
  const float** ahead_end_ = nullptr;
};

}  // namespace

ColumnCut::ColumnCut(Index heads, int threads, int d_v) {
  const Index wanted = heads > 0 ? (2 * threads + heads - 1) / heads : 1;
  const Index most = (d_v + kPanel - 1) / kPanel;
  const auto count = static_cast<int>(std::clamp<Index>(threads > 1 ? wanted : 1, 1, most));
  width = round_up((d_v + count - 1) / count, kPanel);
  pieces = (d_v + width - 1) / width;
}

Index rows_scratch(const TwoKeySizes& sizes) { return Layout(sizes, false, Scratch()).used; }

void run_rows(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
              const TwoKeyOut& out, Scratch scratch, const HeadRows& rows) {
  HeadTask task(shape, sizes, inputs, out, Layout(sizes, false, scratch), rows.sequence, rows.head,
                rows.column, rows.width);
  if (rows.state != nullptr) task.continue_from(rows.state);
  task.run(rows.begin, rows.end);
}

void two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
             const TwoKeyOut& out, const PreconditionedKeys* keys) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  const TwoKeySizes sizes(shape, inputs, kBlock);
  const ArenaScope scope(context.arena());
  const int threads = context.threads().size();
  const bool preconditioned = keys != nullptr;
  const WorkerScratch scratch(context.arena(), threads,
                              Layout(sizes, preconditioned, Scratch()).used);
  if (context.planning()) return;

  const Index heads = shape.sequences * shape.value_heads;
  const ColumnCut cut(heads, threads, sizes.d_v);
  const PreconditionShape scan_shape{shape.rows, shape.sequences, shape.heads, shape.d_k};
  run_tasks(context, heads * cut.pieces, [&](Index task, int worker) {
    const Index sequence = task / cut.pieces / shape.value_heads;
    const int column = static_cast<int>(task % cut.pieces) * cut.width;
    const Index head = task / cut.pieces % shape.value_heads;
    const Layout layout(sizes, preconditioned, scratch.of(worker));
    HeadTask head_task(shape, sizes, inputs, out, layout, sequence, head, column,
                       std::min(cut.width, sizes.d_v - column));
    std::optional<HeadScan> scan;
    if (preconditioned) {
      scan.emplace(scan_shape, keys->inputs, *layout.scan, sequence, head);
      head_task.precondition(keys, &*scan);
    }
    head_task.run(sequences.begin(sequence), sequences.end(sequence));
  });
}

bool one_task_a_head(const Sequences& sequences, const TwoKey& inputs, int threads) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  const ColumnCut cut(shape.sequences * shape.value_heads, threads, static_cast<int>(shape.d_v));
  return shape.group() == 1 && cut.pieces == 1;
}

}  // namespace cpu

void CpuBackend::two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
                         const TwoKeyOut& out) const {
  const bool channel_decay = shape_of(sequences, inputs).channel_decay;
  if (cpu::tiles_take(context, sequences.longest(), channel_decay)) {
    cpu::two_key_tiles(context, sequences, inputs, out);
    return;
  }
  cpu::two_key(context, sequences, inputs, out);
}

// Made and read in cache, the rows of the preconditioner cost their arithmetic and nothing else.
void CpuBackend::preconditioned_two_key(Context& context, const Sequences& sequences,
                                        const Precondition& precondition,
                                        const PreconditionOut& made, const TwoKey& inputs,
                                        const TwoKeyOut& out) const {
  const bool channel_decay = shape_of(sequences, inputs).channel_decay;
  if (cpu::tiles_take(context, sequences.longest(), channel_decay) ||
      !cpu::one_task_a_head(sequences, inputs, context.threads().size())) {
    return Backend::preconditioned_two_key(context, sequences, precondition, made, inputs, out);
  }
  const cpu::PreconditionedKeys keys{precondition, made};
  cpu::two_key(context, sequences, inputs, out, &keys);
}

}  // namespace rankone::recurrence
