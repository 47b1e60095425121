// Row-major float32 to tiles of bf16, and between the forms of tiles.

#include "recurrence/cpu/tiles/declarations.hpp"
#include "recurrence/cpu/tiles/layout.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

// The parts of 32 numbers into the same place of every part of a matrix.
template <int kParts, bool kPairs>
inline void put_parts(Word* to, Index part, Line low, Line high) {
  for (int p = 0; p < kParts; ++p) {
    if constexpr (kPairs) {
      take_pairs(to + p * part, low, high);
    } else {
      take_row(to + p * part, low, high);
    }
  }
}

inline Line times_line(Line value, const float* factors, int count) {
  return times(value, load_line(factors, count));
}

template <int kParts, bool kTimes>
void pack_rows_of(const TilePack& p) {
  const TileMatrix& to = p.to;
  const Index part = to.part_size();
  for (int i = 0; i < to.outer * kTileRows; ++i) {
    Word* out = to.data + (static_cast<Index>(i / kTileRows) * to.inner) * kTileHalves +
                i % kTileRows * kTileInner;
    const float* row = p.from + i * p.from_row;
    const float factor = p.factor == nullptr || i >= p.rows ? 1.0F : p.factor[i];
    fetch(p.ahead, 1);
    int j = 0;
    for (; i < p.rows && (j + 1) * kTileInner <= p.columns; ++j, out += kTileHalves) {
      Line low = load_line(row + j * kTileInner);
      Line high = load_line(row + j * kTileInner + 16);
      if (p.factor != nullptr) {
        low = scaled(factor, low);
        high = scaled(factor, high);
      }
      if constexpr (kTimes) {
        const float* times_row = p.times + i * p.times_row + j * kTileInner;
        low = times(low, load_line(times_row));
        high = times(high, load_line(times_row + 16));
      }
      put_parts<kParts, false>(out, part, low, high);
    }
    for (; j < to.inner; ++j, out += kTileHalves) {
      const int left = i < p.rows ? p.columns - j * kTileInner : 0;
      Line low = left > 0 ? load_line(row + j * kTileInner, left) : zero_line();
      Line high = left > 16 ? load_line(row + j * kTileInner + 16, left - 16) : zero_line();
      if (p.factor != nullptr) {
        low = scaled(factor, low);
        high = scaled(factor, high);
      }
      if constexpr (kTimes) {
        const float* times = p.times + i * p.times_row + j * kTileInner;
        if (left > 0) low = times_line(low, times, left);
        if (left > 16) high = times_line(high, times + 16, left - 16);
      }
      put_parts<kParts, false>(out, part, low, high);
    }
  }
}

// Column by column of tiles, so that their rows are written one behind the other.
template <int kParts>
void pack_pairs_of(const TilePack& p) {
  const TileMatrix& to = p.to;
  const Index part = to.part_size();
  Word* out = to.data;
  for (int j = 0; j < to.outer; ++j) {
    const int column = j * 16;
    const int left = p.columns - column;
    for (int i = 0; i < to.inner * kTileInner; i += 2, out += kTileInner) {
      if (i % 16 == 0) fetch(p.ahead, 1);
      const float* first = p.from + i * p.from_row + column;
      const float* second = first + p.from_row;
      const bool has_first = i < p.rows && left > 0;
      const bool has_second = i + 1 < p.rows && left > 0;
      Line low = has_first ? load_line(first, left) : zero_line();
      Line high = has_second ? load_line(second, left) : zero_line();
      if (p.factor != nullptr) {
        if (has_first) low = scaled(p.factor[i], low);
        if (has_second) high = scaled(p.factor[i + 1], high);
      }
      put_parts<kParts, true>(out, part, low, high);
    }
  }
}

}  // namespace

void pack_rows(const TilePack& p) {
  const bool times = p.times != nullptr;
  if (p.to.parts == 1) {
    times ? pack_rows_of<1, true>(p) : pack_rows_of<1, false>(p);
  } else if (p.to.parts == 2) {
    times ? pack_rows_of<2, true>(p) : pack_rows_of<2, false>(p);
  } else {
    times ? pack_rows_of<3, true>(p) : pack_rows_of<3, false>(p);
  }
}

void pack_pairs(const TilePack& p) {
  if (p.to.parts == 1) {
    pack_pairs_of<1>(p);
  } else if (p.to.parts == 2) {
    pack_pairs_of<2>(p);
  } else {
    pack_pairs_of<3>(p);
  }
}

void lower(const TileLower& l) {
  const Index part = l.tiles.part_size();
  const int covered = (l.n + kTileInner - 1) / kTileInner * kTileInner;
  const int rows = l.tiles.data == nullptr ? l.n : covered;
  Line squares = zero_line();
  for (int i = 0; i < rows; ++i) {
    const int end = i >= l.n ? 0 : l.diagonal ? i + 1 : i;
    const float row = i < l.n && l.row_factor != nullptr ? l.factor * l.row_factor[i] : l.factor;
    const auto line_at = [&](int j) {
      if (j >= end) return zero_line();
      Line line = load_line(l.from + i * l.from_row + j);
      if (l.between != nullptr) line = times(line, load_line(l.between + i * l.between_row + j));
      line = scaled(row, line);
      if (l.column_factor != nullptr) line = times(line, load_line(l.column_factor + j));
      return first_of(line, end - j);
    };
    Index at = static_cast<Index>(i / kTileRows) * l.tiles.inner * kTileHalves +
               i % kTileRows * kTileInner;
    for (int j = 0; j < covered; j += kTileInner, at += kTileHalves) {
      const Line low = line_at(j);
      const Line high = line_at(j + 16);
      if (l.squares != nullptr) {
        squares = plus(squares, plus(times(low, low), times(high, high)));
      }
      if (l.to != nullptr) {
        store_line(l.to + i * l.to_row + j, low);
        store_line(l.to + i * l.to_row + j + 16, high);
      }
      if (l.tiles.data == nullptr) continue;
      Word* const out = l.tiles.data + at;
      if (l.tiles.parts == 1) {
        put_parts<1, false>(out, part, low, high);
      } else if (l.tiles.parts == 2) {
        put_parts<2, false>(out, part, low, high);
      } else {
        put_parts<3, false>(out, part, low, high);
      }
    }
  }
  if (l.squares != nullptr) *l.squares = total(squares);
}

void transpose_tiles(const TileMatrix& to, const TileMatrix& from) {
  const Index tiles = static_cast<Index>(to.parts) * to.outer * to.inner;
  for (Index i = 0; i < tiles; ++i) {
    transpose_tile(to.data + i * kTileHalves, from.data + i * kTileHalves);
  }
}

void rows_to_pairs(const TileMatrix& to, const TileMatrix& from) {
  for (int p = 0; p < to.parts; ++p) {
    Word* out = to.data + p * to.part_size();
    const Word* in = from.data + p * from.part_size();
    for (int i = 0; i < from.outer; ++i) {
      for (int j = 0; j < from.inner; ++j, in += kTileHalves) {
        // Sixteen rows are half a tile of pairs, 32 columns two tiles.
        Word* low = out + (static_cast<Index>(2 * j) * to.inner + i / 2) * kTileHalves +
                    i % 2 * (kTileHalves / 2);
        Word* high = low + static_cast<Index>(to.inner) * kTileHalves;
        for (int r = 0; r < kTileRows; r += 2) {
          zip_rows(low + r / 2 * kTileInner, high + r / 2 * kTileInner, in + r * kTileInner,
                   in + (r + 1) * kTileInner);
        }
      }
    }
  }
}

void pairs_to_rows(const TileMatrix& to, const TileMatrix& from) {
  for (int p = 0; p < to.parts; ++p) {
    Word* out = to.data + p * to.part_size();
    const Word* in = from.data + p * from.part_size();
    for (int i = 0; i < to.outer; ++i) {
      for (int j = 0; j < to.inner; ++j, out += kTileHalves) {
        const Word* low = in + (static_cast<Index>(2 * j) * from.inner + i / 2) * kTileHalves +
                          i % 2 * (kTileHalves / 2);
        const Word* high = low + static_cast<Index>(from.inner) * kTileHalves;
        for (int r = 0; r < kTileRows; r += 2) {
          unzip_rows(out + r * kTileInner, out + (r + 1) * kTileInner, low + r / 2 * kTileInner,
                     high + r / 2 * kTileInner);
        }
      }
    }
  }
}

void residual(const TileResidual& r) {
  for (int i = 0; i < r.rows; ++i) {
    const float* value = r.value + i * r.value_row;
    const float* read = r.read == nullptr ? nullptr : r.read + i * r.read_row;
    float* out = r.out + i * r.out_row;
    const float decay = r.decay == nullptr ? 1.0F : r.decay[i];
    for (int c = 0; c < r.columns; c += 16) {
      Line line = load_line(value + c, r.columns - c);
      if (read != nullptr) line = minus_scaled(line, decay, load_line(read + c, r.columns - c));
      if (r.gain != nullptr) line = scaled(r.gain[i], line);
      store_line(out + c, line);
    }
  }
}

int finite_rows(const float* from, Index from_row, int rows, int columns) {
  const std::int32_t exponent = 0x7f800000;
  const auto found = [&](int first, int end) {
    IntVec lanes{};
    for (int i = first; i < end; ++i) {
      for (int c = 0; c < columns; c += kLanes) {
        const IntVec bits = reinterpret_cast<IntVec>(load(from + i * from_row + c));
        lanes |= (bits & exponent) == exponent;
      }
    }
    std::int32_t any = 0;
    for (int i = 0; i < kLanes; ++i) any |= lanes[i];
    return any != 0;
  };
  if (!found(0, rows)) return rows;
  int first = 0;
  while (!found(first, first + 1)) ++first;
  return first;
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
