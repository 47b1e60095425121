// Diagonal Longhorn: a scan with one lane a value column. A task is one key head of one sequence
// with all its value heads, so that the gradients of the keys are summed in one order.

#include <algorithm>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/scratch.hpp"
#include "recurrence/cpu/tasks.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cpu {
namespace {

// Rows taken at a time. The way back keeps a state for each of them, so fewer than elsewhere.
constexpr int kRows = 16;

struct Layout {
  int key_row;
  Index state_size;  // of one line of columns
  float *q, *k, *norm, *v, *beta, *out, *state;
  // For the way back only.
  float *history = nullptr, *kept = nullptr, *d_out = nullptr, *d_state = nullptr, *d_q = nullptr;
  float *d_k = nullptr, *d_norm = nullptr, *d_v = nullptr, *d_beta = nullptr;
  Index used;

  Layout(const LonghornShape& shape, Index longest, bool backward, Scratch scratch)
      : key_row(leading(static_cast<int>(shape.d_k))), state_size(shape.d_k * kLine) {
    const int channels = static_cast<int>(shape.d_k);
    for (float** rows : {&q, &k}) *rows = scratch.rows(kRows, channels);
    for (float** rows : {&v, &beta, &out}) *rows = scratch.take(kRows * kLine);
    norm = scratch.take(kRows);
    state = scratch.take(state_size);
    if (backward) {
      for (float** rows : {&d_q, &d_k}) *rows = scratch.rows(kRows, channels);
      for (float** rows : {&d_out, &d_v, &d_beta}) *rows = scratch.take(kRows * kLine);
      d_norm = scratch.take(kRows);
      history = scratch.take((kRows + 1) * state_size);
      const Index lines = (shape.d_v + kLine - 1) / kLine;
      d_state = scratch.take(lines * state_size);
      kept = scratch.take(((longest + kRows - 1) / kRows) * lines * state_size);
    }
    used = scratch.used();
  }
};

class GroupScan {
 public:
  GroupScan(const LonghornShape& shape, const Longhorn& inputs, Layout layout, Index sequence,
            Index key_head)
      : shape_(shape),
        in_(inputs),
        at_(layout),
        sequence_(sequence),
        key_head_(key_head),
        d_k_(static_cast<int>(shape.d_k)),
        lines_((shape.d_v + kLine - 1) / kLine) {
    scan_ = {.q = at_.q,
             .k = at_.k,
             .norm = at_.norm,
             .key_row = at_.key_row,
             .v = at_.v,
             .beta = at_.beta,
             .value_row = kLine,
             .n = 0,
             .channels = d_k_,
             .state = at_.state,
             .out = nullptr,
             .history = nullptr};
  }

  void forward(Index begin, Index end, const LonghornOut& out) {
    for_heads([&](Index) {
      for (Index line = 0; line < lines_; ++line) {
        load_state(at_.state, in_.initial_state, line);
        for (Index first = begin; first < end; first += kRows) {
          load_keys(first, end);
          load_values(first, line);
          scan_.out = out.o.defined() ? at_.out : nullptr;
          kernels().longhorn(scan_);
          store_values(out.o, first, line, at_.out);
        }
        store_state(out.final_state, line, at_.state);
      }
    });
  }

  void backward(Index begin, Index end, const LonghornCotangents& cotangents,
                const LonghornGrads& grads) {
    for_heads([&](Index member) {
      keep_states(begin, end);
      for (Index line = 0; line < lines_; ++line) {
        load_state(at_.d_state + line * at_.state_size, cotangents.final_state, line);
      }
      const Index blocks = (end - begin + kRows - 1) / kRows;
      for (Index block = blocks - 1; block >= 0; --block) {
        rows_back(block, begin, end, cotangents, grads);
        put_keys(begin + block * kRows, grads, member > 0);
      }
      for (Index line = 0; line < lines_; ++line) {
        store_state(grads.initial_state, line, at_.d_state + line * at_.state_size);
      }
    });
  }

 private:
  template <class Work>
  void for_heads(Work&& work) {
    for (Index member = 0; member < shape_.group(); ++member) {
      head_ = key_head_ * shape_.group() + member;
      work(member);
    }
  }

  int width(Index line) const {
    return static_cast<int>(std::min<Index>(kLine, shape_.d_v - line * kLine));
  }
  Index state_offset(Index line) const {
    return (sequence_ * shape_.value_heads + head_) * shape_.d_k * shape_.d_v + line * kLine;
  }
  Index value_offset(Index row, Index line) const {
    return (row * shape_.value_heads + head_) * shape_.d_v + line * kLine;
  }
  Index key_offset(Index row) const { return (row * shape_.heads + key_head_) * shape_.d_k; }

  void load_state(float* to, const Tensor& state, Index line) const {
    std::fill_n(to, at_.state_size, 0.0F);
    if (!state.defined()) return;
    kernels().copy_rows(to, kLine, state.data<float>() + state_offset(line), shape_.d_v, nullptr,
                        d_k_, width(line));
  }
  void store_state(const Tensor& to, Index line, const float* state) const {
    if (!to.defined()) return;
    for (int d = 0; d < d_k_; ++d) {
      std::copy_n(state + static_cast<Index>(d) * kLine, width(line),
                  to.data<float>() + state_offset(line) + d * shape_.d_v);
    }
  }

  void load_keys(Index first, Index end) {
    const Index stride = shape_.heads * shape_.d_k;
    scan_.n = static_cast<int>(std::min<Index>(kRows, end - first));
    const float* k = in_.k.data<float>() + key_offset(first);
    kernels().copy_rows(at_.q, at_.key_row, in_.q.data<float>() + key_offset(first), stride,
                        nullptr, scan_.n, d_k_);
    kernels().copy_rows(at_.k, at_.key_row, k, stride, nullptr, scan_.n, d_k_);
    for (int i = 0; i < scan_.n; ++i) {
      at_.norm[i] = kernels().dot(k + i * stride, k + i * stride, d_k_);
    }
  }
  void load_line(float* to, const Tensor& from, Index first, Index line) const {
    kernels().copy_rows(to, kLine, from.data<float>() + value_offset(first, line),
                        shape_.value_heads * shape_.d_v, nullptr, scan_.n, width(line));
  }
  void load_values(Index first, Index line) {
    load_line(at_.v, in_.v, first, line);
    load_line(at_.beta, in_.beta, first, line);
  }
  void store_values(const Tensor& to, Index first, Index line, const float* rows) const {
    if (!to.defined()) return;
    for (int i = 0; i < scan_.n; ++i) {
      std::copy_n(rows + i * kLine, width(line), to.data<float>() + value_offset(first + i, line));
    }
  }

  // The state of every line before every block of rows.
  void keep_states(Index begin, Index end) {
    scan_.out = nullptr;
    for (Index line = 0; line < lines_; ++line) {
      load_state(at_.state, in_.initial_state, line);
      float* kept = at_.kept + line * at_.state_size;
      for (Index first = begin; first < end; first += kRows) {
        std::copy_n(at_.state, at_.state_size, kept);
        kept += lines_ * at_.state_size;
        load_keys(first, end);
        load_values(first, line);
        kernels().longhorn(scan_);
      }
    }
  }

  void rows_back(Index block, Index begin, Index end, const LonghornCotangents& cotangents,
                 const LonghornGrads& grads) {
    const Index first = begin + block * kRows;
    load_keys(first, end);
    std::fill_n(at_.d_q, static_cast<Index>(kRows) * at_.key_row, 0.0F);
    std::fill_n(at_.d_k, static_cast<Index>(kRows) * at_.key_row, 0.0F);
    std::fill_n(at_.d_norm, kRows, 0.0F);
    for (Index line = 0; line < lines_; ++line) {
      std::copy_n(at_.kept + (block * lines_ + line) * at_.state_size, at_.state_size, at_.state);
      load_values(first, line);
      load_line(at_.d_out, cotangents.o, first, line);
      scan_.history = at_.history;
      kernels().longhorn(scan_);
      kernels().longhorn_back({scan_, at_.d_out, at_.d_state + line * at_.state_size, at_.d_q,
                               at_.d_k, at_.d_norm, at_.d_v, at_.d_beta});
      scan_.history = nullptr;
      store_values(grads.v, first, line, at_.d_v);
      store_values(grads.beta, first, line, at_.d_beta);
    }
  }

  // |k|^2 passes its gradient on to k; later heads of the group add to the first.
  void put_keys(Index first, const LonghornGrads& grads, bool add) const {
    for (int i = 0; i < scan_.n; ++i) {
      const Index row = i * static_cast<Index>(at_.key_row);
      for (int d = 0; d < d_k_; ++d) at_.d_k[row + d] += 2.0F * at_.d_norm[i] * at_.k[row + d];
      const auto put = [&](const Tensor& gradient, const float* from) {
        if (!gradient.defined()) return;
        float* to = gradient.data<float>() + key_offset(first + i);
        for (int d = 0; d < d_k_; ++d) to[d] = add ? to[d] + from[d] : from[d];
      };
      put(grads.q, at_.d_q + row);
      put(grads.k, at_.d_k + row);
    }
  }

  const LonghornShape& shape_;
  const Longhorn& in_;
  Layout at_;
  Index sequence_, key_head_, head_ = 0;
  int d_k_;
  Index lines_;
  LonghornScan scan_;
};

template <class Work>
void each_group(Context& context, const Sequences& sequences, const LonghornShape& shape,
                const Longhorn& inputs, bool backward, Work&& work) {
  const Index longest = sequences.longest();
  const ArenaScope scope(context.arena());
  const WorkerScratch scratch(context.arena(), context.threads().size(),
                              Layout(shape, longest, backward, Scratch()).used);
  if (context.planning()) return;
  run_tasks(context, shape.sequences * shape.heads, [&](Index task, int worker) {
    const Index sequence = task / shape.heads;
    GroupScan scan(shape, inputs, Layout(shape, longest, backward, scratch.of(worker)), sequence,
                   task % shape.heads);
    work(scan, sequences.begin(sequence), sequences.end(sequence));
  });
}

}  // namespace
}  // namespace cpu

void CpuBackend::longhorn(Context& context, const Sequences& sequences, const Longhorn& inputs,
                          const LonghornOut& out) const {
  cpu::each_group(context, sequences, shape_of(sequences, inputs), inputs, false,
                  [&](cpu::GroupScan& scan, std::int64_t begin, std::int64_t end) {
                    scan.forward(begin, end, out);
                  });
}

void CpuBackend::longhorn_vjp(Context& context, const Sequences& sequences, const Longhorn& inputs,
                              const LonghornCotangents& cotangents,
                              const LonghornGrads& grads) const {
  cpu::each_group(context, sequences, shape_of(sequences, inputs), inputs, true,
                  [&](cpu::GroupScan& scan, std::int64_t begin, std::int64_t end) {
                    scan.backward(begin, end, cotangents, grads);
                  });
}

}  // namespace rankone::recurrence
