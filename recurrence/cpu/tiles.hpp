#pragma once

// Products on a tile unit: matrices as tiles of bf16, and the kernels on them (tiles/), compiled
// for AMX and for its emulation.
//
// A float32 number is split into `parts` numbers of bf16 of falling size, high, middle and low,
// that add up to it: one part leaves a relative error of at most 2^-8, two 2^-16, three 2^-24. A
// product of parts keeps the pairs whose sizes matter: 1, 3 or 6 of them; of two matrices with
// different numbers of parts it takes the smaller number.
//
// An operand of a product exists in two forms, both made of tiles of 16 rows of 32 numbers:
//     rows(Y)   tile (i, j), row r:       Y(16 i + r, 32 j ..), the left operand Y
//     pairs(Y)  tile (j, i), row r, n, p: Y(32 i + 2 r + p, 16 j + n), the right operand Y
// so that pairs(Y^T) is rows(Y) with every tile transposed in words of 32 bits.

#include <cstdint>

#include "recurrence/cpu/kernels.hpp"

namespace rankone::recurrence::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileInner = 32;
inline constexpr int kTileHalves = kTileRows * kTileInner;

// A matrix as tiles: tile (i, j) of a part lies at (i * inner + j) * kTileHalves, the parts one
// behind the other.
struct TileMatrix {
  std::uint16_t* data = nullptr;
  int outer = 0;  // tiles of 16 rows, or columns of a right operand
  int inner = 0;  // tiles of 32 along the sum
  int parts = 0;

  Index part_size() const { return static_cast<Index>(outer) * inner * kTileHalves; }
  // The same tiles, of which only the first parts are written or read.
  TileMatrix with_parts(int count) const {
    TileMatrix matrix = *this;
    matrix.parts = count;
    return matrix;
  }
};

// Rows that later work will read or write. They lie far apart, so nothing else brings them nearer:
// kernels that are given this fetch a few lines between their own steps.
struct TileAhead {
  static constexpr int kMost = 8;
  struct Matrix {
    const float* next = nullptr;
    Index row = 0;
    int lines = 0;  // of a row
  };
  Matrix matrices[kMost];
  int count = 0;
  int rows = 0;
  int each = 1;  // lines between two steps
  int matrix = 0, at_row = 0, at_line = 0;

  bool wanted = true;  // else add() does nothing

  void start(int new_rows, int lines) {
    count = matrix = at_row = at_line = 0;
    rows = new_rows;
    each = lines;
  }
  void add(const float* from, Index row, int columns) {
    if (!wanted || from == nullptr || count == kMost) return;
    matrices[count++] = {from, row, (columns + kLine - 1) / kLine};
  }
};

// Row-major float32 to tiles; what lies outside [rows, columns) becomes zero. Row i is multiplied
// by factor[i] first (null: 1).
struct TilePack {
  TileMatrix to;
  const float* from;
  Index from_row;
  int rows, columns;
  const float* factor = nullptr;
  TileAhead* ahead = nullptr;
  // pack_rows only: another factor for each number, [rows, columns]; null: 1.
  const float* times = nullptr;
  Index times_row = 0;
};

// Per-channel decay of a chunk that forgets little enough to be undone in float32.
struct TileChannelDecay {
  // The decay over the whole chunk that is still undone: then the low parts of what it multiplies
  // are normal numbers.
  static constexpr float kLeast = 1e-25F;

  const float* g;
  Index g_row;
  int n, channels;
  Index row;          // of the outputs
  float* from_start;  // [n, K]: exp of the sum from the start of the chunk to i, inclusive
  float* back;        // [n, K]: its inverse
};

// to(i, j) = from(i, j) between(i, j) factor row_factor(i) column_factor(j) for j < i, or j <= i
// with `diagonal`; zero for the other j. Null factors are 1. As numbers, as the left operand of a
// product, or both.
struct TileLower {
  const float* from;
  Index from_row;
  int n;
  bool diagonal = false;
  const float* between = nullptr;
  Index between_row = 0;
  float factor = 1.0F;
  const float* row_factor = nullptr;
  const float* column_factor = nullptr;
  float* to = nullptr;  // rows to the end of the last tile
  Index to_row = 0;
  TileMatrix tiles{};
  float* squares = nullptr;  // gets the sum of the squares of what is formed
};

// c(m, n) [+]= sum_k a(m, k) b(k, n). c has whole tiles: 16 rows a tile of a, 16 columns a tile of
// b. The numbers of both kinds of tiles are even.
struct TileProduct {
  // What the product leaves out, in blocks of 32: nothing; c above its diagonal; a above its
  // diagonal; a below its diagonal.
  enum class Shape { full, lower_result, lower_left, upper_left };

  TileMatrix a;
  TileMatrix b;
  float* c;
  Index c_row;
  Into into = Into::overwrite;
  Shape shape = Shape::full;
  TileAhead* ahead = nullptr;
  // Where not null, what c gets is scale(m) from(m, n) + the sum; `from` may be c. A null scale
  // is 1.
  const float* from = nullptr;
  Index from_row = 0;
  const float* scale = nullptr;
  bool scale_sum = false;  // `scale` is a factor of the sum, too
  bool stream = false;     // with `from`, where rows of c are whole lines: past the caches
};

// out(i, :) = gain(i) (value(i, :) - decay(i) read(i, :)), zero behind the columns. A null factor
// is 1, a null read 0.
struct TileResidual {
  const float* value;
  Index value_row;
  const float* read;
  Index read_row;
  float* out;  // may be read
  Index out_row;
  int rows, columns;
  const float* decay = nullptr;
  const float* gain = nullptr;
};

// out(i) = a(i, :) . b(i, :)
struct TileRowDots {
  float* out;
  const float* a;
  Index a_row;
  const float* b;
  Index b_row;
  int rows, columns;
};

// inside(t) = sum_{i >= t > j} d_seen(i, j) seen(i, j) + d_read(i, j) read(i, j). All have rows of
// `row` floats.
struct TileCrossing {
  const float* d_seen;
  const float* seen;
  const float* d_read;  // null: zero
  const float* read;
  Index row;
  int n;
  float* inside;
};

struct TileKernels {
  // Of the calling thread, around the products of a task.
  void (*begin)();
  void (*end)();
  void (*pack_rows)(const TilePack& p);
  void (*pack_pairs)(const TilePack& p);
  // rows(Y) to pairs(Y^T), or pairs(Y) to rows(Y^T); rows(Y) to pairs(Y); pairs(Y) to rows(Y).
  void (*transpose)(const TileMatrix& to, const TileMatrix& from);
  void (*rows_to_pairs)(const TileMatrix& to, const TileMatrix& from);
  void (*pairs_to_rows)(const TileMatrix& to, const TileMatrix& from);
  void (*product)(const TileProduct& p);
  // Up to 64 rows; between(i, j) is not written for j > i.
  void (*scalar_decay)(const ScalarDecay& d);
  // False, and nothing of use written, where a channel decays by more than kLeast, or grows.
  bool (*channel_decay)(const TileChannelDecay& d);
  void (*lower)(const TileLower& l);
  void (*residual)(const TileResidual& r);
  void (*row_dots)(const TileRowDots& d);
  void (*crossing)(const TileCrossing& d);
  // The rows before the first that holds an infinity or a NaN.
  int (*finite_rows)(const float* from, Index from_row, int rows, int columns);
};

const TileKernels* tile_kernels();  // of tile_unit(); null: none

namespace amx {
extern const TileKernels kTileKernels;
}
namespace amx_emulated {
extern const TileKernels kTileKernels;
}
namespace amx_baseline {
extern const TileKernels kTileKernels;
}

}  // namespace rankone::recurrence::cpu
