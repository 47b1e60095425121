#pragma once

// The reverse recurrence, token by token from the last: the gradient Gr of the state in registers,
// as token.hpp lays out a state. It needs no state of the way forward.

#include "recurrence/cuda/token_forward.hpp"

namespace rankone::recurrence::cuda {

// What the way back leaves for the gradients of the chunks.
struct BackTrace {
  float* d_update = nullptr;  // [R, HV, V]: du
  float* d_states = nullptr;  // as Trace::states: dL/dS at the end of each chunk
  int chunk = 32;
};

template <int Width, int Tokens>
int backward_floats(int warps) {
  return 2 * Tokens * TokenView::size(32 * warps, 8 * Width) + 2 * warps * 8 * Width;
}

// Grid: split_of(call, 8 * Width). Writes d_v and d_initial too.
template <class Format, int Width, int Tokens, bool Delta>
__global__ void __launch_bounds__(256) backward_kernel(const TwoKeyCall call, const TwoKeyBack back,
                                                       const Split split, const BackTrace trace) {
  constexpr int kColumns = Place<Width>::kColumns;
  const Place<Width> at(split);
  const int d_v = call.d_v, warps = split.warps, keys = 32 * warps;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v);
  const bool aligned = d_v % Width == 0 && (reinterpret_cast<std::uintptr_t>(back.d_final) |
                                            reinterpret_cast<std::uintptr_t>(back.d_initial)) %
                                                   16 ==
                                               0;
  float s[kRows][Width];  // Gr
  load_state(s, back.d_final == nullptr ? nullptr : back.d_final + state_at, at, call.d_k, d_v,
             aligned);

  const int stage_floats = Tokens * TokenView::size(keys, kColumns);
  auto* stages = reinterpret_cast<float*>(shared_memory());
  float* partial = stages + 2 * stage_floats;
  const std::int64_t begin = call.rows.begin(at.sequence), end = call.rows.end(at.sequence);
  const auto down_to = [&](std::int64_t row) {  // tokens row, row - 1, ...
    return static_cast<int>(row + 1 - begin < Tokens ? row + 1 - begin : Tokens);
  };

  Feed<Format, Tokens, Width> feed(call, back.d_o, at);
  int count = down_to(end - 1);
  feed.load(end - 1, -1, count);
  feed.store(stages, keys, count);
  __syncthreads();

  int side = 0, turn = 0;
  for (std::int64_t block = end - 1; block >= begin; block -= Tokens) {
    const int next = block - count >= begin ? down_to(block - count) : 0;
    feed.load(block - count, -1, next);
    for (int t = 0; t < count; ++t) {
      const std::int64_t row = block - t;
      const TokenView token(stages + side * stage_floats + t * TokenView::size(keys, kColumns),
                            keys, kColumns);
      const std::int64_t done = row - begin;
      if (row + 1 == end || (done + 1) % trace.chunk == 0) {
        const std::int64_t chunk =
            first_chunk(call.rows, at.sequence, trace.chunk) + done / trace.chunk;
        put_transposed(trace.d_states + (chunk * call.value_heads + at.head) * d_v *
                                            static_cast<std::int64_t>(keys),
                       s, at, keys, d_v);
      }
      float sums[Width];  // Gr^T w, before q do^T
#pragma unroll
      for (int c = 0; c < Width; ++c) sums[c] = 0.0F;
      {
        const Eight w(token.w + at.row);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < Width; ++c) sums[c] += s[r][c] * w.x[r];
        }
      }
      float* mine = partial + turn % 2 * (warps * Width * 8);
      put_sums<Width, Width>(mine, sums, at);
      __syncthreads();
      float du[Width], d_o[Width], qw = 0.0F;
      get_sums<Width, Width>(du, mine, 0, warps, at);
      for (int warp = 0; warp < warps; ++warp) qw += token.qw[warp];
#pragma unroll
      for (int c = 0; c < Width; ++c) {
        d_o[c] = call.scale * token.v[at.inside + c];
        du[c] += qw * d_o[c];
      }
      const std::int64_t value_at = (row * call.value_heads + at.head) * d_v + at.column;
      const bool writes = at.group == 0 && at.warp == turn % warps;
      if (writes) put_columns(trace.d_update + value_at, du, at, d_v);
      const float gain = *token.b;
#pragma unroll
      for (int c = 0; c < Width; ++c) du[c] *= gain;
      if (writes && back.d_v != nullptr) {
        put_columns(static_cast<Format*>(back.d_v) + value_at, du, at, d_v);
      }
      const Eight decay(token.decay + at.row), q(token.q + at.row), e(token.e + at.row);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < Width; ++c) {
          s[r][c] += q.x[r] * d_o[c];
          if constexpr (Delta) s[r][c] -= e.x[r] * du[c];
          s[r][c] *= decay.x[r];
        }
      }
      ++turn;
    }
    if (next > 0) {
      side ^= 1;
      feed.store(stages + side * stage_floats, keys, next);
      __syncthreads();
    }
    count = next > 0 ? next : count;
  }
  if (back.d_initial != nullptr) {
    store_state(back.d_initial + state_at, s, at, call.d_k, d_v, aligned);
  }
}

}  // namespace rankone::recurrence::cuda
