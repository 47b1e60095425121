#pragma once

// The backward scan with narrow value tiles. Per chunk from the last to the first, with D the
// cotangent [K, N value columns] of the state at the chunk's end:
//
//     dU = out (W^ D) + P^T dO;   dV = dR = Y^T (gain dU)      (additive: dV = gain dU)
//     D = keep D + Q~^T (scale in dO) - E~^T (in dV)
//
// What is rounded where, and the parts of the scale, are as in chunk_scan_backward.hpp, but for D,
// which is rounded with the mantissa of the scale, as it is kept. Only W^ D, Y^T and E~^T are
// products that wait for one another. The row group makes dU and dV. What needs no D is made by two
// warps a chunk ahead: P^T dO, and dO as it is multiplied by Q~^T. What they read, dO, P and the
// numbers of the rows, comes to a ring of stages of its own, which is deeper than that of the other
// tiles.

#include "recurrence/cuda/chunk_narrow_parts.hpp"

namespace rankone::recurrence::cuda {

struct NarrowBackward {
  ChunkCall chunk;
  ScanBack back;
  ScanTensors tensors;                  // `value` of dO, in rows of N columns
  int width = 0;                        // value columns, up to whole tiles of 64
  std::uint32_t blocks = 0;             // of this scan in a launch of both
  float mantissa = 1.0F, power = 1.0F;  // scale_parts()
  int stages = 2, early_stages = 2;
};

// Where the tiles of a stage stand: those of the keys, in the record's order with channel decay, Y,
// and, where it is not that of W^, the one of E.
template <int DK, bool Scaled, bool Delta, class ValueTile>
struct BackStage {
  using Key = std::conditional_t<Scaled, Tile<64, DK, false>, RowTile<64, DK>>;
  using Value = ValueTile;
  using Square = Tile<64, 64, false>;

  static constexpr int kQuery = Scaled ? 0 : Key::kBytes;
  static constexpr int kScaledErase = Key::kBytes;
  static constexpr int kScaledWrite = kScaledErase + (Delta ? Key::kBytes : 0);
  static constexpr int kWrite = Scaled ? kScaledWrite : 0;
  static constexpr int kSquareY = (Scaled && Delta ? 3 : 2) * Key::kBytes;
  static constexpr int kEnd = kSquareY + (Delta ? Square::kBytes : 0);

  static __host__ __device__ constexpr bool separate(bool same_key) {
    return !Scaled && Delta && !same_key;
  }
  static __host__ __device__ constexpr int erase(bool same_key) {
    return Scaled ? kScaledErase : separate(same_key) ? kEnd : kWrite;
  }
  static __host__ __device__ constexpr int bytes(bool same_key) {
    return kEnd + (separate(same_key) ? Key::kBytes : 0);
  }
};
// And of an early stage: dO, then P and the numbers as in the record.
template <int DK, class ValueTile>
struct EarlyStage {
  using Square = Tile<64, 64, false>;
  static constexpr int kValue = 0, kSquareP = ValueTile::kBytes;
  static constexpr int kIn = kSquareP + Square::kBytes;
  static constexpr int kOut = kIn + 256, kGain = kOut + 256, kKeep = kGain + 256;
  static constexpr int kPrecise = kKeep + DK * 4;
  // In the place of P once it has been read: P^T dO, as the row group's accumulators; then what
  // rounding has left of gain dU, and dV.
  static constexpr int kLocal = kSquareP, kRest = kLocal, kResult = kLocal + ValueTile::kBytes;
  static constexpr int kBytes = (kIn + number_bytes(DK) + 1023) / 1024 * 1024;
};

template <int DK, int N, bool Scaled, bool Delta>
struct NarrowBack : NarrowGroups<DK> {
  using Value = NarrowValue<N>;
  using Stage = BackStage<DK, Scaled, Delta, Value>;
  using Early = EarlyStage<DK, Value>;
  // Right sides of products, with their contraction along the rows: gain dU, and in dR.
  using Error = Tile<N, 64, false>;
  // They stand behind those of D, or, where E~ is not the same, in the place of W^, which is in
  // registers by then.
  static constexpr int kErrors = NarrowStates<DK, N>::kBytes;
  static __host__ __device__ constexpr bool separate(bool same_key) { return Scaled || !same_key; }
  static __host__ __device__ constexpr int own(bool same_key) {
    return kErrors + (Delta && !separate(same_key) ? 2 * Error::kBytes : 0);
  }
  // Bytes of shared memory of a block.
  static __host__ __device__ constexpr int bytes(int stages, int early_stages, bool same_key) {
    return narrow_bytes(early_stages, Early::kBytes, own(same_key)) +
           stages * (Stage::bytes(same_key) + kNarrowBarrierBytes);
  }
};

// What all groups of a block know.
struct NarrowBlock {
  const NarrowTask& task;
  const NarrowBarriers &barriers, &early;  // of the stages, and of the early ones
  int stages, stage_bytes, early_stages;
  unsigned char *early_stage, *own;

  // gain dU; in dR is behind it
  template <class Back>
  __device__ __forceinline__ unsigned char* errors(unsigned char* stage, bool same_key) const {
    return Back::separate(same_key) ? stage + Back::Stage::kWrite : own + Back::kErrors;
  }
};

// The row group: dU and dV of every chunk.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_back_rows(const NarrowBackward& scan,
                                               const NarrowBlock& block) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Engine = WgmmaEngine<Format>;
  using Stage = typename Back::Stage;
  using Early = typename Back::Early;
  using Square = typename Stage::Square;
  using Value = typename Back::Value;
  using Error = typename Back::Error;
  using State = typename NarrowStates<DK, N>::State;
  constexpr int kWorkers = Back::kWorkers, kHalf = N / 2;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const NarrowTask& task = block.task;
  unsigned char* const shared = shared_memory();
  const float inverse = 1.0F / scan.mantissa;  // D has the mantissa

  std::uint32_t write[DK / 16][4];
  float local[kHalf];  // gain P^T dO
  float2 by, in;       // gain out, in
  bool precise = false;
  const auto fetch = [&](const unsigned char* stage, const unsigned char* early) {
    fetch_fragments<typename Stage::Key>(write, stage + Stage::kWrite);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const float4 four =
          reinterpret_cast<const float4*>(early + Early::kLocal)[i / 4 * kGroup + group_thread()];
      local[i] = four.x;
      local[i + 1] = four.y;
      local[i + 2] = four.z;
      local[i + 3] = four.w;
    }
    const float2 gain = numbers_of(early + Early::kGain), out = numbers_of(early + Early::kOut);
    by = make_float2(gain.x * out.x * inverse, gain.y * out.y * inverse);
    in = numbers_of(early + Early::kIn);
    if constexpr (Delta) {
      precise = *reinterpret_cast<const float*>(early + Early::kPrecise) != 0.0F;
    }
  };
  NarrowTurns turns(block.barriers, block.stages, task.blocks);
  NarrowTurns early_turns(block.early, block.early_stages, task.blocks);
  early_turns.await(block.early.ahead);
  fetch(shared, block.early_stage);
  for (int index = task.chunks - 1; index >= 0; --index) {
    unsigned char* const stage = shared + turns.stage() * block.stage_bytes;
    unsigned char* const early = block.early_stage + early_turns.stage() * Early::kBytes;
    const unsigned char* const cotangent =
        block.own + (task.chunks - 1 - index) % 2 * State::kBytes;
    float carried[kHalf];  // W^ D, then gain dU, then dR
    barrier_sync(kStateBarrier, kWorkers);
    multiply_fragments<Engine, State, false>(carried, write, cotangent, true);
    std::uint32_t square[4][4];
    if constexpr (Delta) fetch_transposed<Square>(square, stage + Stage::kSquareY, 0);
    Engine::template wait<0>();
    Engine::hold(carried);
    if constexpr (!Delta) barrier_arrive(kReadBarrier, kWorkers);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      carried[i] = (i % 4 < 2 ? by.x : by.y) * carried[i] + local[i];
    }
    if constexpr (Delta) {
      unsigned char* const update = block.template errors<Back>(stage, call.same_key);
      std::uint32_t right[kHalf / 8][4];
      round_to<Format>(right, carried);
      put_transposed<Error>(update, right, 0);
      if (precise) {
        std::uint32_t rest[kHalf / 8][4];
        rest_of<Format>(rest, carried, right);
        put_transposed<Error>(early + Early::kRest, rest, 0);
      }
      fence_async();
      barrier_sync(kRowBarrier, kGroup);
      multiply_fragments<Engine, Error, false>(carried, square, update, false);
      Engine::template wait<0>();
      Engine::hold(carried);
      if (precise) {
        add_narrow_rest<Format, Error, Square, true>(
            carried, stage + Stage::kSquareY,
            task.record + index * (call.value_heads * chunk.layout.bytes) + chunk.layout.square_low,
            update, early + Early::kRest);
      }
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float minus = j % 2 == 0 ? -in.x : -in.y;
          right[n][j] =
              pack<Format>(minus * carried[8 * n + 2 * j], minus * carried[8 * n + 2 * j + 1]);
        }
      }
      put_transposed<Error>(update + Error::kBytes, right, 0);
      fence_async();
      barrier_arrive(kUpdateBarrier, kWorkers);
    }
    // What the next chunk needs, then dV.
    if (index > 0) {
      early_turns.await_next(block.early.ahead, true);
      fetch(shared + turns.next_stage() * block.stage_bytes,
            block.early_stage + early_turns.next_stage() * Early::kBytes);
    }
    scale_rows(carried, make_float2(scan.mantissa, scan.mantissa));
    put_rounded<Format, Value>(early + Early::kResult, 0, carried);
    fence_async();
    mbarrier_arrive(block.early.result + early_turns.stage());
    turns.advance();
    early_turns.advance();
  }
}

// A group of the state: its 64 channels of D.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_back_state(const NarrowBackward& scan,
                                                const NarrowBlock& block) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Engine = WgmmaEngine<Format>;
  using Stage = typename Back::Stage;
  using Early = typename Back::Early;
  using Value = typename Back::Value;
  using Key = typename Stage::Key;
  using Error = typename Back::Error;
  constexpr int kWorkers = Back::kWorkers;
  constexpr int kHalf = N / 2, kPairs = kHalf / 8;
  constexpr bool kApart = sums_apart(Scaled, Delta);
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const NarrowTask& task = block.task;
  unsigned char* const shared = shared_memory();
  const int group = group_number();
  const std::int64_t head = task.sequence * call.value_heads + task.head;
  const std::int64_t size = std::int64_t{call.d_k} * call.d_v;

  float state[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) state[i] = 0.0F;
  if (scan.back.d_final != nullptr) {
    each_narrow_pair<kHalf>(scan.back.d_final + head * size, group, task.column, call.d_k, call.d_v,
                            [&](int n, const float* at, bool inside) {
                              if (!inside) return;
                              state[2 * n] = at[0] / scan.mantissa;
                              state[2 * n + 1] = at[1] / scan.mantissa;
                            });
  }
  NarrowStates<DK, N> states(block.own, chunk, chunk.d_states, task, scan.width, task.chunks - 1);
  const std::int64_t step = -2 * chunk.state_tile(1, 0, 0);
  const auto publish = [&] {
    std::uint32_t rounded[kPairs][4];
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        rounded[n][j] = pack<Format>(scan.mantissa * state[8 * n + 2 * j],
                                     scan.mantissa * state[8 * n + 2 * j + 1]);
      }
    }
    states.publish(rounded);
  };
  NarrowTurns turns(block.barriers, block.stages, task.blocks);
  NarrowTurns early_turns(block.early, block.early_stages, task.blocks);
  if (task.chunks > 0) publish();
  for (int index = task.chunks - 1; index >= 0; --index) {
    unsigned char* const stage = shared + turns.stage() * block.stage_bytes;
    const unsigned char* const early = block.early_stage + early_turns.stage() * Early::kBytes;
    std::uint32_t query[4][4], erase[4][4];
    [[maybe_unused]] float sums[kApart ? kHalf : 1];
    early_turns.await(block.early.ahead);
    fetch_transposed<Key>(query, stage + Stage::kQuery, 64 * group);
    if constexpr (Scaled) {
      scale_rows(state, numbers_of(early + Early::kKeep + 256 * group));
    } else if constexpr (!kApart) {
      const float keep = *reinterpret_cast<const float*>(early + Early::kKeep);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) state[i] *= keep;
    }
    if constexpr (kApart) {
      multiply_fragments<Engine, Value, true>(sums, query, early + Early::kValue, true);
    } else {
      multiply_fragments<Engine, Value, true>(state, query, early + Early::kValue, false);
    }
    states.take(step);
    if constexpr (Delta) {
      fetch_transposed<Key>(erase, stage + Stage::erase(call.same_key), 64 * group);
    }
    if constexpr (Delta) {
      barrier_sync(kUpdateBarrier, kWorkers);
      multiply_fragments<Engine, Error, false>(
          state, erase, block.template errors<Back>(stage, call.same_key) + Error::kBytes, false);
    } else {
      barrier_sync(kReadBarrier, kWorkers);
    }
    Engine::template wait<0>();
    if constexpr (kApart) {
      Engine::hold(sums);
      add_sums(state, sums, early + Early::kKeep);
    } else {
      Engine::hold(state);
    }
    if (index > 0) publish();  // with a fence, for the copy engine writes to the stages next
    mbarrier_arrive(block.early.result + early_turns.stage());
    turns.advance();
    early_turns.advance();
  }
  states.finish();
  if (scan.back.d_initial != nullptr) {
    each_narrow_pair<kHalf>(scan.back.d_initial + head * size, group, task.column, call.d_k,
                            call.d_v, [&](int n, float* at, bool inside) {
                              if (!inside) return;
                              at[0] = scan.mantissa * state[2 * n];
                              at[1] = scan.mantissa * state[2 * n + 1];
                            });
  }
}

// The two warps that work ahead: each for 32 rows of P^T dO, and for half of dO.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_back_ahead(const NarrowBackward& scan,
                                                const NarrowBlock& block) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Early = typename Back::Early;
  using Square = typename Early::Square;
  using Value = typename Back::Value;
  constexpr int kHalf = N / 2, kPieces = N / 8, kThreads = kAheadWarps * 32;
  constexpr int kMine = 64 * kPieces / kThreads;
  const NarrowTask& task = block.task;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = group_warp() - kAheadWarp;
  const int thread = 32 * warp + lane;
  const float inverse = 1.0F / scan.mantissa;  // P has the whole scale
  Turn turn, tiles;
  for (int number = 0; number < task.chunks; ++number) {
    unsigned char* const stage = block.early_stage + turn.stage * Early::kBytes;
    unsigned char* const values = stage + Early::kValue;
    mbarrier_wait(block.early.full + turn.stage, turn.parity);
    float local[2][kHalf];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) local[m][i] = 0.0F;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t left[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_a_transposed<Square>(left[m], stage + Early::kSquareP, 32 * warp + 16 * m, k);
      }
#pragma unroll
      for (int n = 0; n < N; n += 16) {
        std::uint32_t b[4];
        load_b_transposed<Value>(b, values, n, k);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          float* const d = local[m] + n / 2;
          mma_m16n8k16<Format>(*reinterpret_cast<float(*)[4]>(d), left[m], b[0], b[1]);
          mma_m16n8k16<Format>(*reinterpret_cast<float(*)[4]>(d + 4), left[m], b[2], b[3]);
        }
      }
    }
    uint4 scaled[kMine];  // scale in dO
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int row = (i * kThreads + thread) / kPieces, piece = thread % kPieces;
      const float in = scan.power * *reinterpret_cast<const float*>(stage + Early::kIn + 4 * row);
      const auto times = [in](std::uint32_t pair) {
        const float2 d = unpack<Format>(pair);
        return pack<Format>(in * d.x, in * d.y);
      };
      const uint4 d = *reinterpret_cast<const uint4*>(values + Value::place(row, piece));
      scaled[i] = make_uint4(times(d.x), times(d.y), times(d.z), times(d.w));
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const auto* const gain =
          reinterpret_cast<const float*>(stage + Early::kGain) + 32 * warp + 16 * m + lane / 4;
      scale_rows(local[m], make_float2(gain[0] * inverse, gain[8] * inverse));
    }
    barrier_sync(kAheadBarrier, kThreads);  // P and dO have been read
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int row = (i * kThreads + thread) / kPieces, piece = thread % kPieces;
      *reinterpret_cast<uint4*>(values + Value::place(row, piece)) = scaled[i];
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      // To the thread of the row group that has the same place.
      auto* const to =
          reinterpret_cast<float4*>(stage + Early::kLocal) + 32 * (2 * warp + m) + lane;
#pragma unroll
      for (int i = 0; i < kHalf; i += 4) {
        to[i / 4 * kGroup] =
            make_float4(local[m][i], local[m][i + 1], local[m][i + 2], local[m][i + 3]);
      }
    }
    fence_async();
    mbarrier_wait(block.barriers.full + tiles.stage, tiles.parity);
    mbarrier_arrive(block.early.ahead + turn.stage);
    tiles = tiles.next(block.stages);
    turn = turn.next(block.early_stages);
  }
}

// What the warp does that brings tiles: all chunks of the task.
template <class Back, int DK, bool Scaled, bool Delta>
__device__ __forceinline__ void feed_back(const NarrowBackward& scan, const NarrowBlock& block) {
  using Early = typename Back::Early;
  if (threadIdx.x % 32 == 0) {
    unsigned char* const shared = shared_memory();
    const int chunks = block.task.chunks;
    const NarrowLoads<typename Back::Stage, DK, Scaled, Delta, true> loads(
        scan.chunk, scan.tensors, block.task, chunks - 1, -1);
    Turn turn{0, 1}, early{0, 1};  // the parity of the turn before
    const auto load_tiles = [&](int number) {
      std::uint64_t* const full = block.barriers.full + turn.stage;
      mbarrier_arrive_expect(full, loads.tile_bytes());
      loads.load_tiles(number, shared + turn.stage * block.stage_bytes, full);
      turn = turn.next(block.stages);
    };
    const auto load_values = [&](int number) {
      std::uint64_t* const full = block.early.full + early.stage;
      unsigned char* const stage = block.early_stage + early.stage * Early::kBytes;
      mbarrier_arrive_expect(full, loads.value_bytes());
      loads.load_values(number, stage + Early::kValue, stage + Early::kSquareP, full);
      early = early.next(block.early_stages);
    };
    for (int number = 0; number < block.early_stages && number < chunks; ++number) {
      load_values(number);
      if (number < block.stages) load_tiles(number);
    }
    const auto next_values = [&](int number) {
      if (number >= chunks) return;
      mbarrier_wait(block.early.empty + early.stage, early.parity);
      load_values(number);
    };
    // What is wanted first comes first.
    const int more = block.early_stages - block.stages;
    for (int number = block.stages; number < chunks; ++number) {
      if (more == 0) next_values(number);
      mbarrier_wait(block.barriers.empty + turn.stage, turn.parity);
      load_tiles(number);
      if (more > 0) next_values(number + more);
    }
  }
  __syncwarp();
}

template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_narrow_back(const NarrowBackward& scan, std::uint32_t number) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Stage = typename Back::Stage;
  using Early = typename Back::Early;
  const TwoKeyCall& call = scan.chunk.call;
  unsigned char* const shared = shared_memory();
  const int stage_bytes = Stage::bytes(call.same_key);
  unsigned char* const early_stage = shared + scan.stages * stage_bytes;
  unsigned char* const own = early_stage + scan.early_stages * Early::kBytes;
  const NarrowBarriers barriers(own + Back::own(call.same_key), scan.stages);
  const NarrowBarriers early(own + Back::own(call.same_key) + scan.stages * kNarrowBarrierBytes,
                             scan.early_stages);
  const NarrowTask& task =
      start_narrow_block(early, scan.early_stages, &barriers, scan.stages, scan.chunk, scan.tensors,
                         number, N, scan.width, Back::kWorkers);
  const NarrowBlock block{task,        barriers,          early,       scan.stages,
                          stage_bytes, scan.early_stages, early_stage, own};
  if (task.chunks > 0) {
    if (threadIdx.x >= Back::kWorkers && group_warp() == kFeedWarp) {
      feed_back<Back, DK, Scaled, Delta>(scan, block);
    } else {
      mbarrier_wait(barriers.full, 0);
      mbarrier_wait(early.full, 0);
      const int count = task.count(task.chunks - 1);
      if (count < kChunkRows) {  // only the last chunk, which comes first
        if (threadIdx.x < Back::kWorkers) {
          const int thread = static_cast<int>(threadIdx.x);
          clear_rows<typename Back::Value>(early_stage + Early::kValue, count, thread,
                                           Back::kWorkers);
          clear_keys<Stage, Scaled, true>(shared, call.same_key, count, thread, Back::kWorkers);
          fence_async();
        }
        barrier_sync(kNarrowClearBarrier, Back::kThreads - 32);
      }
    }
  }
  if (group_number() < Back::kStateGroups) {
    scan_back_state<Format, DK, N, Scaled, Delta>(scan, block);
  } else if (task.chunks > 0) {
    if (group_number() == Back::kStateGroups) {
      scan_back_rows<Format, DK, N, Scaled, Delta>(scan, block);
    } else if (group_warp() >= kAheadWarp) {
      scan_back_ahead<Format, DK, N, Scaled, Delta>(scan, block);
    } else if (group_warp() == kTakeWarp) {
      take_results<typename Back::Value>(narrow_result(call, scan.back.d_v, task, true), call.d_v,
                                         task, early, early_stage + Early::kResult,
                                         scan.early_stages, Early::kBytes, &barriers, scan.stages,
                                         true);
    }
  }
  cluster_sync();  // others bring tiles and arrive here until the end
}

}  // namespace rankone::recurrence::cuda
