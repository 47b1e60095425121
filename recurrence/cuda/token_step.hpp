#pragma once

// The decode step: one to eight tokens per sequence. A state is read and written once, in tiles of
// 32 columns, all of it on its way before anything else. For several tokens a block takes several
// tiles of one head and has the next one under way while it works on one, so that the tokens'
// inputs are staged once for all of them; one token is quicker with a tile a block. Per token and
// tile, with S~ the decayed state, o = scale (S~^T q + (q . w) u): all sums over d_k are taken at
// once.

#include "recurrence/cuda/token.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kStepRows = 8;  // of a state, per thread

// Shared memory of step_kernel, in floats.
template <int Warps, int Tokens, int Tiles>
struct StepLayout {
  static constexpr int kKeys = 32 * Warps;
  // a q, a e, w, a = exp g; v; b; parts of q . w
  static constexpr int kToken = 4 * kKeys + Tiles * kColumns + 4 + (Warps + 3) / 4 * 4;
  static constexpr int kPartial = Partial<Warps, 2 * kWidth>::kFloats;
  static constexpr std::size_t kBytes = sizeof(float) * (Tokens * kToken + 2 * kPartial);
};

// The inputs of up to Tokens tokens to shared memory, four at a time. `columns` of the values.
template <class Format, int Warps, int Tokens, int Tiles>
__device__ __forceinline__ void stage_tokens(const TwoKeyCall& call, const Place& at,
                                             std::int64_t row, int count, int columns,
                                             float* stage) {
  using L = StepLayout<Warps, Tokens, Tiles>;
  constexpr int kBatch = Tokens < 4 ? Tokens : 4;
  constexpr int kParts = (Tiles + Warps - 1) / Warps;
  const bool has_key = at.thread < call.d_k;
  const int channel = has_key ? at.thread : 0;
  const int gates = call.gate == GateKind::channel ? call.d_k : 1;
  const int gate_channel = gates > 1 ? channel : 0;
  const auto* q_from = static_cast<const Format*>(call.q);
  const auto* w_from = static_cast<const Format*>(call.w);
  const auto* e_from = call.delta ? static_cast<const Format*>(call.e) : w_from;
  const auto* v_from = static_cast<const Format*>(call.v) + at.first;
  for (int first = 0; first < count; first += kBatch) {
    Format q[kBatch], e[kBatch], w[kBatch], v[kBatch][kParts];
    std::uint32_t g[kBatch], b[kBatch];
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      const std::int64_t here = row + (first + t < count ? first + t : count - 1);
      const std::int64_t gain = here * call.value_heads + at.head;
      const std::int64_t key = (here * call.heads + at.key_head) * call.d_k + channel;
      q[t] = q_from[key];
      w[t] = w_from[key];
      e[t] = e_from[key];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int column = at.thread + part * 32 * Warps;
        v[t][part] = v_from[gain * call.d_v + (column < columns ? column : 0)];
      }
      g[t] = b[t] = 0;
      if (call.gate != GateKind::none) g[t] = gate_bits(call.g, gain * gates + gate_channel);
      if (call.b.data != nullptr) b[t] = gate_bits(call.b, gain);
    }
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      if (first + t >= count) break;
      float* token = stage + (first + t) * L::kToken + at.thread;
      const float query = has_key ? widen(q[t]) : 0.0F, write = has_key ? widen(w[t]) : 0.0F;
      const float erase = has_key && call.delta ? widen(e[t]) : 0.0F;
      float decay = 1.0F;
      if (call.gate != GateKind::none) decay = token_decay(gate_value(call.g.dtype, g[t]));
      token[0] = decay * query;
      token[L::kKeys] = decay * erase;
      token[2 * L::kKeys] = write;
      token[3 * L::kKeys] = decay;
      float seen[1] = {query * write};
      sum_lanes(seen, at.lane);
      if (at.lane == 0) {
        stage[(first + t) * L::kToken + 4 * L::kKeys + Tiles * kColumns + 4 + at.warp] = seen[0];
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int column = at.thread + part * 32 * Warps;
        if (column < Tiles * kColumns) {
          token[4 * L::kKeys + part * 32 * Warps] = column < columns ? widen(v[t][part]) : 0.0F;
        }
      }
      if (at.thread == 0) {
        token[4 * L::kKeys + Tiles * kColumns] =
            call.b.data != nullptr ? gate_value(call.b.dtype, b[t]) : 1.0F;
      }
    }
  }
}

// Four elements of a state as they lie in memory.
template <class Store>
using Word = std::conditional_t<std::is_same_v<Store, float>, float4, uint2>;

__device__ __forceinline__ void widen_word(float (&to)[kWidth], const float4& word) {
  to[0] = word.x, to[1] = word.y, to[2] = word.z, to[3] = word.w;
}
__device__ __forceinline__ void widen_word(float (&to)[kWidth], const uint2& word) {
  const float2 low = unpack<bf16>(word.x), high = unpack<bf16>(word.y);
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}

// One token on the thread's part of a state. Leaves o in the memory of the call.
template <class Format, int Warps, int Tokens, int Tiles>
__device__ __forceinline__ void step_token(float (&s)[kStepRows][kWidth], const float* token,
                                           float* partial, const TwoKeyCall& call, const Place& at,
                                           std::int64_t row, int tile, bool writes) {
  using L = StepLayout<Warps, Tokens, Tiles>;
  float sums[2 * kWidth] = {};  // S^T (a e), S^T (a q)
#pragma unroll
  for (int r = 0; r < kStepRows; r += 4) {
    const float4 q4 = *reinterpret_cast<const float4*>(token + at.row + r);
    const float4 e4 = *reinterpret_cast<const float4*>(token + L::kKeys + at.row + r);
    const float q[4] = {q4.x, q4.y, q4.z, q4.w}, e[4] = {e4.x, e4.y, e4.z, e4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        sums[c] += s[r + i][c] * e[i];
        sums[kWidth + c] += s[r + i][c] * q[i];
      }
    }
  }
  const Partial<Warps, 2 * kWidth> columns{partial};
  columns.put(sums, at);
  __syncthreads();

  float u[kWidth];
  columns.get(u, 0, at);
  const float* values = token + 4 * L::kKeys;
  const float4 v = *reinterpret_cast<const float4*>(values + tile * kColumns + at.inside);
  const float gain = values[Tiles * kColumns];
  u[0] = gain * (v.x - u[0]), u[1] = gain * (v.y - u[1]);
  u[2] = gain * (v.z - u[2]), u[3] = gain * (v.w - u[3]);
#pragma unroll
  for (int r = 0; r < kStepRows; r += 4) {
    const float4 w4 = *reinterpret_cast<const float4*>(token + 2 * L::kKeys + at.row + r);
    const float4 a4 = *reinterpret_cast<const float4*>(token + 3 * L::kKeys + at.row + r);
    const float w[4] = {w4.x, w4.y, w4.z, w4.w}, a[4] = {a4.x, a4.y, a4.z, a4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) s[r + i][c] = a[i] * s[r + i][c] + w[i] * u[c];
    }
  }
  const int column = at.column + tile * kColumns + at.group;
  if (!writes || column >= call.d_v || call.o == nullptr) return;
  float o = columns.get_one(1, at.inside + at.group), seen = 0.0F;
#pragma unroll
  for (int warp = 0; warp < Warps; ++warp) seen += values[Tiles * kColumns + 4 + warp];
  o = call.scale * (o + seen * own_column(u, at));
  static_cast<Format*>(call.o)[(row * call.value_heads + at.head) * call.d_v + column] =
      narrow<Format>(o);
}

// Warps that a multiprocessor should hold at once, which bounds the registers: measured
// (docs/kernel-notes.md).
template <class Store, int Tiles>
inline constexpr int kStepWarps = Tiles > 1                      ? 16
                                  : std::is_same_v<Store, float> ? 32
                                                                 : 28;

// Grid: sequences, value heads, and split.tiles parts of `most_tiles` tiles, at most Tiles. d_v is
// a multiple of four, the states are aligned to 16 bytes, no sequence has more than Tokens tokens;
// where that is one, the call is dense and each has one.
template <class Format, class Store, int Warps, int Tokens, int Tiles>
__global__ void __launch_bounds__(32 * Warps, kStepWarps<Store, Tiles> / Warps)
    step_kernel(const TwoKeyCall call, const Split split, const int most_tiles) {
  using L = StepLayout<Warps, Tokens, Tiles>;
  Place at(split, kStepRows);
  const int tiles = Tiles == 1 ? 1 : most_tiles;
  at.first *= tiles;
  at.column = at.first + at.inside;
  const int d_v = call.d_v;
  const int left = d_v - at.first, columns = left < tiles * kColumns ? left : tiles * kColumns;
  const std::int64_t state_at =
      (at.sequence * call.value_heads + at.head) * call.d_k * static_cast<std::int64_t>(d_v) +
      static_cast<std::int64_t>(at.row) * d_v + at.column;
  const auto* initial = reinterpret_cast<const Store*>(call.initial_state);
  auto* last = reinterpret_cast<Store*>(call.final_state);
  const Store* from = initial == nullptr ? nullptr : initial + state_at;
  const int rows = call.d_k - at.row;  // of the thread, where less than kStepRows

  Word<Store> words[kStepRows];
  const auto fetch = [&](int tile) {
    const bool valid = from != nullptr && tile * kColumns + at.column < d_v;
#pragma unroll
    for (int r = 0; r < kStepRows; ++r) {
      words[r] = Word<Store>{};
      if (valid && r < rows) {
        words[r] = *reinterpret_cast<const Word<Store>*>(from + r * d_v + tile * kColumns);
      }
    }
  };
  fetch(0);
  const std::int64_t begin = Tokens == 1 ? at.sequence : call.rows.begin(at.sequence);
  const std::int64_t length = Tokens == 1 ? 1 : call.rows.end(at.sequence) - begin;
  if (!call.takes(length)) return;
  const int count = Tokens == 1 ? 1 : static_cast<int>(length);
  auto* stage = reinterpret_cast<float*>(shared_memory());
  float* partials = stage + Tokens * L::kToken;
  stage_tokens<Format, Warps, Tokens, Tiles>(call, at, begin, count, columns, stage);
  __syncthreads();

  int turn = 0;
#pragma unroll 1
  for (int tile = 0; tile == 0 || (Tiles > 1 && tile * kColumns < columns); ++tile) {
    float s[kStepRows][kWidth];
#pragma unroll
    for (int r = 0; r < kStepRows; ++r) widen_word(s[r], words[r]);
    if (Tiles > 1 && (tile + 1) * kColumns < columns) fetch(tile + 1);
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      step_token<Format, Warps, Tokens, Tiles>(s, stage + t * L::kToken,
                                               partials + turn * L::kPartial, call, at, begin + t,
                                               tile, at.warp == (tile + t) % Warps);
      turn ^= 1;
    }
    if (last == nullptr || tile * kColumns + at.column >= d_v) continue;
    Store* to = last + state_at + tile * kColumns;
#pragma unroll
    for (int r = 0; r < kStepRows; ++r) {
      if (r >= rows) continue;
      if constexpr (std::is_same_v<Store, float>) {
        *reinterpret_cast<float4*>(to + r * d_v) = make_float4(s[r][0], s[r][1], s[r][2], s[r][3]);
      } else {
        *reinterpret_cast<uint2*>(to + r * d_v) =
            make_uint2(pack<Store>(s[r][0], s[r][1]), pack<Store>(s[r][2], s[r][3]));
      }
    }
  }
}

}  // namespace rankone::recurrence::cuda
