#pragma once

// The forward scan. Per chunk, with S the transposed state [64 value columns, K]:
//
//     R = V - in (S E~^T);   Z = R Y^T;   U = gain Z;   O = scale in (S Q~^T) + U P^T
//     S = keep S + (out U) W^
//
// (rows of these matrices are value columns). Products with S are issued before what needs them:
// S Q~^T runs while R is made, U P^T while the state is updated.

#include "recurrence/cuda/chunk_scan_feed.hpp"

namespace rankone::recurrence::cuda {

struct ScanForward {
  ChunkCall chunk;
  Segments segments;
  SegmentMaps maps;   // h set: write maps, not outputs
  void* z = nullptr;  // Z, [R, HV, V], of delta calls without output; may be null
  ScanTensors tensors;
};

template <class Format, int DK, bool Scaled, bool Delta, bool Output, int Stages, class Engine>
__device__ __forceinline__ void scan_forward(const ScanForward& scan, std::int64_t block) {
  using Stage = ScanStage<DK, Scaled>;
  constexpr int kSteps = DK / 16;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const Stage at(Delta, call.same_key, Output);
  unsigned char* const shared = shared_memory();
  const ScanTask task(chunk, block, scan.segments.count, scan.maps.h != nullptr);
  if (!call.takes(task.rows)) return;
  const int warp = static_cast<int>(threadIdx.x / 32);
  // Tiles behind those of v carry M: value columns that start as the unit matrix, with v = 0.
  const int value_count = value_tiles(call.d_v);
  const bool map = task.tile >= value_count;
  const int column = (map ? task.tile - value_count : task.tile) * kValueTile;
  const int columns = map ? call.d_k : call.d_v;

  // Rows that the block writes: O, or Z.
  unsigned char* const result = static_cast<unsigned char*>(Output          ? call.o
                                                            : map || !Delta ? nullptr
                                                                            : scan.z);
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
      take_rows<typename Stage::Value, kThreads - kScanWorkers>(
          shared + stage * at.bytes + at.value, result + place + index * kChunkRows * stride,
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
  // The next chunk's tiles are waited for while the last products of this one run.
  const auto wait_for = [&](int stage, std::uint32_t phase, bool wanted) {
    if constexpr (Engine::kBulk) mbarrier_wait(arrived + stage, phase, wanted);
  };
  wait_for(0, 0, task.end > task.begin);
  for (std::int64_t index = task.begin; index < task.end; ++index) {
    unsigned char* const stage = shared + turn * at.bytes;
    if constexpr (Engine::kBulk) {
      if (task.count(index) < kChunkRows) clear_beyond(stage, at, task.count(index), Output);
    } else {
      barrier_sync(kFullBarrier + turn, kThreads);
    }

    std::uint32_t left[kSteps][4];  // the state, rounded
    round_to<Format>(left, state);
    float error[32];  // S E~^T, then R, then Z, then U
    float seen[32];   // the output
    Engine::begin();
    if constexpr (Delta) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        Engine::template multiply<typename Stage::Key, false>(error, left[k], stage + at.erase, k,
                                                              k == 0);
      }
      Engine::commit();
    }
    if constexpr (Output) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        Engine::template multiply<typename Stage::Key, false>(seen, left[k], stage + at.query, k,
                                                              k == 0);
      }
      Engine::commit();
    }
    if (chunk.states != nullptr && !map) {
      store_state_tile<DK>(
          left, static_cast<unsigned char*>(chunk.states) +
                    2 * chunk.state_tile(task.first_chunk + index, task.head, task.tile));
    }
    std::uint32_t right[4][4];  // V, then R, then Z or U, rounded
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_a_transposed<typename Stage::Value>(right[k], stage + at.value, 16 * warp, k);
    }
    float2 in[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) in[n] = pair_of(stage + at.in, n);
    if constexpr (Delta) {
      Engine::template wait<Output ? 1 : 0>();
      Engine::hold(error);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 v = unpack<Format>(right[n / 2][2 * (n % 2) + j]);
        float* at_error = error + 4 * n + 2 * j;
        at_error[0] = Delta ? v.x - in[n].x * at_error[0] : v.x;
        at_error[1] = Delta ? v.y - in[n].y * at_error[1] : v.y;
      }
    }
    [[maybe_unused]] const bool precise =
        Delta && *reinterpret_cast<const float*>(stage + at.precise) != 0.0F;
    [[maybe_unused]] std::uint32_t rest[4][4];
    if constexpr (Delta) {
      round_to<Format>(right, error);
      if (precise) rest_of<Format>(rest, error, right);
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Square, false>(error, right[k],
                                                                 stage + at.square_y, k, k == 0);
      }
      Engine::commit();
    }
    decay_state<DK, Scaled>(state, stage + at.keep);
    if constexpr (Delta) {
      Engine::template wait<0>();
      Engine::hold(error);
      if constexpr (Output) Engine::hold(seen);
      if (precise) {
        add_rest<Format, typename Stage::Square, false>(
            error, right, rest, stage + at.square_y,
            chunk.record(task.first_chunk + index, task.head) + chunk.layout.square_low);
      }
    } else {
      Engine::template wait<0>();
      if constexpr (Output) Engine::hold(seen);
    }
    if constexpr (!Output && Delta) {
      if (result != nullptr) {
        round_to<Format>(right, error);
        put_rows<typename Stage::Value>(right, stage + at.value);
      }
    }
    std::uint32_t update[4][4];  // out U
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 out = pair_of(stage + at.out, n);
      const float2 gain = pair_of(stage + at.gain, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        error[4 * n + 2 * j] *= gain.x;
        error[4 * n + 2 * j + 1] *= gain.y;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        update[n / 2][2 * (n % 2) + j] =
            pack<Format>(out.x * error[4 * n + 2 * j], out.y * error[4 * n + 2 * j + 1]);
      }
    }
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply<typename Stage::Key, true>(state, update[k], stage + at.write, k,
                                                           false);
    }
    Engine::commit();
    if constexpr (Output) {
      round_to<Format>(right, error);  // U
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        seen[4 * n] *= call.scale * in[n].x;
        seen[4 * n + 1] *= call.scale * in[n].y;
        seen[4 * n + 2] *= call.scale * in[n].x;
        seen[4 * n + 3] *= call.scale * in[n].y;
      }
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Square, false>(seen, right[k],
                                                                 stage + at.square_p, k, false);
      }
      Engine::commit();
    }
    wait_for(turn + 1 == Stages ? 0 : turn + 1, parity ^ (turn + 1 == Stages ? 1U : 0U),
             index + 1 < task.end);
    Engine::template wait<0>();
    Engine::hold(state);
    if constexpr (Output) {
      Engine::hold(seen);
      round_to<Format>(right, seen);
      put_rows<typename Stage::Value>(right, stage + at.value);
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
