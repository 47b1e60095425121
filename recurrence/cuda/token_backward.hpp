#pragma once

// The reverse recurrence, a few tokens at a time from the last (token.hpp): the gradient Gr of the
// state in registers. It needs no state of the way forward.

#include "recurrence/cuda/token_forward.hpp"

namespace rankone::recurrence::cuda {

// What the way back leaves for the gradients of the chunks.
struct BackTrace {
  float* d_update = nullptr;  // [R, HV, V]: du
  float* d_states = nullptr;  // as Trace::states: dL/dS at the end of each chunk
  int chunk = 32;
};

template <int Warps, int Rows, int Tokens>
constexpr std::size_t kBackwardBytes = sizeof(float) * (2 * Block<Warps, Rows, Tokens>::kFloats +
                                                        2 * Partial<Warps, 4 * Tokens>::kFloats);

// Writes d_v and d_initial too. Tokens are taken from multiples of it, counted from the first of
// the sequence; the chunk of the trace is a multiple of Tokens.
template <class Format, int Warps, int Rows, int Tokens>
__global__ void __launch_bounds__(32 * Warps)
    backward_kernel(const TwoKeyCall call, const TwoKeyBack back, const Split split,
                    const BackTrace trace) {
  using B = Block<Warps, Rows, Tokens>;
  using Sums = Partial<Warps, Tokens * kWidth>;
  const Place at(split, Rows);
  const int d_v = call.d_v;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v);
  float s[Rows][kWidth], rest[Rows][kWidth];  // Gr
  load_state(s, back.d_final == nullptr ? nullptr : back.d_final + state_at, at, call.d_k, d_v);
#pragma unroll
  for (auto& row : rest) row[0] = row[1] = row[2] = row[3] = 0.0F;

  auto* stages = reinterpret_cast<float*>(shared_memory());
  float* partials = stages + 2 * B::kFloats;
  const std::int64_t begin = call.rows.begin(at.sequence), end = call.rows.end(at.sequence);
  Feed<Format, Warps, Rows, Tokens> feed(call, back.d_o, at, end - 1, -1);
  std::int64_t left = end - begin;  // tokens, those of the block included
  int count = left == 0 ? 0 : static_cast<int>((left - 1) % Tokens) + 1, turn = 0;
  if (count > 0) {
    feed.load(count);
    feed.store(stages, count);
    __syncthreads();
  }
  while (count > 0) {
    const int next = left > count ? Tokens : 0;
    if (next > 0) feed.load(next);
    const B block(stages + turn * B::kFloats);
    if (begin + left == end || left % trace.chunk == 0) {
      const std::int64_t chunk =
          first_chunk(call.rows, at.sequence, trace.chunk) + (left - 1) / trace.chunk;
      put_transposed(trace.d_states + (chunk * call.value_heads + at.head) * d_v *
                                          static_cast<std::int64_t>(B::kKeys),
                     s, at, B::kKeys, d_v);
    }
    float sums[Tokens * kWidth];  // Gr^T w-
#pragma unroll
    for (int i = 0; i < Tokens * kWidth; ++i) sums[i] = 0.0F;
    add_reads<Tokens, 0>(sums, s, block.write, B::kKeys, at);
    const Sums partial{partials + turn * Sums::kFloats};
    partial.put(sums, at);
    __syncthreads();

    // The tokens lie at the end of the block: token i is row begin + left - Tokens + i.
    const std::int64_t value_at =
        ((begin + left - Tokens) * call.value_heads + at.head) * d_v + at.column + at.group;
    const bool has_column = at.column + at.group < d_v;
    float d_v_[Tokens][kWidth], d_o[Tokens][kWidth];
#pragma unroll
    for (int i = Tokens - 1; i >= 0; --i) {
      const float4 o = *reinterpret_cast<const float4*>(block.values + i * kColumns + at.inside);
      d_o[i][0] = call.scale * o.x, d_o[i][1] = call.scale * o.y;
      d_o[i][2] = call.scale * o.z, d_o[i][3] = call.scale * o.w;
      partial.get(d_v_[i], i, at);
#pragma unroll
      for (int l = Tokens - 1; l >= i; --l) {
        const float seen = block.seen(l, i);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) d_v_[i][c] += seen * d_o[l][c];
        if (l == i) continue;
        const float read = block.read(l, i);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) d_v_[i][c] -= read * d_v_[l][c];
      }
      const bool writes = has_column && i >= Tokens - count && at.warp == i % Warps;
      const std::int64_t out = value_at + i * call.value_heads * d_v;
      if (writes) trace.d_update[out] = own_column(d_v_[i], at);
      const float gain = block.gains[i];
#pragma unroll
      for (int c = 0; c < kWidth; ++c) d_v_[i][c] *= gain;
      if (writes && back.d_v != nullptr) {
        static_cast<Format*>(back.d_v)[out] = narrow<Format>(own_column(d_v_[i], at));
      }
    }
#pragma unroll
    for (int r = 0; r < Rows; r += 4) {
      float added[4][kWidth] = {};
      add_writes<Tokens, Rows>(added, block.query, B::kKeys, r, d_o, 1.0F, at);
      add_writes<Tokens, Rows>(added, block.erase, B::kKeys, r, d_v_, -1.0F, at);
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
    left -= count;
    turn ^= 1;
    if (next > 0) {
      feed.store(stages + turn * B::kFloats, next);
      __syncthreads();
    }
    count = next;
  }
  if (back.d_initial != nullptr) {
    store_state(back.d_initial + state_at, s, at, call.d_k, d_v);
  }
}

}  // namespace rankone::recurrence::cuda
