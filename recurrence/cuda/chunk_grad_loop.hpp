#pragma once

// The loop of the gradient kernel over its work, the same for all kinds of decay.

#include "recurrence/cuda/chunk_grad_parts.hpp"

namespace rankone::recurrence::cuda {

// Finite: a factor of nothing must leave it nothing.
__device__ __forceinline__ float exp2_bounded(float x) {
  return exp2_fast(x < 127.0F ? x : 127.0F);
}

// Beyond -10000 every log decay is the same zero, but sums with it keep what else is in them.
__device__ __forceinline__ float bounded_decay(float g) { return g < -10000.0F ? -10000.0F : g; }

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

  // Sums in double, so that differences are right to float32 for whatever decays come
  // together.
  __device__ __forceinline__ void write(GradRows& rows) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    double sum[2];
    double before = 0.0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = static_cast<double>(bounded_decay(g[i])) * 1.4426950408889634;
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
};

// dV . U per row from the parts of the warps; then db, by the first warp.
__device__ __forceinline__ void write_gain_sums(const float (&gain)[2], GradRows& rows) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float sum = quad_sum(gain[j]);
    if (lane % 4 == 0) rows.part_gain[warp / 4][16 * (warp % 4) + lane / 4 + 8 * j] = sum;
  }
}
__device__ __forceinline__ void finish_gains(const GradCall& call, const GradStep& step,
                                             const GradRows& rows) {
  const TwoKeyCall& sizes = call.chunk.call;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = static_cast<int>(threadIdx.x % 32) + 32 * j;
    if (i >= step.span.count) continue;
    const float gain = rows.gain[i];
    put_gate(call.back.d_b, sizes.b.dtype,
             (step.span.first + i) * sizes.value_heads + step.value_head(call),
             (rows.part_gain[0][i] + rows.part_gain[1][i]) / gain / gain);
  }
}

// `Head` says what to do for a value head: start_head() asks for its gates, write_gates() puts them
// where all can read them, finish_head() makes gradients of the sums over value columns.
template <class Format, class Engine, int Columns, class Head>
__device__ __forceinline__ void work_off(const GradCall& call, Head& head, unsigned char* shared,
                                         unsigned char* stages) {
  using Shared = GradShared<Columns>;
  const TwoKeyCall& sizes = call.chunk.call;
  const bool with_value = sizes.delta || call.back.d_b != nullptr;

  // Copies are committed in a fixed order: of every step its values and then its keys, if any.
  GradStep ahead(call);
  int into = 0;
  const auto load_ahead = [&] {
    if (ahead.valid(call)) {
      load_values<Columns>(call, ahead, stages + into * Shared::kStage, with_value);
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

  typename Head::Sums sums;
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
      head.start_head(step);
    }
    add_values<Format, Engine>(sums, stages + from * Shared::kStage, sizes.delta, with_value,
                               head.gated);
    if (step.tile == 0) head.write_gates();
    __syncthreads();
    from = from + 1 == call.stages ? 0 : from + 1;
    load_ahead();
    const GradStep done = step;
    step.advance(call);
    if (done.last_tile(call)) {
      // The keys were committed with the step before the pass.
      if (done.member == 0 && done.tile == 0) {
        copy_wait<1>();
      } else {
        copy_wait<3>();
      }
      fence_async();
      head.finish_head(done, sums);
      if (done.last_of_pass(call) && step.valid(call)) load_keys<Columns>(call, step, shared);
    }
    copy_commit();
  }
  copy_wait<0>();
}

}  // namespace rankone::recurrence::cuda
