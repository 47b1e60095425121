#pragma once

// The diagonal preconditioner of one head of one sequence, kChunk rows at a time: by itself, or as
// the recurrence comes to want its rows.

#include "recurrence/cpu/scratch.hpp"
#include "recurrence/cpu/two_key_chunk.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence::cpu {

// One worker's rows.
struct ScanLayout {
  int row;
  float *state, *ridge, *decay, *gain, *inverse_square;
  // For the way back only.
  float *history = nullptr, *d_state = nullptr, *d_decay = nullptr, *d_gain = nullptr;
  float *unwanted = nullptr, *kept = nullptr;

  ScanLayout(int d_k, Index longest, bool backward, Scratch& scratch);
};

class HeadScan {
 public:
  HeadScan(const PreconditionShape& shape, const Precondition& inputs, const ScanLayout& layout,
           Index sequence, Index head);

  // The whole sequence, rows [begin, end).
  void forward(Index begin, Index end, const PreconditionOut& out);
  // d_parameter: [K] of this sequence and head.
  void backward(Index begin, Index end, const PreconditionCotangents& cotangents,
                const PreconditionGrads& grads, float* d_parameter);

  // Piece by piece: begin(), then rows in order, at most kChunk at once, to `out`, then finish().
  // With `copy` the rows of the target are copied there (PreconditionScan::copy).
  void begin();
  void rows(Index first, int count, float* out, Index out_row, float* copy = nullptr,
            Index copy_row = 0);
  void finish(const PreconditionOut& out);
  // Brings the gates of rows that will be wanted nearer: every row has lines of its own.
  void fetch_gates(Index first, int count) const;
  Index key_at(Index row) const { return row * key_row_ + head_ * shape_.d_k; }
  Index key_row() const { return key_row_; }

 private:
  void load_state(float* to, const Tensor& state) const;
  void store_state(const Tensor& to, const float* state) const;
  void at_rows(Index first, int count);
  void wanted(const Tensor& to, Index first, float*& rows, Index& row) const;
  void store_gates(const Tensor& to, Index first, const float* from) const;

  const PreconditionShape& shape_;
  const Precondition& in_;
  ScanLayout at_;
  Index head_;
  Index state_at_;
  Index key_row_;
  int channels_;
  PreconditionScan scan_{};
};

}  // namespace rankone::recurrence::cpu
