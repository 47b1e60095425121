// Row-wise copies, and the step of one token.

#include "recurrence/cpu/isa/sums.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

constexpr int kMostChannels = 256;  // d_k
// Vectors of a row that go together: as many as leave registers.
constexpr int kWide = kLanes < 16 ? 4 : 8;

// Columns of a step: N vectors from `column` on, each accessed through `access`.
template <int N, class Number, class Access>
void step_panel(const Step& s, const float* erases, const float* queries, int column,
                float query_write, const Access access) {
  const auto* old_state = static_cast<const Number*>(s.state);
  auto* new_state = static_cast<Number*>(s.new_state);
  Vec read[N] = {};
  Vec seen[N] = {};
  if (old_state != nullptr) {
    for (int d = 0; d < s.channels; ++d) {
      const Number* row = old_state + d * s.state_row + column;
      const Vec erase = splat(erases[d]);
      const Vec query = splat(queries[d]);
      for (int n = 0; n < N; ++n) {
        const Vec state = access.get(row + n * kLanes);
        read[n] += erase * state;
        seen[n] += query * state;
      }
    }
  }
  Vec update[N];
  for (int n = 0; n < N; ++n) {
    const Vec value = access.get(s.v + column + n * kLanes);
    update[n] = splat(s.gain) * (s.e == nullptr ? value : value - read[n]);
    if (s.o == nullptr) continue;
    const Vec out = splat(s.scale) * (seen[n] + splat(query_write) * update[n]);
    access.put(s.o + column + n * kLanes, out);
  }
  if (new_state == nullptr) return;
  // From the end: the rows that were read last are in the first cache.
  for (int d = s.channels - 1; d >= 0; --d) {
    const Index at = d * s.state_row + column;
    const float decay = s.decay == nullptr ? 1.0F : s.decay[d];
    const Vec write = splat(s.w[d]);
    for (int n = 0; n < N; ++n) {
      const Vec old = old_state == nullptr ? Vec{} : access.get(old_state + at + n * kLanes);
      access.put(new_state + at + n * kLanes, old * splat(decay) + write * update[n]);
    }
  }
}

template <class Number, class Access>
void step_on(const Step& s, const Access access) {
  const float query_write = dot(s.q, s.w, s.channels);
  // The decay of the state, which both read, joins the keys.
  float erases[kMostChannels], queries[kMostChannels];
  for (int d = 0; d < s.channels; ++d) {
    const float decay = s.decay == nullptr ? 1.0F : s.decay[d];
    erases[d] = s.e == nullptr ? 0.0F : decay * s.e[d];
    queries[d] = decay * s.q[d];
  }
  int column = 0;
  for (; column + kWide * kLanes <= s.columns; column += kWide * kLanes) {
    step_panel<kWide, Number>(s, erases, queries, column, query_write, access);
  }
  for (; column + 4 * kLanes <= s.columns; column += 4 * kLanes) {
    step_panel<4, Number>(s, erases, queries, column, query_write, access);
  }
  for (; column + kLanes <= s.columns; column += kLanes) {
    step_panel<1, Number>(s, erases, queries, column, query_write, access);
  }
  if (column < s.columns) {
    step_panel<1, Number>(s, erases, queries, column, query_write, Part{s.columns - column});
  }
}

// One stage of the transposition of a square: swaps the off-diagonal quarters of every square of
// 2 * half rows and lanes, then those within the quarters.
template <int half, int... lanes>
RANKONE_INLINE void swap_pair(Vec& upper, Vec& lower, LaneList<lanes...>) {
  const Vec a = upper, b = lower;
  upper = __builtin_shufflevector(a, b, (lanes & half ? kLanes + lanes - half : lanes)...);
  lower = __builtin_shufflevector(a, b, (lanes & half ? kLanes + lanes : lanes + half)...);
}
template <int half>
RANKONE_INLINE void swap_halves(Vec (&tile)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    if ((i & half) != 0) continue;
    swap_pair<half>(tile[i], tile[i + half], typename LanesUpTo<kLanes>::List{});
  }
  if constexpr (half > 1) swap_halves<half / 2>(tile);
}

}  // namespace

float dot(const float* a, const float* b, int n) {
  Vec total{};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) total += load(a + i) * load(b + i);
  if (i < n) total += load_part(a + i, n - i) * load_part(b + i, n - i);
  return sum(total);
}

void step(const Step& s) {
  if (!s.narrow) {
    step_on<float>(s, Whole{});
  } else if (rounds_in_hardware()) {
    step_on<std::uint16_t>(s, WholeByHardware{});
  } else {
    step_on<std::uint16_t>(s, Whole{});
  }
}

void widen_rows(float* to, Index to_row, const std::uint16_t* from, Index from_row, int rows,
                int columns) {
  for (int r = 0; r < rows; ++r) {
    float* out = to + r * to_row;
    const std::uint16_t* in = from + r * from_row;
    int c = 0;
    for (; c + kLanes <= columns; c += kLanes) store(out + c, load(in + c));
    if (c < columns) {
      store(out + c, load_part(in + c, columns - c));
      c += kLanes;
    }
    for (; c < round_up(columns, kLine); c += kLanes) store(out + c, Vec{});
  }
}

void narrow_rows(std::uint16_t* to, Index to_row, const float* from, Index from_row, int rows,
                 int columns) {
  const auto narrow = [&](auto access) {
    for (int r = 0; r < rows; ++r) {
      std::uint16_t* out = to + r * to_row;
      const float* in = from + r * from_row;
      int c = 0;
      for (; c + kLanes <= columns; c += kLanes) access.put(out + c, load(in + c));
      if (c < columns) store_part(out + c, load(in + c), columns - c);
    }
  };
  if (rounds_in_hardware()) {
    narrow(WholeByHardware{});
  } else {
    narrow(Whole{});
  }
}

void copy_rows(float* to, Index to_row, const float* from, Index from_row, const float* factor,
               int rows, int columns) {
  const int covered = (columns + kLine - 1) / kLine * kLine;
  for (int r = 0; r < rows; ++r) {
    float* out = to + r * to_row;
    const float* in = from + r * from_row;
    const Vec scale = splat(factor == nullptr ? 1.0F : factor[r]);
    int c = 0;
    for (; c + kLanes <= columns; c += kLanes) store(out + c, scale * load(in + c));
    if (c < columns) {
      // Selected, not multiplied: the padding stays zero beside an infinite factor.
      Vec value{};
      for (int i = 0; i < columns - c; ++i) value[i] = scale[0] * in[c + i];
      store(out + c, value);
      c += kLanes;
    }
    for (; c < covered; c += kLanes) store(out + c, Vec{});
  }
}

void add_rows(float* to, Index to_row, const float* from, Index from_row, const float* factor,
              int rows, int columns) {
  for (int r = 0; r < rows; ++r) {
    const Vec scale = splat(factor[r]);
    for (int c = 0; c < columns; c += kLanes) {
      float* out = to + r * to_row + c;
      store(out, load(out) + scale * load(from + r * from_row + c));
    }
  }
}

void multiply_rows(Into into, float* to, Index to_row, const float* a, Index a_row, const float* b,
                   Index b_row, float factor, int rows, int columns) {
  const Vec scale = splat(factor);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; c += kLanes) {
      float* out = to + r * to_row + c;
      const Vec left = scale * load(a + r * a_row + c);
      const Vec right = load(b + r * b_row + c);
      store(out, into == Into::add ? load(out) + left * right : left * right);
    }
  }
}

void transpose(float* to, Index to_row, const float* from, Index from_row, int rows, int columns) {
  const int whole_rows = rows / kLanes * kLanes, whole_columns = columns / kLanes * kLanes;
  for (int r = 0; r < whole_rows; r += kLanes) {
    for (int c = 0; c < whole_columns; c += kLanes) {
      Vec tile[kLanes];
      for (int i = 0; i < kLanes; ++i) tile[i] = load(from + (r + i) * from_row + c);
      swap_halves<kLanes / 2>(tile);
      for (int i = 0; i < kLanes; ++i) store(to + (c + i) * to_row + r, tile[i]);
    }
  }
  const auto rest = [&](int row, int row_end, int column, int column_end) {
    for (int c = column; c < column_end; ++c) {
      for (int r = row; r < row_end; ++r) to[c * to_row + r] = from[r * from_row + c];
    }
  };
  rest(0, whole_rows, whole_columns, columns);
  rest(whole_rows, rows, 0, columns);
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
