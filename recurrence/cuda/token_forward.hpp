#pragma once

// The recurrence forward, a few tokens at a time (token.hpp): what decode and the sizes and formats
// without a chunk kernel run, and the first pass of the gradients.

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
template <int Rows>
__device__ __forceinline__ void put_transposed(float* state, const float (&s)[Rows][kWidth],
                                               const Place& at, int keys, int d_v) {
#pragma unroll
  for (int c = 0; c < kWidth; ++c) {
    if (at.column + c >= d_v) continue;
    float* to = state + static_cast<std::int64_t>(at.column + c) * keys + at.row;
#pragma unroll
    for (int r = 0; r < Rows; r += 4) {
      *reinterpret_cast<float4*>(to + r) =
          make_float4(s[r][c], s[r + 1][c], s[r + 2][c], s[r + 3][c]);
    }
  }
}

enum class Pass : std::uint8_t {
  tokens,
  traced,  // no output: for the gradients
};

// Shared memory of forward_kernel: two blocks of tokens, two sets of partial sums.
template <int Warps, int Rows, int Tokens>
constexpr std::size_t kForwardBytes = sizeof(float) * (2 * Block<Warps, Rows, Tokens>::kFloats +
                                                       2 * Partial<Warps, 8 * Tokens>::kFloats);

// Format of the inputs, Store of the states. The chunk of a trace is a multiple of Tokens.
template <class Format, class Store, int Warps, int Rows, int Tokens, Pass kPass>
__global__ void __launch_bounds__(32 * Warps)
    forward_kernel(const TwoKeyCall call, const Split split, const Trace trace) {
  constexpr bool kTraced = kPass == Pass::traced;
  constexpr int kSums = (kTraced ? 1 : 2) * Tokens * kWidth;
  using B = Block<Warps, Rows, Tokens>;
  using Sums = Partial<Warps, kSums>;
  const Place at(split, Rows);
  const int d_v = call.d_v;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v);
  const auto* initial = reinterpret_cast<const Store*>(call.initial_state);
  auto* last = reinterpret_cast<Store*>(call.final_state);
  float s[Rows][kWidth], rest[Rows][kWidth];
  load_state(s, initial == nullptr ? nullptr : initial + state_at, at, call.d_k, d_v);
#pragma unroll
  for (auto& row : rest) row[0] = row[1] = row[2] = row[3] = 0.0F;

  auto* stages = reinterpret_cast<float*>(shared_memory());
  float* partials = stages + 2 * B::kFloats;
  const std::int64_t begin = call.rows.begin(at.sequence), end = call.rows.end(at.sequence);
  if (!call.takes(end - begin)) return;
  const auto up_to = [&](std::int64_t left) {
    return static_cast<int>(left < Tokens ? left : Tokens);
  };
  Feed<Format, Warps, Rows, Tokens> feed(call, call.v, at, begin, 1);
  std::int64_t row = begin;
  int count = up_to(end - begin), turn = 0;
  if (count > 0) {
    feed.load(count);
    feed.store(stages, count);
    __syncthreads();
  }
  while (count > 0) {
    const int next = up_to(end - row - count);
    if (next > 0) feed.load(next);
    const B block(stages + turn * B::kFloats);
    if constexpr (kTraced) {
      const std::int64_t done = row - begin;
      if (done % trace.chunk == 0) {
        const std::int64_t chunk =
            first_chunk(call.rows, at.sequence, trace.chunk) + done / trace.chunk;
        put_transposed(trace.states + (chunk * call.value_heads + at.head) * d_v *
                                          static_cast<std::int64_t>(B::kKeys),
                       s, at, B::kKeys, d_v);
      }
    }
    float sums[kSums];  // S^T e~, S^T q~
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0.0F;
    add_reads<Tokens, 0>(sums, s, block.erase, B::kKeys, at);
    if constexpr (!kTraced) add_reads<Tokens, Tokens>(sums, s, block.query, B::kKeys, at);
    const Sums partial{partials + turn * Sums::kFloats};
    partial.put(sums, at);
    __syncthreads();

    float u[Tokens][kWidth];
    const std::int64_t value_at = (row * call.value_heads + at.head) * d_v + at.column + at.group;
    const bool has_column = at.column + at.group < d_v;
#pragma unroll
    for (int i = 0; i < Tokens; ++i) {
      partial.get(u[i], i, at);
      const float4 v = *reinterpret_cast<const float4*>(block.values + i * kColumns + at.inside);
      u[i][0] = v.x - u[i][0], u[i][1] = v.y - u[i][1];
      u[i][2] = v.z - u[i][2], u[i][3] = v.w - u[i][3];
#pragma unroll
      for (int j = 0; j < i; ++j) {
        const float read = block.read(i, j);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) u[i][c] -= read * u[j][c];
      }
      if constexpr (kTraced) {
        if (has_column && i < count && at.warp == i % Warps) {
          trace.residual[value_at + i * call.value_heads * d_v] = own_column(u[i], at);
        }
      }
      const float gain = block.gains[i];
#pragma unroll
      for (int c = 0; c < kWidth; ++c) u[i][c] *= gain;
    }
#pragma unroll
    for (int r = 0; r < Rows; r += 4) {
      float added[4][kWidth] = {};
      add_writes<Tokens, Rows>(added, block.write, B::kKeys, r, u, 1.0F, at);
      const float4 decay = *reinterpret_cast<const float4*>(block.decay + at.row + r);
      const float factor[4] = {decay.x, decay.y, decay.z, decay.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          advance(s[r + i][c], rest[r + i][c], factor[i], added[i][c]);
        }
      }
    }
    if constexpr (!kTraced) {
      if (call.o != nullptr && has_column) {
#pragma unroll
        for (int i = 0; i < Tokens; ++i) {
          if (i >= count || at.warp != i % Warps) continue;
          float o = partial.get_one(Tokens + i, at.inside + at.group);
#pragma unroll
          for (int j = 0; j <= i; ++j) o += block.seen(i, j) * own_column(u[j], at);
          static_cast<Format*>(call.o)[value_at + i * call.value_heads * d_v] =
              narrow<Format>(call.scale * o);
        }
      }
    }
    row += count;
    turn ^= 1;
    if (next > 0) {
      feed.store(stages + turn * B::kFloats, next);
      __syncthreads();
    }
    count = next;
  }
  if (last != nullptr) store_state(last + state_at, s, at, call.d_k, d_v);
}

}  // namespace rankone::recurrence::cuda
