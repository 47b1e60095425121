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

template <int Warps, int Tokens>
constexpr std::size_t kBackwardBytes = sizeof(float) * (2 * Tokens * TokenView<Warps>::kSize +
                                                        2 * Partial<Warps, 4>::kFloats);

// Writes d_v and d_initial too.
template <class Format, int Warps, int Tokens>
__global__ void __launch_bounds__(32 * Warps)
    backward_kernel(const TwoKeyCall call, const TwoKeyBack back, const Split split,
                    const BackTrace trace) {
  constexpr int kStage = Tokens * TokenView<Warps>::kSize;
  using Sums = Partial<Warps, kWidth>;
  const Place at(split);
  const int d_v = call.d_v;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v);
  float s[kRows][kWidth];  // Gr
  load_state<false>(s, back.d_final == nullptr ? nullptr : back.d_final + state_at, at, call.d_k,
                    d_v);

  auto* stages = reinterpret_cast<float*>(shared_memory());
  float* partials = stages + 2 * kStage;
  const std::int64_t begin = call.rows.begin(at.sequence), end = call.rows.end(at.sequence);
  const auto up_to = [&](std::int64_t left) {
    return static_cast<int>(left < Tokens ? left : Tokens);
  };
  Feed<Format, Warps, Tokens> feed(call, back.d_o, at, end - 1, -1);
  std::int64_t left = end - begin;
  int count = up_to(left);
  if (count > 0) {
    feed.load(count);
    feed.store(stages, count);
    __syncthreads();
  }
  std::int64_t row = end - 1;
  std::int64_t value_at = (row * call.value_heads + at.head) * d_v + at.column + at.group;
  const bool has_column = at.column + at.group < d_v;
  int side = 0, turn = 0;
  while (count > 0) {
    left -= count;
    const int next = up_to(left);
    if (next > 0) feed.load(next);
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const TokenView<Warps> token(stages + side * kStage + t * TokenView<Warps>::kSize);
      const std::int64_t done = row - begin;
      if (row + 1 == end || (done + 1) % trace.chunk == 0) {
        const std::int64_t chunk =
            first_chunk(call.rows, at.sequence, trace.chunk) + done / trace.chunk;
        put_transposed(trace.d_states + (chunk * call.value_heads + at.head) * d_v *
                                            static_cast<std::int64_t>(32 * Warps),
                       s, at, 32 * Warps, d_v);
      }
      float sums[kWidth] = {0.0F, 0.0F, 0.0F, 0.0F}, qw = 0.0F;  // Gr^T w, before q do^T; q . w
      const Eight q(token.q + at.row);
      {
        const Eight w(token.w + at.row);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          qw += q.x[r] * w.x[r];
#pragma unroll
          for (int c = 0; c < kWidth; ++c) sums[c] += s[r][c] * w.x[r];
        }
      }
      const Sums partial(partials + turn * Sums::kFloats);
      partial.put(sums, qw, at);
      __syncthreads();
      float du[kWidth];
      partial.get(du, 0, at);
      qw = partial.get_number();
      const float4 four = *reinterpret_cast<const float4*>(token.v + at.inside);
      const float d_o[kWidth] = {call.scale * four.x, call.scale * four.y, call.scale * four.z,
                                 call.scale * four.w};
#pragma unroll
      for (int c = 0; c < kWidth; ++c) du[c] += qw * d_o[c];
      const bool writes = has_column && at.warp == t % Warps;
      if (writes) trace.d_update[value_at] = own_column(du, at);
      const float gain = *token.b;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) du[c] *= gain;
      if (writes && back.d_v != nullptr) {
        static_cast<Format*>(back.d_v)[value_at] = narrow<Format>(own_column(du, at));
      }
      const Eight decay(token.decay + at.row), e(token.e + at.row);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          s[r][c] = (s[r][c] + q.x[r] * d_o[c] - e.x[r] * du[c]) * decay.x[r];
        }
      }
      --row;
      value_at -= call.value_heads * d_v;
      turn ^= 1;
    }
    if (next > 0) {
      side ^= 1;
      feed.store(stages + side * kStage, next);
      __syncthreads();
    }
    count = next;
  }
  if (back.d_initial != nullptr) {
    store_state<false>(back.d_initial + state_at, s, at, call.d_k, d_v);
  }
}

}  // namespace rankone::recurrence::cuda
