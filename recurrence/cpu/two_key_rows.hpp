#pragma once

// The float32 kernels on a part of one head, and how heads are cut over tasks.

#include "recurrence/cpu/two_key_chunk.hpp"

namespace rankone::recurrence::cpu {

// Value columns are independent, so a head is cut where heads alone would leave threads idle.
// Results do not depend on the cut.
struct ColumnCut {
  Index pieces;
  int width;

  ColumnCut(Index heads, int threads, int d_v);
};

// Rows [begin, end) of columns [column, column + width) of a value head.
struct HeadRows {
  Index sequence, head;
  int column, width;
  Index begin, end;
  // [K, V] of d_v columns, before row `begin`, may be written over; null: the initial one
  float* state = nullptr;
};

Index rows_scratch(const TwoKeySizes& sizes);  // in floats
// Writes the outputs of these rows and, where it is wanted, the state behind them.
void run_rows(const TwoKeyShape& shape, const TwoKeySizes& sizes, const TwoKey& inputs,
              const TwoKeyOut& out, Scratch scratch, const HeadRows& rows);

}  // namespace rankone::recurrence::cpu
