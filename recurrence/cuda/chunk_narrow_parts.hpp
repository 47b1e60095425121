#pragma once

// What the narrow scans share. A narrow scan wants a chunk to take little time, not many columns: a
// block has few value columns of a state, the blocks of a cluster have the neighbouring ones of the
// same head, and every tile of a chunk but that of the values is brought once for all of them. Only
// for Hopper.
//
// A state stands as [K, N value columns] in the accumulators of four warps, 16 rows of every 64
// each. Both sides of a product are in shared memory: a key or square tile of the chunk, as it
// stands in the other scans, on the left, and what the warps round and put there, Tile<rows, N>, on
// the right.
//
// The block of the forward scan: a group of four warps that carries the state, one that takes the
// states and Z away, and a warp that brings tiles. A stage of shared memory has all that belongs to
// a chunk, also the rounded state that the first group hands to the second, so that the barriers of
// the stage order its uses too.

#include "recurrence/cuda/chunk_scan.hpp"
#include "recurrence/cuda/chunk_scan_feed.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kNarrowGroups = 2;
inline constexpr int kNarrowThreads = kNarrowGroups * kGroup + 32;

inline constexpr int kNarrowColumns = 32;  // value columns of a block

// Rows of value columns.
template <int N>
using NarrowValue = NarrowTile<64, N>;

// A stage of the forward scan, without q and P. Its own part: the rounded state, for both groups.
template <int DK, int N, bool Scaled, bool Delta>
struct NarrowStage
    : ScanStage<DK, Scaled, Delta, false, 1, NarrowValue<N>, Tile<DK, N, false>::kBytes> {
  using State = Tile<DK, N, false>;
  using Rows = Tile<64, N, false>;
  static constexpr int kState = NarrowStage::kOwn;
};

// What a block does. Blocks are numbered [sequence, cluster of tiles, head, tile of the cluster]:
// neighbouring clusters share keys where heads do. The last cluster of a head may have tiles beyond
// d_v; they take part with values of zero.
struct NarrowTask {
  std::int64_t sequence, row;   // and its first row
  std::int64_t first_chunk;     // number of the sequence's first chunk
  const unsigned char* record;  // of that chunk
  int head, key_head;
  int column;        // first value column
  int rows;          // of the sequence
  int chunks;        // of the sequence
  int rank, blocks;  // of the cluster

  // `width` value columns in all, `columns` of a block.
  __device__ void set(const ChunkCall& chunk, std::uint32_t block, int columns, int width) {
    const TwoKeyCall& call = chunk.call;
    const auto heads = static_cast<std::uint32_t>(call.value_heads);
    blocks = cluster_blocks();
    rank = cluster_rank();
    const auto clusters =
        static_cast<std::uint32_t>((width + blocks * columns - 1) / (blocks * columns));
    const std::uint32_t number = block / static_cast<std::uint32_t>(blocks);
    head = static_cast<int>(number % heads);
    key_head = static_cast<int>(static_cast<std::uint32_t>(head) /
                                (heads / static_cast<std::uint32_t>(call.heads)));
    const std::uint32_t of_all = number / heads;
    sequence = of_all / clusters;
    column = (static_cast<int>(of_all % clusters) * blocks + rank) * columns;
    const Rows& all = call.rows;
    row = all.begin(sequence);
    rows = static_cast<int>(all.end(sequence) - row);
    first_chunk = all.first_chunk(sequence);
    record = chunk.record(first_chunk, head);
    chunks = (rows + kChunkRows - 1) / kChunkRows;
  }
  __device__ __forceinline__ int count(int index) const {
    const int left = rows - index * kChunkRows;
    return left < kChunkRows ? left : kChunkRows;
  }
};
inline std::int64_t narrow_blocks(const TwoKeyCall& call, int width, int cluster) {
  const int columns = cluster * kNarrowColumns;
  return call.rows.sequences * call.value_heads * ((width + columns - 1) / columns) * cluster;
}

// Barriers of the stages. `full`: the copy engine has brought the tiles. `empty`: both groups of
// all blocks of the cluster have done with the stage, since any block may bring tiles to all. The
// first group says `state` and `rows` when the state and Z stand in the stage.
struct NarrowBarriers {
  std::uint64_t *full, *empty, *state, *rows;  // [stages] each

  __device__ NarrowBarriers(unsigned char* at, int stages)
      : full(reinterpret_cast<std::uint64_t*>(at)),
        empty(full + stages),
        state(empty + stages),
        rows(state + stages) {}
};
// Bytes of shared memory of a block whose first group has `own` bytes for itself.
__host__ __device__ constexpr int narrow_bytes(int stages, int stage_bytes, int own) {
  return stages * (stage_bytes + 32) + own + static_cast<int>(sizeof(NarrowTask));
}

// The beginning of a block, by all threads: its task, behind the barriers. `block` is its number in
// the scan, `workers` the threads of its groups.
__device__ __forceinline__ const NarrowTask& start_narrow_block(const NarrowBarriers& barriers,
                                                                int stages, const ChunkCall& chunk,
                                                                const ScanTensors& tensors,
                                                                std::uint32_t block, int columns,
                                                                int width, int workers) {
  auto& task = *reinterpret_cast<NarrowTask*>(barriers.rows + stages);
  if (threadIdx.x == 0) {
    task.set(chunk, block, columns, width);
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(barriers.full + i, 1);
      mbarrier_init(barriers.empty + i, task.blocks * workers / 32);
      mbarrier_init(barriers.state + i, 1);
      mbarrier_init(barriers.rows + i, 1);
    }
    mbarrier_fence();
  }
  if (static_cast<int>(threadIdx.x) == workers) {
    fetch_map(&tensors.value);
    fetch_map(&tensors.write);
    fetch_map(&tensors.query);
  }
  cluster_sync();
  return task;
}

// A group's way through the stages.
class NarrowTurns {
 public:
  __device__ NarrowTurns(const NarrowBarriers& barriers, int stages, int blocks)
      : barriers_(barriers), stages_(stages), blocks_(blocks) {}
  __device__ __forceinline__ int stage() const { return turn_.stage; }
  __device__ __forceinline__ int next_stage() const { return turn_.next(stages_).stage; }
  __device__ __forceinline__ void await(std::uint64_t* of_stages) const {
    mbarrier_wait(of_stages + turn_.stage, turn_.parity);
  }
  __device__ __forceinline__ void await_next_full(bool wanted) const {
    const Turn next = turn_.next(stages_);
    mbarrier_wait(barriers_.full + next.stage, next.parity, wanted);
  }
  // By every warp when its last reads of the stage are over.
  __device__ __forceinline__ void finish() {
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < blocks_) mbarrier_arrive_at(barriers_.empty + turn_.stage, lane);
    turn_ = turn_.next(stages_);
  }

 private:
  const NarrowBarriers& barriers_;
  int stages_, blocks_;
  Turn turn_;
};

// Copies of which every block of a cluster makes a part for all blocks.
class SharedCopies {
 public:
  __device__ SharedCopies(const NarrowTask& task, std::uint64_t* barrier)
      : rank_(task.rank), blocks_(task.blocks), barrier_(barrier) {}
  // 64 rows of `Blocks` times 64 columns.
  template <int Blocks>
  __device__ __forceinline__ void rows(unsigned char* tile, const TensorMap* map, int head,
                                       int row) {
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
      if (blocks_ == 1) {
        copy_rows(tile + block * 8192, map, block * 64, head, row, barrier_);
      } else if (next_ == rank_) {
        copy_rows_to(tile + block * 8192, map, block * 64, head, row, barrier_,
                     (1U << blocks_) - 1U);
      }
      next_ = next_ + 1 == blocks_ ? 0 : next_ + 1;
    }
  }
  __device__ __forceinline__ void bulk(unsigned char* to, const unsigned char* from, int bytes) {
    if (blocks_ == 1) {
      copy_bulk(to, from, static_cast<std::uint32_t>(bytes), barrier_);
      return;
    }
    const int part = (bytes / 16 + blocks_ - 1) / blocks_ * 16, begin = rank_ * part;
    const int mine = bytes - begin < part ? bytes - begin : part;
    if (mine > 0) {
      copy_bulk_to(to + begin, from + begin, static_cast<std::uint32_t>(mine), barrier_,
                   (1U << blocks_) - 1U);
    }
  }

 private:
  int rank_, blocks_, next_ = 0;
  std::uint64_t* barrier_;
};

// This block's part of the tiles of chunk `index`, to the stage of all blocks of the cluster, and
// its own values. By one thread.
template <class Stage, int DK, bool Scaled, bool Delta, bool Seen>
__device__ __forceinline__ void load_narrow(const ChunkCall& chunk, const ScanTensors& tensors,
                                            const NarrowTask& task, unsigned char* stage, int index,
                                            std::uint64_t* full) {
  using Key = typename Stage::Key;
  constexpr int kNumbers = number_bytes(DK);
  const RecordLayout& layout = chunk.layout;
  const unsigned char* record = task.record + index * (chunk.call.value_heads * layout.bytes);
  const bool separate = Stage::separate(chunk.call.same_key);
  const int keys = 1 + (Seen ? 1 : 0) + (Delta && (Scaled || separate) ? 1 : 0);
  mbarrier_arrive_expect(
      full,
      static_cast<std::uint32_t>(kNumbers + (Delta ? kSquareBytes : 0) + (Seen ? kSquareBytes : 0) +
                                 Stage::Value::kBytes + keys * Key::kBytes));
  const int row = static_cast<int>(task.row) + index * kChunkRows;
  SharedCopies copies(task, full);
  if constexpr (!Scaled) {
    constexpr int kBlocks = DK / 64;
    if constexpr (Delta) {
      if (separate) {
        copies.rows<kBlocks>(stage + Stage::kEnd, &tensors.erase, task.key_head, row);
      }
    }
    copies.rows<kBlocks>(stage + Stage::kWrite, &tensors.write, task.key_head, row);
    if constexpr (Seen) {
      copies.rows<kBlocks>(stage + Stage::kQuery, &tensors.query, task.key_head, row);
    }
  }
  copy_rows(stage + Stage::kValue, &tensors.value, task.column, task.head, row, full);
  if constexpr (Seen) {
    copies.bulk(stage + Stage::kSquareY, record, static_cast<int>(layout.square_low));
  } else {
    if constexpr (Delta) copies.bulk(stage + Stage::kSquareY, record, kSquareBytes);
    copies.bulk(stage + Stage::kIn, record + layout.in, kNumbers);
    if constexpr (Scaled) {
      const std::int64_t from = Delta ? layout.erase : layout.write;
      copies.bulk(stage + (Delta ? Stage::kScaledErase : Stage::kScaledWrite), record + from,
                  static_cast<int>(layout.square_low - from));
    }
  }
}

// What the warp behind the groups does: chunks `first`, `first` + step, ..., all of the task.
template <class Stage, int DK, bool Scaled, bool Delta, bool Seen>
__device__ __forceinline__ void feed_narrow(const ChunkCall& chunk, const ScanTensors& tensors,
                                            const NarrowTask& task, const NarrowBarriers& barriers,
                                            unsigned char* stages, int stage_count, int first,
                                            int step) {
  if (threadIdx.x % 32 == 0) {
    const int bytes = Stage::bytes(chunk.call.same_key);
    Turn turn{0, 1};  // the parity of the turn before
    for (int number = 0; number < task.chunks; ++number) {
      if (number >= stage_count) mbarrier_wait(barriers.empty + turn.stage, turn.parity);
      load_narrow<Stage, DK, Scaled, Delta, Seen>(chunk, tensors, task, stages + turn.stage * bytes,
                                                  first + number * step,
                                                  barriers.full + turn.stage);
      turn = turn.next(stage_count);
    }
  }
  __syncwarp();
}

// ---- Accumulators [16 rows a warp, N columns]
// ----------------------------------------------------

// Puts them, rounded, to rows `first` .. `first` + 63 of a tile.
template <class Format, class T, int Half>
__device__ __forceinline__ void put_rounded(unsigned char* tile, int first,
                                            const float (&d)[Half]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int n = 0; n < Half / 8; ++n) {
    std::uint32_t r[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) r[j] = pack<Format>(d[8 * n + 2 * j], d[8 * n + 2 * j + 1]);
    store_matrix_x4(tile + T::place(first + 16 * group_warp() + lane % 16, 2 * n + lane / 16), r);
  }
}
// What rounding has left of them.
template <class Format, class T, int Half>
__device__ __forceinline__ void put_rest(unsigned char* tile, const float (&d)[Half]) {
  float rest[Half];
#pragma unroll
  for (int i = 0; i < Half; i += 2) {
    const float2 high = unpack<Format>(pack<Format>(d[i], d[i + 1]));
    rest[i] = d[i] - high.x;
    rest[i + 1] = d[i + 1] - high.y;
  }
  put_rounded<Format, T>(tile, 0, rest);
}
// The other way, of a row tile.
template <class Format, class T, int Half>
__device__ __forceinline__ void get_rows(float (&d)[Half], const unsigned char* tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int n = 0; n < Half / 8; ++n) {
    std::uint32_t r[4];
    load_matrix_x4(r, tile + T::place(16 * group_warp() + lane % 16, 2 * n + lane / 16));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 both = unpack<Format>(r[j]);
      d[8 * n + 2 * j] = both.x;
      d[8 * n + 2 * j + 1] = both.y;
    }
  }
}
// A thread's two numbers of a row of numbers, one for each row of the accumulators: d[4 n], d[4 n +
// 1] have the first, d[4 n + 2], d[4 n + 3] the second.
__device__ __forceinline__ float2 numbers_of(const unsigned char* row) {
  const auto* at = reinterpret_cast<const float*>(row) + 16 * group_warp() + threadIdx.x % 32 / 4;
  return make_float2(at[0], at[8]);
}
template <int Half>
__device__ __forceinline__ void scale_rows(float (&d)[Half], float2 by) {
#pragma unroll
  for (int i = 0; i < Half; i += 4) {
    d[i] *= by.x;
    d[i + 1] *= by.x;
    d[i + 2] *= by.y;
    d[i + 3] *= by.y;
  }
}

// Whose numbers of a float32 state [K, V] a thread has: visit(n, at, inside) for the pair of
// columns at d[2 n] of block of 64 rows `block`.
template <int Half, class Number, class Visit>
__device__ __forceinline__ void each_narrow_pair(Number* state, int block, int column, int d_k,
                                                 int d_v, Visit&& visit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int k = 64 * block + 16 * group_warp() + lane / 4, v = column + 2 * (lane % 4);
#pragma unroll
  for (int n = 0; n < Half / 2; ++n) {
    const int row = k + n % 2 * 8, at = v + n / 2 * 8;
    visit(n, state + static_cast<std::int64_t>(row) * d_v + at, row < d_k && at < d_v);
  }
}

// What a chunk marked precise adds to d = Y r: Y rest + Y_low r, as add_rest() of the other scans.
template <class Format, class Square, class Rows, int Half>
__device__ __forceinline__ void add_narrow_rest(float (&d)[Half], const unsigned char* square,
                                                const unsigned char* low, const unsigned char* rows,
                                                const unsigned char* rest) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const int row = 16 * group_warp();
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    std::uint32_t left[4];
    load_a<Square>(left, square, row, k);
    MmaEngine<Format>::template multiply<Rows, true>(d, left, rest, k, false);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      left[j] = *reinterpret_cast<const std::uint32_t*>(
          low + Square::place(row + j % 2 * 8 + g, 2 * k + j / 2) + 4 * t);
    }
    MmaEngine<Format>::template multiply<Rows, true>(d, left, rows, k, false);
  }
}

}  // namespace rankone::recurrence::cuda
