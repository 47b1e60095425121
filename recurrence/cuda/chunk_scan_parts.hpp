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

inline constexpr int kScanThreads = 128;

// Bytes of one stage, and where its tiles stand. The key tiles come as rows of q, e and w, or, with
// channel decay (Scaled), from the record.
template <int DK, bool Scaled>
struct ScanStage {
  using Key = Tile<64, DK, !Scaled>;
  using Value = Tile<64, kValueTile, true>;
  using Square = Tile<64, 64, false>;

  int erase, write, query, value, square_t, square_p, in, out, gain, keep, bytes;

  // `seen`: with q and P.
  __host__ __device__ ScanStage(bool delta, bool same_key, bool seen) {
    int at = 0;
    const auto take = [&at](int size, bool wanted) {
      const int here = at;
      if (wanted) at += (size + 127) / 128 * 128;
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
    in = take(256, true);
    out = take(256, true);
    gain = take(256, true);
    keep = take(DK * 4, true);
    bytes = at;
  }
};

template <int Stages>
constexpr bool fits_shared(int stage_bytes) {
  return Stages * stage_bytes <= 227 * 1024;
}

// `bytes` (a multiple of 16) as they stand.
__device__ __forceinline__ void copy_block(unsigned char* shared, const unsigned char* global,
                                           int bytes, int thread) {
#pragma unroll 4
  for (int i = thread * 16; i < bytes; i += kScanThreads * 16) copy_16(shared + i, global + i);
}

// Everything of one chunk for a block of value columns. `value` is v, or dO on the way back.
template <int DK, bool Scaled>
__device__ __forceinline__ void load_chunk(const ChunkCall& chunk, const ScanStage<DK, Scaled>& at,
                                           unsigned char* stage, std::int64_t number,
                                           const Span& span, std::int64_t head, const void* value,
                                           int column, bool seen) {
  using Stage = ScanStage<DK, Scaled>;
  const TwoKeyCall& call = chunk.call;
  const int thread = static_cast<int>(threadIdx.x);
  const unsigned char* record = chunk.record(number, head);
  const RecordLayout& layout = chunk.layout;
  if constexpr (Scaled) {
    constexpr int kBytes = Stage::Key::kBytes;
    if (call.delta) copy_block(stage + at.erase, record + layout.erase, kBytes, thread);
    copy_block(stage + at.write, record + layout.write, kBytes, thread);
    if (seen) copy_block(stage + at.query, record + layout.query, kBytes, thread);
  } else {
    const std::int64_t stride = call.heads * call.d_k * 2;
    const std::int64_t offset = span.first * stride + call.key_head(head) * call.d_k * 2;
    const auto rows = [&](int to, const void* from) {
      load_tile<typename Stage::Key>(stage + to, static_cast<const unsigned char*>(from) + offset,
                                     stride, span.count, call.d_k, thread, kScanThreads);
    };
    if (call.delta && !call.same_key) rows(at.erase, call.e);
    rows(at.write, call.w);
    if (seen) rows(at.query, call.q);
  }
  if (value != nullptr) {
    const std::int64_t stride = call.value_heads * call.d_v * 2;
    load_tile<typename Stage::Value>(
        stage + at.value,
        static_cast<const unsigned char*>(value) + span.first * stride +
            (head * call.d_v + column) * 2,
        stride, span.count, call.d_v - column < kValueTile ? call.d_v - column : kValueTile, thread,
        kScanThreads);
  }
  if (call.delta) copy_block(stage + at.square_t, record + layout.square_t, kSquareBytes, thread);
  if (seen) copy_block(stage + at.square_p, record + layout.square_p, kSquareBytes, thread);
  copy_block(stage + at.in, record + layout.in, 256, thread);
  copy_block(stage + at.out, record + layout.out, 256, thread);
  copy_block(stage + at.gain, record + layout.gain, 256, thread);
  copy_block(stage + at.keep, record + layout.keep, DK * 4, thread);
}

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

// Writes fragments a [16 value columns per warp, 64 rows] (rounded, as left sides) to rows of
// global memory, through the warp's own columns of the value tile `staging`.
template <class T>
__device__ __forceinline__ void store_rows(const std::uint32_t (&a)[4][4], unsigned char* staging,
                                           void* to, std::int64_t stride, int rows, int columns) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  unsigned char* own = staging + 2 * warp * T::kColumn;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Of a[k][j]: value columns j % 2 * 8 .., rows 16 k + j / 2 * 8 ..
      *reinterpret_cast<std::uint32_t*>(own + j % 2 * T::kColumn +
                                        (16 * k + j / 2 * 8 + lane / 4) * 16 + lane % 4 * 4) =
          transpose_matrix(a[k][j]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * i + lane / 2, piece = 2 * warp + lane % 2;
    if (row < rows && piece * 8 < columns) {
      *reinterpret_cast<uint4*>(static_cast<unsigned char*>(to) + row * stride + piece * 16) =
          *reinterpret_cast<const uint4*>(own + lane % 2 * T::kColumn + row * 16);
    }
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

// Which segment of which sequence, head and value tile a block has.
struct ScanTask {
  std::int64_t sequence, head;
  int tile, segment;
  std::int64_t first, end;  // chunks

  // Blocks are numbered [sequence, segment, tile, head]: neighbours share keys where heads do.
  __device__ ScanTask(const ChunkCall& chunk, std::int64_t block, int tiles, int segments) {
    const std::int64_t heads = chunk.call.value_heads;
    head = block % heads;
    tile = static_cast<int>(block / heads % tiles);
    segment = static_cast<int>(block / heads / tiles % segments);
    sequence = block / heads / tiles / segments;
    const Rows& rows = chunk.call.rows;
    const std::int64_t start = rows.first_chunk(sequence),
                       count = rows.first_chunk(sequence + 1) - start;
    first = start + count * segment / segments;
    end = start + count * (segment + 1) / segments;
  }
};

}  // namespace rankone::recurrence::cuda
