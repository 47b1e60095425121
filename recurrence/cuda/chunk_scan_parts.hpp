#pragma once

// What the scans in both directions share: the tiles of a chunk in shared memory, how they get
// there, and the state in registers.
//
// A group of four warps holds the transpose of a state, [64 value columns, K], 16 columns each, as
// float32 accumulators. So a state is the left side of the next product as it stands (rounded to
// the format), every right side is a tile of rows of the chunk, and no warp needs anything of
// another but those tiles. A block has several groups with a tile of value columns each, which
// share all tiles but that of the values: one group alone waits most of the time.

#include "recurrence/cuda/chunk_scan.hpp"
#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kGroup = 128;  // threads

// The threads of a block: groups that compute, then four warps that bring tiles and take results
// away (chunk_scan_feed.hpp).
template <class Engine>
struct ScanBlock {
  static constexpr int kGroups = Engine::kBulk ? 2 : 1;
  static constexpr int kWorkers = kGroups * kGroup;
  static constexpr int kThreads = kWorkers + kGroup;
  static constexpr int kMakingThreads = kThreads + kGroup;  // with four more that make P
};
// Registers of a thread on Hopper: together what 384 threads of 168 have. The scan backwards needs
// more. The last three: where four warps more make P.
inline constexpr int kGroupRegisters = 224, kFeedRegisters = 56;
inline constexpr int kGroupRegistersMaking = 208, kMakeRegisters = 64, kFeedRegistersMaking = 32;
inline constexpr int kGroupRegistersBack = 232, kFeedRegistersBack = 40;
__device__ __forceinline__ int group_number() { return static_cast<int>(threadIdx.x) / kGroup; }
__device__ __forceinline__ int group_thread() { return static_cast<int>(threadIdx.x) % kGroup; }
__device__ __forceinline__ int group_warp() { return static_cast<int>(threadIdx.x / 32 % 4); }

// Where the tiles of a stage stand. The key tiles come as rows of q, e and w, or, with channel
// decay (Scaled), from the record. Seen: with q and P. Row tiles stand at multiples of 1,024 bytes;
// what comes from the record in its order; tiles that are not always there, that of e where it is
// not w and the values of a second group, at the end. Own: bytes of a stage for what the block puts
// there itself. Lean: of lean records, P among what the block puts there.
template <int DK, bool Scaled, bool Delta, bool Seen, class ValueTile = RowTile<64, kValueTile>,
          int Own = 0, bool Lean = false>
struct ScanStage {
  using Key = std::conditional_t<Scaled, Tile<64, DK, false>, RowTile<64, DK>>;
  using Value = ValueTile;
  using Square = Tile<64, 64, false>;

  static constexpr int kValue = 0;  // of the first group
  static constexpr int kRowWrite = kValue + Value::kBytes;
  static constexpr int kRowQuery = kRowWrite + (Scaled ? 0 : Key::kBytes);
  static constexpr int kOwn = kRowQuery + (Scaled || !Seen ? 0 : Key::kBytes);
  static constexpr int kSquareY = kOwn + Own;
  static constexpr int kSquareP = kSquareY + (Delta ? Square::kBytes : 0);
  static constexpr int kIn = kSquareP + (Seen ? Square::kBytes : 0);
  static constexpr int kOut = kIn + 256, kGain = kOut + 256, kKeep = kGain + 256;
  static constexpr int kNumberBytes = number_bytes(Lean ? kLeanKeep : DK);
  static constexpr int kPrecise = kIn + kNumberBytes - 16;
  static constexpr int kSums = kIn + kNumberBytes;
  static constexpr int kScaledQuery = kSums + (Lean && Seen ? kSumBytes : 0);
  static constexpr int kScaledErase = kScaledQuery + (Scaled && Seen ? Key::kBytes : 0);
  static constexpr int kScaledWrite = kScaledErase + (Scaled && Delta ? Key::kBytes : 0);
  static constexpr int kEnd = (kScaledWrite + (Scaled ? Key::kBytes : 0) + 1023) / 1024 * 1024;
  static constexpr int kQuery = Scaled ? kScaledQuery : kRowQuery;
  static constexpr int kWrite = Scaled ? kScaledWrite : kRowWrite;

  static __host__ __device__ constexpr bool separate(bool same_key) {
    return !Scaled && Delta && !same_key;
  }
  static __host__ __device__ constexpr int erase(bool same_key) {
    return Scaled ? kScaledErase : separate(same_key) ? kEnd : kRowWrite;
  }
  // Of a block of one group or two.
  static __host__ __device__ constexpr int bytes(bool same_key, int groups = 1) {
    return kEnd + (separate(same_key) ? Key::kBytes : 0) + (groups - 1) * Value::kBytes;
  }
  static __host__ __device__ constexpr int value(bool same_key, int group) {
    return kValue + group * bytes(same_key);
  }
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

// What rounding d to a has left.
template <class Format, int Half>
__device__ __forceinline__ void rest_of(std::uint32_t (&rest)[Half / 8][4], const float (&d)[Half],
                                        const std::uint32_t (&a)[Half / 8][4]) {
#pragma unroll
  for (int k = 0; k < Half / 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 high = unpack<Format>(a[k][j]);
      rest[k][j] = pack<Format>(d[8 * k + 2 * j] - high.x, d[8 * k + 2 * j + 1] - high.y);
    }
  }
}

// What a chunk marked precise adds to d = a Y^T, or, Transposed, to d = a Y: rest Y and a Y_low,
// where put_rows() has put the rest. By mma.sync, with the low part straight from global memory: it
// is seldom wanted, and wgmma in a branch would make the compiler serialise all of it.
template <class Format, class Value, class Square, bool Transposed>
__device__ __forceinline__ void add_rest(float (&d)[32], const std::uint32_t (&a)[4][4],
                                         const unsigned char* rest, const unsigned char* square,
                                         const unsigned char* low) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    std::uint32_t left[4];
    load_a_transposed<Value>(left, rest, 16 * group_warp(), k);
    MmaEngine<Format>::template multiply<Square, Transposed>(d, left, square, k, false);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      std::uint32_t b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (Transposed) {
          const unsigned char* from = low + Square::place(16 * k + 8 * half + 2 * t, n) + 2 * g;
          b[half] = *reinterpret_cast<const std::uint16_t*>(from) |
                    static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(from + 16))
                        << 16;
        } else {
          b[half] = *reinterpret_cast<const std::uint32_t*>(
              low + Square::place(8 * n + g, 2 * k + half) + 4 * t);
        }
      }
      mma_m16n8k16<Format>(reinterpret_cast<float(&)[4]>(d[4 * n]), a[k], b[0], b[1]);
    }
  }
}

// The two numbers of `row` (one float per row of the chunk) that belong to d[4 n .. 4 n + 3] of a
// matrix whose columns are rows of the chunk: columns 8 n + 2 t and the next.
__device__ __forceinline__ float2 pair_of(const unsigned char* row, int n) {
  return *reinterpret_cast<const float2*>(row +
                                          4 * (8 * n + 2 * static_cast<int>(threadIdx.x % 4)));
}

// Whether the sums of a chunk are added to the state, or to its cotangent, at once: the tensor
// cores round every 16 rows, and an additive scan whose decay is not in its keys rounds nothing
// else.
__host__ __device__ constexpr bool sums_apart(bool scaled, bool delta) { return !scaled && !delta; }

// The state is decayed here then, without channel decay.
template <int Count>
__device__ __forceinline__ void add_sums(float (&state)[Count], const float (&sums)[Count],
                                         const unsigned char* keep) {
  const float factor = *reinterpret_cast<const float*>(keep);
#pragma unroll
  for (int i = 0; i < Count; ++i) state[i] = fmaf(factor, state[i], sums[i]);
}

// A state over a chunk: its columns times `keep`, which without channel decay are all the same.
template <int DK, bool Scaled>
__device__ __forceinline__ void decay_state(float (&state)[DK / 2], const unsigned char* keep) {
  if constexpr (Scaled) {
#pragma unroll
    for (int n = 0; n < DK / 8; ++n) {
      const float2 factor = pair_of(keep, n);
      state[4 * n] *= factor.x;
      state[4 * n + 1] *= factor.y;
      state[4 * n + 2] *= factor.x;
      state[4 * n + 3] *= factor.y;
    }
  } else {
    const float factor = *reinterpret_cast<const float*>(keep);
#pragma unroll
    for (int i = 0; i < DK / 2; ++i) state[i] *= factor;
  }
}

// The numbers of a float32 state [K, V] that belong to a thread's fragments, value columns from
// `column` on: visit(i, number, inside) for state[i]. What is run once in a block is fetched as
// slowly as it is run, so it has to be short.
template <int DK, class Number, class Visit>
__device__ __forceinline__ void each_state_element(Number* state, int column, int d_k, int d_v,
                                                   Visit&& visit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int v = column + 16 * group_warp() + lane / 4;
  const bool upper = v < d_v, lower = v + 8 < d_v;
  Number* at = state + static_cast<std::int64_t>(2 * (lane % 4)) * d_v + v;
#pragma unroll
  for (int n = 0; n < DK / 8; ++n) {
    const bool inside = 8 * n < d_k;
    visit(4 * n, at, inside && upper);
    visit(4 * n + 1, at + d_v, inside && upper);
    visit(4 * n + 2, at + 8, inside && lower);
    visit(4 * n + 3, at + d_v + 8, inside && lower);
    at += 8 * static_cast<std::int64_t>(d_v);
  }
}
// Those of a state [V, K], two neighbouring channels at once: visit(i, pair, inside) for state[i]
// and state[i + 1].
template <int DK, class Number, class Visit>
__device__ __forceinline__ void each_state_pair(Number* state, int column, int d_k, int d_v,
                                                Visit&& visit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int v = column + 16 * group_warp() + lane / 4;
  const bool upper = v < d_v, lower = v + 8 < d_v;
  Number* const first = state + static_cast<std::int64_t>(v) * d_k + 2 * (lane % 4);
  Number* const second = first + 8 * d_k;
#pragma unroll
  for (int n = 0; n < DK / 8; ++n) {
    const bool inside = 8 * n < d_k;
    visit(4 * n, first + 8 * n, inside && upper);
    visit(4 * n + 2, second + 8 * n, inside && lower);
  }
}
template <int DK>
__device__ __forceinline__ void read_state(float (&state)[DK / 2], const float* from, int column,
                                           int d_k, int d_v) {
  each_state_element<DK>(from, column, d_k, d_v, [&](int i, const float* at, bool inside) {
    state[i] = inside ? *at : 0.0F;
  });
}
template <int DK>
__device__ __forceinline__ void read_transposed(float (&state)[DK / 2], const float* from,
                                                int column, int d_k, int d_v) {
  each_state_pair<DK>(from, column, d_k, d_v, [&](int i, const float* at, bool inside) {
    const float2 both = inside ? *reinterpret_cast<const float2*>(at) : make_float2(0.0F, 0.0F);
    state[i] = both.x;
    state[i + 1] = both.y;
  });
}
// times `scale`
template <int DK>
__device__ __forceinline__ void write_state(float* to, const float (&state)[DK / 2], float scale,
                                            int column, int d_k, int d_v) {
  each_state_element<DK>(to, column, d_k, d_v, [&](int i, float* at, bool inside) {
    if (inside) *at = scale * state[i];
  });
}
template <int DK>
__device__ __forceinline__ void write_transposed(float* to, const float (&state)[DK / 2],
                                                 int column, int d_k, int d_v) {
  each_state_pair<DK>(to, column, d_k, d_v, [&](int i, float* at, bool inside) {
    if (inside) *reinterpret_cast<float2*>(at) = make_float2(state[i], state[i + 1]);
  });
}

// Puts fragments a [16 value columns per warp, 64 rows] (rounded, as left sides) where the value
// tile was: its rows are those of the chunk again. A warp touches its own columns only.
template <class T>
__device__ __forceinline__ void put_rows(const std::uint32_t (&a)[4][4], unsigned char* tile) {
  const int warp = group_warp(), lane = static_cast<int>(threadIdx.x % 32);
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
  const int warp = group_warp(), lane = static_cast<int>(threadIdx.x % 32);
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

// What the blocks of a scan take: segments `from` to `to` of every sequence, or their maps. The
// first segment has none of M.
struct SegmentRange {
  int from = 0, to = 1;
  bool maps = false;
  int first_part = 0, last_part = 0;  // of Segments
};

// The first chunk of a segment, of `count` in a sequence.
__host__ __device__ inline int segment_begin(std::uint32_t chunks, int count, int segment,
                                             const SegmentRange& range) {
  const auto part = [&](int of_1024) {
    return static_cast<std::uint32_t>(std::uint64_t{chunks} * static_cast<std::uint32_t>(of_1024) /
                                      1024);
  };
  // The same by what follows, in fewer steps: blocks begin with this.
  if (range.first_part == 0 && range.last_part == 0) {
    return static_cast<int>(chunks * static_cast<std::uint32_t>(segment) /
                            static_cast<std::uint32_t>(count));
  }
  if (segment == 0) return 0;
  if (segment == count) return static_cast<int>(chunks);
  std::uint32_t before = 0, between = chunks;
  int number = segment, equal = count;
  if (range.first_part > 0) before = part(range.first_part), between -= before, --number, --equal;
  if (range.last_part > 0) between -= part(range.last_part), --equal;
  return static_cast<int>(before + between * static_cast<std::uint32_t>(number) /
                                       static_cast<std::uint32_t>(equal));
}

// Blocks per sequence and head, of `groups` groups each.
__host__ __device__ inline int scan_units(const TwoKeyCall& call, const SegmentRange& range,
                                          int groups) {
  const auto blocks = [groups](int tiles) { return (tiles + groups - 1) / groups; };
  const int values = value_tiles(call.d_v), count = range.to - range.from;
  if (!range.maps) return blocks(values) * count;
  const int all = blocks(values + value_tiles(call.d_k));
  return range.from == 0 ? blocks(values) + (count - 1) * all : count * all;
}

// Which segment of which sequence, head and value tiles a block has. Stands in shared memory, which
// leaves the registers to the states.
struct ScanTask {
  std::int64_t sequence, row;   // and its first row
  std::int64_t first_chunk;     // number of the sequence's first chunk
  const unsigned char* record;  // of that chunk
  int head, key_head;
  int tile, groups;  // first tile of the block, and how many of its groups have one
  int values;        // of them the tiles of v
  int segment;
  int rows;        // of the sequence
  int begin, end;  // chunks of the segment, counted from first_chunk

  // Blocks are numbered [sequence, unit, head]: neighbours share keys where heads do. A unit is a
  // group of tiles of a segment.
  __device__ void set(const ChunkCall& chunk, std::uint32_t block, int segments,
                      const SegmentRange& range, int most) {
    const TwoKeyCall& call = chunk.call;
    const int value_count = value_tiles(call.d_v);
    const int count = range.maps ? value_count + value_tiles(call.d_k) : value_count;
    const int units = scan_units(call, range, most);
    const int first_units = (value_count + most - 1) / most, other = (count + most - 1) / most;
    const auto heads = static_cast<std::uint32_t>(call.value_heads);
    const auto of_all = static_cast<int>(block / heads);
    head = static_cast<int>(block % heads);
    key_head = static_cast<int>(static_cast<std::uint32_t>(head) /
                                (heads / static_cast<std::uint32_t>(call.heads)));
    sequence = of_all / units;
    const int unit = of_all % units;
    int tiles = value_count;
    if (range.maps && !(range.from == 0 && unit < first_units)) {
      const int behind = range.from == 0 ? unit - first_units + other : unit;
      segment = range.from + behind / other;
      tile = behind % other * most;
      tiles = count;
    } else {
      segment = range.from + unit / first_units;
      tile = unit % first_units * most;
    }
    groups = tiles - tile < most ? tiles - tile : most;
    values = value_count - tile < groups ? value_count - tile : groups;
    if (values < 0) values = 0;
    const Rows& all = call.rows;
    row = all.begin(sequence);
    rows = static_cast<int>(all.end(sequence) - row);
    first_chunk = all.first_chunk(sequence);
    record = chunk.record(first_chunk, head);
    // At most 2^25 chunks and 16 segments.
    const std::uint32_t chunks = (static_cast<std::uint32_t>(rows) + kChunkRows - 1) / kChunkRows;
    begin = segment_begin(chunks, segments, segment, range);
    end = segment_begin(chunks, segments, segment + 1, range);
  }
  __device__ __forceinline__ int count(int index) const {
    const int left = rows - index * kChunkRows;
    return left < kChunkRows ? left : kChunkRows;
  }
};

}  // namespace rankone::recurrence::cuda
