#pragma once

// The recurrence forward, token by token (recurrence.hpp has the equations): what decode and the
// sizes and formats without a chunk kernel run, and the first pass of the gradients.
//
// With S~ the decayed state, o = scale (S~^T q + (q . w) u), so that all sums over d_k are taken at
// once and a token costs one barrier.

#include "recurrence/cuda/token.hpp"

namespace rankone::recurrence::cuda {

// What the way back needs of the way forward.
struct Trace {
  float* residual = nullptr;  // [R, HV, V]: v - S~^T e
  // The state at the start of each chunk of `chunk` rows, [chunks, HV, V, keys]: transposed, keys =
  // 32 warps_of(call).
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
__device__ __forceinline__ void put_transposed(float* state, const float (&s)[kRows][kWidth],
                                               const Place& at, int keys, int d_v) {
#pragma unroll
  for (int c = 0; c < kWidth; ++c) {
    if (at.column + c >= d_v) continue;
    float* to = state + static_cast<std::int64_t>(at.column + c) * keys + at.row;
    *reinterpret_cast<float4*>(to) = make_float4(s[0][c], s[1][c], s[2][c], s[3][c]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(s[4][c], s[5][c], s[6][c], s[7][c]);
  }
}

enum class Pass : std::uint8_t {
  one_token,  // per sequence of a dense call
  tokens,
  traced,  // no output: for the gradients
};

// Shared memory of forward_kernel: two stages of tokens, two sets of partial sums.
template <int Warps, int Tokens>
constexpr std::size_t kForwardBytes = sizeof(float) * (2 * Tokens * TokenView<Warps>::kSize +
                                                       2 * Partial<Warps, 8>::kFloats);

// Format of the inputs, Store of the states. Vector: d_v is a multiple of four and the states are
// aligned to 16 bytes.
template <class Format, class Store, int Warps, int Tokens, Pass kPass, bool Vector>
__global__ void __launch_bounds__(32 * Warps)
    forward_kernel(const TwoKeyCall call, const Split split, const Trace trace) {
  constexpr bool kTraced = kPass == Pass::traced, kOne = kPass == Pass::one_token;
  constexpr int kSums = kTraced ? kWidth : 2 * kWidth;
  constexpr int kStage = Tokens * TokenView<Warps>::kSize;
  const Place at(split);
  const int d_v = call.d_v;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v);
  const auto* initial = reinterpret_cast<const Store*>(call.initial_state);
  auto* last = reinterpret_cast<Store*>(call.final_state);
  float s[kRows][kWidth];
  load_state<Vector>(s, initial == nullptr ? nullptr : initial + state_at, at, call.d_k, d_v);

  auto* stages = reinterpret_cast<float*>(shared_memory());
  float* partials = stages + 2 * kStage;
  const std::int64_t begin = kOne ? at.sequence : call.rows.begin(at.sequence);
  const std::int64_t end = kOne ? begin + 1 : call.rows.end(at.sequence);
  const auto up_to = [&](std::int64_t left) {
    return static_cast<int>(left < Tokens ? left : Tokens);
  };
  Feed<Format, Warps, Tokens> feed(call, call.v, at, begin, 1);
  std::int64_t left = end - begin;
  int count = kOne ? 1 : up_to(left);
  if (count > 0) {
    feed.load(count);
    feed.store(stages, count);
    __syncthreads();
  }
  std::int64_t row = begin;
  std::int64_t value_at = (row * call.value_heads + at.head) * d_v + at.column + at.group;
  const bool has_column = at.column + at.group < d_v;
  int side = 0, turn = 0;
  while (count > 0) {
    left -= count;
    const int next = kOne ? 0 : up_to(left);
    if (next > 0) feed.load(next);
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const TokenView<Warps> token(stages + side * kStage + t * TokenView<Warps>::kSize);
      if constexpr (kTraced) {
        const auto done = row - begin;
        if (done % trace.chunk == 0) {
          const std::int64_t chunk =
              first_chunk(call.rows, at.sequence, trace.chunk) + done / trace.chunk;
          put_transposed(trace.states + (chunk * call.value_heads + at.head) * d_v *
                                            static_cast<std::int64_t>(32 * Warps),
                         s, at, 32 * Warps, d_v);
        }
      }
      float sums[kSums], qw = 0.0F;  // S~^T e, S~^T q; q . w
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] = 0.0F;
      const Eight w(token.w + at.row);
      {
        const Eight decay(token.decay + at.row), e(token.e + at.row), q(token.q + at.row);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          qw += q.x[r] * w.x[r];
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            s[r][c] *= decay.x[r];
            sums[c] += s[r][c] * e.x[r];
            if constexpr (!kTraced) sums[kWidth + c] += s[r][c] * q.x[r];
          }
        }
      }
      const Partial<Warps, kSums> partial(partials + turn * Partial<Warps, kSums>::kFloats);
      partial.put(sums, qw, at);
      __syncthreads();
      float u[kWidth];
      partial.get(u, 0, at);
      const float4 v = *reinterpret_cast<const float4*>(token.v + at.inside);
      u[0] = v.x - u[0], u[1] = v.y - u[1], u[2] = v.z - u[2], u[3] = v.w - u[3];
      const bool writes = has_column && at.warp == (kOne ? 0 : t % Warps);
      if constexpr (kTraced) {
        if (writes) trace.residual[value_at] = own_column(u, at);
      }
      const float gain = *token.b;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) u[c] *= gain;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) s[r][c] += w.x[r] * u[c];
      }
      if constexpr (!kTraced) {
        if (writes && call.o != nullptr) {
          const float seen = partial.get_one(1, at.inside + at.group);
          const float o = call.scale * (seen + partial.get_number() * own_column(u, at));
          static_cast<Format*>(call.o)[value_at] = narrow<Format>(o);
        }
      }
      ++row;
      value_at += call.value_heads * d_v;
      turn ^= 1;
    }
    if (next > 0) {
      side ^= 1;
      feed.store(stages + side * kStage, next);
      __syncthreads();
    }
    count = next;
  }
  if (last != nullptr) store_state<Vector>(last + state_at, s, at, call.d_k, d_v);
}

}  // namespace rankone::recurrence::cuda
