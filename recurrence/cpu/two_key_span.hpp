#pragma once

// What the float32 forward pass needs of a span of rows beside values and state. The rows are read
// in blocks of kBlock: against chunks of 64 the interactions cost a quarter, and a panel of columns
// of the state stays in the first cache while all blocks of the span pass over it. The equations
// are those of two_key_chunk.hpp with C = kBlock.

#include "recurrence/cpu/two_key_chunk.hpp"

namespace rankone::recurrence::cpu {

inline constexpr int kSpan = 64;
inline constexpr int kPanel = 2 * kLine;  // columns

class SpanFactors {
 public:
  SpanFactors(const TwoKeySizes& sizes, Scratch& scratch);

  // Where write keys that are made for the next build() may lie, [kSpan, K] with rows of key_row():
  // there they need no copy. Columns up to the next multiple of kLine must be zero.
  float* write_keys() const { return write_; }
  // Likewise the erase keys, with rows as PreconditionScan::copy has them (ChunkRows::e_copied).
  float* erase_keys() const { return readers_; }
  int key_row() const { return key_row_; }
  // For at most kSpan rows, with the outputs or for the state alone.
  void build(const ChunkRows& rows, bool outputs);
  // The factors of the block that starts at row `first` of the span; values and state are the
  // caller's to fill in.
  PanelBlock block(int first) const;

 private:
  struct Block {
    float* readers;  // [2 kBlock, K]
    float* write;    // [kBlock, K]
    float* keep;     // [K]
  };
  Block at(int first) const;
  void build_scalar(const ChunkRows& rows, const Block& block, int first);
  void build_channel(const ChunkRows& rows, const Block& block, int first);
  void finish(const ChunkRows& rows, const float* between, int first);

  TwoKeySizes sizes_;
  int key_row_;
  int rows_ = 0;
  bool outputs_ = false;
  bool one_key_ = false;  // without per-channel decay: the write keys are the erase keys
  float* readers_;
  float* write_;
  float* keep_;
  float* solve_;  // [kSpan, kBlock]
  float* seen_;
  // [kSpan]
  float* gain_;
  float* read_factor_;
  float* seen_factor_;
  float* write_factor_;
  float* prefix_;
  // Of one block.
  float* between_;  // [kBlock, kBlock]
  float* raw_query_;
  float* raw_erase_;
  float* raw_write_;
  float* step_;
};

}  // namespace rankone::recurrence::cpu
