#pragma once

// The backward scan with narrow value tiles. Per chunk from the last to the first, with D the
// cotangent [K, N value columns] of the state at the chunk's end:
//
//     dU = out (W^ D) + P^T dO;   dV = dR = Y^T (gain dU)      (additive: dV = gain dU)
//     D = keep D + Q~^T (scale in dO) - E~^T (in dV)
//
// What is rounded where, and the parts of the scale, are as in chunk_scan_backward.hpp. Only W^ D,
// Y^T and E~^T are products that wait for one another. A group of four warps for every 64 channels
// holds its part of D, and the row group makes dU and dV: P^T dO of a chunk while the others still
// take the chunk behind it into D, and these take Q~^T dO into D while the row group makes dV.

#include "recurrence/cuda/chunk_narrow_forward.hpp"

namespace rankone::recurrence::cuda {

struct NarrowBackward {
  ChunkCall chunk;
  ScanBack back;
  ScanTensors tensors;                  // `value` of dO, in rows of N columns
  int width = 0;                        // value columns, up to whole tiles of 64
  std::uint32_t blocks = 0;             // of this scan in a launch of both
  float mantissa = 1.0F, power = 1.0F;  // scale_parts()
  int stages = 2;
};

template <int DK, int N, bool Scaled, bool Delta>
struct NarrowBack {
  static constexpr int kStateGroups = DK / 64, kStateThreads = kStateGroups * kGroup;
  static constexpr int kWorkers = kStateThreads + kGroup, kThreads = kWorkers + 32;
  using Value = NarrowValue<N>;
  using Stage = ScanStage<DK, Scaled, Delta, true, 1, Value>;
  // Right sides of products, with their contraction along the rows: D, gain dU, and in dR.
  using Cotangent = Tile<N, DK, false>;
  using Error = Tile<N, 64, false>;
  static constexpr int kCotangent = 0, kUpdate = Cotangent::kBytes,
                       kErase = kUpdate + (Delta ? Error::kBytes : 0),
                       kOwn = kErase + (Delta ? Error::kBytes : 0);
};

// What the groups tell one another: D stands rounded in its tile (state to row group); dO has been
// read by P^T dO; D has been read (additive); dR stands in its tile (row group to state). And
// barriers of the groups of one kind among themselves, and of all.
inline constexpr int kCotangentBarrier = 1, kLocalBarrier = 2, kReadBarrier = 3, kErrorBarrier = 4,
                     kStateBarrier = 5, kRowBarrier = 6, kNarrowClearBarrier = 7;

// What all groups of a block know.
struct NarrowBlock {
  const NarrowTask& task;
  const NarrowBarriers& barriers;
  int stages, stage_bytes;
  unsigned char* own;
};

// Puts accumulators [16 rows a warp, N columns], rounded, into a tile whose rows are their columns,
// at piece `piece` and up.
template <class T, int Pairs>
__device__ __forceinline__ void put_transposed(unsigned char* tile,
                                               const std::uint32_t (&a)[Pairs][4], int piece) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  piece += 2 * group_warp() + lane / 8 % 2;
  const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int n = 0; n < Pairs; ++n) {
    store_matrix_x4_transposed(tile + T::place(16 * n + row, piece), a[n]);
  }
}

// dR += Y^T rest + Y_low^T (gain dU): what a chunk marked precise adds (add_rest of
// chunk_scan_parts.hpp).
template <class Format, class Error, class Square, int Half>
__device__ __forceinline__ void add_rest_back(float (&d)[Half], const unsigned char* rest,
                                              const unsigned char* update,
                                              const unsigned char* square,
                                              const unsigned char* low) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const int row = 16 * group_warp();
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    std::uint32_t left[4];
    load_a_transposed<Square>(left, square, row, k);
    MmaEngine<Format>::template multiply<Error, false>(d, left, rest, k, false);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned char* from =
          low + Square::place(16 * k + j / 2 * 8 + 2 * t, row / 8 + j % 2) + 2 * g;
      left[j] = *reinterpret_cast<const std::uint16_t*>(from) |
                static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(from + 16))
                    << 16;
    }
    MmaEngine<Format>::template multiply<Error, false>(d, left, update, k, false);
  }
}

// The left sides of the products are fragments of the chunk's tiles, fetched into registers while
// there is nothing else to do: products are shorter so.
template <class Engine, class B, bool Transposed, int Steps, int Half>
__device__ __forceinline__ void multiply_fragments(float (&d)[Half],
                                                   const std::uint32_t (&a)[Steps][4],
                                                   const unsigned char* b, bool clear) {
  Engine::begin();
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
    Engine::template multiply<B, Transposed>(d, a[k], b, k, clear && k == 0);
  }
  Engine::commit();
}
template <class T, int Steps>
__device__ __forceinline__ void fetch_transposed(std::uint32_t (&a)[Steps][4],
                                                 const unsigned char* tile, int m) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) load_a_transposed<T>(a[k], tile, m + 16 * group_warp(), k);
}

// The row group: dU and dV of every chunk.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_back_rows(const NarrowBackward& scan,
                                               const NarrowBlock& block) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Engine = WgmmaEngine<Format>;
  using Stage = typename Back::Stage;
  using Square = typename Stage::Square;
  using Value = typename Back::Value;
  using Error = typename Back::Error;
  constexpr int kWorkers = Back::kWorkers, kHalf = N / 2;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const NarrowTask& task = block.task;
  unsigned char* const shared = shared_memory();
  unsigned char* const update = block.own + Back::kUpdate;
  const int row = 16 * group_warp() + static_cast<int>(threadIdx.x % 32) / 4;
  const std::int64_t stride = call.value_heads * call.d_v * 2;
  // Of the last chunk, and back from there.
  unsigned char* to = static_cast<unsigned char*>(scan.back.d_v) +
                      (task.row + std::int64_t{task.chunks - 1} * kChunkRows + row) * stride +
                      (static_cast<std::int64_t>(task.head) * call.d_v + task.column) * 2 +
                      threadIdx.x % 4 * 4;
  const float inverse = 1.0F / scan.mantissa;  // P has the whole scale
  float local[kHalf];                          // P^T dO
  std::uint32_t square[4][4];                  // of P, then of Y
  const auto multiply_local = [&](const unsigned char* stage, int values) {
    fetch_transposed<Square>(square, stage + Stage::kSquareP, 0);
    multiply_fragments<Engine, Value, true>(local, square, stage + values, true);
  };
  NarrowTurns turns(block.barriers, block.stages, task.blocks);
  multiply_local(shared, Stage::kValue);
  for (int index = task.chunks - 1; index >= 0; --index) {
    unsigned char* const stage = shared + turns.stage() * block.stage_bytes;
    float carried[kHalf];  // W^ D, then gain dU, then dR
    const float2 gain = numbers_of(stage + Stage::kGain);
    const float2 out = numbers_of(stage + Stage::kOut);
    const float2 in = numbers_of(stage + Stage::kIn);
    [[maybe_unused]] const bool precise =
        Delta && *reinterpret_cast<const float*>(stage + Stage::kPrecise) != 0.0F;
    std::uint32_t write[DK / 16][4];
#pragma unroll
    for (int k = 0; k < DK / 16; ++k) {
      load_a<typename Stage::Key>(write[k], stage + Stage::kWrite, 16 * group_warp(), k);
    }
    Engine::template wait<0>();
    Engine::hold(local);
    scale_rows(local, make_float2(gain.x * inverse, gain.y * inverse));
    barrier_sync(kCotangentBarrier, kWorkers);
    // Not before: the others may still wait for the arrival of the chunk behind this one.
    barrier_arrive(kLocalBarrier, kWorkers);
    multiply_fragments<Engine, typename Back::Cotangent, false>(carried, write,
                                                                block.own + Back::kCotangent, true);
    if constexpr (Delta) fetch_transposed<Square>(square, stage + Stage::kSquareY, 0);
    Engine::template wait<0>();
    Engine::hold(carried);
    if constexpr (!Delta) barrier_arrive(kReadBarrier, kWorkers);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      carried[i] = (i % 4 < 2 ? gain.x * out.x : gain.y * out.y) * carried[i] + local[i];
    }
    if constexpr (Delta) {
      unsigned char* const rest_tile = stage + Stage::kSquareP;  // P has been read
      std::uint32_t right[kHalf / 8][4];
      round_to<Format>(right, carried);
      put_transposed<Error>(update, right, 0);
      if (precise) {
        std::uint32_t rest[kHalf / 8][4];
        rest_of<Format>(rest, carried, right);
        put_transposed<Error>(rest_tile, rest, 0);
      }
      fence_async();
      barrier_sync(kRowBarrier, kGroup);
      multiply_fragments<Engine, Error, false>(carried, square, update, false);
      Engine::template wait<0>();
      Engine::hold(carried);
      if (precise) {
        add_rest_back<Format, Error, Square>(carried, rest_tile, update, stage + Stage::kSquareY,
                                             task.record +
                                                 index * (call.value_heads * chunk.layout.bytes) +
                                                 chunk.layout.square_low);
      }
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float by = j % 2 == 0 ? -in.x : -in.y;
          right[n][j] = pack<Format>(by * carried[8 * n + 2 * j], by * carried[8 * n + 2 * j + 1]);
        }
      }
      put_transposed<Error>(block.own + Back::kErase, right, 0);
      fence_async();
      barrier_arrive(kErrorBarrier, kWorkers);
    }
    // Behind the first chunk products are made for nothing: no branch around them. They read W^: dO
    // is being scaled.
    turns.await_next_full(index > 0);
    multiply_local(shared + (index > 0 ? turns.next_stage() : turns.stage()) * block.stage_bytes,
                   index > 0 ? Stage::kValue : Stage::kWrite);
    const int count = task.count(index);
#pragma unroll
    for (int n = 0; n < kHalf / 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (task.column + 8 * n < call.d_v && row + 8 * half < count) {
          *reinterpret_cast<std::uint32_t*>(to + half * 8 * stride + 16 * n) =
              pack<Format>(scan.mantissa * carried[4 * n + 2 * half],
                           scan.mantissa * carried[4 * n + 2 * half + 1]);
        }
      }
    }
    to -= kChunkRows * stride;
    turns.finish();
  }
  Engine::template wait<0>();
  Engine::hold(local);
}

// A group of the state: its 64 channels of D.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_back_state(const NarrowBackward& scan,
                                                const NarrowBlock& block) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Engine = WgmmaEngine<Format>;
  using Stage = typename Back::Stage;
  using Value = typename Back::Value;
  using Key = typename Stage::Key;
  constexpr int kWorkers = Back::kWorkers, kThreads = Back::kStateThreads;
  constexpr int kHalf = N / 2, kPairs = kHalf / 8;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  const NarrowTask& task = block.task;
  unsigned char* const shared = shared_memory();
  const int thread = static_cast<int>(threadIdx.x), group = group_number();
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
  const auto publish = [&] {
    std::uint32_t rounded[kPairs][4];
    round_to<Format>(rounded, state);
    put_transposed<typename Back::Cotangent>(block.own + Back::kCotangent, rounded, 8 * group);
    fence_async();
    barrier_arrive(kCotangentBarrier, kWorkers);
  };
  // Where this thread has two channels of a value column of a tile of cotangents: 8 columns of 8
  // channels are a matrix there, and here its transpose.
  unsigned char* to = nullptr;
  if (chunk.d_states != nullptr && task.column < scan.width) {
    to = static_cast<unsigned char*>(chunk.d_states) +
         2 * chunk.state_tile(task.first_chunk + task.chunks - 1, task.head, task.column / 64) +
         (8 * group + 2 * group_warp()) * 1024 + task.column % 64 * 16 + threadIdx.x % 32 * 4;
  }
  const std::int64_t step = 2 * chunk.state_tile(1, 0, 0);
  NarrowTurns turns(block.barriers, block.stages, task.blocks);
  if (task.chunks > 0) publish();
  for (int index = task.chunks - 1; index >= 0; --index) {
    unsigned char* const stage = shared + turns.stage() * block.stage_bytes;
    unsigned char* const values = stage + Stage::kValue;
    std::uint32_t whole[kPairs][4];  // with the mantissa
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        whole[n][j] = pack<Format>(scan.mantissa * state[8 * n + 2 * j],
                                   scan.mantissa * state[8 * n + 2 * j + 1]);
      }
    }
    if constexpr (Scaled) {
      scale_rows(state, numbers_of(stage + Stage::kKeep + 256 * group));
    } else {
      const float keep = *reinterpret_cast<const float*>(stage + Stage::kKeep);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) state[i] *= keep;
    }
    std::uint32_t query[4][4], erase[4][4];
    fetch_transposed<Key>(query, stage + Stage::kQuery, 64 * group);
    // scale in dO, in the place of dO
    barrier_sync(kLocalBarrier, kWorkers);
    constexpr int kPieces = N / 8;
#pragma unroll
    for (int i = thread; i < 64 * kPieces; i += kThreads) {
      auto* const at = reinterpret_cast<uint4*>(values + Value::place(i / kPieces, i % kPieces));
      const float in =
          scan.power * *reinterpret_cast<const float*>(stage + Stage::kIn + 4 * (i / kPieces));
      const auto times = [in](std::uint32_t pair) {
        const float2 d = unpack<Format>(pair);
        return pack<Format>(in * d.x, in * d.y);
      };
      const uint4 d = *at;
      *at = make_uint4(times(d.x), times(d.y), times(d.z), times(d.w));
    }
    fence_async();
    barrier_sync(kStateBarrier, kThreads);
    multiply_fragments<Engine, Value, true>(state, query, values, false);
    if constexpr (Delta) {
      fetch_transposed<Key>(erase, stage + Stage::erase(call.same_key), 64 * group);
    }
    if (to != nullptr) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          *reinterpret_cast<std::uint32_t*>(to + j % 2 * 1024 + (2 * n + j / 2) * 128) =
              transpose_matrix(whole[n][j]);
        }
      }
      to -= step;
    }
    turns.await_next_full(index > 0);
    if constexpr (Delta) {
      barrier_sync(kErrorBarrier, kWorkers);
      multiply_fragments<Engine, typename Back::Error, false>(state, erase,
                                                              block.own + Back::kErase, false);
    } else {
      barrier_sync(kReadBarrier, kWorkers);
    }
    Engine::template wait<0>();
    Engine::hold(state);
    if (index > 0) publish();
    turns.finish();
  }
  if (scan.back.d_initial != nullptr) {
    each_narrow_pair<kHalf>(scan.back.d_initial + head * size, group, task.column, call.d_k,
                            call.d_v, [&](int n, float* at, bool inside) {
                              if (!inside) return;
                              at[0] = scan.mantissa * state[2 * n];
                              at[1] = scan.mantissa * state[2 * n + 1];
                            });
  }
}

template <class Format, int DK, int N, bool Scaled, bool Delta>
__device__ __forceinline__ void scan_narrow_back(const NarrowBackward& scan, std::uint32_t number) {
  using Back = NarrowBack<DK, N, Scaled, Delta>;
  using Stage = typename Back::Stage;
  const TwoKeyCall& call = scan.chunk.call;
  unsigned char* const shared = shared_memory();
  const int stage_bytes = Stage::bytes(call.same_key);
  unsigned char* const own = shared + scan.stages * stage_bytes;
  const NarrowBarriers barriers(own + Back::kOwn, scan.stages);
  const NarrowTask& task = start_narrow_block(barriers, scan.stages, scan.chunk, scan.tensors,
                                              number, N, scan.width, Back::kWorkers);
  if (threadIdx.x >= Back::kWorkers) {
    if (threadIdx.x < Back::kThreads) {
      feed_narrow<Stage, DK, Scaled, Delta, true>(scan.chunk, scan.tensors, task, barriers, shared,
                                                  scan.stages, task.chunks - 1, -1);
    }
  } else {
    if (task.chunks > 0) {
      mbarrier_wait(barriers.full, 0);
      const int count = task.count(task.chunks - 1);
      if (count < kChunkRows) {  // only the last chunk, which comes first
        const int thread = static_cast<int>(threadIdx.x);
        clear_rows<typename Back::Value>(shared + Stage::kValue, count, thread, Back::kWorkers);
        clear_keys<Stage, Scaled, true>(shared, call.same_key, count, thread, Back::kWorkers);
        fence_async();
        barrier_sync(kNarrowClearBarrier, Back::kWorkers);
      }
    }
    const NarrowBlock block{task, barriers, scan.stages, stage_bytes, own};
    if (group_number() < Back::kStateGroups) {
      scan_back_state<Format, DK, N, Scaled, Delta>(scan, block);
    } else if (task.chunks > 0) {
      scan_back_rows<Format, DK, N, Scaled, Delta>(scan, block);
    }
  }
  cluster_sync();  // others bring tiles and arrive here until the end
}

}  // namespace rankone::recurrence::cuda
