#pragma once

// The feeding side of the scans: tiles of chunks to shared memory, results away from it.

#include "recurrence/cuda/chunk_scan_parts.hpp"

namespace rankone::recurrence::cuda {

__device__ __forceinline__ int feeder_thread() {
  return static_cast<int>(threadIdx.x) - kScanWorkers;
}

// Brings the tiles of a chunk to shared memory with ordinary asynchronous copies, for one head and
// block of value columns. Every thread has its own place in the rows, so that a copy costs little
// more than its instruction.
template <int DK, bool Scaled, bool Delta, bool Seen>
class ChunkLoader {
  using Stage = ScanStage<DK, Scaled>;
  static constexpr int kPieces = DK / 8, kKeyRows = kScanWorkers / kPieces;  // of one pass
  static constexpr int kValuePieces = kValueTile / 8, kValueRows = kScanWorkers / kValuePieces;

 public:
  // Chunks are counted from `first`, the number of the first one of the sequence. `value` is v, or
  // dO on the way back, or null.
  __device__ ChunkLoader(const ChunkCall& chunk, const Stage& at, std::int64_t sequence,
                         std::int64_t first, std::int64_t head, const void* value, int column)
      : at_(at), separate_(at.erase != at.write) {
    const TwoKeyCall& call = chunk.call;
    const int thread = feeder_thread();
    const std::int64_t row = call.rows.begin(sequence);
    record_step_ = call.value_heads * chunk.layout.bytes;
    record_ = chunk.record(first, head) + thread * 16;
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
      const std::int64_t offset = (row + key_first_) * key_row_ +
                                  call.key_head(head) * call.d_k * 2 + thread % kPieces * 16;
      query_ = static_cast<const unsigned char*>(call.q) + offset;
      erase_ = static_cast<const unsigned char*>(call.e) + offset;
      write_ = static_cast<const unsigned char*>(call.w) + offset;
    }
    value_row_ = call.value_heads * call.d_v * 2;
    value_first_ = thread / kValuePieces;
    value_place_ = Stage::Value::place(value_first_, thread % kValuePieces);
    value_inside_ = column + thread % kValuePieces * 8 < call.d_v;
    value_ = value == nullptr
                 ? nullptr
                 : static_cast<const unsigned char*>(value) + (row + value_first_) * value_row_ +
                       (head * call.d_v + column) * 2 + thread % kValuePieces * 16;
  }

  // Chunk `index` of the sequence, `count` rows.
  __device__ void load(unsigned char* stage, std::int64_t index, int count) const {
    const unsigned char* record = record_ + index * record_step_;
    unsigned char* own = stage + feeder_thread() * 16;
    if constexpr (Scaled) {
      if constexpr (Delta) blocks<Stage::Key::kBytes>(own + at_.erase, record + scaled_[1]);
      blocks<Stage::Key::kBytes>(own + at_.write, record + scaled_[2]);
      if constexpr (Seen) blocks<Stage::Key::kBytes>(own + at_.query, record + scaled_[0]);
    } else {
      const std::int64_t offset = index * 64 * key_row_;
      const auto rows = [&](int tile, const unsigned char* from) {
        passes<64 / kKeyRows, kKeyRows>(stage + tile + key_place_, from + offset, key_row_,
                                        key_inside_ ? count - key_first_ : 0);
      };
      if constexpr (Delta) {
        if (separate_) rows(at_.erase, erase_);
      }
      rows(at_.write, write_);
      if constexpr (Seen) rows(at_.query, query_);
    }
    if (value_ != nullptr) {
      passes<64 / kValueRows, kValueRows>(stage + at_.value + value_place_,
                                          value_ + index * 64 * value_row_, value_row_,
                                          value_inside_ ? count - value_first_ : 0);
    }
    if constexpr (Delta) blocks<kSquareBytes>(own + at_.square_y, record);
    if constexpr (Seen) blocks<kSquareBytes>(own + at_.square_p, record + square_p_);
    // in, out, gain, keep and precise stand one behind the other on both sides.
    if (feeder_thread() * 16 < number_bytes(DK)) copy_16(own + at_.in, record + numbers_);
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
    for (int i = 0; i < Bytes / (kScanWorkers * 16); ++i) {
      copy_16(to + i * kScanWorkers * 16, from + i * kScanWorkers * 16);
    }
  }

  const Stage& at_;
  bool separate_;  // e has a tile of its own
  const unsigned char *query_ = nullptr, *erase_ = nullptr, *write_ = nullptr, *value_, *record_;
  std::int64_t key_row_ = 0, value_row_, record_step_, scaled_[3] = {0, 0, 0};
  int key_first_ = 0, key_place_ = 0, value_first_, value_place_, square_p_, numbers_;
  bool key_inside_ = false, value_inside_;
};

// The tensors of a call, for the copy engine; empty otherwise.
struct ScanTensors {
  TensorMap query, erase, write, value;  // value is v, or dO on the way back
};

// The same with the copy engine, by one thread.
template <int DK, bool Scaled, bool Delta, bool Seen>
class BulkLoader {
  using Stage = ScanStage<DK, Scaled>;

 public:
  __device__ BulkLoader(const ChunkCall& chunk, const ScanTensors& tensors, const Stage& at,
                        std::int64_t sequence, std::int64_t first, std::int64_t head,
                        bool with_value, int column)
      : tensors_(tensors),
        at_(at),
        layout_(chunk.layout),
        record_(chunk.record(first, head)),
        record_step_(chunk.call.value_heads * chunk.layout.bytes),
        row_(static_cast<int>(chunk.call.rows.begin(sequence))),
        head_(static_cast<int>(head)),
        key_head_(static_cast<int>(chunk.call.key_head(head))),
        column_(column),
        separate_(at.erase != at.write),
        with_value_(with_value) {}

  // Chunk `index` of the sequence; its bytes are counted at `barrier`, with one arrival.
  __device__ void load(unsigned char* stage, std::int64_t index, std::uint64_t* barrier) const {
    constexpr int kNumbers = number_bytes(DK);
    const unsigned char* record = record_ + index * record_step_;
    const int keys = 1 + (Seen ? 1 : 0) + (Delta && (Scaled || separate_) ? 1 : 0);
    mbarrier_arrive_expect(
        barrier, static_cast<std::uint32_t>(
                     kNumbers + (Delta ? kSquareBytes : 0) + (Seen ? kSquareBytes : 0) +
                     (with_value_ ? Stage::Value::kBytes : 0) + keys * Stage::Key::kBytes));
    const int row = row_ + static_cast<int>(index) * kChunkRows;
    if constexpr (!Scaled) {
      rows(stage + at_.write, &tensors_.write, row, barrier);
      if constexpr (Delta) {
        if (separate_) rows(stage + at_.erase, &tensors_.erase, row, barrier);
      }
      if constexpr (Seen) rows(stage + at_.query, &tensors_.query, row, barrier);
    }
    if (with_value_) copy_rows(stage + at_.value, &tensors_.value, column_, head_, row, barrier);
    if constexpr (Seen) {
      copy_bulk(stage + at_.square_y, record, static_cast<std::uint32_t>(layout_.square_low),
                barrier);
    } else {
      if constexpr (Delta) copy_bulk(stage + at_.square_y, record, kSquareBytes, barrier);
      copy_bulk(stage + at_.in, record + layout_.in, kNumbers, barrier);
      if constexpr (Scaled) {
        const std::int64_t from = Delta ? layout_.erase : layout_.write;
        copy_bulk(stage + (Delta ? at_.erase : at_.write), record + from,
                  static_cast<std::uint32_t>(layout_.square_low - from), barrier);
      }
    }
  }

 private:
  __device__ __forceinline__ void rows(unsigned char* tile, const TensorMap* map, int row,
                                       std::uint64_t* barrier) const {
#pragma unroll
    for (int block = 0; block < DK / 64; ++block) {
      copy_rows(tile + block * Stage::Key::kBytes / (DK / 64), map, block * 64, key_head_, row,
                barrier);
    }
  }

  const ScanTensors& tensors_;
  const Stage& at_;
  const RecordLayout& layout_;
  const unsigned char* record_;
  std::int64_t record_step_;
  int row_, head_, key_head_, column_;
  bool separate_, with_value_;
};

// Rows beyond the end of a sequence belong to the next one, whose numbers may be anything. The copy
// engine brings them all the same; the workers clear them, all together, before they read the
// tiles.
template <class T>
__device__ __forceinline__ void clear_rows(unsigned char* tile, int rows) {
  constexpr int kPieces = T::kColumns / 8;
  for (int i = rows * kPieces + static_cast<int>(threadIdx.x); i < 64 * kPieces;
       i += kScanWorkers) {
    *reinterpret_cast<uint4*>(tile + T::place(i / kPieces, i % kPieces)) = make_uint4(0, 0, 0, 0);
  }
}
template <int DK, bool Scaled>
__device__ __forceinline__ void clear_beyond(unsigned char* stage, const ScanStage<DK, Scaled>& at,
                                             int rows, bool seen) {
  using Stage = ScanStage<DK, Scaled>;
  constexpr int kWorkersBarrier = 9;
  clear_rows<typename Stage::Value>(stage + at.value, rows);
  if constexpr (!Scaled) {
    clear_rows<typename Stage::Key>(stage + at.write, rows);
    if (at.erase != at.write) clear_rows<typename Stage::Key>(stage + at.erase, rows);
    if (seen) clear_rows<typename Stage::Key>(stage + at.query, rows);
  }
  fence_async();
  barrier_sync(kWorkersBarrier, kScanWorkers);
}

// The barriers between the two parts of a block, for each stage: `full` when its tiles are there
// (ordinary copies; the copy engine counts at mbarriers), `done` when the workers have read them
// and, where there is a result, put it in the value tile.
inline constexpr int kFullBarrier = 1, kDoneBarrier = 5;

// Before anything else, by all threads; also orders what they wrote to shared memory before.
template <class Engine, int Stages>
__device__ __forceinline__ void start_barriers(std::uint64_t* arrived) {
  if constexpr (Engine::kBulk) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages; ++i) mbarrier_init(arrived + i, 1);
      mbarrier_fence();
    }
  }
  __syncthreads();
}

// Both feeding loops go over chunks begin, begin + step, ..., `count` of them, in a block of
// `threads`.

// What the feeding warp does with the copy engine. `load(stage, index)` issues copies, by one lane;
// `store(stage, index)` takes a result away.
template <int Stages, class Load, class Store>
__device__ __forceinline__ void feed_bulk(std::int64_t begin, std::int64_t count, std::int64_t step,
                                          int threads, Load&& load, Store&& store) {
  const bool leads = threadIdx.x == kScanWorkers;
  for (int number = 0; number < count && number < Stages - 1; ++number) {
    if (leads) load(number, begin + number * step);
  }
  int ahead = Stages - 1;  // the stage that is filled next, which is that of the chunk before
  for (std::int64_t number = 0; number <= count; ++number) {
    if (number > 0) {
      barrier_sync(kDoneBarrier + ahead, threads);
      store(ahead, begin + (number - 1) * step);
      fence_async();
      __syncwarp();
    }
    if (leads && number + Stages - 1 < count) load(ahead, begin + (number + Stages - 1) * step);
    ahead = ahead + 1 == Stages ? 0 : ahead + 1;
  }
}

// What the feeding half does: chunks begin, begin + step, ... , `count` of them. `load(stage,
// index)` issues copies, `store(stage, index)` takes a result away.
template <int Stages, class Load, class Store>
__device__ __forceinline__ void feed(std::int64_t begin, std::int64_t count, std::int64_t step,
                                     int threads, Load&& load, Store&& store) {
  int ahead = 0;  // the stage that is filled next
  const auto fill = [&](std::int64_t number) {
    if (number < count) load(ahead, begin + number * step);
    ahead = ahead + 1 == Stages ? 0 : ahead + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < Stages - 1; ++i) fill(i);
  int stage = 0;
  for (std::int64_t number = 0; number < count; ++number) {
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

// Takes the rows of a value tile away, `rows` of them and `columns` elements of each; by `Threads`
// threads.
template <class T, int Threads>
__device__ __forceinline__ void take_rows(const unsigned char* tile, unsigned char* to,
                                          std::int64_t stride, int rows, int columns) {
  constexpr int kRows = Threads / 8;  // of one pass
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
