#pragma once

// The forward scan of a training call with narrow value tiles: the states of all chunks and Z, no
// outputs. Per chunk, with S the state [K, N value columns]:
//
//     R = V - in (E~ S);   Z = Y R;   U = gain Z;   S = keep S + W^^T (out U)
//
// What is rounded where is as in chunk_scan_forward.hpp. The row group makes R, Z and U.

#include "recurrence/cuda/chunk_narrow_parts.hpp"

namespace rankone::recurrence::cuda {

struct NarrowForward {
  ChunkCall chunk;
  ScanTensors tensors;  // `value` in rows of N columns
  void* z = nullptr;    // Z, [R, HV, V], of delta calls
  int width = 0;        // value columns, up to whole tiles of 64
  int stages = 2;
};

template <int DK, int N, bool Scaled, bool Delta>
struct NarrowForth : NarrowGroups<DK> {
  using Value = NarrowValue<N>;
  using Stage = ScanStage<DK, Scaled, Delta, false, Value>;
  // Right sides of products, with their contraction along the rows: R, its rest, and out U. They
  // stand behind those of S.
  using Rows = Tile<N, 64, false>;
  static constexpr int kRows = NarrowStates<DK, N>::kBytes, kRest = kRows + Rows::kBytes,
                       kUpdate = kRest + Rows::kBytes, kOwn = kUpdate + Rows::kBytes;

  // Only the last chunk may have fewer than 64 rows. By the groups of the state and of the rows.
  static __device__ __forceinline__ void clear(unsigned char* stage, bool same_key, int count) {
    if (count == kChunkRows) return;
    const int thread = static_cast<int>(threadIdx.x);
    clear_rows<Value>(stage + Stage::kValue, count, thread, NarrowForth::kWorkers);
    clear_keys<Stage, Scaled, false>(stage, same_key, count, thread, NarrowForth::kWorkers);
    fence_async();
    barrier_sync(kNarrowClearBarrier, NarrowForth::kWorkers);
  }
};

// What the warp does that brings tiles: all chunks of the task.
template <class Stage, int DK, bool Scaled, bool Delta>
__device__ __forceinline__ void feed_forward(const NarrowForward& scan, const NarrowTask& task,
                                             const NarrowBarriers& barriers,
                                             unsigned char* stages) {
  if (threadIdx.x % 32 == 0) {
    const int bytes = Stage::bytes(scan.chunk.call.same_key), chunks = task.chunks;
    const NarrowLoads<Stage, DK, Scaled, Delta, false> loads(scan.chunk, scan.tensors, task, 0, 1);
    Turn turn{0, 1};  // the parity of the turn before
    for (int number = 0; number < chunks; ++number) {
      if (number >= scan.stages) mbarrier_wait(barriers.empty + turn.stage, turn.parity);
      unsigned char* const stage = stages + turn.stage * bytes;
      std::uint64_t* const full = barriers.full + turn.stage;
      mbarrier_arrive_expect(full, loads.tile_bytes() + loads.value_bytes());
      loads.load_tiles(number, stage, full);
      loads.load_values(number, stage + Stage::kValue, stage + Stage::kIn, full);
      turn = turn.next(scan.stages);
    }
  }
  __syncwarp();
}

// The row group.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_rows(const NarrowForward& scan, const NarrowTask& task,
                                          const NarrowBarriers& barriers, unsigned char* stages,
                                          unsigned char* own) {
  using Forth = NarrowForth<DK, N, Scaled, Delta>;
  using Engine = WgmmaEngine<Format>;
  using Stage = typename Forth::Stage;
  using Key = typename Stage::Key;
  using Square = typename Stage::Square;
  using Value = typename Forth::Value;
  using Rows = typename Forth::Rows;
  using State = typename NarrowStates<DK, N>::State;
  constexpr int kWorkers = Forth::kWorkers, kHalf = N / 2;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const int bytes = Stage::bytes(call.same_key);

  std::uint32_t erase[DK / 16][4];
  float values[kHalf];
  float2 gain, in = make_float2(1.0F, 1.0F), out = in;
  bool precise = false;
  const auto fetch = [&](const unsigned char* stage) {
    if constexpr (Delta) {
      fetch_fragments<Key>(erase, stage + Stage::erase(call.same_key));
      precise = *reinterpret_cast<const float*>(stage + Stage::kPrecise) != 0.0F;
    }
    get_rows<Format, Value>(values, stage + Stage::kValue);
    gain = numbers_of(stage + Stage::kGain);
    if constexpr (!Scaled) {
      in = numbers_of(stage + Stage::kIn);
      out = numbers_of(stage + Stage::kOut);
    }
  };
  NarrowTurns turns(barriers, scan.stages, task.blocks);
  Forth::clear(stages, call.same_key, task.count(0));
  fetch(stages);
  for (int index = 0; index < task.chunks; ++index) {
    unsigned char* const stage = stages + turns.stage() * bytes;
    float rows[kHalf];  // E~ S, then R, then Z
    barrier_sync(kStateBarrier, kWorkers);
    if constexpr (Delta) {
      multiply_fragments<Engine, State, false>(rows, erase, own + index % 2 * State::kBytes, true);
    }
    if constexpr (Delta) {
      std::uint32_t square[4][4];
      fetch_fragments<Square>(square, stage + Stage::kSquareY);
      Engine::template wait<0>();
      Engine::hold(rows);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) rows[i] = values[i] - (i % 4 < 2 ? in.x : in.y) * rows[i];
      std::uint32_t right[kHalf / 8][4];
      round_to<Format>(right, rows);
      put_transposed<Rows>(own + Forth::kRows, right, 0);
      if (precise) {
        std::uint32_t rest[kHalf / 8][4];
        rest_of<Format>(rest, rows, right);
        put_transposed<Rows>(own + Forth::kRest, rest, 0);
      }
      fence_async();
      barrier_sync(kRowBarrier, kGroup);
      multiply_fragments<Engine, Rows, false>(rows, square, own + Forth::kRows, false);
      Engine::template wait<0>();
      Engine::hold(rows);
      if (precise) {
        add_narrow_rest<Format, Rows, Square, false>(
            rows, stage + Stage::kSquareY,
            task.record + index * (call.value_heads * chunk.layout.bytes) + chunk.layout.square_low,
            own + Forth::kRows, own + Forth::kRest);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) rows[i] = values[i];
    }
    float update[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) update[i] = rows[i];
    scale_rows(update, gain);
    if constexpr (!Scaled) scale_rows(update, out);
    std::uint32_t right[kHalf / 8][4];
    round_to<Format>(right, update);
    put_transposed<Rows>(own + Forth::kUpdate, right, 0);
    fence_async();
    barrier_arrive(kUpdateBarrier, kWorkers);
    // What the next chunk needs, then Z.
    if (index + 1 < task.chunks) {
      turns.await_next(barriers.full, true);
      unsigned char* const next = stages + turns.next_stage() * bytes;
      Forth::clear(next, call.same_key, task.count(index + 1));
      fetch(next);
    }
    if constexpr (Delta) put_rounded<Format, Value>(stage + Stage::kValue, 0, rows);
    fence_async();
    mbarrier_arrive(barriers.result + turns.stage());
    turns.advance();
  }
}

// A group of the state: its 64 channels.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_state(const NarrowForward& scan, const NarrowTask& task,
                                           const NarrowBarriers& barriers, unsigned char* stages,
                                           unsigned char* own) {
  using Forth = NarrowForth<DK, N, Scaled, Delta>;
  using Engine = WgmmaEngine<Format>;
  using Stage = typename Forth::Stage;
  using Key = typename Stage::Key;
  using Rows = typename Forth::Rows;
  constexpr int kHalf = N / 2;
  constexpr bool kApart = sums_apart(Scaled, Delta);
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const int bytes = Stage::bytes(call.same_key), group = group_number();
  const std::int64_t size = static_cast<std::int64_t>(call.d_k) * call.d_v;
  const std::int64_t head = task.sequence * call.value_heads + task.head;

  float state[kHalf];
  const float* const from =
      call.initial_state == nullptr ? nullptr : call.initial_state + head * size;
  each_narrow_pair<kHalf>(
      from, group, task.column, call.d_k, call.d_v, [&](int n, const float* at, bool inside) {
        const float2 both = from != nullptr && inside ? *reinterpret_cast<const float2*>(at)
                                                      : make_float2(0.0F, 0.0F);
        state[2 * n] = both.x;
        state[2 * n + 1] = both.y;
      });
  NarrowStates<DK, N> states(own, chunk, chunk.states, task, scan.width, 0);
  const std::int64_t step = 2 * chunk.state_tile(1, 0, 0);
  constexpr int kPairs = kHalf / 8;
  const auto publish = [&] {
    std::uint32_t rounded[kPairs][4];
    round_to<Format>(rounded, state);
    states.publish(rounded);
  };
  NarrowTurns turns(barriers, scan.stages, task.blocks);
  publish();
  for (int index = 0; index < task.chunks; ++index) {
    unsigned char* const stage = stages + turns.stage() * bytes;
    const bool more = index + 1 < task.chunks;
    Forth::clear(stage, call.same_key, task.count(index));
    std::uint32_t write[4][4];
    fetch_transposed<Key>(write, stage + Stage::kWrite, 64 * group);
    if constexpr (Scaled) {
      scale_rows(state, numbers_of(stage + Stage::kKeep + 256 * group));
    } else if constexpr (!kApart) {
      const float keep = *reinterpret_cast<const float*>(stage + Stage::kKeep);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) state[i] *= keep;
    }
    states.take(step);
    turns.await_next(barriers.full, more);
    barrier_sync(kUpdateBarrier, Forth::kWorkers);
    if constexpr (kApart) {
      float sums[kHalf];
      multiply_fragments<Engine, Rows, false>(sums, write, own + Forth::kUpdate, true);
      Engine::template wait<0>();
      Engine::hold(sums);
      add_sums(state, sums, stage + Stage::kKeep);
    } else {
      multiply_fragments<Engine, Rows, false>(state, write, own + Forth::kUpdate, false);
      Engine::template wait<0>();
      Engine::hold(state);
    }
    if (more) publish();  // with a fence, for the copy engine writes to the stage next
    mbarrier_arrive(barriers.result + turns.stage());
    turns.advance();
  }
  states.finish();
}

template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_narrow(const NarrowForward& scan, std::uint32_t block) {
  using Forth = NarrowForth<DK, N, Scaled, Delta>;
  using Stage = typename Forth::Stage;
  const TwoKeyCall& call = scan.chunk.call;
  unsigned char* const shared = shared_memory();
  unsigned char* const own = shared + scan.stages * Stage::bytes(call.same_key);
  const NarrowBarriers barriers(own + Forth::kOwn, scan.stages);
  const NarrowTask& task = start_narrow_block(barriers, scan.stages, nullptr, 0, scan.chunk,
                                              scan.tensors, block, N, scan.width, Forth::kWorkers);
  if (call.takes(task.rows) && task.chunks > 0) {  // the whole cluster or none of it
    if (threadIdx.x >= Forth::kWorkers) {
      if (group_warp() == kFeedWarp) {
        feed_forward<Stage, DK, Scaled, Delta>(scan, task, barriers, shared);
      } else if (group_warp() == kTakeWarp) {
        take_results<typename Forth::Value>(
            narrow_result(call, Delta ? scan.z : nullptr, task, false), call.d_v, task, barriers,
            shared + Stage::kValue, scan.stages, Stage::bytes(call.same_key), nullptr, 1, false);
      }
    } else {
      mbarrier_wait(barriers.full, 0);
      if (group_number() < Forth::kStateGroups) {
        scan_state<Format, DK, N, Scaled, Delta>(scan, task, barriers, shared, own);
      } else {
        scan_rows<Format, DK, N, Scaled, Delta>(scan, task, barriers, shared, own);
      }
    }
  }
  cluster_sync();  // others bring tiles and arrive here until the end
}

}  // namespace rankone::recurrence::cuda
