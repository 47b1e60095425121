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

#include "recurrence/cuda/chunk_grad_parts.hpp"

namespace rankone::recurrence::cuda {

// The decays and gains of a head, by the first warp; two rows (lane, lane + 32) per lane, which it
// asked for earlier.
struct GradGates {
  float g[2], gain[2];

  __device__ __forceinline__ void ask(const GradCall& call, const GradStep& step) {
    const TwoKeyCall& sizes = call.chunk.call;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const std::int64_t head = step.value_head(call);
    const auto* gains = reinterpret_cast<const float*>(call.chunk.record(step.chunk(call), head) +
                                                       call.chunk.layout.gain);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + 32 * i;
      g[i] = sizes.gate == GateKind::scalar && row < step.span.count
                 ? gate_at(sizes.g, (step.span.first + row) * sizes.value_heads + head)
                 : 0.0F;
      gain[i] = gains[row];
    }
  }

  // Sums in double, so that differences are right to float32 for whatever decays come together;
  // beyond -10000 each is the same zero.
  __device__ __forceinline__ void write(GradRows& rows) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    double sum[2];
    double before = 0.0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = static_cast<double>(g[i] < -10000.0F ? -10000.0F : g[i]) * 1.4426950408889634;
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const double other = __shfl_up_sync(0xffffffffU, sum[i], delta);
        if (lane >= delta) sum[i] += other;
      }
      sum[i] += before;
      before = __shfl_sync(0xffffffffU, sum[i], 31);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + 32 * i;
      const float high = static_cast<float>(sum[i]);
      rows.high[row] = high;
      rows.low[row] = static_cast<float>(sum[i] - static_cast<double>(high));
      rows.in[row] = exp2_bounded(static_cast<float>(sum[i]));
      rows.out[row] = exp2_bounded(static_cast<float>(before - sum[i]));
      rows.gain[row] = gain[i];
    }
    if (lane == 0) rows.keep = exp2_bounded(static_cast<float>(before));
  }

  // Finite: a factor of nothing must leave it nothing.
  static __device__ __forceinline__ float exp2_bounded(float x) {
    return exp2_fast(x < 127.0F ? x : 127.0F);
  }
};

template <class Format, class Engine, int Columns, bool Totals>
struct GradScalar {
  using Shared = GradShared<Columns>;
  using Values = typename Shared::Values;
  using Keys = typename Shared::Keys;
  static constexpr int kAccumulators = Columns / 4, kTiles = Columns / 16;

  const GradCall& call;
  unsigned char* shared;
  GradRows& rows;
  int half, row, lane;  // of this warp: its columns and its first row

  __device__ explicit GradScalar(const GradCall& c)
      : call(c),
        shared(shared_memory()),
        rows(*reinterpret_cast<GradRows*>(shared_memory() + Shared::kRows)),
        half(static_cast<int>(threadIdx.x / 128)),
        row(static_cast<int>(threadIdx.x / 32 % 4 * 16)),
        lane(static_cast<int>(threadIdx.x % 32)) {}

  // M1' and M2, rounded, as tiles; the diagonal of M1 and what else later steps need of the rows.
  __device__ __forceinline__ void write_interactions(const GradSums<Columns>& sums) const {
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
          const float decay = column < i ? GradGates::exp2_bounded(exponent) : 0.0F;
          const float x = sizes.scale * sums.seen[4 * n + 2 * j + c];
          if (column == i) rows.diagonal[i] = x;
          seen[c] = decay * x;
          read[c] = -decay * sums.read[4 * n + 2 * j + c];
        }
        unsigned char* at = shared + first / 8 * Values::kColumn + i * 16 + lane % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(at + Shared::kSeen) = pack<Format>(seen[0], seen[1]);
        *reinterpret_cast<std::uint32_t*>(at + Shared::kRead) = pack<Format>(read[0], read[1]);
      }
      const float gain = quad_sum(sums.gain[j]);
      if (lane % 4 == 0) rows.part_gain[half][i] = gain;
    }
    const float state = warp_sum(sums.state);
    if (lane == 0) rows.part_state[threadIdx.x / 32] = state;
  }

  // The elements of a key tile that belong to d[4 n + 2 j] and the next.
  __device__ __forceinline__ float2 key(int tile, int n, int j) const {
    return unpack<Format>(*reinterpret_cast<const std::uint32_t*>(
        shared + tile + (half * kTiles + n) * Keys::kColumn + (row + lane / 4 + 8 * j) * 16 +
        lane % 4 * 4));
  }

  // Scales the sums through the states; and w . dw of them, per row.
  __device__ __forceinline__ void scale_states(GradSums<Columns>& sums, float (&write)[2],
                                               bool gated) const {
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
  __device__ __forceinline__ void add_interactions(GradSums<Columns>& sums,
                                                   float (&inner)[kAccumulators], int erase) const {
    const bool delta = call.chunk.call.delta;
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
      if (delta) {
        multiply_both<Engine, Format, Keys, true>(sums.query, sums.erase, seen[k], read[k], write,
                                                  k);
        Engine::template multiply<Keys, true>(inner, read_back[k], shared + erase + offset, k,
                                              false);
      } else {
        Engine::template multiply<Keys, true>(sums.query, seen[k], write, k, false);
      }
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
  __device__ __forceinline__ void finish_keys(GradSums<Columns>& sums,
                                              const float (&inner)[kAccumulators],
                                              const float (&write)[2], int erase,
                                              bool gated) const {
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
  __device__ __forceinline__ void finish_gates(const GradStep& step, bool gated) const {
    const TwoKeyCall& sizes = call.chunk.call;
    const std::int64_t head = step.value_head(call);
    if (call.back.d_b != nullptr && step.pass == 0) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = lane + 32 * j;
        if (i >= step.span.count) continue;
        const float gain = rows.gain[i];
        put_gate(call.back.d_b, sizes.b.dtype, (step.span.first + i) * sizes.value_heads + head,
                 (rows.part_gain[0][i] + rows.part_gain[1][i]) / gain / gain);
      }
    }
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

  __device__ __forceinline__ void run() const {
    const TwoKeyCall& sizes = call.chunk.call;
    const bool gated = sizes.gate == GateKind::scalar && call.back.d_g != nullptr;
    const bool with_value = sizes.delta || call.back.d_b != nullptr;
    const int erase = sizes.delta && !sizes.same_key ? Shared::kErase : Shared::kWrite;
    // Copies are committed in a fixed order: of every step its values and then its keys, if any.
    GradStep ahead(call);
    int into = 0;
    const auto load_ahead = [&] {
      if (ahead.valid(call)) {
        load_values<Columns>(call, ahead, shared + Shared::kStages + into * Shared::kStage,
                             with_value);
        ahead.advance(call);
      }
      into = into + 1 == call.stages ? 0 : into + 1;
      copy_commit();
    };
    GradStep step(call);
    for (int i = 0; i < call.stages; ++i) {
      load_ahead();
      if (i == 0 && step.valid(call)) load_keys<Columns>(call, step, shared);
      copy_commit();
    }

    GradSums<Columns> sums;
    float query[Totals ? kAccumulators : 1], erased[Totals ? kAccumulators : 1],
        written[Totals ? kAccumulators : 1];
    GradGates gates;
    int from = 0;
    while (step.valid(call)) {
      if (call.stages == 1) {
        copy_wait<1>();
      } else {
        copy_wait<3>();
      }
      fence_async();
      __syncthreads();
      if (step.tile == 0) {
        sums.clear();
        if (threadIdx.x < 32) gates.ask(call, step);
      }
      if constexpr (Totals) {
        if (step.tile == 0 && step.member == 0) {
#pragma unroll
          for (int i = 0; i < kAccumulators; ++i) query[i] = erased[i] = written[i] = 0.0F;
        }
      }
      add_values<Format, Engine, Columns>(sums, shared + Shared::kStages + from * Shared::kStage,
                                          sizes.delta, with_value, gated);
      if (step.tile == 0 && threadIdx.x < 32) gates.write(rows);
      __syncthreads();
      from = from + 1 == call.stages ? 0 : from + 1;
      load_ahead();
      const GradStep done = step;
      step.advance(call);
      if (done.last_tile(call)) {
        float write[2], inner[kAccumulators];
        // The keys were committed with the step before the pass.
        if (done.member == 0 && done.tile == 0) {
          copy_wait<1>();
        } else {
          copy_wait<3>();
        }
        fence_async();
        write_interactions(sums);
        __syncthreads();
        scale_states(sums, write, gated);
        add_interactions(sums, inner, erase);
        finish_keys(sums, inner, write, erase, gated);
        __syncthreads();
        if (threadIdx.x < 32) finish_gates(done, gated);
        if constexpr (Totals) {
#pragma unroll
          for (int i = 0; i < kAccumulators; ++i) {
            query[i] += sums.query[i];
            erased[i] += sums.erase[i];
            written[i] += sums.write[i];
          }
          if (done.last_of_pass(call)) store(done, query, erased, written);
        } else {
          store(done, sums.query, sums.erase, sums.write);
        }
        if (done.last_of_pass(call) && step.valid(call)) load_keys<Columns>(call, step, shared);
      }
      copy_commit();
    }
    copy_wait<0>();
  }
};

}  // namespace rankone::recurrence::cuda
