#pragma once

// The way back through one chunk of one value head, given the state at its start and the gradient
// of the state at its end (docs/notation.md, the chunk form; dR there is `solved` here).

#include "recurrence/cpu/two_key_span.hpp"

namespace rankone::recurrence::cpu {

class ChunkBackward {
 public:
  ChunkBackward(const TwoKeySizes& sizes, Scratch& scratch);

  // The state at the end of the chunk, [K, V] with rows of value_row floats, from that at its
  // start; the same bits as the forward pass.
  void advance(const ChunkRows& rows, const float* state, float* next);
  // d_o: rows of rows.value_row floats. d_state: the gradient at the end, replaced by that at the
  // start. The results below hold until the next call.
  void run(const ChunkRows& rows, const float* d_o, const float* state, float* d_state);

  int value_row;
  int key_row;
  // Gradients of the inputs in this chunk: [C, K] with rows of key_row floats, [C, V] with rows of
  // value_row, and [C]; the gate has [C, K] per channel, else [C].
  float* d_query;
  float* d_erase;
  float* d_write;
  float* d_value;
  float* d_gain;
  float* d_gate;

 private:
  friend class TileBackward;  // the same on a tile unit, with the same memory

  void solve_forward(const ChunkRows& rows, const float* state);
  void solve_back(int n, const float* d_state);
  void interactions(int n);
  void through_state(int n, const float* state, const float* d_state);
  void scalar_keys(int n);
  // Under channel decay, from the gradients of seen, read and the factors to those of keys and
  // gates.
  void channel_keys_and_gates(int n, const float* state, const float* d_state);
  void channel_keys(int n);
  void channel_blocks(int n);
  void gates(int n, const float* state, const float* d_state);
  void state_back(int n, float* d_state);

  TwoKeySizes sizes_;
  ChunkFactors factors_;
  SpanFactors span_;
  float* residual_;    // [C, V]: V + erase S_0
  float* updates_;     // [C, V]: U
  float* d_output_;    // [C, V]
  float* solved_;      // [C, V]: T^T dU
  float* columns_;     // [V, C]: U^T; later [V, K]: S_0^T, dS_C^T
  float* d_seen_;      // [C, C]: dO U^T; later with the scale and, if scalar, the decay
  float* d_read_;      // [C, C]: -b dR U^T, and dR U^T before
  float* crossing_;    // [C, C]
  float* query_back_;  // [C, K]: gradients of the factors query and erase (per unit of scale) ...
  float* erase_back_;
  float* write_back_;
  float* anchor_;    // [C, K]: decay from each row to the start of the present sub-block
  float* anchored_;  // [C, K]
  float* whole_;     // [K]
  float* weights_;   // [C]
  float* work_;      // of PanelBlock
};

// Where the gradients of a chunk go.
struct GradientPlace {
  const TwoKeyShape& shape;
  const TwoKeySizes& sizes;
  const TwoKeyGrads& grads;
  Index head;           // value head
  bool add;             // the keys have gradients of earlier value heads
  bool stream = false;  // past the caches (kStreamed)
};
// What run() left of rows [first, first + rows.count).
void put_gradients(const GradientPlace& place, Index first, const ChunkRows& rows,
                   const ChunkBackward& back);
// Copies or adds rows of scratch to a gradient, from element `offset` on; nothing where it is not
// wanted. `stream` as in GradientPlace.
void put_rows(const Tensor& gradient, Index offset, Index stride, const float* from, Index from_row,
              int rows, int columns, bool add, bool stream = false);

}  // namespace rankone::recurrence::cpu
