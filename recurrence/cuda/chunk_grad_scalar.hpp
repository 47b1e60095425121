#pragma once

// The gradients with one log decay per row, or none. With M1 = scale tril(dO U^T) exp(G_i - G_j),
// M2 = - strictly tril(dV U^T) exp(G_i - G_j), and M1' = M1 without its diagonal:
//
//     dq = exp(G) scale dO S^T + M1 w      de = - exp(G) dV S^T + M2 w
//     dw = exp(G_last - G) U dS^T + dw' + diag(M1) q,      dw' = M1'^T q + M2^T e
//     db = dV . U / b^2
//     dg_t = exp(G_last) <S, dS> + sum_{j < t} w_j . (dw without dw' and diagonal)_j
//            + sum_{i >= t} (q . (dq without diagonal) + e . de - w . dw')_i
//
// The last line is the crossing form: what cancels in it are only pairs of the same chunk that do
// not cross t, and both sides have them from the same rounded M1 and M2.

#include "recurrence/cuda/chunk_grad_loop.hpp"

namespace rankone::recurrence::cuda {

template <class Format, class Engine, int Columns, bool Totals>
struct GradScalar {
  using Shared = GradShared<Columns>;
  using Values = typename Shared::Values;
  using Keys = typename Shared::Keys;
  using Sums = GradSums<Columns, false>;
  static constexpr int kAccumulators = Columns / 4, kTiles = Columns / 16;

  const GradCall& call;
  unsigned char* shared;
  GradRows& rows;
  bool gated;           // with d_g
  int half, row, lane;  // of this warp: its columns and its first row
  GradGates gates;
  // Sums over the group.
  float query[Totals ? kAccumulators : 1], erased[Totals ? kAccumulators : 1],
      written[Totals ? kAccumulators : 1];

  __device__ explicit GradScalar(const GradCall& c)
      : call(c),
        shared(shared_memory()),
        rows(*reinterpret_cast<GradRows*>(shared_memory() + Shared::kRows)),
        gated(c.chunk.call.gate == GateKind::scalar && c.back.d_g != nullptr),
        half(static_cast<int>(threadIdx.x / 128)),
        row(static_cast<int>(threadIdx.x / 32 % 4 * 16)),
        lane(static_cast<int>(threadIdx.x % 32)) {}

  // M1' and M2, rounded, as tiles; the diagonal of M1 and what else later steps need of the rows.
  __device__ __forceinline__ void write_interactions(const Sums& sums) const {
    const TwoKeyCall& sizes = call.chunk.call;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + lane / 4 + 8 * j;
      const float high = rows.high[i], low = rows.low[i];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int first = half * 32 + 8 * n + 2 * (lane % 4);
        float seen[2], read[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = first + c;
          const float exponent = high - rows.high[column] + (low - rows.low[column]);
          const float decay = column < i ? exp2_bounded(exponent) : 0.0F;
          const float x = sizes.scale * sums.seen[4 * n + 2 * j + c];
          if (column == i) rows.diagonal[i] = x;
          seen[c] = decay * x;
          read[c] = -decay * sums.read[4 * n + 2 * j + c];
        }
        unsigned char* at = shared + first / 8 * Values::kColumn + i * 16 + lane % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(at + Shared::kSeen) = pack<Format>(seen[0], seen[1]);
        *reinterpret_cast<std::uint32_t*>(at + Shared::kRead) = pack<Format>(read[0], read[1]);
      }
    }
    write_gain_sums(sums.gain, rows);
    const float state = warp_sum(sums.state[0]);
    if (lane == 0) rows.part_state[threadIdx.x / 32] = state;
  }

  // The elements of a key tile that belong to d[4 n + 2 j] and the next.
  __device__ __forceinline__ float2 key(int tile, int n, int j) const {
    return unpack<Format>(*reinterpret_cast<const std::uint32_t*>(
        shared + tile + (half * kTiles + n) * Keys::kColumn + (row + lane / 4 + 8 * j) * 16 +
        lane % 4 * 4));
  }

  // Scales the sums through the states; and w . dw of them, per row.
  __device__ __forceinline__ void scale_states(Sums& sums, float (&write)[2]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + lane / 4 + 8 * j;
      const float in = rows.in[i], out = rows.out[i];
      write[j] = 0.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 w = gated ? key(Shared::kWrite, n, j) : make_float2(0.0F, 0.0F);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = 4 * n + 2 * j + c;
          sums.query[at] *= call.chunk.call.scale * in;
          sums.erase[at] *= -in;
          sums.write[at] *= out;
          write[j] += (c == 0 ? w.x : w.y) * sums.write[at];
        }
      }
    }
  }

  // dq += M1' w, de += M2 w, inner = dw'.
  __device__ __forceinline__ void add_interactions(Sums& sums, float (&inner)[kAccumulators],
                                                   int erase) const {
    const int offset = half * kTiles * Keys::kColumn;
    std::uint32_t seen[4][4], read[4][4], seen_back[4][4], read_back[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_a<Values>(seen[k], shared + Shared::kSeen, row, k);
      load_a_transposed<Values>(seen_back[k], shared + Shared::kSeen, row, k);
      load_a<Values>(read[k], shared + Shared::kRead, row, k);
      load_a_transposed<Values>(read_back[k], shared + Shared::kRead, row, k);
    }
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) inner[i] = 0.0F;
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned char* write = shared + Shared::kWrite + offset;
      multiply_both<Engine, Format, Keys, true>(sums.query, sums.erase, seen[k], read[k], write, k);
      Engine::template multiply<Keys, true>(inner, read_back[k], shared + erase + offset, k, false);
      Engine::template multiply<Keys, true>(inner, seen_back[k], shared + Shared::kQuery + offset,
                                            k, false);
    }
    Engine::commit();
    Engine::template wait<0>();
    Engine::hold(sums.query);
    Engine::hold(sums.erase);
    Engine::hold(inner);
  }

  // The row dots of the crossing form, then what belongs to no decay.
  __device__ __forceinline__ void finish_keys(Sums& sums, const float (&inner)[kAccumulators],
                                              const float (&write)[2], int erase) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + lane / 4 + 8 * j;
      const float diagonal = rows.diagonal[i];
      float cross = 0.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 q = key(Shared::kQuery, n, j), w = key(Shared::kWrite, n, j);
        const float2 e = gated ? key(erase, n, j) : make_float2(0.0F, 0.0F);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = 4 * n + 2 * j + c;
          const float q_c = c == 0 ? q.x : q.y, w_c = c == 0 ? w.x : w.y, e_c = c == 0 ? e.x : e.y;
          cross += q_c * sums.query[at] + e_c * sums.erase[at] - w_c * inner[at];
          sums.query[at] += diagonal * w_c;
          sums.write[at] += inner[at] + diagonal * q_c;
        }
      }
      if (!gated) continue;
      cross = quad_sum(cross);
      const float crossed = quad_sum(write[j]);
      if (lane % 4 == 0) {
        rows.part_cross[half][i] = cross;
        rows.part_write[half][i] = crossed;
      }
    }
  }

  // dg and db, by the first warp, from the partial sums.
  __device__ __forceinline__ void finish_gates(const GradStep& step) const {
    const TwoKeyCall& sizes = call.chunk.call;
    const std::int64_t head = step.value_head(call);
    if (call.back.d_b != nullptr && step.pass == 0) finish_gains(call, step, rows);
    if (!gated) return;
    float state = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) state += rows.part_state[i];
    float before = state * rows.keep;
    float d_g[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // exclusive sums from the start
      const int i = lane + 32 * j;
      float sum = rows.part_write[0][i] + rows.part_write[1][i];
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
      float sum = rows.part_cross[0][i] + rows.part_cross[1][i];
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const float other = __shfl_down_sync(0xffffffffU, sum, delta);
        if (lane + delta < 32) sum += other;
      }
      d_g[j] += behind + sum;
      behind += __shfl_sync(0xffffffffU, sum, 0);
    }
    float* const sums = call.chunk.gate_sums + (step.chunk(call) * sizes.value_heads + head) * 64;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = lane + 32 * j;
      if (step.pass > 0) d_g[j] += sums[i];
      if (step.pass + 1 < call.passes) {
        sums[i] = d_g[j];
      } else if (i < step.span.count) {
        put_gate(call.back.d_g, sizes.g.dtype, (step.span.first + i) * sizes.value_heads + head,
                 d_g[j]);
      }
    }
  }

  __device__ __forceinline__ void store(const GradStep& step, float (&query)[kAccumulators],
                                        float (&erase)[kAccumulators],
                                        float (&write)[kAccumulators]) const {
    const TwoKeyBack& back = call.back;
    if (back.d_q != nullptr) store_keys<Format, Columns>(query, call, step, back.d_q);
    if (call.chunk.call.delta && back.d_e != nullptr) {
      if (back.d_e == back.d_w) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) write[i] += erase[i];
      } else {
        store_keys<Format, Columns>(erase, call, step, back.d_e);
      }
    }
    if (back.d_w != nullptr) store_keys<Format, Columns>(write, call, step, back.d_w);
  }

  // What belongs to one value head, once the sums over value columns are there.
  __device__ __forceinline__ void finish_head(const GradStep& step, Sums& sums) {
    float write[2], inner[kAccumulators];
    const int erase =
        call.chunk.call.delta && !call.chunk.call.same_key ? Shared::kErase : Shared::kWrite;
    write_interactions(sums);
    __syncthreads();
    scale_states(sums, write);
    add_interactions(sums, inner, erase);
    finish_keys(sums, inner, write, erase);
    __syncthreads();
    if (threadIdx.x < 32) finish_gates(step);
    if constexpr (Totals) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) {
        query[i] = sums.query[i] + (step.member > 0 ? query[i] : 0.0F);
        erased[i] = sums.erase[i] + (step.member > 0 ? erased[i] : 0.0F);
        written[i] = sums.write[i] + (step.member > 0 ? written[i] : 0.0F);
      }
      if (step.last_of_pass(call)) store(step, query, erased, written);
    } else {
      store(step, sums.query, sums.erase, sums.write);
    }
  }

  __device__ __forceinline__ void start_head(const GradStep& step) {
    if (threadIdx.x < 32) gates.ask(call, step);
  }
  __device__ __forceinline__ void write_gates() const {
    if (threadIdx.x < 32) gates.write(rows);
  }
};

}  // namespace rankone::recurrence::cuda
