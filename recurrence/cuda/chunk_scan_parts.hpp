#pragma once

// What the scans in both directions share: the tiles of a chunk in shared memory, how they get
// there, and the state in registers.
//
// Four warps hold the transpose of the state, [64 value columns, K], 16 columns each, as float32
// accumulators. So a state is the left side of the next product as it stands (rounded to the
// format), every right side is a tile of rows of the chunk, and no warp needs anything of another
// but those tiles.

#include "recurrence/cuda/chunk_scan.hpp"
#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {

// Four warps compute; four others bring tiles and take results away (ChunkFeeder).
inline constexpr int kScanWorkers = 128, kScanThreads = 256;

// Bytes of one stage, and where its tiles stand. The key tiles come as rows of q, e and w, or, with
// channel decay (Scaled), from the record.
template <int DK, bool Scaled>
struct ScanStage {
  using Key = std::conditional_t<Scaled, Tile<64, DK, false>, RowTile<64, DK>>;
  using Value = RowTile<64, kValueTile>;
  using Square = Tile<64, 64, false>;

  int erase, write, query, value, square_t, square_p, in, out, gain, keep, bytes;

  // `seen`: with q and P.
  __host__ __device__ ScanStage(bool delta, bool same_key, bool seen) {
    int at = 0;
    const auto take = [&at](int size, bool wanted) {
      const int here = at;
      if (wanted) at += (size + 1023) / 1024 * 1024;
      return here;
    };
    // With one key, raw rows serve as both; scaled ones differ.
    erase = take(Key::kBytes, delta && (Scaled || !same_key));
    write = take(Key::kBytes, true);
    if (delta && !Scaled && same_key) erase = write;
    query = take(Key::kBytes, seen);
    value = take(Value::kBytes, true);
    square_t = take(Square::kBytes, delta);
    square_p = take(Square::kBytes, seen);
    in = take(3 * 256 + DK * 4, true);
    out = in + 256;
    gain = out + 256;
    keep = gain + 256;
    bytes = at;
  }
};

template <int Stages>
constexpr bool fits_shared(int stage_bytes) {
  return Stages * stage_bytes <= 227 * 1024;
}

__device__ __forceinline__ int feeder_thread() {
  return static_cast<int>(threadIdx.x) - kScanWorkers;
}

// Brings the tiles of a chunk to shared memory, for one head and block of value columns. Every
// thread has its own place in the rows, so that a copy costs little more than its instruction.
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
    if constexpr (Delta) blocks<kSquareBytes>(own + at_.square_t, record);
    if constexpr (Seen) blocks<kSquareBytes>(own + at_.square_p, record + square_p_);
    // in, out, gain and keep stand one behind the other on both sides.
    if (feeder_thread() * 16 < 3 * 256 + DK * 4) copy_16(own + at_.in, record + numbers_);
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

// Fragments of a matrix of 16 rows per warp: accumulators d of n / 8 tiles of 8 columns side by
// side. Columns 16 k .. of it, rounded, are the left side a[k] of a product.
template <class Format, int Half>
__device__ __forceinline__ void round_to(std::uint32_t (&a)[Half / 8][4], const float (&d)[Half]) {
#pragma unroll
  for (int k = 0; k < Half / 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[k][j] = pack<Format>(d[8 * k + 2 * j], d[8 * k + 2 * j + 1]);
  }
}

// The two numbers of `row` (one float per row of the chunk) that belong to d[4 n .. 4 n + 3] of a
// matrix whose columns are rows of the chunk: columns 8 n + 2 t and the next.
__device__ __forceinline__ float2 pair_of(const unsigned char* row, int n) {
  return *reinterpret_cast<const float2*>(row +
                                          4 * (8 * n + 2 * static_cast<int>(threadIdx.x % 4)));
}

// A float32 state [K, V] of one head, in the transposed fragments: rows v = column + 16 warp + ...
template <int DK, class Visit>
__device__ __forceinline__ void each_state_element(int column, int d_k, int d_v, Visit&& visit) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int n = 0; n < DK / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int v = column + 16 * warp + lane / 4 + j / 2 * 8, k = 8 * n + 2 * (lane % 4) + j % 2;
      if (v < d_v && k < d_k) visit(4 * n + j, k, v);
    }
  }
}

// Puts fragments a [16 value columns per warp, 64 rows] (rounded, as left sides) where the value
// tile was: its rows are those of the chunk again. A warp touches its own columns only.
template <class T>
__device__ __forceinline__ void put_rows(const std::uint32_t (&a)[4][4], unsigned char* tile) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    store_matrix_x4_transposed(
        tile + T::place(16 * k + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2), a[k]);
  }
}

// Writes fragments of a transposed state, rounded, as a tile [64, DK] of the workspace.
template <int DK>
__device__ __forceinline__ void store_state_tile(const std::uint32_t (&a)[DK / 16][4],
                                                 unsigned char* tile) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int k = 0; k < DK / 16; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<std::uint32_t*>(tile + (2 * k + j / 2) * 1024 +
                                        (16 * warp + j % 2 * 8 + lane / 4) * 16 + lane % 4 * 4) =
          a[k][j];
    }
  }
}

// The barriers between the two halves of a block, for each stage: `full` when its tiles are there,
// `done` when the workers have read them and, where there is a result, put it in the value tile.
inline constexpr int kFullBarrier = 1, kDoneBarrier = 5;

// What the feeding half does: chunks begin, begin + step, ... , `count` of them. `load(stage,
// index)` issues copies, `store(stage, index)` takes a result away.
template <int Stages, class Load, class Store>
__device__ __forceinline__ void feed(std::int64_t begin, std::int64_t count, std::int64_t step,
                                     Load&& load, Store&& store) {
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
    barrier_arrive(kFullBarrier + stage, kScanThreads);
    if (number > 0) {
      barrier_sync(kDoneBarrier + ahead, kScanThreads);
      store(ahead, begin + (number - 1) * step);
    }
    fill(number + Stages - 1);
    stage = stage + 1 == Stages ? 0 : stage + 1;
  }
  if (count > 0) {
    barrier_sync(kDoneBarrier + ahead, kScanThreads);
    store(ahead, begin + (count - 1) * step);
  }
  copy_wait<0>();
}

// Takes the rows of a value tile away, `rows` of them and `columns` elements of each.
template <class T>
__device__ __forceinline__ void take_rows(const unsigned char* tile, unsigned char* to,
                                          std::int64_t stride, int rows, int columns) {
  const int piece = feeder_thread() % 8, first = feeder_thread() / 8;
  if (piece * 8 >= columns) return;
  to += first * stride + piece * 16;
  const unsigned char* from = tile + T::place(first, piece);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (16 * i + first < rows) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from + 16 * i * 128);
    }
    to += 16 * stride;
  }
}

// Which segment of which sequence, head and value tile a block has.
struct ScanTask {
  std::int64_t sequence, head;
  int tile, segment;
  std::int64_t first_chunk;  // number of the sequence's first chunk
  std::int64_t begin, end;   // chunks of the segment, counted from first_chunk
  std::int64_t row, rows;    // of the sequence

  // Blocks are numbered [sequence, segment, tile, head]: neighbours share keys where heads do.
  __device__ ScanTask(const ChunkCall& chunk, std::int64_t block, int tiles, int segments) {
    const std::int64_t heads = chunk.call.value_heads;
    head = block % heads;
    tile = static_cast<int>(block / heads % tiles);
    segment = static_cast<int>(block / heads / tiles % segments);
    sequence = block / heads / tiles / segments;
    const Rows& all = chunk.call.rows;
    row = all.begin(sequence);
    rows = all.end(sequence) - row;
    first_chunk = all.first_chunk(sequence);
    const std::int64_t count = (rows + kChunkRows - 1) / kChunkRows;
    begin = count * segment / segments;
    end = count * (segment + 1) / segments;
  }
  __device__ int count(std::int64_t index) const {
    const std::int64_t left = rows - index * kChunkRows;
    return static_cast<int>(left < kChunkRows ? left : kChunkRows);
  }
};

}  // namespace rankone::recurrence::cuda
