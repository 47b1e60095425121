#pragma once

// The feeding side of the scans: tiles of chunks to shared memory, results away from it.

#include "recurrence/cuda/chunk_scan_parts.hpp"

namespace rankone::recurrence::cuda {

// The number of a thread among the four warps behind the groups.
__device__ __forceinline__ int feeder_thread() { return group_thread(); }

// Brings the tiles of a chunk to shared memory with ordinary asynchronous copies, for one head and
// block of value columns. Every thread has its own place in the rows, so that a copy costs little
// more than its instruction.
template <int DK, bool Scaled, bool Delta, bool Seen>
class ChunkLoader {
  using Stage = ScanStage<DK, Scaled, Delta, Seen>;
  static constexpr int kPieces = DK / 8, kKeyRows = kGroup / kPieces;  // of one pass
  static constexpr int kValuePieces = kValueTile / 8, kValueRows = kGroup / kValuePieces;

 public:
  // `value` is v, or dO on the way back, or null.
  __device__ ChunkLoader(const ChunkCall& chunk, const ScanTask& task, const void* value)
      : erase_place_(Stage::erase(chunk.call.same_key)),
        separate_(Stage::separate(chunk.call.same_key)) {
    const TwoKeyCall& call = chunk.call;
    const int thread = feeder_thread(), column = task.tile * kValueTile;
    record_step_ = call.value_heads * chunk.layout.bytes;
    record_ = task.record + thread * 16;
    square_p_ = static_cast<int>(chunk.layout.square_p);
    numbers_ = static_cast<int>(chunk.layout.in);
    if constexpr (Scaled) {
      scaled_[0] = chunk.layout.query;
      scaled_[1] = chunk.layout.erase;
      scaled_[2] = chunk.layout.write;
    } else {
      key_row_ = call.heads * call.d_k * 2;
      key_first_ = thread / kPieces;
      key_place_ = Stage::Key::place(key_first_, thread % kPieces);
      key_inside_ = thread % kPieces * 8 < call.d_k;
      const std::int64_t offset = (task.row + key_first_) * key_row_ +
                                  static_cast<std::int64_t>(task.key_head) * call.d_k * 2 +
                                  thread % kPieces * 16;
      query_ = static_cast<const unsigned char*>(call.q) + offset;
      erase_ = static_cast<const unsigned char*>(call.e) + offset;
      write_ = static_cast<const unsigned char*>(call.w) + offset;
    }
    value_row_ = call.value_heads * call.d_v * 2;
    value_first_ = thread / kValuePieces;
    value_place_ = Stage::Value::place(value_first_, thread % kValuePieces);
    value_inside_ = column + thread % kValuePieces * 8 < call.d_v;
    value_ = value == nullptr ? nullptr
                              : static_cast<const unsigned char*>(value) +
                                    (task.row + value_first_) * value_row_ +
                                    (static_cast<std::int64_t>(task.head) * call.d_v + column) * 2 +
                                    thread % kValuePieces * 16;
  }

  // Chunk `index` of the sequence, `count` rows.
  __device__ void load(unsigned char* stage, int index, int count) const {
    const unsigned char* record = record_ + index * record_step_;
    unsigned char* own = stage + feeder_thread() * 16;
    if constexpr (Scaled) {
      if constexpr (Delta)
        blocks<Stage::Key::kBytes>(own + Stage::kScaledErase, record + scaled_[1]);
      blocks<Stage::Key::kBytes>(own + Stage::kWrite, record + scaled_[2]);
      if constexpr (Seen) blocks<Stage::Key::kBytes>(own + Stage::kQuery, record + scaled_[0]);
    } else {
      const std::int64_t offset = std::int64_t{index} * 64 * key_row_;
      const auto rows = [&](int tile, const unsigned char* from) {
        passes<64 / kKeyRows, kKeyRows>(stage + tile + key_place_, from + offset, key_row_,
                                        key_inside_ ? count - key_first_ : 0);
      };
      if constexpr (Delta) {
        if (separate_) rows(erase_place_, erase_);
      }
      rows(Stage::kWrite, write_);
      if constexpr (Seen) rows(Stage::kQuery, query_);
    }
    if (value_ != nullptr) {
      passes<64 / kValueRows, kValueRows>(stage + Stage::kValue + value_place_,
                                          value_ + std::int64_t{index} * 64 * value_row_,
                                          value_row_, value_inside_ ? count - value_first_ : 0);
    }
    if constexpr (Delta) blocks<kSquareBytes>(own + Stage::kSquareY, record);
    if constexpr (Seen) blocks<kSquareBytes>(own + Stage::kSquareP, record + square_p_);
    // in, out, gain, keep and precise stand one behind the other on both sides.
    if (feeder_thread() * 16 < number_bytes(DK)) copy_16(own + Stage::kIn, record + numbers_);
  }

 private:
  // Rows is a multiple of 8, so the swizzle of a thread's pieces stays the same.
  template <int Count, int Rows>
  static __device__ __forceinline__ void passes(unsigned char* tile, const unsigned char* from,
                                                std::int64_t stride, int left) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      copy_16(tile + i * Rows * 128, from, i * Rows < left);
      from += Rows * stride;
    }
  }
  template <int Bytes>
  static __device__ __forceinline__ void blocks(unsigned char* to, const unsigned char* from) {
#pragma unroll
    for (int i = 0; i < Bytes / (kGroup * 16); ++i) {
      copy_16(to + i * kGroup * 16, from + i * kGroup * 16);
    }
  }

  int erase_place_;
  bool separate_;  // e has a tile of its own
  const unsigned char *query_ = nullptr, *erase_ = nullptr, *write_ = nullptr, *value_, *record_;
  std::int64_t key_row_ = 0, value_row_, record_step_, scaled_[3] = {0, 0, 0};
  int key_first_ = 0, key_place_ = 0, value_first_, value_place_, square_p_, numbers_;
  bool key_inside_ = false, value_inside_;
};

// The same with the copy engine, by one thread, for all groups of a block: chunk `index` of the
// sequence. Its bytes are counted at `barrier`, with one arrival.
template <class Stage, int DK, bool Scaled, bool Delta, bool Seen, bool Lean>
__device__ __forceinline__ void load_bulk(const ChunkCall& chunk, const ScanTensors& tensors,
                                          const ScanTask& task, unsigned char* stage, int index,
                                          std::uint64_t* barrier) {
  using Key = typename Stage::Key;
  constexpr int kNumbers = Stage::kNumberBytes + (Lean && Seen ? kSumBytes : 0);
  constexpr int kSquares = (Delta ? kSquareBytes : 0) + (Seen && !Lean ? kSquareBytes : 0);
  const RecordLayout& layout = chunk.layout;
  const unsigned char* record = task.record + index * (chunk.call.value_heads * layout.bytes);
  const bool separate = Stage::separate(chunk.call.same_key);
  const int keys = 1 + (Seen ? 1 : 0) + (Delta && (Scaled || separate) ? 1 : 0);
  mbarrier_arrive_expect(
      barrier, static_cast<std::uint32_t>(kNumbers + kSquares + task.values * Stage::Value::kBytes +
                                          keys * Key::kBytes));
  const int row = static_cast<int>(task.row) + index * kChunkRows;
  if constexpr (!Scaled) {
    const auto rows = [&](unsigned char* tile, const TensorMap* map) {
#pragma unroll
      for (int block = 0; block < DK / 64; ++block) {
        copy_rows(tile + block * Key::kBytes / (DK / 64), map, block * 64, task.key_head, row,
                  barrier);
      }
    };
    if constexpr (Delta) {
      if (separate) rows(stage + Stage::kEnd, &tensors.erase);
    }
    rows(stage + Stage::kWrite, &tensors.write);
    if constexpr (Seen) rows(stage + Stage::kQuery, &tensors.query);
  }
  if constexpr (Seen && !Lean) {
    copy_bulk(stage + Stage::kSquareY, record, static_cast<std::uint32_t>(layout.square_low),
              barrier);
  } else {
    if constexpr (Delta) copy_bulk(stage + Stage::kSquareY, record, kSquareBytes, barrier);
    copy_bulk(stage + Stage::kIn, record + layout.in, kNumbers, barrier);
    if constexpr (Scaled) {
      const std::int64_t from = Delta ? layout.erase : layout.write;
      copy_bulk(stage + (Delta ? Stage::kScaledErase : Stage::kScaledWrite), record + from,
                static_cast<std::uint32_t>(layout.square_low - from), barrier);
    }
  }
}
// Its values, whose bytes are counted there too: what stands in their place may be a result that is
// taken away last.
template <class Stage>
__device__ __forceinline__ void load_values(const ChunkCall& chunk, const ScanTensors& tensors,
                                            const ScanTask& task, unsigned char* stage, int index,
                                            std::uint64_t* barrier) {
  const int row = static_cast<int>(task.row) + index * kChunkRows;
  for (int i = 0; i < task.values; ++i) {
    copy_rows(stage + Stage::value(chunk.call.same_key, i), &tensors.value,
              (task.tile + i) * kValueTile, task.head, row, barrier);
  }
}

// The barriers between the parts of a block. The copy engine counts what has arrived in a stage at
// an mbarrier, where the feeding warps say that they have taken the result of the chunk before from
// there; at another one the warps of the groups say when they have read the stage and, where there
// is a result, put it in the tile of their values. With ordinary copies both are named
// barriers, `full` and `done`, one for each stage.
// Every lane of a warp arrives, not one behind __syncwarp(): it costs no more, and
// compute-sanitizer takes an mbarrier to order what its arriving threads themselves did.
inline constexpr int kWarpArrivals = 32;
inline constexpr int kFullBarrier = 1, kDoneBarrier = 5, kGroupBarrier = 9, kFeederBarrier = 13;

struct ScanBarriers {
  std::uint64_t *arrived, *done;  // [stages] each
  std::uint64_t* made;            // [stages], where other warps make P

  // Behind the stages, and the task behind them.
  __device__ ScanBarriers(unsigned char* shared, int stages, int stage_bytes)
      : arrived(reinterpret_cast<std::uint64_t*>(shared + stages * stage_bytes)),
        done(arrived + stages),
        made(done + stages) {}
};
// Bytes of shared memory of a block.
__host__ __device__ constexpr int scan_bytes(int stages, int stage_bytes) {
  return stages * (stage_bytes + 24) + static_cast<int>(sizeof(ScanTask));
}

// The beginning of a block, by all threads: its task and its barriers.
template <class Engine>
__device__ __forceinline__ const ScanTask& start_block(const ScanBarriers& barriers, int stages,
                                                       const ChunkCall& chunk,
                                                       const ScanTensors& tensors,
                                                       std::int64_t block, int segments,
                                                       const SegmentRange& range, int most) {
  auto& task = *reinterpret_cast<ScanTask*>(barriers.made + stages);
  if (threadIdx.x == 0) {
    task.set(chunk, static_cast<std::uint32_t>(block), segments, range, most);
    if constexpr (Engine::kBulk) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) {
        mbarrier_init(barriers.arrived + i, 1 + 4 * kWarpArrivals);
        mbarrier_init(barriers.done + i, task.groups * 4 * kWarpArrivals);
        mbarrier_init(barriers.made + i, 4 * kWarpArrivals);
      }
      mbarrier_fence();
    }
  }
  if constexpr (Engine::kBulk) {
    if (feeder_thread() == 0 && group_number() == ScanBlock<Engine>::kGroups) {
      fetch_map(&tensors.value);
      fetch_map(&tensors.write);
      fetch_map(&tensors.query);
    }
  }
  __syncthreads();
  return task;
}

// Which stage comes next, and the parity of its turn.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ Turn next(int stages) const {
    return stage + 1 == stages ? Turn{0, parity ^ 1U} : Turn{stage + 1, parity};
  }
};

// Rows beyond the end of a sequence belong to the next one, whose numbers may be anything. The copy
// engine brings them all the same; they are cleared before the tiles are read, by `threads` threads
// together. Where every group clears tiles that all read (Again), what another group reads
// meanwhile are zeros already.
template <class T, bool Again = false>
__device__ __forceinline__ void clear_rows(unsigned char* tile, int rows, int thread, int threads) {
  constexpr int kPieces = T::kColumns / 8;
  for (int i = rows * kPieces + thread; i < 64 * kPieces; i += threads) {
    auto* const at = reinterpret_cast<uint4*>(tile + T::place(i / kPieces, i % kPieces));
    if constexpr (Again) {
      clear_again(at);
    } else {
      *at = make_uint4(0, 0, 0, 0);
    }
  }
}
template <class Stage, bool Scaled, bool Seen, bool Again = false>
__device__ __forceinline__ void clear_keys(unsigned char* stage, bool same_key, int rows,
                                           int thread, int threads) {
  if constexpr (!Scaled) {
    using Key = typename Stage::Key;
    clear_rows<Key, Again>(stage + Stage::kWrite, rows, thread, threads);
    if (Stage::separate(same_key)) {
      clear_rows<Key, Again>(stage + Stage::kEnd, rows, thread, threads);
    }
    if constexpr (Seen) clear_rows<Key, Again>(stage + Stage::kQuery, rows, thread, threads);
  }
}
template <class Stage, bool Scaled, bool Seen>
__device__ __forceinline__ void clear_beyond(unsigned char* stage, bool same_key, int rows) {
  using Value = typename Stage::Value;
  clear_rows<Value>(stage + Stage::value(same_key, group_number()), rows, group_thread(), kGroup);
  clear_keys<Stage, Scaled, Seen, true>(stage, same_key, rows, group_thread(), kGroup);
  fence_async();
  barrier_sync(kGroupBarrier + group_number(), kGroup);
}

// The feeding loops go over chunks begin, begin + step, ..., `count` of them.

// What the four feeding warps do with the copy engine. `load(stage, index)` and `values(stage,
// index)` issue copies, by one lane; `store(stage, index)` takes a result away, from the place of
// the values. Before the chunks come `parts` others, by part(stage, number).
template <class Part, class Load, class Values, class Store>
__device__ __forceinline__ void feed_bulk(const ScanBarriers& barriers, int stages, int begin,
                                          int count, int step, int parts, Part&& part, Load&& load,
                                          Values&& values, Store&& store) {
  const bool leads = feeder_thread() == 0;
  count += parts;
  begin -= parts * step;
  for (int number = 0; number < count && number < stages; ++number) {
    if (leads && number < parts) part(number, number);
    if (leads && number >= parts) {
      load(number, begin + number * step);
      values(number, begin + number * step);
    }
    mbarrier_arrive(barriers.arrived + number);
  }
  Turn turn;
  for (int number = 0; number < count; ++number) {
    mbarrier_wait(barriers.done + turn.stage, turn.parity);
    const int next = number + stages;
    if (next < count && leads) {
      fence_async();
      if (next < parts) {
        part(turn.stage, next);
      } else {
        load(turn.stage, begin + next * step);
      }
    }
    if (number >= parts) store(turn.stage, begin + number * step);
    if (next < count) {
      fence_async();
      mbarrier_arrive(barriers.arrived + turn.stage);
      barrier_sync(kFeederBarrier, kGroup);
      if (leads && next >= parts) values(turn.stage, begin + next * step);
    }
    turn = turn.next(stages);
  }
}

// What four warps that make P do: `make(stage)` adds to a stage what is made of its tiles. To the
// `parts` before the chunks nothing is added.
template <class Make>
__device__ __forceinline__ void make_bulk(const ScanBarriers& barriers, int stages, int count,
                                          int parts, Make&& make) {
  Turn turn;
  for (int number = -parts; number < count; ++number) {
    mbarrier_wait(barriers.arrived + turn.stage, turn.parity);
    if (number >= 0) make(turn.stage);
    fence_async();
    mbarrier_arrive(barriers.made + turn.stage);
    turn = turn.next(stages);
  }
}

// What the feeding warps do otherwise.
template <int Stages, class Load, class Store>
__device__ __forceinline__ void feed(int begin, int count, int step, int threads, Load&& load,
                                     Store&& store) {
  int ahead = 0;  // the stage that is filled next
  const auto fill = [&](int number) {
    if (number < count) load(ahead, begin + number * step);
    ahead = ahead + 1 == Stages ? 0 : ahead + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < Stages - 1; ++i) fill(i);
  int stage = 0;
  for (int number = 0; number < count; ++number) {
    copy_wait<Stages - 2>();
    fence_async();
    barrier_arrive(kFullBarrier + stage, threads);
    if (number > 0) {
      barrier_sync(kDoneBarrier + ahead, threads);
      store(ahead, begin + (number - 1) * step);
    }
    fill(number + Stages - 1);
    stage = stage + 1 == Stages ? 0 : stage + 1;
  }
  if (count > 0) {
    barrier_sync(kDoneBarrier + ahead, threads);
    store(ahead, begin + (count - 1) * step);
  }
  copy_wait<0>();
}

// Takes the rows of a value tile away, `rows` of them and `columns` elements of each; by the
// feeding warps.
template <class T>
__device__ __forceinline__ void take_rows(const unsigned char* tile, unsigned char* to,
                                          std::int64_t stride, int rows, int columns) {
  constexpr int kRows = kGroup / 8;  // of one pass
  const int piece = feeder_thread() % 8, first = feeder_thread() / 8;
  if (piece * 8 >= columns) return;
  to += first * stride + piece * 16;
#pragma unroll
  for (int i = 0; i < 64 / kRows; ++i) {
    if (kRows * i + first < rows) {
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(tile + T::place(kRows * i + first, piece));
    }
    to += kRows * stride;
  }
}

}  // namespace rankone::recurrence::cuda
