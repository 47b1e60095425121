#pragma once

// The kernels of one tile unit, defined in the sources of this folder; product.cpp collects them.

#include "core/tiles.hpp"
#include "recurrence/cpu/tiles.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

using namespace ::rankone::RANKONE_ISA;

inline void fetch(TileAhead* ahead, int steps) {
  if (ahead == nullptr) return;
  TileAhead& a = *ahead;
  for (int left = steps * a.each; left > 0 && a.matrix < a.count; --left) {
    TileAhead::Matrix& m = a.matrices[a.matrix];
    __builtin_prefetch(m.next + a.at_line * kLine, 0, 2);
    if (++a.at_line < m.lines) continue;
    a.at_line = 0;
    m.next += m.row;
    if (++a.at_row < a.rows) continue;
    a.at_row = 0;
    ++a.matrix;
  }
}

void pack_rows(const TilePack& p);
void pack_pairs(const TilePack& p);
void transpose_tiles(const TileMatrix& to, const TileMatrix& from);
void rows_to_pairs(const TileMatrix& to, const TileMatrix& from);
void pairs_to_rows(const TileMatrix& to, const TileMatrix& from);
void scalar_decay(const ScalarDecay& d);
bool channel_decay(const TileChannelDecay& d);
void lower(const TileLower& l);
void residual(const TileResidual& r);
void row_dots(const TileRowDots& d);
void crossing(const TileCrossing& d);
int finite_rows(const float* from, Index from_row, int rows, int columns);

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
