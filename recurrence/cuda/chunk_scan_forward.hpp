#pragma once

// The forward scan. Per chunk, with S the transposed state [64 value columns, K] of a group:
//
//     R = V - in (S E~^T);   Z = R Y^T = R + R (Y - I)^T;   U = gain Z
//     O = scale in (S Q~^T) + U P^T;   S = keep S + (out U) W^
//
// (rows of these matrices are value columns). Products are issued in the order in which something
// waits for them, and those for O in between, where the tensor cores would wait for rounding.

#include "recurrence/cuda/chunk_scan_feed.hpp"
#include "recurrence/cuda/chunk_scan_products.hpp"

namespace rankone::recurrence::cuda {

struct ScanForward {
  ChunkCall chunk;
  Segments segments;
  SegmentRange range;
  SegmentMaps maps;   // h set: the states at the ends of the segments are wanted
  void* z = nullptr;  // Z, [R, HV, V], of delta calls without output; may be null
  ScanTensors tensors;
  int stages = 2;
  int groups = 1;  // of a block that have a tile, at most
};

// How many maps carry a state to the start of a segment.
__device__ __forceinline__ int maps_before(const Segments& segments, const ScanTask& task) {
  return segments.maps != nullptr && task.segment > 1 ? task.segment - 1 : 0;
}

// Brings `maps` maps, from that of the second segment on, and the chunks of a task, in order or
// from the last to the first, and takes the rows that the groups leave in the tiles of their values
// to `result` ([R, HV, V], may be null). By the four warps behind the groups. Lean:
// P is made of the tiles here.
template <class Format, int DK, bool Scaled, bool Delta, bool Seen, class Engine, bool Lean>
__device__ __forceinline__ void feed_scan(const ChunkCall& chunk, const ScanTensors& tensors,
                                          const ScanTask& task, const ScanBarriers& barriers,
                                          int stages, int bytes, const void* value, void* result,
                                          bool back, const Segments& segments, int maps) {
  using Stage = FedStage<DK, Scaled, Delta, Seen, Lean>;
  using Value = typename Stage::Value;
  const TwoKeyCall& call = chunk.call;
  unsigned char* const shared = shared_memory();
  const int column = task.tile * kValueTile;
  const std::int64_t stride = call.value_heads * call.d_v * 2;
  unsigned char* const to = static_cast<unsigned char*>(result) + task.row * stride +
                            (static_cast<std::int64_t>(task.head) * call.d_v + column) * 2;
  const auto store = [&](int stage, int index) {
    if (result == nullptr) return;
    const int rows = task.count(index), groups = task.groups;
#pragma unroll 1
    for (int group = 0; group < groups; ++group) {
      take_rows<Value>(shared + stage * bytes + Stage::value(call.same_key, group),
                       to + index * kChunkRows * stride + group * kValueTile * 2, stride, rows,
                       call.d_v - column - group * kValueTile);
    }
  };
  const int first = back ? task.end - 1 : task.begin, step = back ? -1 : 1;
  if constexpr (Engine::kBulk) {
    feed_bulk(
        barriers, stages, first, task.end - task.begin, step, maps * (DK / 64),
        [&](int stage, int number) {
          const auto bytes_of_part = static_cast<std::uint32_t>(2 * map_tile_bytes(DK));
          const unsigned char* const from =
              static_cast<const unsigned char*>(segments.maps) +
              ((task.sequence * call.value_heads + task.head) * segments.count + 1) *
                  map_bytes(DK) +
              number * std::int64_t{bytes_of_part};
          mbarrier_arrive_expect(barriers.arrived + stage, bytes_of_part);
          copy_bulk(shared + stage * bytes, from, bytes_of_part, barriers.arrived + stage);
        },
        [&](int stage, int index) {
          load_bulk<Stage, DK, Scaled, Delta, Seen, Lean>(
              chunk, tensors, task, shared + stage * bytes, index, barriers.arrived + stage);
        },
        [&](int stage, int index) {
          load_values<Stage>(chunk, tensors, task, shared + stage * bytes, index,
                             barriers.arrived + stage);
        },
        store);
  } else {
    const ChunkLoader<DK, Scaled, Delta, Seen> loader(chunk, task, value);
    feed<2>(
        first, task.end - task.begin, step, ScanBlock<Engine>::kThreads,
        [&](int stage, int index) {
          loader.load(shared + stage * bytes, index, task.count(index));
        },
        store);
  }
}

// A group's way through the stages.
template <class Engine>
class StageTurns {
 public:
  __device__ StageTurns(const ScanBarriers& barriers, int stages)
      : barriers_(barriers), stages_(stages) {}
  __device__ __forceinline__ int stage() const { return turn_.stage; }
  // The first chunk's tiles, if there is one.
  __device__ __forceinline__ void first(bool any) const { wait(turn_, any); }
  // The next chunk's tiles, if there is one. May come while products run.
  __device__ __forceinline__ void ahead(bool wanted) const { wait(turn_.next(stages_), wanted); }
  // What other warps make of the present chunk's tiles. Likewise.
  __device__ __forceinline__ void made() const {
    mbarrier_wait(barriers_.made + turn_.stage, turn_.parity);
  }
  // Where ordinary copies bring the tiles the wait is here instead, at the start of a chunk.
  __device__ __forceinline__ void start() const {
    if constexpr (!Engine::kBulk) barrier_sync(kFullBarrier + turn_.stage, kThreads);
  }
  // The thread will not read the present stage any more, where the copy engine writes next;
  // products that do so may run.
  __device__ __forceinline__ void read() const {
    if constexpr (Engine::kBulk) fence_async();
  }
  // The group has done with the stage.
  __device__ __forceinline__ void finish() {
    if constexpr (Engine::kBulk) {
      mbarrier_arrive(barriers_.done + turn_.stage);
    } else {
      barrier_arrive(kDoneBarrier + turn_.stage, kThreads);
    }
    turn_ = turn_.next(stages_);
  }

 private:
  static constexpr int kThreads = ScanBlock<Engine>::kThreads;
  __device__ __forceinline__ void wait(const Turn& turn, bool wanted) const {
    if constexpr (Engine::kBulk) {
      mbarrier_wait(barriers_.arrived + turn.stage, turn.parity, wanted);
    }
  }

  const ScanBarriers& barriers_;
  int stages_;
  Turn turn_;
};

// Where a group's state comes from and goes to.
struct StatePlace {
  bool map;    // the group carries M: value columns that start as the unit matrix, with v = 0
  int tile;    // of v, or of the map
  int column;  // the first of the tile
  std::int64_t head;  // sequence * HV + head

  __device__ StatePlace(const TwoKeyCall& call, const ScanTask& task, int group)
      : map(group >= task.values),
        tile(task.tile + group - (map ? value_tiles(call.d_v) : 0)),
        column(tile * kValueTile),
        head(task.sequence * call.value_heads + task.head) {}
};

template <int DK>
__device__ __forceinline__ void load_state(float (&state)[DK / 2], const ScanForward& scan,
                                           const ScanTask& task, const StatePlace& place) {
  const TwoKeyCall& call = scan.chunk.call;
  if (place.map) {  // the unit matrix
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int v = place.column + 16 * group_warp() + lane / 4, k = 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < DK / 2; ++i) {
      const bool one = 8 * (i / 4) + k + i % 2 == v + i / 2 % 2 * 8;
      state[i] = one && 8 * (i / 4) < call.d_k ? 1.0F : 0.0F;
    }
    return;
  }
  const std::int64_t size = static_cast<std::int64_t>(call.d_k) * call.d_v;
  if (task.segment == 0 && call.initial_state != nullptr) {
    read_state<DK>(state, call.initial_state + place.head * size, place.column, call.d_k, call.d_v);
  } else if (task.segment > 0 && scan.segments.starts != nullptr) {
    const int segment = scan.segments.maps != nullptr ? 1 : task.segment;
    read_transposed<DK>(state,
                        scan.segments.starts + (place.head * scan.segments.count + segment) * size,
                        place.column, call.d_k, call.d_v);
  } else {
#pragma unroll
    for (int i = 0; i < DK / 2; ++i) state[i] = 0.0F;
  }
}

template <int DK>
__device__ __forceinline__ void store_state(const float (&state)[DK / 2], const ScanForward& scan,
                                            const ScanTask& task, const StatePlace& place) {
  const TwoKeyCall& call = scan.chunk.call;
  const std::int64_t size = static_cast<std::int64_t>(call.d_k) * call.d_v;
  if (scan.maps.h != nullptr) {
    const std::int64_t number = place.head * scan.segments.count + task.segment;
    if (place.map) {
      unsigned char* const to = static_cast<unsigned char*>(scan.maps.m) +
                                number * map_bytes(call.d_k) +
                                std::int64_t{place.tile} * map_tile_bytes(call.d_k) * 2;
      std::uint32_t high[DK / 16][4], low[DK / 16][4];
      round_to<bf16>(high, state);
      rest_of<bf16>(low, state, high);
      store_state_tile<DK>(high, to);
      store_state_tile<DK>(low, to + map_tile_bytes(call.d_k));
    } else {
      write_transposed<DK>(scan.maps.h + number * size, state, place.column, call.d_k, call.d_v);
    }
  } else if (call.final_state != nullptr && task.segment == scan.segments.count - 1) {
    write_state<DK>(call.final_state + place.head * size, state, 1.0F, place.column, call.d_k,
                    call.d_v);
  }
}

// Carries a state from the start of the second segment to that of the task's: S_{s+1} = M_s S_s +
// H_s. Both sides of the product are two bf16 numbers each, the low ones multiplied with the high
// ones only: what is left out is 2^-16 of a product, far below the rounding of the state in a
// chunk. Made: other warps take the turns of the stages too. Engine: of bf16.
template <class Engine, int DK, bool Made, class Turns>
__device__ __forceinline__ void carry_state(float (&state)[DK / 2], const ScanForward& scan,
                                            const ScanTask& task, int maps, Turns& turns,
                                            const unsigned char* shared, int bytes,
                                            std::int64_t head, int column) {
  using Map = Tile<64, DK, false>;
  const TwoKeyCall& call = scan.chunk.call;
#pragma unroll 1
  for (int map = 1; map <= maps; ++map) {
    std::uint32_t high[DK / 16][4], low[DK / 16][4];
    round_to<bf16>(high, state);
    rest_of<bf16>(low, state, high);
    float added[DK / 2];  // comes while products run
    read_transposed<DK>(added,
                        scan.segments.starts + (head * scan.segments.count + map + 1) *
                                                   (static_cast<std::int64_t>(call.d_k) * call.d_v),
                        column, call.d_k, call.d_v);
#pragma unroll
    for (int part = 0; part < DK / 64; ++part) {
      const unsigned char* const stage = shared + turns.stage() * bytes;
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto& left = high[4 * part + k];
        Engine::template multiply<Map, true>(state, low[4 * part + k], stage, k,
                                             part == 0 && k == 0);
        Engine::template multiply<Map, true>(state, left, stage + Map::kBytes, k, false);
        Engine::template multiply<Map, true>(state, left, stage, k, false);
      }
      Engine::commit();
      turns.ahead(map < maps || part + 1 < DK / 64 || task.end > task.begin);
      Engine::template wait<0>();
      Engine::hold(state);
      if constexpr (Made) turns.made();
      turns.finish();
    }
#pragma unroll
    for (int i = 0; i < DK / 2; ++i) state[i] += added[i];
  }
}

// Lean: of lean records. Where there is an output, P is made by the second group of a block, which
// takes one tile then, or, Pairs, by four more warps.
template <class Format, int DK, bool Scaled, bool Delta, bool Output, class Engine, bool Lean,
          bool Pairs>
__device__ __forceinline__ void scan_forward(const ScanForward& scan, std::int64_t block) {
  using Block = ScanBlock<Engine>;
  using Stage = FedStage<DK, Scaled, Delta, Output, Lean>;
  constexpr int kSteps = DK / 16;
  constexpr bool kMakes = Lean && Output, kMore = kMakes && Pairs;
  constexpr bool kCarries = Output && Engine::kBulk && !kMore;  // where the segments say so
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  unsigned char* const shared = shared_memory();
  const int bytes = Stage::bytes(call.same_key, scan.groups);
  const ScanBarriers barriers(shared, scan.stages, bytes);
  const ScanTask& task = start_block<Engine>(barriers, scan.stages, chunk, scan.tensors, block,
                                             scan.segments.count, scan.range, scan.groups);
  if (!call.takes(task.rows)) return;
  const int group = group_number();
  const int maps = kCarries ? maps_before(scan.segments, task) : 0;

  if constexpr (kMakes) {
    if (kMore ? threadIdx.x >= Block::kThreads : group == 1) {
      if constexpr (kMore) {
        Engine::template give_registers<kMakeRegisters>();
      } else {
        Engine::template take_registers<kGroupRegisters>();
      }
      const float scale = call.scale;
      return make_bulk(
          barriers, scan.stages, task.end - task.begin, maps * (DK / 64), [&](int stage) {
            make_products<Format, Stage, Engine, !kMore>(shared + stage * bytes, scale);
          });
    }
  }
  if (threadIdx.x >= Block::kWorkers) {
    Engine::template give_registers<kMore ? kFeedRegistersMaking : kFeedRegisters>();
    const void* const value = task.values > 0 ? call.v : nullptr;
    void* const result = Output ? call.o : Delta && task.values > 0 ? scan.z : nullptr;
    feed_scan<Format, DK, Scaled, Delta, Output, Engine, Lean>(chunk, scan.tensors, task, barriers,
                                                               scan.stages, bytes, value, result,
                                                               false, scan.segments, maps);
    return;
  }
  Engine::template take_registers<kMore ? kGroupRegistersMaking : kGroupRegisters>();
  if (group >= task.groups) return;

  float state[DK / 2];
  load_state<DK>(state, scan, task, StatePlace(call, task, group));
  const std::uint32_t mask = group >= task.values ? 0U : ~0U;  // for the values
  StageTurns<Engine> turns(barriers, scan.stages);
  turns.first(maps > 0 || task.end > task.begin);
  if constexpr (kCarries) {
    const StatePlace place(call, task, group);
    carry_state<WgmmaEngine<bf16>, DK, kMakes>(state, scan, task, maps, turns, shared, bytes,
                                               place.head, place.column);
  }
  for (int index = task.begin; index < task.end; ++index) {
    unsigned char* const stage = shared + turns.stage() * bytes;
    unsigned char* const values = stage + Stage::value(call.same_key, group);
    if constexpr (Engine::kBulk) {
      const int count = task.count(index);
      if (count < kChunkRows) clear_beyond<Stage, Scaled, Output>(stage, call.same_key, count);
    }
    turns.start();

    float error[32];                  // S E~^T, then R, then Z, then U
    [[maybe_unused]] float seen[32];  // the output
    std::uint32_t left[kSteps][4];    // the state, rounded
    [[maybe_unused]] const auto see = [&](int from, int to) {
#pragma unroll
      for (int k = from; k < to; ++k) {
        Engine::template multiply<typename Stage::Key, false>(seen, left[k], stage + Stage::kQuery,
                                                              k, k == 0);
      }
      Engine::commit();
    };
    round_to<Format>(left, state);
    Engine::begin();
    if constexpr (Delta) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        Engine::template multiply<typename Stage::Key, false>(
            error, left[k], stage + Stage::erase(call.same_key), k, k == 0);
      }
      Engine::commit();
    }
    if constexpr (Output) see(0, Delta ? kSteps / 2 : kSteps);
    if (chunk.states != nullptr) {
      store_state_tile<DK>(
          left, static_cast<unsigned char*>(chunk.states) +
                    2 * chunk.state_tile(task.first_chunk + index, task.head, task.tile + group));
    }
    std::uint32_t right[4][4];  // V, then R, then Z or U, rounded
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_a_transposed<typename Stage::Value>(right[k], values, 16 * group_warp(), k);
#pragma unroll
      for (int j = 0; j < 4; ++j) right[k][j] &= mask;
    }
    if constexpr (Delta) {
      Engine::template wait<Output ? 1 : 0>();
      Engine::hold(error);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 in = pair_of(stage + Stage::kIn, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 v = unpack<Format>(right[n / 2][2 * (n % 2) + j]);
        float* at_error = error + 4 * n + 2 * j;
        at_error[0] = Delta ? v.x - in.x * at_error[0] : v.x;
        at_error[1] = Delta ? v.y - in.y * at_error[1] : v.y;
      }
    }
    if constexpr (Delta) {
      const bool precise = *reinterpret_cast<const float*>(stage + Stage::kPrecise) != 0.0F;
      round_to<Format>(right, error);
      if (precise) {
        std::uint32_t rest[4][4];
        rest_of<Format>(rest, error, right);
        put_rows<typename Stage::Value>(rest, values);
      }
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Square, false>(error, right[k],
                                                                 stage + Stage::kSquareY, k, false);
      }
      Engine::commit();
      if constexpr (Output) see(kSteps / 2, kSteps);
      decay_state<DK, Scaled>(state, stage + Stage::kKeep);
      Engine::template wait<Output ? 1 : 0>();
      Engine::hold(error);
      if (precise) {
        add_rest<Format, typename Stage::Value, typename Stage::Square, false>(
            error, right, values, stage + Stage::kSquareY,
            task.record + index * (call.value_heads * chunk.layout.bytes) +
                chunk.layout.square_low);
        fence_async();
      }
      if constexpr (!Output) {
        if (scan.z != nullptr) {
          round_to<Format>(right, error);
          put_rows<typename Stage::Value>(right, values);
        }
      }
    } else if constexpr (Scaled) {
      decay_state<DK, Scaled>(state, stage + Stage::kKeep);
    }
    constexpr bool kApart = sums_apart(Scaled, Delta);
    [[maybe_unused]] float sums[kApart ? DK / 2 : 1];
    std::uint32_t update[4][4];  // out U
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 out = pair_of(stage + Stage::kOut, n);
      const float2 gain = pair_of(stage + Stage::kGain, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        error[4 * n + 2 * j] *= gain.x;
        error[4 * n + 2 * j + 1] *= gain.y;
        update[n / 2][2 * (n % 2) + j] =
            pack<Format>(out.x * error[4 * n + 2 * j], out.y * error[4 * n + 2 * j + 1]);
      }
    }
    if constexpr (Output && kApart) {  // no earlier: registers are short
      Engine::template wait<0>();
      Engine::hold(seen);
    }
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kApart) {
        Engine::template multiply<typename Stage::Key, true>(sums, update[k], stage + Stage::kWrite,
                                                             k, k == 0);
      } else {
        Engine::template multiply<typename Stage::Key, true>(state, update[k],
                                                             stage + Stage::kWrite, k, false);
      }
    }
    Engine::commit();
    if constexpr (Output) {
      round_to<Format>(right, error);  // U
      if constexpr (!kApart) {
        Engine::template wait<1>();
        Engine::hold(seen);
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float2 in = pair_of(stage + Stage::kIn, n);
        seen[4 * n] *= call.scale * in.x;
        seen[4 * n + 1] *= call.scale * in.y;
        seen[4 * n + 2] *= call.scale * in.x;
        seen[4 * n + 3] *= call.scale * in.y;
      }
      if constexpr (Lean) turns.made();
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Square, false>(seen, right[k],
                                                                 stage + Stage::kSquareP, k, false);
      }
      Engine::commit();
    }
    if constexpr (!kApart) turns.read();
    turns.ahead(index + 1 < task.end);
    Engine::template wait<0>();
    if constexpr (kApart) {
      Engine::hold(sums);
      add_sums(state, sums, stage + Stage::kKeep);
      turns.read();
    } else {
      Engine::hold(state);
    }
    if constexpr (Output) {
      Engine::hold(seen);
      round_to<Format>(right, seen);
      put_rows<typename Stage::Value>(right, values);
    }
    turns.finish();
  }
  store_state<DK>(state, scan, task, StatePlace(call, task, group));
}

}  // namespace rankone::recurrence::cuda
