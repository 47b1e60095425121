#pragma once

// The forward scan. Per chunk, with S the transposed state [64 value columns, K]:
//
//     R = (V - in (S E~^T)) gain;   U = R T^T;   O = scale in (S Q~^T) + U P^T
//     S = keep S + (out U) W^
//
// (rows of these matrices are value columns). Products with S are issued before what needs them:
// S Q~^T runs while R is made, U P^T while the state is updated.

#include "recurrence/cuda/chunk_scan_feed.hpp"

namespace rankone::recurrence::cuda {

struct ScanForward {
  ChunkCall chunk;
  Segments segments;
  SegmentMaps maps;  // h set: write maps, not outputs
  ScanTensors tensors;
  int tiles = 0;  // value tiles of a block's range, with those of M behind them
};

template <class Format, int DK, bool Scaled, bool Delta, bool Output, int Stages, class Engine>
__device__ __forceinline__ void scan_forward(const ScanForward& scan, std::int64_t block) {
  using Stage = ScanStage<DK, Scaled>;
  using Key = typename Stage::Key;
  using Value = typename Stage::Value;
  using Square = typename Stage::Square;
  constexpr int kSteps = DK / 16;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const Stage at(Delta, call.same_key, Output);
  unsigned char* const shared = shared_memory();
  const ScanTask task(chunk, block, scan.tiles, scan.segments.count);
  const int warp = static_cast<int>(threadIdx.x / 32);
  // Tiles behind those of v carry M: value columns that start as the unit matrix, with v = 0.
  const int value_count = value_tiles(call.d_v);
  const bool map = task.tile >= value_count;
  const int column = (map ? task.tile - value_count : task.tile) * kValueTile;
  const int columns = map ? call.d_k : call.d_v;

  unsigned char* const result = static_cast<unsigned char*>(Output ? call.o
                                                            : map  ? nullptr
                                                                   : chunk.u);
  constexpr int kThreads = kScanThreads<Engine>;
  auto* const arrived = reinterpret_cast<std::uint64_t*>(shared + Stages * at.bytes);
  if (map) {  // values of zero in every stage
    for (int s = 0; s < Stages; ++s) {
      for (int i = static_cast<int>(threadIdx.x) * 16; i < Stage::Value::kBytes;
           i += kThreads * 16) {
        *reinterpret_cast<uint4*>(shared + s * at.bytes + at.value + i) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  start_barriers<Engine, Stages>(arrived);
  if (threadIdx.x >= kScanWorkers) {
    const std::int64_t stride = call.value_heads * call.d_v * 2;
    const std::int64_t place = task.row * stride + (task.head * call.d_v + column) * 2;
    const auto store = [&](int stage, std::int64_t index) {
      if (result == nullptr) return;
      take_rows<Value, kThreads - kScanWorkers>(shared + stage * at.bytes + at.value,
                                                result + place + index * kChunkRows * stride,
                                                stride, task.count(index), call.d_v - column);
    };
    if constexpr (Engine::kBulk) {
      const BulkLoader<DK, Scaled, Delta, Output> loader(chunk, scan.tensors, at, task.sequence,
                                                         task.first_chunk, task.head, !map, column);
      feed_bulk<Stages>(
          task.begin, task.end - task.begin, 1, kThreads,
          [&](int stage, std::int64_t index) {
            loader.load(shared + stage * at.bytes, index, arrived + stage);
          },
          store);
    } else {
      const ChunkLoader<DK, Scaled, Delta, Output> loader(
          chunk, at, task.sequence, task.first_chunk, task.head, map ? nullptr : call.v, column);
      feed<Stages>(
          task.begin, task.end - task.begin, 1, kThreads,
          [&](int stage, std::int64_t index) {
            loader.load(shared + stage * at.bytes, index, task.count(index));
          },
          store);
    }
    return;
  }

  float state[DK / 2];
#pragma unroll
  for (int i = 0; i < DK / 2; ++i) state[i] = 0.0F;
  const std::int64_t head_number = task.sequence * call.value_heads + task.head;
  if (map) {
    each_state_element<DK>(column, call.d_k, columns,
                           [&](int i, int k, int v) { state[i] = k == v ? 1.0F : 0.0F; });
  } else if (task.segment == 0) {
    if (call.initial_state != nullptr) {
      const float* from = call.initial_state + head_number * call.d_k * call.d_v;
      each_state_element<DK>(column, call.d_k, columns, [&](int i, int k, int v) {
        state[i] = from[static_cast<std::int64_t>(k) * call.d_v + v];
      });
    }
  } else if (scan.segments.starts != nullptr) {
    const float* from = scan.segments.starts +
                        (head_number * scan.segments.count + task.segment) * call.d_k * call.d_v;
    each_state_element<DK>(column, call.d_k, columns, [&](int i, int k, int v) {
      state[i] = from[static_cast<std::int64_t>(v) * call.d_k + k];
    });
  }
  int turn = 0;
  std::uint32_t parity = 0;
  for (std::int64_t index = task.begin; index < task.end; ++index) {
    unsigned char* const stage = shared + turn * at.bytes;
    if constexpr (Engine::kBulk) {
      mbarrier_wait(arrived + turn, parity);
      if (task.count(index) < kChunkRows) clear_beyond(stage, at, task.count(index), Output);
    } else {
      barrier_sync(kFullBarrier + turn, kThreads);
    }

    std::uint32_t left[kSteps][4];  // the state, rounded
    round_to<Format>(left, state);
    // Rows of the chunk in two halves: what is made of the first half runs beside the products of
    // the second, and the output's products fill the gaps. Products end in the order of their
    // issue; the numbers behind wait() count those that may still run.
    float error[2][16];  // S E~^T, then R, then U
    float seen[2][16];   // the output
    Engine::begin();
    if constexpr (Delta) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          Engine::template multiply<Key, false>(
              error[half], left[k], stage + at.erase + Key::place(32 * half, 0), k, k == 0);
        }
        Engine::commit();
      }
    }
    const auto query = [&](int half) {
      if constexpr (Output) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          Engine::template multiply<Key, false>(
              seen[half], left[k], stage + at.query + Key::place(32 * half, 0), k, k == 0);
        }
        Engine::commit();
      }
    };
    query(0);
    if (chunk.states != nullptr && !map) {
      store_state_tile<DK>(
          left, static_cast<unsigned char*>(chunk.states) +
                    2 * chunk.state_tile(task.first_chunk + index, task.head, task.tile));
    }
    std::uint32_t right[4][4];  // V, then R, rounded
#pragma unroll
    for (int k = 0; k < 4; ++k) load_a_transposed<Value>(right[k], stage + at.value, 16 * warp, k);
    // R of one half, as the left sides right[2 half] and right[2 half + 1].
    const auto make_error = [&](int half) {
      float2 gain[4], in[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        gain[n] = pair_of(stage + at.gain, 4 * half + n);
        in[n] = pair_of(stage + at.in, 4 * half + n);
      }
      if constexpr (Delta) {
        // The other half and the output's first half may still run; in the second turn the latter,
        // U of the first half, and the output's second half.
        if (half == 0) {
          Engine::template wait<Output ? 2 : 1>();
        } else {
          Engine::template wait<Output ? 3 : 1>();
        }
        Engine::hold(error[half]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          std::uint32_t& pair = right[2 * half + n / 2][2 * (n % 2) + j];
          const float2 v = unpack<Format>(pair);
          float x = v.x, y = v.y;
          if constexpr (Delta) {
            x -= in[n].x * error[half][4 * n + 2 * j];
            y -= in[n].y * error[half][4 * n + 2 * j + 1];
          }
          pair = pack<Format>(gain[n].x * x, gain[n].y * y);
          if constexpr (!Delta) {
            error[half][4 * n + 2 * j] = gain[n].x * x;
            error[half][4 * n + 2 * j + 1] = gain[n].y * y;
          }
        }
      }
    };
    // U of one half of the rows: T is lower triangular.
    const auto solve = [&](int half) {
      if constexpr (Delta) {
        Engine::begin();
#pragma unroll
        for (int k = 0; k < 2 + 2 * half; ++k) {
          Engine::template multiply<Square, false>(
              error[half], right[k], stage + at.square_t + Square::place(32 * half, 0), k, k == 0);
        }
        Engine::commit();
      }
    };
    make_error(0);
    solve(0);
    query(1);
    make_error(1);
    solve(1);
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
    // R is read by both halves of T, so U has registers of its own.
    std::uint32_t values[4][4], update[4][4];  // U; out U
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 out[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) out[n] = pair_of(stage + at.out, 4 * half + n);
      if constexpr (Delta) {
        if (half == 0) {
          Engine::template wait<Output ? 2 : 1>();
        } else {
          Engine::template wait<1>();
        }
        Engine::hold(error[half]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = error[half][4 * n + 2 * j], y = error[half][4 * n + 2 * j + 1];
          const int k = 2 * half + n / 2, i = 2 * (n % 2) + j;
          values[k][i] = pack<Format>(x, y);
          update[k][i] = pack<Format>(out[n].x * x, out[n].y * y);
        }
      }
      Engine::begin();
#pragma unroll
      for (int k = 2 * half; k < 2 * half + 2; ++k) {
        Engine::template multiply<Key, true>(state, update[k], stage + at.write, k, false);
      }
      Engine::commit();
    }
    if constexpr (Output) {
      Engine::template wait<2>();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Engine::hold(seen[half]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 in = pair_of(stage + at.in, 4 * half + n);
          seen[half][4 * n] *= call.scale * in.x;
          seen[half][4 * n + 1] *= call.scale * in.y;
          seen[half][4 * n + 2] *= call.scale * in.x;
          seen[half][4 * n + 3] *= call.scale * in.y;
        }
      }
      Engine::begin();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int k = 0; k < 2 + 2 * half; ++k) {
          Engine::template multiply<Square, false>(
              seen[half], values[k], stage + at.square_p + Square::place(32 * half, 0), k, false);
        }
      }
      Engine::commit();
    } else {
      if (result != nullptr) put_rows<Value>(values, stage + at.value);
    }
    Engine::template wait<0>();
    Engine::hold(state);
    if constexpr (Output) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Engine::hold(seen[half]);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            values[2 * half + k][j] =
                pack<Format>(seen[half][8 * k + 2 * j], seen[half][8 * k + 2 * j + 1]);
          }
        }
      }
      put_rows<Value>(values, stage + at.value);
    }
    barrier_arrive(kDoneBarrier + turn, kThreads);
    turn = turn + 1 == Stages ? 0 : turn + 1;
    if (turn == 0) parity ^= 1;
  }

  if (scan.maps.h != nullptr) {
    const std::int64_t number = head_number * scan.segments.count + task.segment;
    float* to = map ? scan.maps.m + number * call.d_k * call.d_k
                    : scan.maps.h + number * call.d_k * call.d_v;
    each_state_element<DK>(column, call.d_k, columns, [&](int i, int k, int v) {
      to[static_cast<std::int64_t>(v) * call.d_k + k] = state[i];
    });
  } else if (call.final_state != nullptr && task.segment == scan.segments.count - 1) {
    float* to = call.final_state + head_number * call.d_k * call.d_v;
    each_state_element<DK>(column, call.d_k, columns, [&](int i, int k, int v) {
      to[static_cast<std::int64_t>(k) * call.d_v + v] = state[i];
    });
  }
}

}  // namespace rankone::recurrence::cuda
