// Row-wise copies, and the step of one token.

#include "recurrence/cpu/isa/tile.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

// Columns of a step: N vectors from `column` on, each accessed through `access`.
template <int N, class Access>
void step_panel(const Step& s, int column, float query_write, const Access access) {
  Vec read[N] = {};
  Vec seen[N] = {};
  if (s.state != nullptr) {
    for (int d = 0; d < s.channels; ++d) {
      const float* row = s.state + d * s.state_row + column;
      const float decay = s.decay == nullptr ? 1.0F : s.decay[d];
      const Vec erase = splat(s.e == nullptr ? 0.0F : s.e[d]);
      const Vec query = splat(s.q[d]);
      for (int n = 0; n < N; ++n) {
        const Vec state = access.get(row + n * kLanes) * splat(decay);
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
  if (s.new_state == nullptr) return;
  for (int d = 0; d < s.channels; ++d) {
    const Index at = d * s.state_row + column;
    const float decay = s.decay == nullptr ? 1.0F : s.decay[d];
    const Vec write = splat(s.w[d]);
    for (int n = 0; n < N; ++n) {
      const Vec old = s.state == nullptr ? Vec{} : access.get(s.state + at + n * kLanes);
      access.put(s.new_state + at + n * kLanes, old * splat(decay) + write * update[n]);
    }
  }
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
  const float query_write = dot(s.q, s.w, s.channels);
  int column = 0;
  for (; column + 4 * kLanes <= s.columns; column += 4 * kLanes) {
    step_panel<4>(s, column, query_write, Whole{});
  }
  for (; column + kLanes <= s.columns; column += kLanes) {
    step_panel<1>(s, column, query_write, Whole{});
  }
  if (column < s.columns) step_panel<1>(s, column, query_write, Part{s.columns - column});
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
  constexpr int kTile = 8;
  for (int r = 0; r < rows; r += kTile) {
    const int row_end = r + kTile < rows ? r + kTile : rows;
    for (int c = 0; c < columns; ++c) {
      float* out = to + c * to_row;
      for (int i = r; i < row_end; ++i) out[i] = from[i * from_row + c];
    }
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
