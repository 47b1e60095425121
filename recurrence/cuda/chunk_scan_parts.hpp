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

// Four warps compute; others bring tiles and take results away (chunk_scan_feed.hpp): one where the
// copy engine does the work (Hopper), four where they copy themselves.
inline constexpr int kScanWorkers = 128;
template <class Engine>
inline constexpr int kScanThreads = kScanWorkers + (Engine::kBulk ? 32 : 128);

// Bytes of one stage, and where its tiles stand. The key tiles come as rows of q, e and w, or, with
// channel decay (Scaled), from the record.
template <int DK, bool Scaled>
struct ScanStage {
  using Key = std::conditional_t<Scaled, Tile<64, DK, false>, RowTile<64, DK>>;
  using Value = RowTile<64, kValueTile>;
  using Square = Tile<64, 64, false>;

  int erase, write, query, value, square_y, square_p, in, out, gain, keep, precise, bytes;

  // `seen`: with q and P. Row tiles come first, for their
  // alignment; then what stands in the record, in its order.
  __host__ __device__ ScanStage(bool delta, bool same_key, bool seen) {
    int at = 0;
    const auto take = [&at](int size, bool wanted) {
      const int here = at;
      if (wanted) at += size;
      return here;
    };
    value = take(Value::kBytes, true);
    if constexpr (!Scaled) {
      write = take(Key::kBytes, true);
      erase = take(Key::kBytes, delta && !same_key);
      if (!delta || same_key) erase = write;
      query = take(Key::kBytes, seen);
    }
    square_y = take(Square::kBytes, delta);
    square_p = take(Square::kBytes, seen);
    in = take(number_bytes(DK), true);
    out = in + 256;
    gain = out + 256;
    keep = gain + 256;
    precise = keep + DK * 4;
    if constexpr (Scaled) {
      query = take(Key::kBytes, seen);
      erase = take(Key::kBytes, delta);
      write = take(Key::kBytes, true);
    }
    at = (at + 1023) / 1024 * 1024;
    bytes = at;
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

// What a chunk marked precise adds to d = a Y^T, or, Transposed, to d = a Y: rest Y and a Y_low. By
// mma.sync, with the low part straight from global memory: it is seldom wanted, and wgmma in a
// branch would make the compiler serialise all of it.
template <class Format, class Square, bool Transposed>
__device__ __forceinline__ void add_rest(float (&d)[32], const std::uint32_t (&a)[4][4],
                                         const std::uint32_t (&rest)[4][4],
                                         const unsigned char* square, const unsigned char* low) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    MmaEngine<Format>::template multiply<Square, Transposed>(d, rest[k], square, k, false);
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

// Blocks per sequence and head.
__host__ __device__ inline int scan_units(const TwoKeyCall& call, int segments, bool maps) {
  const int values = value_tiles(call.d_v);
  return maps ? values + (segments - 2) * (values + value_tiles(call.d_k)) : values * segments;
}

// Which segment of which sequence, head and value tile a block has.
struct ScanTask {
  std::int64_t sequence, head;
  int tile, segment;
  std::int64_t first_chunk;  // number of the sequence's first chunk
  std::int64_t begin, end;   // chunks of the segment, counted from first_chunk
  std::int64_t row, rows;    // of the sequence

  // Blocks are numbered [sequence, unit, head]: neighbours share keys where heads do. A unit is a
  // tile of a segment. Maps are wanted of all segments but the last, and of the first only H.
  __device__ ScanTask(const ChunkCall& chunk, std::int64_t block, int segments, bool maps) {
    const std::int64_t heads = chunk.call.value_heads;
    const int values = value_tiles(chunk.call.d_v);
    const int tiles = maps ? values + value_tiles(chunk.call.d_k) : values;
    const int units = scan_units(chunk.call, segments, maps);
    head = block % heads;
    sequence = block / heads / units;
    const int unit = static_cast<int>(block / heads % units);
    if (maps && unit >= values) {
      segment = 1 + (unit - values) / tiles;
      tile = (unit - values) % tiles;
    } else {
      segment = unit / tiles;
      tile = unit % tiles;
    }
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
