#pragma once

// What the narrow scans share. A narrow scan wants a chunk to take little time, not many columns: a
// block has few value columns of a state, the blocks of a cluster have the neighbouring ones of the
// same head, and every tile of a chunk but that of the values is brought once for all of them. Only
// for Hopper.
//
// A group of four warps for every 64 channels has its part of the state [K, N value columns] in
// accumulators, and one, the row group, those of the 64 rows of the chunk. The left sides of the
// products are fragments of the chunk's tiles, fetched before they are wanted; the right sides are
// what the groups round and put into shared memory. The state and its products are a chain that is
// the time of a scan; what is not of it is done by the warps of a fourth group: one brings the
// tiles, one takes the rows' results away, and two work a chunk ahead on the way back.

#include "recurrence/cuda/chunk_scan.hpp"
#include "recurrence/cuda/chunk_scan_feed.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kNarrowColumns = 32;  // value columns of a block

// Rows of value columns.
template <int N>
using NarrowValue = NarrowTile<64, N>;

template <int DK>
struct NarrowGroups {
  static constexpr int kStateGroups = DK / 64;
  static constexpr int kWorkers = (kStateGroups + 1) * kGroup, kThreads = kWorkers + kGroup;
};

// What the groups tell one another: the state stands rounded in its tile (state to row group); it
// has been read; a right side for it stands in its tile (row group to state). And barriers of the
// row group, of the two warps that work ahead, and of those that clear rows.
inline constexpr int kStateBarrier = 1, kReadBarrier = 2, kUpdateBarrier = 3, kRowBarrier = 4,
                     kAheadBarrier = 5, kNarrowClearBarrier = 6;

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

// The warps of the fourth group.
inline constexpr int kFeedWarp = 0, kTakeWarp = 1, kAheadWarp = 2, kAheadWarps = 2;

// Barriers of the stages. `full`: the copy engine has brought the tiles. `ahead`: the warps that
// work ahead have done so, and all tiles of the chunk are there. `result`: the row group has put
// its result there, its last use of the stage, and the groups of the state have done with it.
// `empty`: all blocks of the cluster have done with the stage, since any block may bring tiles to
// all; of each, the warp that takes results away says so, some of its lanes for all of them once
// they have met at `taken`.
struct NarrowBarriers {
  std::uint64_t *full, *empty, *ahead, *result, *taken;  // [stages] each

  __device__ NarrowBarriers(unsigned char* at, int stages)
      : full(reinterpret_cast<std::uint64_t*>(at)),
        empty(full + stages),
        ahead(empty + stages),
        result(ahead + stages),
        taken(result + stages) {}
  // By one thread; `workers` as below.
  __device__ void init(int stages, int blocks, int workers) const {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, static_cast<std::uint32_t>(blocks));
      mbarrier_init(ahead + i, kAheadWarps * kWarpArrivals);
      mbarrier_init(result + i, static_cast<std::uint32_t>(workers / 32 * kWarpArrivals));
      mbarrier_init(taken + i, kWarpArrivals);
    }
  }
};
inline constexpr int kNarrowBarrierBytes = 40;  // of a stage
// Bytes of shared memory of a block that has `own` bytes besides the stages.
__host__ __device__ constexpr int narrow_bytes(int stages, int stage_bytes, int own) {
  return stages * (stage_bytes + kNarrowBarrierBytes) + own + static_cast<int>(sizeof(NarrowTask));
}

// The beginning of a block, by all threads: its task, behind the barriers. `block` is its number in
// the scan, `workers` the threads of its groups but the fourth. `others`: a second ring of stages,
// before the barriers; null where there is none.
__device__ __forceinline__ const NarrowTask& start_narrow_block(
    const NarrowBarriers& barriers, int stages, const NarrowBarriers* others, int other_stages,
    const ChunkCall& chunk, const ScanTensors& tensors, std::uint32_t block, int columns, int width,
    int workers) {
  auto& task = *reinterpret_cast<NarrowTask*>(barriers.taken + stages);
  if (threadIdx.x == 0) {
    task.set(chunk, block, columns, width);
    barriers.init(stages, task.blocks, workers);
    if (others != nullptr) others->init(other_stages, task.blocks, workers);
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
  __device__ __forceinline__ void await_next(std::uint64_t* of_stages, bool wanted) const {
    const Turn next = turn_.next(stages_);
    mbarrier_wait(of_stages + next.stage, next.parity, wanted);
  }
  __device__ __forceinline__ void advance() { turn_ = turn_.next(stages_); }
  // By a warp: nobody of the block will use the present stage.
  __device__ __forceinline__ void release() const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < blocks_) mbarrier_arrive_at(barriers_.empty + turn_.stage, lane);
  }

 private:
  const NarrowBarriers& barriers_;
  int stages_, blocks_;
  Turn turn_;
};

// Copies of which every block of a cluster makes a part for all blocks.
class SharedCopies {
 public:
  __device__ SharedCopies(int rank, int blocks, std::uint64_t* barrier)
      : rank_(rank), blocks_(blocks), barrier_(barrier) {}
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
  // This block's part of `bytes`.
  struct Part {
    int begin = 0, bytes = 0;
  };
  static __device__ __forceinline__ Part part(const NarrowTask& task, int bytes) {
    const int of_each = (bytes / 16 + task.blocks - 1) / task.blocks * 16;
    const int begin = task.rank * of_each, left = bytes - begin;
    return {begin, left < of_each ? left : of_each};
  }
  __device__ __forceinline__ void bulk(unsigned char* to, const unsigned char* from, Part part) {
    if (blocks_ == 1) {
      copy_bulk(to, from, static_cast<std::uint32_t>(part.bytes), barrier_);
    } else if (part.bytes > 0) {
      copy_bulk_to(to + part.begin, from + part.begin, static_cast<std::uint32_t>(part.bytes),
                   barrier_, (1U << blocks_) - 1U);
    }
  }

 private:
  int rank_, blocks_, next_ = 0;
  std::uint64_t* barrier_;
};

// Brings this block's part of the tiles of chunk after chunk to the stages of all blocks of the
// cluster, and its own values: chunks `first`, `first` + step, ... By one thread, to which every
// instruction is time that the tiles come later, so what is the same for all chunks is made before.
// `Tiles`: those of the keys and Y; `Values`: the values, P and the numbers; forward all in one
// stage, back each in a ring of its own.
template <class Stage, int DK, bool Scaled, bool Delta, bool Seen>
class NarrowLoads {
  using Key = typename Stage::Key;
  static constexpr int kNumbers = number_bytes(DK);

 public:
  __device__ NarrowLoads(const ChunkCall& chunk, const ScanTensors& tensors, const NarrowTask& task,
                         int first, int step)
      : tensors_(tensors),
        rank_(task.rank),
        blocks_(task.blocks),
        separate_(Stage::separate(chunk.call.same_key)),
        column_(task.column),
        head_(task.head),
        key_head_(task.key_head),
        row_(static_cast<int>(task.row) + first * kChunkRows),
        row_step_(step * kChunkRows) {
    const RecordLayout& layout = chunk.layout;
    const std::int64_t record_step = chunk.call.value_heads * layout.bytes;
    record_ = task.record + first * record_step;
    record_step_ = step * record_step;
    const int keys = 1 + (Seen ? 1 : 0) + (Delta && (Scaled || separate_) ? 1 : 0);
    tiles_ = static_cast<std::uint32_t>((Delta ? kSquareBytes : 0) + keys * Key::kBytes);
    values_ =
        static_cast<std::uint32_t>(kNumbers + (Seen ? kSquareBytes : 0) + Stage::Value::kBytes);
    square_ = SharedCopies::part(task, kSquareBytes);
    numbers_from_ = static_cast<int>(Seen ? layout.square_p : layout.in);
    numbers_ = SharedCopies::part(task, (Seen ? kSquareBytes : 0) + kNumbers);
    const std::int64_t from = Seen ? layout.query : Delta ? layout.erase : layout.write;
    scaled_from_ = static_cast<int>(from);
    scaled_ = SharedCopies::part(task, static_cast<int>(layout.square_low - from));
  }
  __device__ __forceinline__ std::uint32_t tile_bytes() const { return tiles_; }
  __device__ __forceinline__ std::uint32_t value_bytes() const { return values_; }
  // Of chunk `number` of those that this brings.
  __device__ __forceinline__ void load_tiles(int number, unsigned char* stage,
                                             std::uint64_t* full) const {
    SharedCopies copies(rank_, blocks_, full);
    const int row = row_ + number * row_step_;
    const unsigned char* const record = record_ + number * record_step_;
    if constexpr (!Scaled) {
      constexpr int kBlocks = DK / 64;
      if constexpr (Delta) {
        if (separate_) copies.rows<kBlocks>(stage + Stage::kEnd, &tensors_.erase, key_head_, row);
      }
      copies.rows<kBlocks>(stage + Stage::kWrite, &tensors_.write, key_head_, row);
      if constexpr (Seen) {
        copies.rows<kBlocks>(stage + Stage::kQuery, &tensors_.query, key_head_, row);
      }
    }
    if constexpr (Delta) copies.bulk(stage + Stage::kSquareY, record, square_);
    if constexpr (Scaled) {
      copies.bulk(stage + (Seen    ? Stage::kQuery
                           : Delta ? Stage::kScaledErase
                                   : Stage::kScaledWrite),
                  record + scaled_from_, scaled_);
    }
  }
  __device__ __forceinline__ void load_values(int number, unsigned char* values,
                                              unsigned char* numbers, std::uint64_t* full) const {
    copy_rows(values, &tensors_.value, column_, head_, row_ + number * row_step_, full);
    SharedCopies copies(rank_, blocks_, full);
    copies.bulk(numbers, record_ + number * record_step_ + numbers_from_, numbers_);
  }

 private:
  const ScanTensors& tensors_;
  int rank_, blocks_;
  bool separate_;
  int column_, head_, key_head_, row_, row_step_;
  const unsigned char* record_;
  std::int64_t record_step_;
  std::uint32_t tiles_, values_;                  // bytes that are counted
  SharedCopies::Part square_, numbers_, scaled_;  // of the record
  int numbers_from_, scaled_from_;
};

// Where the rows of a result go: `step` bytes from a chunk to the next, from the first one on.
struct NarrowResult {
  unsigned char* to;  // null: nowhere
  std::int64_t stride, step;
};
__device__ __forceinline__ NarrowResult narrow_result(const TwoKeyCall& call, void* tensor,
                                                      const NarrowTask& task, bool back) {
  NarrowResult result;
  result.stride = call.value_heads * call.d_v * 2;
  result.step = (back ? -kChunkRows : kChunkRows) * result.stride;
  result.to =
      tensor == nullptr
          ? nullptr
          : static_cast<unsigned char*>(tensor) +
                (task.row + std::int64_t{back ? task.chunks - 1 : 0} * kChunkRows) * result.stride +
                (static_cast<std::int64_t>(task.head) * call.d_v + task.column) * 2;
  return result;
}

// What the warp does that takes results away: value tiles at `stages`, `stage_bytes` apart.
// `others`: the second ring, which has no results.
template <class Value>
__device__ __forceinline__ void take_results(NarrowResult result, int d_v, const NarrowTask& task,
                                             const NarrowBarriers& barriers,
                                             const unsigned char* stages, int stage_count,
                                             int stage_bytes, const NarrowBarriers* others,
                                             int other_stages, bool back) {
  constexpr int kPieces = Value::kColumns / 8, kRows = 32 / kPieces, kTimes = 64 / kRows;
  const int lane = static_cast<int>(threadIdx.x % 32), first = lane / kPieces;
  const int piece = lane % kPieces;
  const bool inside = result.to != nullptr && task.column + 8 * piece < d_v;
  std::int64_t at = first * result.stride + piece * 16;
  NarrowTurns turns(barriers, stage_count, task.blocks);
  NarrowTurns other_turns(others != nullptr ? *others : barriers, other_stages, task.blocks);
  for (int number = 0; number < task.chunks; ++number) {
    const unsigned char* const tile = stages + turns.stage() * stage_bytes;
    const int count = inside ? task.count(back ? task.chunks - 1 - number : number) : 0;
    turns.await(barriers.result);
    if (others != nullptr) {
      other_turns.release();
      other_turns.advance();
    }
    uint4 rows[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      rows[i] = *reinterpret_cast<const uint4*>(tile + Value::place(kRows * i + first, piece));
    }
    fence_async();  // the copy engine writes there next
    mbarrier_arrive(barriers.taken + turns.stage());
    turns.await(barriers.taken);
    turns.release();
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      if (kRows * i + first < count) {
        *reinterpret_cast<uint4*>(result.to + at + kRows * i * result.stride) = rows[i];
      }
    }
    at += result.step;
    turns.advance();
  }
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

// What a chunk marked precise adds to d = Y r, or, Transposed, to d = Y^T r: Y rest + Y_low r, as
// add_rest() of the other scans. `rows` and `rest` are right sides, T.
template <class Format, class T, class Square, bool Transposed, int Half>
__device__ __forceinline__ void add_narrow_rest(float (&d)[Half], const unsigned char* square,
                                                const unsigned char* low, const unsigned char* rows,
                                                const unsigned char* rest) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const int row = 16 * group_warp();
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    std::uint32_t left[4];
    if constexpr (Transposed) {
      load_a_transposed<Square>(left, square, row, k);
    } else {
      load_a<Square>(left, square, row, k);
    }
    MmaEngine<Format>::template multiply<T, false>(d, left, rest, k, false);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (Transposed) {
        const unsigned char* from =
            low + Square::place(16 * k + j / 2 * 8 + 2 * t, row / 8 + j % 2) + 2 * g;
        left[j] = *reinterpret_cast<const std::uint16_t*>(from) |
                  static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(from + 16))
                      << 16;
      } else {
        left[j] = *reinterpret_cast<const std::uint32_t*>(
            low + Square::place(row + j % 2 * 8 + g, 2 * k + j / 2) + 4 * t);
      }
    }
    MmaEngine<Format>::template multiply<T, false>(d, left, rows, k, false);
  }
}

// ---- Products with fragments on the left
// ---------------------------------------------------------

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
// Of 64 rows of a tile, or of 64 columns from m on of a tile that holds the transpose.
template <class T, int Steps>
__device__ __forceinline__ void fetch_fragments(std::uint32_t (&a)[Steps][4],
                                                const unsigned char* tile) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) load_a<T>(a[k], tile, 16 * group_warp(), k);
}
template <class T, int Steps>
__device__ __forceinline__ void fetch_transposed(std::uint32_t (&a)[Steps][4],
                                                 const unsigned char* tile, int m) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) load_a_transposed<T>(a[k], tile, m + 16 * group_warp(), k);
}

// ---- The state
// -----------------------------------------------------------------------------------

// A group's part of a state, rounded: into one of two tiles by turns, for the row group, and from
// there to the workspace by the copy engine, which so has the time of a chunk. A warp's 16 channels
// are two columns of pieces of the tile, and of that of 64 value columns in the workspace; two
// lanes have them taken away.
template <int DK, int N>
class NarrowStates {
 public:
  using State = Tile<N, DK, false>;
  static constexpr int kBytes = 2 * State::kBytes, kPairs = N / 16;

  // `states`: of all chunks, or null. Begins with chunk `first` of the sequence.
  __device__ NarrowStates(unsigned char* tiles, const ChunkCall& chunk, void* states,
                          const NarrowTask& task, int width, int first)
      : tiles_(tiles), piece_(8 * group_number() + 2 * group_warp()) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (states != nullptr && task.column < width && lane < 2) {
      to_ = static_cast<unsigned char*>(states) +
            2 * chunk.state_tile(task.first_chunk + first, task.head, task.column / 64) +
            (piece_ + lane) * 1024 + task.column % 64 * 16;
    }
  }
  __device__ __forceinline__ void publish(const std::uint32_t (&rounded)[kPairs][4]) {
    unsigned char* const tile = tiles_ + turn_ * State::kBytes;
    store_bulk_read<1>();  // all but the last state have been read
    __syncwarp();
    put_transposed<State>(tile, rounded, 8 * group_number());
    fence_async();
    barrier_arrive(kStateBarrier, NarrowGroups<DK>::kWorkers);
  }
  // Has what was published taken away. `step`: to the tile of the next chunk, in bytes.
  __device__ __forceinline__ void take(std::int64_t step) {
    __syncwarp();
    if (to_ != nullptr) {
      store_bulk(to_,
                 tiles_ + turn_ * State::kBytes +
                     State::place(0, piece_ + static_cast<int>(threadIdx.x % 32)),
                 N * 16);
      to_ += step;
    }
    turn_ ^= 1;
  }
  __device__ __forceinline__ void finish() { store_bulk_read(); }

 private:
  unsigned char *tiles_, *to_ = nullptr;
  int piece_, turn_ = 0;
};

}  // namespace rankone::recurrence::cuda
