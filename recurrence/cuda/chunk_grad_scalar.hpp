#pragma once

// The gradients with one log decay per row, or none. With M1 = scale tril(dO Z^T) exp(G_i - G_j),
// M2 = - strictly tril(dV Z^T) exp(G_i - G_j), and M1' = M1 without its diagonal:
//
//     dq = exp(G) scale dO S^T + M1 b w      de = - exp(G) dV S^T + M2 b w
//     dw = b (dW + dw' + diag(M1) q),        dW = exp(G_last - G) Z dS^T,  dw' = M1'^T q + M2^T e
//     db = w . dw / b (without the division)
//     dg_t = exp(G_last) <S, dS> + sum_{j < t} b w_j . dW_j
//            + sum_{i >= t} (q . (dq without diagonal) + e . de - b w . dw')_i
//
// The last line is the crossing form: what cancels in it are only pairs of the same chunk that do
// not cross t.

#include "recurrence/cuda/chunk_grad_loop.hpp"

namespace rankone::recurrence::cuda {

template <class Format, class Engine, int Columns, bool Totals>
struct GradScalar {
  using Shared = GradShared<Columns>;
  using Values = typename Shared::Values;
  using Keys = typename Shared::Keys;
  using Sums = GradSums<Columns, false>;
  static constexpr int kAccumulators = Columns / 2, kTiles = Columns / 8;

  const GradCall& call;
  unsigned char* shared;
  GradRows& rows;
  bool gated;                               // with d_g
  int group, row, lane;                     // of this warp: its first row
  float total[Totals ? kAccumulators : 1];  // over the value heads of the group

  __device__ explicit GradScalar(const GradCall& c)
      : call(c),
        shared(shared_memory()),
        rows(*reinterpret_cast<GradRows*>(shared_memory() + Shared::kRows)),
        gated(c.chunk.call.gate == GateKind::scalar && c.back.d_g != nullptr),
        group(grad_group()),
        row(static_cast<int>(threadIdx.x / 32 % 4 * 16)),
        lane(static_cast<int>(threadIdx.x % 32)) {}

  __device__ __forceinline__ void start_head(const GradStep&) {}

  // M1' or M2, rounded: with b as left sides, with its mantissa alone as a tile for the third group
  // (who must come to w . dw / b for a b of zero too): so both are rounded alike, and the sums over
  // pairs cancel in dg. And the diagonal of M1.
  __device__ __forceinline__ void write_interactions(const Sums& sums,
                                                     std::uint32_t (&m)[4][4]) const {
    const float factor = group == 0 ? call.chunk.call.scale : -1.0F;
    unsigned char* const tile = shared + (group == 0 ? Shared::kSeen : Shared::kRead);
    const int own = row + lane / 4;
    const float high[2] = {rows.high[own], rows.high[own + 8]};
    const float low[2] = {rows.low[own], rows.low[own + 8]};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int first = 8 * n + 2 * (lane % 4);
      const auto pair = [first](const float* of) {
        return *reinterpret_cast<const float2*>(of + first);
      };
      const float2 highs = pair(rows.high), lows = pair(rows.low);
      const float2 gains = pair(rows.gain), mantissas = pair(rows.mantissa);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = own + 8 * j;
        const float x = factor * sums.inner[4 * n + 2 * j];
        const float y = factor * sums.inner[4 * n + 2 * j + 1];
        if (group == 0 && first == i) rows.diagonal[i] = x;
        if (group == 0 && first + 1 == i) rows.diagonal[i] = y;
        const float decay_x = exp2_bounded(high[j] - highs.x + (low[j] - lows.x));
        const float decay_y = exp2_bounded(high[j] - highs.y + (low[j] - lows.y));
        const float left = first < i ? decay_x * x : 0.0F;
        const float right = first + 1 < i ? decay_y * y : 0.0F;
        m[n / 2][n % 2 * 2 + j] = pack<Format>(gains.x * left, gains.y * right);
        *reinterpret_cast<std::uint32_t*>(tile + Values::place(i, n) + lane % 4 * 4) =
            pack<Format>(mantissas.x * left, mantissas.y * right);
      }
    }
    if (!gated) return;
    const float state = warp_sum(sums.state[0]);
    if (lane == 0) rows.part_state[threadIdx.x / 32] = state;
  }

  // The elements of a key tile that belong to d[4 n + 2 j] and the next.
  __device__ __forceinline__ float2 key(int tile, int n, int j) const {
    return unpack<Format>(*reinterpret_cast<const std::uint32_t*>(
        shared + tile + Keys::place(row + lane / 4 + 8 * j, n) + lane % 4 * 4));
  }

  __device__ __forceinline__ void scale_states(Sums& sums) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + lane / 4 + 8 * j;
      const float factor = group == 0   ? call.chunk.call.scale * rows.in[i]
                           : group == 1 ? -rows.in[i]
                                        : rows.out[i];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        sums.through[4 * n + 2 * j] *= factor;
        sums.through[4 * n + 2 * j + 1] *= factor;
      }
    }
  }

  // Per row, the dot product of d with a key.
  __device__ __forceinline__ void write_dots(const float (&d)[kAccumulators], int tile,
                                             float* to) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = 0.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 x = key(tile, n, j);
        sum += x.x * d[4 * n + 2 * j] + x.y * d[4 * n + 2 * j + 1];
      }
      sum = quad_sum(sum);
      if (lane % 4 == 0) to[row + lane / 4 + 8 * j] = sum;
    }
  }

  // dq += diag(M1) b w.
  __device__ __forceinline__ void add_diagonal(float (&d)[kAccumulators]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + lane / 4 + 8 * j;
      const float diagonal = rows.diagonal[i] * rows.gain[i];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 x = key(Shared::kWrite, n, j);
        d[4 * n + 2 * j] += diagonal * x.x;
        d[4 * n + 2 * j + 1] += diagonal * x.y;
      }
    }
  }

  // dq += M1' w or de += M2 w.
  __device__ __forceinline__ void add_writes(Sums& sums, const std::uint32_t (&m)[4][4]) const {
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply<Keys, true>(sums.through, m[k], shared + Shared::kWrite, k, false);
    }
    Engine::commit();
    Engine::template wait<0>();
    Engine::hold(sums.through);
  }

  // dw = b (dw + dw' + diag(M1) q), 64 columns at a time; and w . dw' and w . dw per row.
  __device__ __forceinline__ void add_reads(Sums& sums, int erase) const {
    const bool delta = call.chunk.call.delta;
    float cross[2] = {}, own[2] = {};
#pragma unroll
    for (int half = 0; half < Columns / 64; ++half) {
      float inner[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) inner[i] = 0.0F;
      const auto add = [&](int square, int tile) {
        std::uint32_t m[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) load_a_transposed<Values>(m[k], shared + square, row, k);
        Engine::begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Engine::template multiply<RowTile<64, 64>, true>(
              inner, m[k], shared + tile + half * RowTile<64, 64>::kBytes, k, false);
        }
        Engine::commit();
        Engine::template wait<0>();
        Engine::hold(inner);
      };
      add(Shared::kSeen, Shared::kQuery);
      if (delta) add(Shared::kRead, erase);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float diagonal = rows.diagonal[row + lane / 4 + 8 * j];
        const float gain = rows.gain[row + lane / 4 + 8 * j];
        const float inverse = 1.0F / rows.mantissa[row + lane / 4 + 8 * j];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float2 w = key(Shared::kWrite, 8 * half + n, j);
          const float2 q = key(Shared::kQuery, 8 * half + n, j);
          const int at = 4 * n + 2 * j;
          float* const d = sums.through + 32 * half + at;
          inner[at] *= inverse;
          inner[at + 1] *= inverse;
          cross[j] += w.x * inner[at] + w.y * inner[at + 1];
          d[0] += inner[at] + diagonal * q.x;
          d[1] += inner[at + 1] + diagonal * q.y;
          own[j] += w.x * d[0] + w.y * d[1];
          d[0] *= gain;
          d[1] *= gain;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + lane / 4 + 8 * j;
      const float crossing = quad_sum(cross[j]), whole = quad_sum(own[j]);
      if (lane % 4 != 0) continue;
      rows.part_cross[2][i] = -crossing * rows.gain[i];
      rows.part_gain[0][i] = whole;
      rows.part_gain[1][i] = 0.0F;
    }
  }

  // dg and db, by the ninth warp, from the partial sums.
  __device__ __forceinline__ void finish_gates(const GradStep& step) const {
    const TwoKeyCall& sizes = call.chunk.call;
    const std::int64_t head = step.value_head(call);
    if (call.back.d_b != nullptr) finish_gains(call, step, rows);
    if (!gated) return;
    float state = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) state += rows.part_state[i];
    float before = state * rows.keep;
    float d_g[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // exclusive sums from the start
      const int i = lane + 32 * j;
      float sum = rows.gain[i] * rows.part_write[i];
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const float other = __shfl_up_sync(0xffffffffU, sum, delta);
        if (lane >= delta) sum += other;
      }
      const float exclusive = __shfl_up_sync(0xffffffffU, sum, 1);
      d_g[j] = before + (lane > 0 ? exclusive : 0.0F);
      before += __shfl_sync(0xffffffffU, sum, 31);
    }
    float behind = 0.0F;
#pragma unroll
    for (int j = 1; j >= 0; --j) {  // inclusive sums from the end
      const int i = lane + 32 * j;
      float sum = rows.part_cross[0][i] + rows.part_cross[1][i] + rows.part_cross[2][i];
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const float other = __shfl_down_sync(0xffffffffU, sum, delta);
        if (lane + delta < 32) sum += other;
      }
      d_g[j] += behind + sum;
      behind += __shfl_sync(0xffffffffU, sum, 0);
    }
    float* const sums = sums_between(call, step);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = lane + 32 * j;
      if (step.pass > 0) d_g[j] += sums[i];
      if (step.pass + 1 < call.passes) {
        sums[i] = d_g[j];
      } else if (i < step.item().count) {
        put_gate(call.back.d_g, sizes.g.dtype, (step.item().first + i) * sizes.value_heads + head,
                 d_g[j]);
      }
    }
  }

  __device__ __forceinline__ void put(const float (&d)[kAccumulators], const GradStep& step,
                                      void* to) const {
    store_keys<Format, Columns>(d, call.chunk.call, step.item(), step.pass, to);
  }

  // Of the group's sums; e and w in one where they are one key.
  __device__ __forceinline__ void store(const GradStep& step, float (&d)[kAccumulators]) const {
    const TwoKeyBack& back = call.back;
    const bool delta = call.chunk.call.delta;
    if (group == 0) {
      if (back.d_q != nullptr) put(d, step, back.d_q);
      return;
    }
    if (delta && back.d_e != nullptr && back.d_e == back.d_w) {
      float* const exchange =
          reinterpret_cast<float*>(shared + Shared::kExchange) + threadIdx.x % 128;
      if (group == 1) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) exchange[128 * i] = d[i];
        barrier_arrive(kGradSum, 256);
        return;
      }
      barrier_sync(kGradSum, 256);
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) d[i] += exchange[128 * i];
    }
    void* const to = group == 2 ? back.d_w : delta ? back.d_e : nullptr;
    if (to != nullptr) put(d, step, to);
  }

  template <class KeysRead>
  __device__ __forceinline__ void finish_head(const GradStep& step, Sums& sums,
                                              KeysRead&& keys_read) {
    const TwoKeyCall& sizes = call.chunk.call;
    const int erase = sizes.delta && !sizes.same_key ? Shared::kErase : Shared::kWrite;
    scale_states(sums);
    if (group < 2) {
      std::uint32_t m[4][4];
      write_interactions(sums, m);
      barrier_sync(kGradRows, kGradThreads);
      add_writes(sums, m);
      if (gated) {
        write_dots(sums.through, group == 0 ? Shared::kQuery : erase, rows.part_cross[group]);
      }
      if (group == 0) add_diagonal(sums.through);
      barrier_arrive(kGradParts, kGradThreads);
    } else {
      if (gated) write_dots(sums.through, Shared::kWrite, rows.part_write);
      barrier_sync(kGradRows, kGradThreads);
      add_reads(sums, erase);
      barrier_sync(kGradParts, kGradThreads);
      keys_read();
      if (threadIdx.x / 32 == 10) finish_gates(step);
    }
    if constexpr (Totals) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) {
        total[i] = sums.through[i] + (step.member > 0 ? total[i] : 0.0F);
      }
      if (step.last_of_pass(call)) store(step, total);
    } else {
      store(step, sums.through);
    }
  }
};

}  // namespace rankone::recurrence::cuda
