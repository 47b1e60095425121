#pragma once

// The recurrence forward, token by token (recurrence.hpp has the equations): what decode and the
// sizes and formats without a chunk kernel run, and the first pass of the gradients.
//
// With S~ the decayed state, o = scale (S~^T q + (q . w) u), so that both sums over d_k are taken
// at once and a token costs one barrier.

#include "recurrence/cuda/token.hpp"

namespace rankone::recurrence::cuda {

// What the way back needs of the way forward.
struct Trace {
  float* residual = nullptr;  // [R, HV, V]: v - S~^T e
  // The state at the start of each chunk of `chunk` rows, [chunks, HV, V, keys]: transposed, keys =
  // d_k rounded up to a multiple of 32.
  float* states = nullptr;
  int chunk = 32;
};

// The number of the first chunk of `chunk` rows of a sequence; some numbers stay unused where
// rows.chunk, a multiple of it, is longer.
__device__ __forceinline__ std::int64_t first_chunk(const Rows& rows, std::int64_t sequence,
                                                    int chunk) {
  return rows.first_chunk(sequence) * (rows.chunk / chunk);
}

// Writes the thread's part of a state as [V, keys].
template <int Width>
__device__ __forceinline__ void put_transposed(float* state, const float (&s)[kRows][Width],
                                               const Place<Width>& at, int keys, int d_v) {
#pragma unroll
  for (int c = 0; c < Width; ++c) {
    if (at.column + c >= d_v) continue;
    float* to = state + static_cast<std::int64_t>(at.column + c) * keys + at.row;
    *reinterpret_cast<float4*>(to) = make_float4(s[0][c], s[1][c], s[2][c], s[3][c]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(s[4][c], s[5][c], s[6][c], s[7][c]);
  }
}

// Of forward_kernel, in floats: two stages of tokens, two sets of partial sums.
template <int Width, int Tokens>
int forward_floats(int warps) {
  return 2 * Tokens * TokenView::size(32 * warps, 8 * Width) + 2 * warps * 16 * Width;
}

// Format of the inputs, Store of the states. Grid: split_of(call, 8 * Width).
template <class Format, class Store, int Width, int Tokens, bool Delta, bool Traced>
__global__ void __launch_bounds__(256)
    forward_kernel(const TwoKeyCall call, const Split split, const Trace trace) {
  constexpr int kColumns = Place<Width>::kColumns;
  constexpr int kSums = 2 * Width;
  const Place<Width> at(split);
  const int d_v = call.d_v, warps = split.warps, keys = 32 * warps;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v);
  const auto* initial = reinterpret_cast<const Store*>(call.initial_state);
  auto* last = reinterpret_cast<Store*>(call.final_state);
  const bool aligned =
      d_v % Width == 0 &&
      (reinterpret_cast<std::uintptr_t>(initial) | reinterpret_cast<std::uintptr_t>(last)) % 16 ==
          0;

  float s[kRows][Width];
  load_state(s, initial == nullptr ? nullptr : initial + state_at, at, call.d_k, d_v, aligned);

  const int stage_floats = Tokens * TokenView::size(keys, kColumns);
  auto* stages = reinterpret_cast<float*>(shared_memory());
  float* partial = stages + 2 * stage_floats;
  const std::int64_t begin = call.rows.begin(at.sequence), end = call.rows.end(at.sequence);
  const auto up_to = [&](std::int64_t row) {
    return static_cast<int>(end - row < Tokens ? end - row : Tokens);
  };

  Feed<Format, Tokens, Width> feed(call, call.v, at);
  int count = up_to(begin);
  feed.load(begin, 1, count);
  feed.store(stages, keys, count);
  __syncthreads();

  int side = 0, turn = 0;
  for (std::int64_t block = begin; block < end; block += Tokens) {
    const int next = block + count < end ? up_to(block + count) : 0;
    feed.load(block + count, 1, next);
    for (int t = 0; t < count; ++t) {
      const std::int64_t row = block + t;
      const TokenView token(stages + side * stage_floats + t * TokenView::size(keys, kColumns),
                            keys, kColumns);
      if constexpr (Traced) {
        const std::int64_t done = row - begin;
        if (done % trace.chunk == 0) {
          const std::int64_t chunk =
              first_chunk(call.rows, at.sequence, trace.chunk) + done / trace.chunk;
          put_transposed(trace.states + (chunk * call.value_heads + at.head) * d_v *
                                            static_cast<std::int64_t>(keys),
                         s, at, keys, d_v);
        }
      }
      float sums[kSums];  // S~^T e, S~^T q
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] = 0.0F;
      const Eight decay(token.decay + at.row);
      {
        const Eight e(token.e + at.row), q(token.q + at.row);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < Width; ++c) {
            s[r][c] *= decay.x[r];
            if constexpr (Delta) sums[c] += s[r][c] * e.x[r];
            if constexpr (!Traced) sums[Width + c] += s[r][c] * q.x[r];
          }
        }
      }
      float* mine = partial + turn % 2 * (warps * kSums * 8);
      float u[Width];
      if constexpr (Delta || !Traced) {
        put_sums<Width, kSums>(mine, sums, at);
        __syncthreads();
      }
      if constexpr (Delta) {
        get_sums<Width, kSums>(u, mine, 0, warps, at);
      } else {
#pragma unroll
        for (int c = 0; c < Width; ++c) u[c] = 0.0F;
      }
#pragma unroll
      for (int c = 0; c < Width; ++c) u[c] = token.v[at.inside + c] - u[c];
      const std::int64_t value_at = (row * call.value_heads + at.head) * d_v + at.column;
      const bool writes = at.group == 0 && at.warp == turn % warps;
      if constexpr (Traced) {
        if (writes) put_columns(trace.residual + value_at, u, at, d_v);
      }
      const float gain = *token.b;
#pragma unroll
      for (int c = 0; c < Width; ++c) u[c] *= gain;
      {
        const Eight w(token.w + at.row);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < Width; ++c) s[r][c] += w.x[r] * u[c];
        }
      }
      if constexpr (!Traced) {
        if (writes && call.o != nullptr) {
          float o[Width], qw = 0.0F;
          get_sums<Width, kSums>(o, mine, 1, warps, at);
          for (int warp = 0; warp < warps; ++warp) qw += token.qw[warp];
#pragma unroll
          for (int c = 0; c < Width; ++c) o[c] = call.scale * (o[c] + qw * u[c]);
          put_columns(static_cast<Format*>(call.o) + value_at, o, at, d_v);
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
  if (last != nullptr) store_state(last + state_at, s, at, call.d_k, d_v, aligned);
}

}  // namespace rankone::recurrence::cuda
