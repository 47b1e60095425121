#pragma once

// The backward scan. Per chunk from the last to the first, with D the transposed cotangent
// [64 value columns, K] of the state at the chunk's end (rows of these matrices are value columns):
//
//     dU = out (D W^^T) + dO P;   dV = dR = (gain dU) Y      (additive: dV = gain dU)
//     D = keep D + (scale in dO) Q~ - (in dV) E~
//
// D and dU are kept divided by
// the mantissa of `scale`, which leaves a power of two with dO: so a product of inputs stays exact
// where there is no decay.

#include "recurrence/cuda/chunk_scan_feed.hpp"

namespace rankone::recurrence::cuda {

struct ScanBackward {
  ChunkCall chunk;
  ScanBack back;
  ScanTensors tensors;
  float mantissa = 1.0F, power = 1.0F;  // scale = mantissa * power; 1 <= |mantissa| < 2, or scale 0
};

template <class Format, int DK, bool Scaled, bool Delta, int Stages, class Engine>
__device__ __forceinline__ void scan_backward(const ScanBackward& scan, std::int64_t block) {
  using Stage = ScanStage<DK, Scaled>;
  constexpr int kSteps = DK / 16;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const Stage at(Delta, call.same_key, true);
  unsigned char* const shared = shared_memory();
  const ScanTask task(chunk, block, 1, false);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int column = task.tile * kValueTile;

  constexpr int kThreads = kScanThreads<Engine>;
  auto* const arrived = reinterpret_cast<std::uint64_t*>(shared + Stages * at.bytes);
  start_barriers<Engine, Stages>(arrived);
  if (threadIdx.x >= kScanWorkers) {
    const std::int64_t stride = call.value_heads * call.d_v * 2;
    unsigned char* const result = static_cast<unsigned char*>(scan.back.d_v) + task.row * stride +
                                  (task.head * call.d_v + column) * 2;
    const auto store = [&](int stage, std::int64_t index) {
      take_rows<typename Stage::Value, kThreads - kScanWorkers>(
          shared + stage * at.bytes + at.value, result + index * kChunkRows * stride, stride,
          task.count(index), call.d_v - column);
    };
    if constexpr (Engine::kBulk) {
      const BulkLoader<DK, Scaled, Delta, true> loader(chunk, scan.tensors, at, task.sequence,
                                                       task.first_chunk, task.head, true, column);
      feed_bulk<Stages>(
          task.end - 1, task.end - task.begin, -1, kThreads,
          [&](int stage, std::int64_t index) {
            loader.load(shared + stage * at.bytes, index, arrived + stage);
          },
          store);
    } else {
      const ChunkLoader<DK, Scaled, Delta, true> loader(chunk, at, task.sequence, task.first_chunk,
                                                        task.head, scan.back.d_o, column);
      feed<Stages>(
          task.end - 1, task.end - task.begin, -1, kThreads,
          [&](int stage, std::int64_t index) {
            loader.load(shared + stage * at.bytes, index, task.count(index));
          },
          store);
    }
    return;
  }

  float state[DK / 2];  // the cotangent
#pragma unroll
  for (int i = 0; i < DK / 2; ++i) state[i] = 0.0F;
  const std::int64_t head_number = task.sequence * call.value_heads + task.head;
  if (scan.back.d_final != nullptr) {
    const float* from = scan.back.d_final + head_number * call.d_k * call.d_v;
    each_state_element<DK>(column, call.d_k, call.d_v, [&](int i, int k, int v) {
      state[i] = from[static_cast<std::int64_t>(k) * call.d_v + v] / scan.mantissa;
    });
  }

  const float inverse = 1.0F / scan.mantissa;  // P has the whole scale
  int turn = 0;
  std::uint32_t parity = 0;
  // The next chunk's tiles are waited for while the last products of this one run.
  const auto wait_for = [&](int stage, std::uint32_t phase, bool wanted) {
    if constexpr (Engine::kBulk) mbarrier_wait(arrived + stage, phase, wanted);
  };
  wait_for(0, 0, task.end > task.begin);
  for (std::int64_t index = task.end - 1; index >= 0; --index) {
    unsigned char* const stage = shared + turn * at.bytes;
    if constexpr (Engine::kBulk) {
      if (task.count(index) < kChunkRows) clear_beyond(stage, at, task.count(index), true);
    } else {
      barrier_sync(kFullBarrier + turn, kThreads);
    }

    std::uint32_t left[kSteps][4];
    round_to<Format>(left, state);
    std::uint32_t right[4][4];  // dO, then gain dU, rounded
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_a_transposed<typename Stage::Value>(right[k], stage + at.value, 16 * warp, k);
    }
    float carried[32];  // D W^^T, then gain dU, then dV
    float local[32];    // dO P
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply<typename Stage::Square, true>(local, right[k], stage + at.square_p,
                                                              k, k == 0);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Engine::template multiply<typename Stage::Key, false>(carried, left[k], stage + at.write, k,
                                                            k == 0);
    }
    Engine::commit();
    if (chunk.d_states != nullptr) {
      std::uint32_t whole[kSteps][4];  // with the mantissa
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          whole[k][j] = pack<Format>(scan.mantissa * state[8 * k + 2 * j],
                                     scan.mantissa * state[8 * k + 2 * j + 1]);
        }
      }
      store_state_tile<DK>(
          whole, static_cast<unsigned char*>(chunk.d_states) +
                     2 * chunk.state_tile(task.first_chunk + index, task.head, task.tile));
    }
    std::uint32_t query[4][4];  // scale in dO
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 in = pair_of(stage + at.in, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 d = unpack<Format>(right[n / 2][2 * (n % 2) + j]);
        query[n / 2][2 * (n % 2) + j] =
            pack<Format>(scan.power * in.x * d.x, scan.power * in.y * d.y);
      }
    }
    Engine::template wait<0>();
    Engine::hold(carried);
    Engine::hold(local);
    decay_state<DK, Scaled>(state, stage + at.keep);
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply<typename Stage::Key, true>(state, query[k], stage + at.query, k,
                                                           false);
    }
    Engine::commit();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 out = pair_of(stage + at.out, n);
      const float2 gain = pair_of(stage + at.gain, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float* d = carried + 4 * n + 2 * j;
        d[0] = gain.x * (out.x * d[0] + inverse * local[4 * n + 2 * j]);
        d[1] = gain.y * (out.y * d[1] + inverse * local[4 * n + 2 * j + 1]);
      }
    }
    [[maybe_unused]] const bool precise =
        Delta && *reinterpret_cast<const float*>(stage + at.precise) != 0.0F;
    [[maybe_unused]] std::uint32_t rest[4][4];
    if constexpr (Delta) {
      round_to<Format>(right, carried);
      if (precise) rest_of<Format>(rest, carried, right);
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Square, true>(carried, right[k],
                                                                stage + at.square_y, k, k == 0);
      }
      Engine::commit();
    }
    Engine::template wait<0>();
    Engine::hold(carried);
    Engine::hold(state);
    if constexpr (Delta) {
      if (precise) {
        add_rest<Format, typename Stage::Square, true>(
            carried, right, rest, stage + at.square_y,
            chunk.record(task.first_chunk + index, task.head) + chunk.layout.square_low);
      }
    }
    std::uint32_t result[4][4], erase[4][4];  // dV; - in dV
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 in = pair_of(stage + at.in, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = carried[4 * n + 2 * j], y = carried[4 * n + 2 * j + 1];
        result[n / 2][2 * (n % 2) + j] = pack<Format>(scan.mantissa * x, scan.mantissa * y);
        if constexpr (Delta) erase[n / 2][2 * (n % 2) + j] = pack<Format>(-in.x * x, -in.y * y);
      }
    }
    if constexpr (Delta) {
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Key, true>(state, erase[k], stage + at.erase, k,
                                                             false);
      }
      Engine::commit();
    }
    put_rows<typename Stage::Value>(result, stage + at.value);
    wait_for(turn + 1 == Stages ? 0 : turn + 1, parity ^ (turn + 1 == Stages ? 1U : 0U),
             index > task.begin);
    Engine::template wait<0>();
    Engine::hold(state);
    barrier_arrive(kDoneBarrier + turn, kThreads);
    turn = turn + 1 == Stages ? 0 : turn + 1;
    if (turn == 0) parity ^= 1;
  }

  if (scan.back.d_initial != nullptr) {
    float* to = scan.back.d_initial + head_number * call.d_k * call.d_v;
    each_state_element<DK>(column, call.d_k, call.d_v, [&](int i, int k, int v) {
      to[static_cast<std::int64_t>(k) * call.d_v + v] = state[i] * scan.mantissa;
    });
  }
}

}  // namespace rankone::recurrence::cuda
