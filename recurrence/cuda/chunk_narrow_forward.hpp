#pragma once

// The forward scan of a training call with narrow value tiles: the states of all chunks and Z, no
// outputs. Per chunk, with S the state [K, N value columns]:
//
//     R = V - in (E~ S);   Z = Y R;   U = gain Z;   S = keep S + W^^T (out U)
//
// What is rounded where is as in chunk_scan_forward.hpp.

#include "recurrence/cuda/chunk_narrow_parts.hpp"

namespace rankone::recurrence::cuda {

struct NarrowForward {
  ChunkCall chunk;
  ScanTensors tensors;  // `value` in rows of N columns
  void* z = nullptr;    // Z, [R, HV, V], of delta calls
  int width = 0;        // value columns, up to whole tiles of 64
  int stages = 2;
};

// What the first group of a forward scan has for itself: R, its rest, and out U.
template <class Stage>
struct NarrowOwn {
  static constexpr int kRest = Stage::Rows::kBytes, kUpdate = 2 * kRest, kBytes = 3 * kRest;
};

inline constexpr int kNarrowBarrier = 1;  // of the first group

template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void carry_narrow(const NarrowForward& scan, const NarrowTask& task,
                                             const NarrowBarriers& barriers, unsigned char* stages,
                                             unsigned char* own) {
  using Stage = NarrowStage<DK, N, Scaled, Delta>;
  using Own = NarrowOwn<Stage>;
  using Engine = WgmmaEngine<Format>;
  using Key = typename Stage::Key;
  using State = typename Stage::State;
  using Rows = typename Stage::Rows;
  using Value = typename Stage::Value;
  constexpr int kBlocks = DK / 64;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const int bytes = Stage::bytes(call.same_key);
  const std::int64_t size = static_cast<std::int64_t>(call.d_k) * call.d_v;
  const std::int64_t head = task.sequence * call.value_heads + task.head;

  float state[kBlocks][N / 2];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const float* const from =
        call.initial_state == nullptr ? nullptr : call.initial_state + head * size;
    each_narrow_pair<N / 2>(
        from, block, task.column, call.d_k, call.d_v, [&](int n, const float* at, bool inside) {
          const float2 both = from != nullptr && inside ? *reinterpret_cast<const float2*>(at)
                                                        : make_float2(0.0F, 0.0F);
          state[block][2 * n] = both.x;
          state[block][2 * n + 1] = both.y;
        });
  }

  NarrowTurns turns(barriers, scan.stages, task.blocks);
  if (task.chunks > 0) turns.await(barriers.full);
  for (int index = 0; index < task.chunks; ++index) {
    unsigned char* const stage = stages + turns.stage() * bytes;
    const int count = task.count(index);
    if (count < kChunkRows) {
      clear_rows<Value>(stage + Stage::kValue, count, group_thread(), kGroup);
      clear_keys<Stage, Scaled, false>(stage, call.same_key, count, group_thread(), kGroup);
      fence_async();
      barrier_sync(kNarrowBarrier, kGroup);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      put_rounded<Format, State>(stage + Stage::kState, 64 * block, state[block]);
    }
    fence_async();
    barrier_sync(kNarrowBarrier, kGroup);
    if (threadIdx.x == 0) mbarrier_arrive(barriers.state + turns.stage());

    float rows[N / 2];  // E~ S, then R, then Z, then U
    if constexpr (Delta) {
      Engine::begin();
#pragma unroll
      for (int k = 0; k < DK / 16; ++k) {
        Engine::template multiply_tiles<Key, false, State, true>(
            rows, stage + Stage::erase(call.same_key), stage + Stage::kState, k, k == 0);
      }
      Engine::commit();
    }
    float values[N / 2];
    get_rows<Format, Value>(values, stage + Stage::kValue);
    const float2 gain = numbers_of(stage + Stage::kGain);
    const float2 in = Scaled ? make_float2(1.0F, 1.0F) : numbers_of(stage + Stage::kIn);
    const float2 out = Scaled ? make_float2(1.0F, 1.0F) : numbers_of(stage + Stage::kOut);
    float2 keep[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if constexpr (Scaled) {
        keep[block] = numbers_of(stage + Stage::kKeep + 256 * block);
      } else {
        const float all = *reinterpret_cast<const float*>(stage + Stage::kKeep);
        keep[block] = make_float2(all, all);
      }
    }
    if constexpr (Delta) {
      const bool precise = *reinterpret_cast<const float*>(stage + Stage::kPrecise) != 0.0F;
      Engine::template wait<0>();
      Engine::hold(rows);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) rows[i] = values[i] - (i % 4 < 2 ? in.x : in.y) * rows[i];
      put_rounded<Format, Rows>(own, 0, rows);
      if (precise) put_rest<Format, Rows>(own + Own::kRest, rows);
      fence_async();
      barrier_sync(kNarrowBarrier, kGroup);
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply_tiles<typename Stage::Square, false, Rows, true>(
            rows, stage + Stage::kSquareY, own, k);
      }
      Engine::commit();
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) scale_rows(state[block], keep[block]);
      Engine::template wait<0>();
      Engine::hold(rows);
      if (precise) {
        add_narrow_rest<Format, typename Stage::Square, Rows>(
            rows, stage + Stage::kSquareY,
            task.record + index * (call.value_heads * chunk.layout.bytes) + chunk.layout.square_low,
            own, own + Own::kRest);
      }
      put_rounded<Format, Value>(stage + Stage::kValue, 0, rows);
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) rows[i] = values[i];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) scale_rows(state[block], keep[block]);
    }
    scale_rows(rows, gain);
    if constexpr (!Scaled) scale_rows(rows, out);
    put_rounded<Format, Rows>(own + Own::kUpdate, 0, rows);
    fence_async();
    barrier_sync(kNarrowBarrier, kGroup);
    if (threadIdx.x == 0) mbarrier_arrive(barriers.rows + turns.stage());
    Engine::begin();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply_tiles<Key, true, Rows, true>(
            state[block], stage + Stage::kWrite + Key::place(0, 8 * block), own + Own::kUpdate, k);
      }
    }
    Engine::commit();
    turns.await_next_full(index + 1 < task.chunks);
    Engine::template wait<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) Engine::hold(state[block]);
    turns.finish();
  }
}

// Rows of the value tile, 16 of each warp, to the tensor.
template <class Value>
__device__ __forceinline__ void take_narrow_rows(const unsigned char* tile, unsigned char* to,
                                                 std::int64_t stride, int count, int columns) {
  constexpr int kPieces = Value::kColumns / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 16 * kPieces / 32; ++i) {
    const int row = 16 * group_warp() + (32 * i + lane) / kPieces, piece = lane % kPieces;
    if (row < count && 8 * piece < columns) {
      *reinterpret_cast<uint4*>(to + row * stride + piece * 16) =
          *reinterpret_cast<const uint4*>(tile + Value::place(row, piece));
    }
  }
}

// The second group: takes the state of every chunk and Z away.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void see_narrow(const NarrowForward& scan, const NarrowTask& task,
                                           const NarrowBarriers& barriers, unsigned char* stages) {
  using Stage = NarrowStage<DK, N, Scaled, Delta>;
  using State = typename Stage::State;
  using Value = typename Stage::Value;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const int bytes = Stage::bytes(call.same_key), lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t stride = call.value_heads * call.d_v * 2;
  unsigned char* to = nullptr;
  if constexpr (Delta) {
    to = static_cast<unsigned char*>(scan.z) + task.row * stride +
         (static_cast<std::int64_t>(task.head) * call.d_v + task.column) * 2;
  }

  NarrowTurns turns(barriers, scan.stages, task.blocks);
  for (int index = 0; index < task.chunks; ++index) {
    unsigned char* const stage = stages + turns.stage() * bytes;
    const int count = task.count(index);
    turns.await(barriers.full);
    turns.await(barriers.state);
    // Transposed, in tiles of 64 value columns: 8 of them of 8 channels are a matrix.
    if (task.column < scan.width) {
      unsigned char* const tile =
          static_cast<unsigned char*>(chunk.states) +
          2 * chunk.state_tile(task.first_chunk + index, task.head, task.column / 64);
#pragma unroll
      for (int i = 0; i < DK / 64; ++i) {
#pragma unroll
        for (int n = 0; n < N / 16; ++n) {
          const int k = 16 * (4 * i + group_warp());
          std::uint32_t r[4];
          load_matrix_x4_transposed(
              r, stage + Stage::kState + State::place(k + lane % 16, 2 * n + lane / 16));
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int v = task.column % 64 + 16 * n + 8 * (j / 2) + lane / 4;
            *reinterpret_cast<std::uint32_t*>(tile + (k / 8 + j % 2) * 1024 + v * 16 +
                                              lane % 4 * 4) = r[j];
          }
        }
      }
    }
    turns.await(barriers.rows);
    if constexpr (Delta) {
      __syncwarp();
      take_narrow_rows<Value>(stage + Stage::kValue, to, stride, count, call.d_v - task.column);
      to += kChunkRows * stride;
      fence_async();  // the copy engine writes there next
    }
    turns.finish();
  }
}

template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_narrow(const NarrowForward& scan, std::uint32_t block) {
  using Stage = NarrowStage<DK, N, Scaled, Delta>;
  const TwoKeyCall& call = scan.chunk.call;
  unsigned char* const shared = shared_memory();
  unsigned char* const own = shared + scan.stages * Stage::bytes(call.same_key);
  const NarrowBarriers barriers(own + NarrowOwn<Stage>::kBytes, scan.stages);
  const NarrowTask& task = start_narrow_block(barriers, scan.stages, scan.chunk, scan.tensors,
                                              block, N, scan.width, kNarrowGroups * kGroup);
  if (call.takes(task.rows)) {  // the whole cluster or none of it
    if (threadIdx.x < kGroup) {
      carry_narrow<Format, DK, N, Scaled, Delta>(scan, task, barriers, shared, own);
    } else if (threadIdx.x < kNarrowGroups * kGroup) {
      see_narrow<Format, DK, N, Scaled, Delta>(scan, task, barriers, shared);
    } else if (threadIdx.x < kNarrowThreads) {
      feed_narrow<Stage, DK, Scaled, Delta, false>(scan.chunk, scan.tensors, task, barriers, shared,
                                                   scan.stages, 0, 1);
    }
  }
  cluster_sync();  // others bring tiles and arrive here until the end
}

}  // namespace rankone::recurrence::cuda
