// The two-key recurrence on a block of rows and a panel of columns that stays in the first cache.

#include "recurrence/cpu/isa/sums.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

// A tile of dot products that are summed at once.
constexpr int kReaders = kLanes < 16 ? 2 : 4;
constexpr int kWriters = kLanes / kReaders;

template <class Access>
RANKONE_INLINE void block_keys_at(const BlockKeys& b, int c, Access access) {
  Vec gates[kBlock];
  Vec sum{};
  for (int i = 0; i < b.n; ++i) {
    const Index to = i * b.row + c;
    gates[i] = access.get(b.g + i * b.g_row + c);
    sum += gates[i];
    const Vec prefix = vexp_finite(sum);
    store(b.step + to, vexp_finite(gates[i]));
    if (b.e != nullptr) {
      const Vec erase = access.get(b.e + i * b.key_row + c);
      store(b.raw_erase + to, erase);
      store(b.erase + to, erase * prefix);
    }
    if (b.q != nullptr) {
      const Vec query = access.get(b.q + i * b.q_row + c);
      store(b.raw_query + to, query);
      store(b.query + to, query * prefix);
    }
    if (i + 1 == b.n) store(b.keep + c, prefix);
  }
  sum = Vec{};
  for (int i = b.n - 1; i >= 0; --i) {
    const Vec write = access.get(b.w + i * b.w_row + c);
    store(b.raw_write + i * b.row + c, write);
    store(b.write + i * b.row + c, write * vexp_finite(sum));
    sum += gates[i];
  }
}

template <int R, int N>
RANKONE_INLINE void read_state(const PanelBlock& p, int row, int column) {
  Vec tile[R][N] = {};
  multiply_tile(tile, p.readers + row * p.key_row, p.key_row, 1, p.state + column, p.state_row,
                p.channels);
  store_tile(tile, p.work + row * p.columns + column, p.columns);
}

// U from what the erase keys read; both in `work`.
template <int R, int N>
RANKONE_INLINE void solve_rows(const PanelBlock& p, float* updates, int row, int column) {
  Vec tile[R][N];
  const float* solve = p.solve + row * kBlock;
  load_tile(tile, p.v + row * p.value_row + column, p.value_row);
  for (int r = 0; r < R; ++r) {
    const Vec factor = splat(p.erases ? p.read_factor[row + r] : 0.0F);
    const Vec gain = splat(p.gain[row + r]);
    for (int n = 0; n < N; ++n) {
      if (p.erases && p.state != nullptr) {
        tile[r][n] += factor * load(p.work + (row + r) * p.columns + column + n * kLanes);
      }
      tile[r][n] *= gain;
    }
  }
  if (p.erases) {
    multiply_tile(tile, solve, kBlock, 1, updates + column, p.columns, row);
    for (int r = 1; r < R; ++r) {
      for (int j = 0; j < r; ++j) add_row(tile, r, solve[r * kBlock + row + j], j);
    }
  }
  store_tile(tile, updates + row * p.columns + column, p.columns);
}

template <int R, int N>
RANKONE_INLINE void output_rows(const PanelBlock& p, const float* reads, const float* updates,
                                int row, int column) {
  Vec tile[R][N] = {};
  const float* seen = p.seen + row * kBlock;
  multiply_tile(tile, seen, kBlock, 1, updates + column, p.columns, row);
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j <= r; ++j) {
      add_row(tile, r, seen[r * kBlock + row + j], updates + (row + j) * p.columns + column);
    }
    if (p.state == nullptr) continue;
    const Vec factor = splat(p.seen_factor[row + r]);
    for (int n = 0; n < N; ++n) {
      tile[r][n] += factor * load(reads + (row + r) * p.columns + column + n * kLanes);
    }
  }
  store_tile(tile, p.o + row * p.output_row + column, p.output_row);
}

template <int R, int N>
RANKONE_INLINE void write_state(const PanelBlock& p, const float* updates, int row, int column) {
  Vec tile[R][N] = {};
  multiply_tile(tile, p.write + row, 1, p.key_row, updates + column, p.columns, p.n);
  if (p.state != nullptr) {
    const float* state = p.state + row * p.state_row + column;
    for (int r = 0; r < R; ++r) {
      const Vec keep = splat(p.keep[row + r]);
      for (int n = 0; n < N; ++n) tile[r][n] += keep * load(state + r * p.state_row + n * kLanes);
    }
  }
  store_tile(tile, p.next + row * p.next_row + column, p.next_row);
}

}  // namespace

void block_keys(const BlockKeys& b) {
  int c = 0;
  for (; c + kLanes <= b.channels; c += kLanes) block_keys_at(b, c, Whole{});
  if (c < b.channels) {
    block_keys_at(b, c, Part{b.channels - c});
    c += kLanes;
  }
  for (; c < round_up(b.channels, kLine); c += kLanes) {
    // Padding of a vector shorter than a line.
    for (float* rows : {b.raw_query, b.raw_erase, b.raw_write, b.query, b.erase, b.write, b.step}) {
      for (int i = 0; i < b.n; ++i) store(rows + i * b.row + c, Vec{});
    }
    store(b.keep + c, Vec{});
  }
}

void block_dots(const BlockDots& b) {
  for (int i = 0; i < b.n; i += kReaders) {
    for (int j = 0; j < i + kReaders; j += kWriters) {
      Vec sums[kLanes] = {};
      const float* reader = b.reader + i * b.row;
      const float* writer = b.writer + j * b.row;
      for (int d = 0; d < b.channels; d += kLanes) {
        Vec write[kWriters];
        for (int w = 0; w < kWriters; ++w) write[w] = load(writer + w * b.row + d);
        for (int r = 0; r < kReaders; ++r) {
          const Vec read = load(reader + r * b.row + d);
          for (int w = 0; w < kWriters; ++w) sums[r * kWriters + w] += read * write[w];
        }
      }
      float total[kLanes];
      store(total, lane_sums(sums));
      for (int r = 0; r < kReaders; ++r) {
        float* out = b.out + (i + r) * kBlock + j;
        for (int w = 0; w < kWriters; ++w) out[w] = total[r * kWriters + w];
      }
    }
  }
}

void panel_block(const PanelBlock& p) {
  int fetched = 0;
  const auto fetch = [&](int pieces) {
    for (; pieces > 0 && fetched < p.ahead_count; --pieces, ++fetched) {
      const float* from = p.ahead[fetched];
      for (int line = 0; line < kAhead; ++line) __builtin_prefetch(from + line * kLine, 0, 2);
    }
  };
  const int readers = (p.erases ? p.n : 0) + (p.outputs ? p.n : 0);
  const float* reads = p.work + (p.erases ? p.n : 0) * p.columns;  // of the queries
  float* updates = p.work + 2 * kBlock * p.columns;
  column_panels(p.columns, [&](auto vectors, int column) {
    constexpr int N = decltype(vectors)::kValue;
    if (p.state != nullptr) {
      rows_up(readers, [&](auto rows, int row) {
        fetch(4);
        read_state<decltype(rows)::kValue, N>(p, row, column);
      });
    }
    rows_up(p.n, [&](auto rows, int row) {
      solve_rows<decltype(rows)::kValue, N>(p, updates, row, column);
    });
    if (p.outputs) {
      rows_up(p.n, [&](auto rows, int row) {
        output_rows<decltype(rows)::kValue, N>(p, reads, updates, row, column);
      });
    }
    if (p.next == nullptr) return;
    if (p.write_factor != nullptr) {
      for (int i = 0; i < p.n; ++i) {
        const Vec factor = splat(p.write_factor[i]);
        float* row = updates + i * p.columns + column;
        for (int n = 0; n < N; ++n) store(row + n * kLanes, factor * load(row + n * kLanes));
      }
    }
    rows_up(p.channels, [&](auto rows, int row) {
      fetch(2);
      write_state<decltype(rows)::kValue, N>(p, updates, row, column);
    });
  });
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
