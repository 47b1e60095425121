#pragma once

// The backward scan. Per chunk from the last to the first, with D the transposed cotangent
// [64 value columns, K] of the state at the chunk's end (rows of these matrices are value columns):
//
//     dU = out (D W^^T) + dO P;   dR = dU T;   dV = gain dR      (additive: dV = gain dU)
//     D = keep D + (scale in dO) Q~ - (in dV) E~

#include "recurrence/cuda/chunk_scan_feed.hpp"

namespace rankone::recurrence::cuda {

struct ScanBackward {
  ChunkCall chunk;
  ScanBack back;
  ScanTensors tensors;
};

template <class Format, int DK, bool Scaled, bool Delta, int Stages, class Engine>
__device__ __forceinline__ void scan_backward(const ScanBackward& scan, std::int64_t block) {
  using Stage = ScanStage<DK, Scaled>;
  using Key = typename Stage::Key;
  using Value = typename Stage::Value;
  using Square = typename Stage::Square;
  constexpr int kSteps = DK / 16;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const Stage at(Delta, call.same_key, true);
  unsigned char* const shared = shared_memory();
  const ScanTask task(chunk, block, value_tiles(call.d_v), 1);
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
      take_rows<Value, kThreads - kScanWorkers>(shared + stage * at.bytes + at.value,
                                                result + index * kChunkRows * stride, stride,
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
      state[i] = from[static_cast<std::int64_t>(k) * call.d_v + v];
    });
  }

  int turn = 0;
  std::uint32_t parity = 0;
  for (std::int64_t index = task.end - 1; index >= 0; --index) {
    unsigned char* const stage = shared + turn * at.bytes;
    if constexpr (Engine::kBulk) {
      mbarrier_wait(arrived + turn, parity);
      if (task.count(index) < kChunkRows) clear_beyond(stage, at, task.count(index), true);
    } else {
      barrier_sync(kFullBarrier + turn, kThreads);
    }

    // Halves of the rows, the second first, as in the forward scan. T and P are lower triangular.
    std::uint32_t right[4][4];  // dO, then dU, then dV, rounded
#pragma unroll
    for (int k = 0; k < 4; ++k) load_a_transposed<Value>(right[k], stage + at.value, 16 * warp, k);
    float local[2][16];  // dO P
    Engine::begin();
#pragma unroll
    for (int half = 1; half >= 0; --half) {
#pragma unroll
      for (int k = 2 * half; k < 4; ++k) {
        Engine::template multiply<Square, true>(local[half], right[k],
                                                stage + at.square_p + Square::place(0, 4 * half), k,
                                                k == 2 * half);
      }
    }
    Engine::commit();
    std::uint32_t left[kSteps][4];
    round_to<Format>(left, state);
    float carried[2][16];  // D W^^T, then dU, then dR
    Engine::begin();
#pragma unroll
    for (int half = 1; half >= 0; --half) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        Engine::template multiply<Key, false>(
            carried[half], left[k], stage + at.write + Key::place(32 * half, 0), k, k == 0);
      }
      Engine::commit();
    }
    if (chunk.d_states != nullptr) {
      store_state_tile<DK>(
          left, static_cast<unsigned char*>(chunk.d_states) +
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
            pack<Format>(call.scale * in.x * d.x, call.scale * in.y * d.y);
      }
    }
    if constexpr (Scaled) {
#pragma unroll
      for (int n = 0; n < DK / 8; ++n) {
        const float2 keep = pair_of(stage + at.keep, n);
        state[4 * n] *= keep.x;
        state[4 * n + 1] *= keep.y;
        state[4 * n + 2] *= keep.x;
        state[4 * n + 3] *= keep.y;
      }
    } else {
      const float keep = *reinterpret_cast<const float*>(stage + at.keep);
#pragma unroll
      for (int i = 0; i < DK / 2; ++i) state[i] *= keep;
    }
    const auto add_query = [&](int half) {
      Engine::begin();
#pragma unroll
      for (int k = 2 * half; k < 2 * half + 2; ++k) {
        Engine::template multiply<Key, true>(state, query[k], stage + at.query, k, false);
      }
      Engine::commit();
    };
    // dU of one half, as the left sides right[2 half] and right[2 half + 1].
    const auto make_update = [&](int half) {
      float2 out[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) out[n] = pair_of(stage + at.out, 4 * half + n);
      if (half == 1) {
        Engine::template wait<2>();  // the other half and the first of the query's
        Engine::hold(local[0]);
        Engine::hold(local[1]);
      } else {
        Engine::template wait<Delta ? 3 : 2>();  // both of the query's and dR of the other half
      }
      Engine::hold(carried[half]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float* d = carried[half] + 4 * n + 2 * j;
          d[0] = out[n].x * d[0] + local[half][4 * n + 2 * j];
          d[1] = out[n].y * d[1] + local[half][4 * n + 2 * j + 1];
          right[2 * half + n / 2][2 * (n % 2) + j] = pack<Format>(d[0], d[1]);
        }
      }
    };
    const auto solve = [&](int half) {
      if constexpr (Delta) {
        Engine::begin();
#pragma unroll
        for (int k = 2 * half; k < 4; ++k) {
          Engine::template multiply<Square, true>(carried[half], right[k],
                                                  stage + at.square_t + Square::place(0, 4 * half),
                                                  k, k == 2 * half);
        }
        Engine::commit();
      }
    };
    add_query(1);
    make_update(1);
    solve(1);
    add_query(0);
    make_update(0);
    solve(0);
    std::uint32_t erase[4][4];   // - in dV
    std::uint32_t result[4][4];  // dV: `right` is the left side of products that may still run
#pragma unroll
    for (int half = 1; half >= 0; --half) {
      float2 gain[4], in[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        gain[n] = pair_of(stage + at.gain, 4 * half + n);
        in[n] = pair_of(stage + at.in, 4 * half + n);
      }
      if constexpr (Delta) {
        if (half == 1) {
          Engine::template wait<2>();  // the query's second half, dR of the other
        } else {
          Engine::template wait<1>();
        }
        Engine::hold(carried[half]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = gain[n].x * carried[half][4 * n + 2 * j];
          const float y = gain[n].y * carried[half][4 * n + 2 * j + 1];
          const int k = 2 * half + n / 2, i = 2 * (n % 2) + j;
          result[k][i] = pack<Format>(x, y);
          if constexpr (Delta) erase[k][i] = pack<Format>(-in[n].x * x, -in[n].y * y);
        }
      }
      if constexpr (Delta) {
        Engine::begin();
#pragma unroll
        for (int k = 2 * half; k < 2 * half + 2; ++k) {
          Engine::template multiply<Key, true>(state, erase[k], stage + at.erase, k, false);
        }
        Engine::commit();
      }
    }
    put_rows<Value>(result, stage + at.value);
    Engine::template wait<0>();
    Engine::hold(state);
    barrier_arrive(kDoneBarrier + turn, kThreads);
    turn = turn + 1 == Stages ? 0 : turn + 1;
    if (turn == 0) parity ^= 1;
  }

  if (scan.back.d_initial != nullptr) {
    float* to = scan.back.d_initial + head_number * call.d_k * call.d_v;
    each_state_element<DK>(column, call.d_k, call.d_v, [&](int i, int k, int v) {
      to[static_cast<std::int64_t>(k) * call.d_v + v] = state[i];
    });
  }
}

}  // namespace rankone::recurrence::cuda
