#pragma once

// The vector kernels of this backend: plain functions on row-major float32 matrices in scratch
// memory, compiled once per instruction set (isa/) and reached through one table.
//
// A matrix in scratch has rows of `leading(columns)` floats: whole cache lines, an odd number of
// them, so that a column of it does not fall into one cache set; the padding is zero where a kernel
// says so. Each element of a product is one chain of multiply-adds in increasing order of the inner
// index, whatever the sizes around it, so a column does not depend on its neighbours: columns may
// be cut over tasks at any multiple of the vector length without changing a bit.

#include <cstdint>

#include "core/isa.hpp"

namespace rankone::recurrence::cpu {

using Index = std::int64_t;

inline constexpr int kLine = 16;       // floats of a cache line; every vector length divides it
inline constexpr int kBlock = 16;      // rows of a sub-block of the per-channel decay
inline constexpr int kMaxChunk = 128;  // most rows of a chunk
inline constexpr int kAhead = 4;       // lines that are fetched ahead at once

constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
constexpr int leading(int columns) { return (round_up(columns, kLine) / kLine | 1) * kLine; }

enum class Into { overwrite, add };

// out(m, n) = [scale(m) * out(m, n)] + sum_k a(m, k) b(k, n); columns are processed up to the next
// multiple of kLine.
struct Product {
  const float* a;
  Index a_row, a_column;  // one of the two is 1
  const float* b;
  Index b_row;
  float* out;
  Index out_row;
  int rows, columns, inner;
  Into into = Into::overwrite;
  const float* scale = nullptr;  // with Into::add: factor of the old value, per row
};

// A square lower triangle [n, n] applied to rows of x; both in scratch.
struct Triangle {
  const float* lower;
  Index lower_row;
  const float* x;
  Index x_row;
  float* out;  // solves: may be x
  Index out_row;
  int n, columns;
};

// Scalar (or no) decay of one chunk: factors from the running products of exp(g), kept in float64.
struct ScalarDecay {
  const float* g;  // null: none
  Index g_step;
  int n;
  float* between;  // [n, leading]: exp(g_{j+1} + .. + g_i) for j <= i, zero above the diagonal
  Index between_row;
  float* prefix;  // [n]: exp(g_0 + .. + g_i)
  float* suffix;  // [n]: exp(g_{i+1} + .. + g_{n-1})
};

// Per-channel decay of one chunk. Exponents are sums over an interval inside a sub-block of kBlock
// rows, or inside the chunk, never differences of longer sums: those lose the small gates beside
// large ones.
struct ChannelDecay {
  const float* g;
  Index g_row;
  int n, channels;
  Index row;          // of the outputs
  float* step;        // [n, K]: exp(g_i)
  float* prefix;      // [n, K]: exp of the sum from the start of the sub-block to i, inclusive
  float* suffix;      // [n, K]: exp of the sum behind i to the end of the sub-block
  float* from_start;  // [n, K]: exp of the sum from the start of the chunk to i, inclusive
  float* to_end;      // [n, K]: exp of the sum behind i to the end of the chunk
};

// Interactions inside one sub-block of rows: read(i, j) = sum_d erase(i, d) write(j, d) D(i, j, d)
// for j < i and seen(i, j) likewise with the query for j <= i; D is the product of the steps
// between.
struct BlockInteraction {
  const float* step;
  const float* erase;  // null: not wanted
  const float* query;  // null: not wanted
  const float* write;
  Index step_row, erase_row, query_row, write_row;
  float* read;
  float* seen;
  Index read_row, seen_row;
  int n, channels;
};

// The way back through BlockInteraction: adds to the gradients, given those of read and seen.
// Terms are strict (j < i); the caller adds those of the diagonal of seen.
struct BlockInteractionGrad {
  const float* step;
  const float* erase;  // null: none
  const float* query;
  const float* write;
  Index step_row, erase_row, query_row, write_row;
  const float* read_grad;
  const float* seen_grad;
  Index grad_row;
  float* erase_grad;
  float* query_grad;
  float* write_grad;
  Index out_row;
  int n, channels;
};

// to(i, j) = from(i, j) * between(i, j) * factor * row_factor(i) for j < i, or j <= i with
// `diagonal`; zero for the other j up to n.
struct LowerScale {
  const float* from;
  Index from_row;
  float* to;  // may be from
  Index to_row;
  int n;
  bool diagonal = false;
  const float* between = nullptr;
  Index between_row = 0;
  float factor = 1.0F;
  const float* row_factor = nullptr;
};

// The gradient of the gates of one chunk in the crossing form: only terms that cross the decay of
// step t count, so nothing of order one cancels under strong decay.
//
//     dg_t = whole + sum_{j < t} write_j write_back_j
//                  + sum_{i >= t} (query_i query_back_i + erase_i erase_back_i) + inside_t
//
// The factors are those of the chunk form, the `back` rows their gradients. Per channel, inside_t
// is sum_{i >= t} of `inner`; for a scalar gate it is sum_{i >= t > j} crossing(i, j), and the
// others are summed over the channels.
struct DecayGrad {
  const float* query;
  const float* query_back;
  const float* erase;  // null: additive
  const float* erase_back;
  const float* write;
  const float* write_back;
  Index row;           // of all of them
  const float* whole;  // [K] or [1]
  const float* inner;  // [n, K], rows of `row`; scalar: crossing [n, n], zero for j >= i
  Index inner_row;
  float* out;  // [n, K] or [n]
  Index out_row;
  int n, channels;
};

// Keys of one block of at most kBlock rows under per-channel decay: the rows themselves, readers
// decayed from the start of the block, writers to its end. Rows of e are key_row apart, rows of the
// others as named, rows of the outputs `row`, zero up to the next multiple of kLine.
struct BlockKeys {
  const float* q;  // null: not wanted
  Index q_row;
  const float* e;  // null: additive
  Index key_row;
  const float* w;
  Index w_row;
  const float* g;
  Index g_row;
  float* raw_query;
  float* raw_erase;
  float* raw_write;
  float* query;
  float* erase;
  float* write;
  float* step;  // exp(g_i)
  float* keep;  // [K]: the decay of the whole block
  Index row;
  int n, channels;
};

// out(i, j) = reader_i . writer_j for j <= i; what stands above the diagonal is left undefined.
// There must be kBlock rows of each and of `out`, whatever they hold.
struct BlockDots {
  const float* reader;
  const float* writer;
  Index row;
  float* out;  // [kBlock, kBlock]
  int n, channels;
};

// One block of at most kBlock rows, on some columns of values and state:
//     U_i   = gain_i (v_i + read_factor_i erase_i S) + sum_{j < i} solve(i, j) U_j
//     o_i   = seen_factor_i query_i S + sum_{j <= i} seen(i, j) U_j
//     next  = keep S + sum_j write_j (write_factor_j U_j)
// Without erase keys U_i = gain_i v_i. Columns are processed up to the next multiple of kLine.
struct PanelBlock {
  const float* readers;  // [2 n, K]: erase keys, then queries; [n, K] where only one is there
  const float* write;    // [n, K]
  Index key_row;
  bool erases, outputs;
  const float* solve;  // [n, kBlock]
  const float* seen;
  const float* gain;
  const float* read_factor;
  const float* seen_factor;
  const float* write_factor;  // null: one
  const float* keep;          // [K]
  const float* v;
  Index value_row;
  float* o;
  Index output_row;
  const float* state;  // null: zero
  Index state_row;
  float* next;  // null: not wanted; may be state
  Index next_row;
  float* work;  // [3 kBlock, columns]
  int n, channels, columns;
  // Pieces of kAhead lines that will be wanted later, fetched between the tiles: a few at a time,
  // because all at once would be waited for.
  const float* const* ahead;
  int ahead_count;
};

// One token of one head, on columns [0, columns) of a state with rows of `state_row` numbers.
struct Step {
  const float* q;
  const float* e;  // null: additive
  const float* w;
  const float* v;
  const float* decay;  // factor per channel; null: none
  float gain;
  float scale;
  bool narrow;        // the states are bf16, else float
  const void* state;  // null: zero
  void* new_state;    // may be state; null: not wanted
  Index state_row;
  float* o;  // null: not wanted
  int channels, columns;
};

// The diagonal preconditioner over n rows of one head, read and written where they lie: rows of a
// matrix are its `_row` floats apart.
struct PreconditionScan {
  bool atk;
  float center, log_x, eps;  // atk
  const float* ridge;        // [K] in scratch, padding not zero; atq
  const float* k;            // [n, K]
  Index k_row;
  const float* target;  // [n, K]
  Index target_row;
  const float* g;  // [n], log decay; null: none
  const float* b;  // [n]; null: one
  Index gate_row;
  int n, channels;
  float* state;  // [K] in scratch, before the first row, then behind the last
  float* out;    // [n, K]; null: only the state
  Index out_row;
  // Where `target` is copied to as well, with the outputs: a row every copy_row floats, and so much
  // further again behind every kBlock of them that they could be twice as many; null: nowhere.
  float* copy;
  Index copy_row;
  // Scratch for n numbers each, up to the next multiple of kLine. decay is exp(g), gain what k^2
  // is added with.
  float* decay;
  float* gain;
  float* inverse_square;  // 1 / |k|^2; null: the keys stay as they are
};

// The way back; the state of the scan is that before the first row.
struct PreconditionScanBack {
  PreconditionScan scan;
  float* history;  // [n + 1, K] in scratch: A before each row and behind the last
  Index history_row;
  const float* d_out;  // [n, K]
  Index d_out_row;
  float* d_state;  // [K] in scratch, behind the last row, then before the first
  float* d_k;      // [n, K]
  Index d_k_row;
  float* d_target;  // [n, K]
  Index d_target_row;
  bool joined;         // d_k and d_target are one memory: it receives the sum
  const float* other;  // [n, K]: added to d_k, may be its memory; null: nothing
  Index other_row;
  float* d_decay;      // [n]: of the log decay
  float* d_gain;       // [n]
  float* d_parameter;  // [K] in scratch, added to: of ridge, or of center channel by channel
};

// Diagonal Longhorn over n rows of one value head, one line of kLine value columns.
struct LonghornScan {
  const float* q;     // [n, K]
  const float* k;     // [n, K]
  const float* norm;  // [n]: |k|^2
  Index key_row;
  const float* v;     // [n, kLine]
  const float* beta;  // [n, kLine]
  Index value_row;
  int n, channels;
  float* state;    // [K, kLine]
  float* out;      // [n, kLine]; null: only the states
  float* history;  // [n + 1, K, kLine]; null: not wanted
};

struct LonghornScanBack {
  LonghornScan scan;
  const float* d_out;  // [n, kLine]
  float* d_state;      // [K, kLine]
  float* d_q;          // [n, K], added to
  float* d_k;          // [n, K], added to; without the part through the norm
  float* d_norm;       // [n], added to
  float* d_v;          // [n, kLine]
  float* d_beta;       // [n, kLine]
};

struct Kernels {
  void (*product)(const Product&);
  void (*lower_inner)(const Product&);            // as product, only columns j <= i are needed
  void (*add_lower)(const Triangle&);             // out_i += sum_{j <= i} lower(i, j) x_j
  void (*add_lower_transposed)(const Triangle&);  // out_j += sum_{i >= j} lower(i, j) x_i
  void (*solve_lower)(const Triangle&);           // x_i += sum_{j < i} lower(i, j) x_j, in order
  void (*solve_lower_transposed)(
      const Triangle&);  // x_j += sum_{i > j} lower(i, j) x_i, from the end
  void (*scale_lower)(const LowerScale&);
  void (*scalar_decay)(const ScalarDecay&);
  void (*channel_decay)(const ChannelDecay&);
  void (*block_interaction)(const BlockInteraction&);
  void (*block_interaction_grad)(const BlockInteractionGrad&);
  void (*channel_decay_grad)(const DecayGrad&);
  void (*scalar_decay_grad)(const DecayGrad&);
  void (*block_keys)(const BlockKeys&);
  void (*block_dots)(const BlockDots&);
  void (*panel_block)(const PanelBlock&);
  void (*step)(const Step&);
  void (*precondition)(const PreconditionScan&);
  void (*precondition_back)(const PreconditionScanBack&);
  void (*longhorn)(const LonghornScan&);
  void (*longhorn_back)(const LonghornScanBack&);
  // to(i, :) = factor(i) * from(i, :), zero up to the next multiple of kLine. A null factor is 1.
  void (*copy_rows)(float* to, Index to_row, const float* from, Index from_row, const float* factor,
                    int rows, int columns);
  // to(i, :) += factor(i) * from(i, :)
  void (*add_rows)(float* to, Index to_row, const float* from, Index from_row, const float* factor,
                   int rows, int columns);
  // to(i, :) [+]= a(i, :) * b(i, :) * factor
  void (*multiply_rows)(Into into, float* to, Index to_row, const float* a, Index a_row,
                        const float* b, Index b_row, float factor, int rows, int columns);
  void (*transpose)(float* to, Index to_row, const float* from, Index from_row, int rows,
                    int columns);
  float (*dot)(const float* a, const float* b, int n);
  // Rows of bf16 numbers, zero up to the next multiple of kLine; and rounded back.
  void (*widen_rows)(float* to, Index to_row, const std::uint16_t* from, Index from_row, int rows,
                     int columns);
  void (*narrow_rows)(std::uint16_t* to, Index to_row, const float* from, Index from_row, int rows,
                      int columns);
};

const Kernels& kernels();  // of best_isa()

namespace baseline {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

}  // namespace rankone::recurrence::cpu
