#pragma once

// Tiles of 16-bit elements in shared memory, and products of warps with them. A piece is 8 elements
// (16 bytes) of a row; place(row, piece) is where it stands, in bytes. Two layouts, both free of
// bank conflicts for ldmatrix and readable by wgmma:
//
//   Tile     columns of pieces, one row behind the other: what stands in the workspace is copied in
//            as it is. Eight rows of such a column are one core matrix.
//   RowTile  rows of 64 elements (128 bytes) whose pieces are swizzled, piece ^ row % 8, and one
//            block of 64 columns behind the other: for rows that come one by one from global
//            memory. Filling a Tile from rows is three times slower, since every piece is a line of
//            its own. Starts at a multiple of 1,024 bytes.

#include "core/cuda/instructions.hpp"

namespace rankone::recurrence::cuda {

using namespace rankone::cuda;  // NOLINT(google-build-using-namespace): the kernel language

template <int Rows, int Columns, bool Padded>
struct Tile {
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kColumn = Rows * 16 + (Padded ? 16 : 0);  // bytes between 16-byte columns
  static constexpr int kBytes = Columns / 8 * kColumn;
  static constexpr bool kSwizzled = false, kNarrow = false;
  static __host__ __device__ constexpr int place(int row, int piece) {
    return piece * kColumn + row * 16;
  }
};

// Rows of 16 or 32 elements, several to 128 bytes, whose pieces are swizzled so that eight rows of
// one piece still touch all banks: what copy_rows() brings with a map of as many columns. For
// ldmatrix, and with 32 columns for wgmma with its contraction along the rows.
template <int Rows, int Columns>
struct NarrowTile {
  static_assert(Rows % 8 == 0 && (Columns == 16 || Columns == 32));
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kBytes = Rows * Columns * 2;
  static constexpr bool kSwizzled = false, kNarrow = true;
  static __host__ __device__ constexpr int place(int row, int piece) {
    return row * Columns * 2 + (piece ^ (row * Columns / 64 % (Columns / 8))) * 16;
  }
};

template <int Rows, int Columns>
struct RowTile {
  static_assert(Rows % 8 == 0 && Columns % 64 == 0);
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kBlock = Rows * 128;  // bytes between blocks of 64 columns
  static constexpr int kBytes = Columns / 64 * kBlock;
  static constexpr bool kSwizzled = true, kNarrow = false;
  static __host__ __device__ constexpr int place(int row, int piece) {
    return piece / 8 * kBlock + row * 128 + ((piece ^ row) & 7) * 16;
  }
};

// Rows of global memory, `stride` bytes apart and 16-byte aligned, into a tile: `rows` of them and
// `columns` elements of each (a multiple of 8); the rest of the tile becomes zero. By `threads`
// threads of which this is number `thread`. Asynchronous: copy_commit(), copy_wait().
template <class T>
__device__ __forceinline__ void load_tile(unsigned char* tile, const void* first,
                                          std::int64_t stride, int rows, int columns, int thread,
                                          int threads) {
  constexpr int kPieces = T::kColumns / 8;
#pragma unroll 4
  for (int i = thread; i < T::kRows * kPieces; i += threads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool valid = row < rows && piece * 8 < columns;
    copy_16(tile + T::place(row, piece),
            static_cast<const unsigned char*>(first) + (valid ? row * stride + piece * 16 : 0),
            valid);
  }
}

// ---- Fragments of mma.m16n8k16 from a tile
// -------------------------------------------------------

// A [16, 16]: rows m .. m + 15 and columns 16 k .. of the tile.
template <class T>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const unsigned char* tile, int m,
                                       int k) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrix_x4(a, tile + T::place(m + lane % 16, 2 * k + lane / 16));
}
// A [16, 16] from a tile that holds its transpose: columns m .. m + 15, rows 16 k ..
template <class T>
__device__ __forceinline__ void load_a_transposed(std::uint32_t (&a)[4], const unsigned char* tile,
                                                  int m, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrix_x4_transposed(
      a, tile + T::place(16 * k + lane / 16 * 8 + lane % 8, m / 8 + lane / 8 % 2));
}
// B [16, 16], two n-tiles: b[0], b[1] of columns n .. n + 7 of the product, b[2], b[3] of the next
// eight. The tile's rows are the columns n of the product, its columns the contraction.
template <class T>
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], const unsigned char* tile, int n,
                                       int k) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrix_x4(b, tile + T::place(n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
}
// The same where the tile's rows are the contraction and its columns those of the product.
template <class T>
__device__ __forceinline__ void load_b_transposed(std::uint32_t (&b)[4], const unsigned char* tile,
                                                  int n, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrix_x4_transposed(
      b, tile + T::place(16 * k + lane / 8 % 2 * 8 + lane % 8, n / 8 + lane / 16));
}

// ---- Products with the left side in registers
// ----------------------------------------------------

// d [16, N] += a [16, 16] b [16, N] per warp (MmaEngine: mma.sync), or d [64, N] += ... of four
// warps with 16 rows each (WgmmaEngine). Step `k` of the contraction (16 each). Transposed as in
// load_b. Between begin() and wait<0>() the engine may still read a and write d. d is cleared first
// where `clear`.
template <class Format>
struct MmaEngine {
  static constexpr bool kBulk = false;  // tiles come by ordinary copies
  template <class T, bool Transposed, int Half>
  static __device__ __forceinline__ void multiply(float (&d)[Half], const std::uint32_t (&a)[4],
                                                  const unsigned char* tile, int k, bool clear) {
    if (clear) {
#pragma unroll
      for (int i = 0; i < Half; ++i) d[i] = 0.0F;
    }
#pragma unroll
    for (int n = 0; n < Half * 2; n += 16) {
      std::uint32_t b[4];
      if constexpr (Transposed) {
        load_b_transposed<T>(b, tile, n, k);
      } else {
        load_b<T>(b, tile, n, k);
      }
      mma_m16n8k16<Format>(reinterpret_cast<float(&)[4]>(d[n / 2]), a, b[0], b[1]);
      mma_m16n8k16<Format>(reinterpret_cast<float(&)[4]>(d[n / 2 + 4]), a, b[2], b[3]);
    }
  }
  static __device__ __forceinline__ void begin() {}
  static __device__ __forceinline__ void commit() {}
  template <int Left>
  static __device__ __forceinline__ void wait() {}
  template <int Half>
  static __device__ __forceinline__ void hold(float (&)[Half]) {}
  template <int Count>
  static __device__ __forceinline__ void give_registers() {}
  template <int Count>
  static __device__ __forceinline__ void take_registers() {}
};

// Whether the target that is being compiled has wgmma and the copy engine.
#if defined(RANKONE_CUDA_EMULATION) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHopper = true;

template <class Format>
struct WgmmaEngine {
  static constexpr bool kBulk = true;  // tiles come by the copy engine
  template <class T, bool Transposed>
  static __device__ __forceinline__ std::uint64_t descriptor(const unsigned char* tile, int k) {
    if constexpr (T::kSwizzled) {
      return Transposed ? matrix_descriptor(tile + k * 16 * 128, T::kBlock, 1024, 1)
                        : matrix_descriptor(tile + k / 4 * T::kBlock + k % 4 * 32, 16, 1024, 1);
    } else if constexpr (T::kNarrow) {
      static_assert(Transposed && T::kColumns == 32);
      return matrix_descriptor(tile + k * 16 * 64, 16, 512, 2);
    } else {
      return Transposed ? matrix_descriptor(tile + 16 * k * 16, 128, T::kColumn, 0)
                        : matrix_descriptor(tile + 2 * k * T::kColumn, T::kColumn, 128, 0);
    }
  }
  template <class T, bool Transposed, int Half>
  static __device__ __forceinline__ void multiply(float (&d)[Half], const std::uint32_t (&a)[4],
                                                  const unsigned char* tile, int k, bool clear) {
    wgmma_k16<Format, Transposed>(d, a, descriptor<T, Transposed>(tile, k), clear);
  }
  // d [64, N] += a b with both sides in tiles. The left one is as in load_a, or, TransposedA, as in
  // load_a_transposed.
  template <class A, bool TransposedA, class B, bool TransposedB, int Half>
  static __device__ __forceinline__ void multiply_tiles(float (&d)[Half], const unsigned char* a,
                                                        const unsigned char* b, int k,
                                                        bool clear = false) {
    wgmma_k16_shared<Format, TransposedA, TransposedB>(d, descriptor<A, TransposedA>(a, k),
                                                       descriptor<B, TransposedB>(b, k), clear);
  }
  static __device__ __forceinline__ void begin() { wgmma_fence(); }
  static __device__ __forceinline__ void commit() { wgmma_commit(); }
  template <int Left>
  static __device__ __forceinline__ void wait() {
    wgmma_wait<Left>();
  }
  template <int Half>
  static __device__ __forceinline__ void hold(float (&d)[Half]) {
    wgmma_hold(d);
  }
  // Of instructions.hpp.
  template <int Count>
  static __device__ __forceinline__ void give_registers() {
    rankone::cuda::give_registers<Count>();
  }
  template <int Count>
  static __device__ __forceinline__ void take_registers() {
    rankone::cuda::take_registers<Count>();
  }
};
#else
inline constexpr bool kHopper = false;

template <class Format>
struct WgmmaEngine {
  static constexpr bool kBulk = true;
};
#endif

// Kernels of an engine that the target lacks are empty, and never started: that spares compiling
// each of them for every GPU.
template <class Engine>
inline constexpr bool kRunsHere = kHopper || !Engine::kBulk;

}  // namespace rankone::recurrence::cuda
