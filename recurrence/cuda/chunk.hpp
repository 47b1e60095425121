#pragma once

// What the chunk kernels hand to each other through the workspace. Algebra and names:
// docs/kernels.md. A chunk has 64 rows; C = number of chunks; all tiles are as tile.hpp describes,
// unpadded, 16-bit elements of the call's format, columns beyond d_k and rows beyond the chunk's
// count zero.
//
// With G_i the sum of the log decays of rows 0 .. i of the chunk (per channel or scalar), b the
// gain, and i, j rows of the chunk:
//
//     a_ij = sum_d e_id w_jd exp(G_id - G_jd)   j < i          Y = (I + a diag(b))^-1
//     P_ij = scale sum_d q_id w_jd exp(G_id - G_jd)   j <= i
//     E~ = E exp(G), Q~ = Q exp(G), W^ = W exp(G_last - G)
//     R = V - E~ S_0;  Z = Y R;  U = diag(b) Z
//     O = scale Q~ S_0 + P U;  S_C = diag(exp(G_last)) S_0 + W^^T U
//
// (Y is T = (I + diag(b) a)^-1 with the gains on the other side, T diag(b) = diag(b) Y, so that Z
// is there also where a gain is zero.) Additive calls have Z = V: no Y, no E.

#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kChunkRows = 64;
inline constexpr int kSquareBytes = 64 * 64 * 2;  // Y or P
// Bytes of in, out, gain, keep and precise.
__host__ __device__ constexpr int number_bytes(int columns) { return 3 * 256 + columns * 4 + 16; }
inline constexpr int kLeanKeep = 4;           // the columns of lean records there
inline constexpr int kSumBytes = 64 * 2 * 4;  // of the sums of gates
inline constexpr int kValueTile = 64;         // value columns of one block of the scans

// Columns of a key tile: d_k rounded up to what the kernels are compiled for.
__host__ __device__ constexpr int key_columns(int d_k) {
  return d_k <= 64 ? 64 : d_k <= 128 ? 128 : 256;
}
__host__ __device__ constexpr int value_tiles(int d_v) {
  return (d_v + kValueTile - 1) / kValueTile;
}

// One record per (chunk, value head), number chunk * HV + head, one behind the other:
//
//   Y - I    [64, 64] tile (delta calls; absent otherwise). Products with it are added to the other
//            side in float32, as it was before it was rounded: so the row's own part is exact.
//   P        [64, 64] tile
//   in       [64] float: exp(G_i); 1 without decay and for channel decay. Rows beyond the count
//            repeat the last one.
//   out      [64] float: exp(G_last - G_i); likewise
//   gain     [64] float: b_i; 0 beyond the count
//   keep     [key_columns] float: exp(G_last) of every channel (scalar: all the same); 0 beyond d_k
//   precise  float, then 12 bytes unused: not 0 where Y is far from the unit matrix. There Z needs
//   the
//            low part of Y and of R, as exact as a solve in float32 would be: with correlated keys
//            and gains near two their roundings would be the largest error of all.
//            in, out, keep and the factors of the scaled tiles are at most 1e37, so that g > 0
//            (which is legal) leaves a zero state zero
//   channel decay only: Q~, E~ (delta calls), W^: [64, key_columns] tiles, without `scale`
//   Y low    [64, 64] tile (delta calls): what rounding Y to the format has left; written where
//            `precise` is set, and read by nobody else
//
// Lean records are those of forward calls without channel decay where the scan makes P itself from
// the keys that it has: no P, `keep` is kLeanKeep equal floats, and behind `precise`
//
//   sums     [64] float2: G_i in base 2 as sum_gates() has it
struct RecordLayout {
  std::int64_t square_y, square_low, square_p, in, out, gain, keep, precise, sums, query, erase,
      write, bytes;
  bool lean;

  RecordLayout() = default;
  __host__ __device__ constexpr RecordLayout(int d_k, GateKind gate, bool delta,
                                             bool lean_record = false)
      : square_y(0),
        square_low(0),
        square_p(0),
        in(0),
        out(0),
        gain(0),
        keep(0),
        precise(0),
        sums(0),
        query(0),
        erase(0),
        write(0),
        bytes(0),
        lean(lean_record) {
    const int columns = key_columns(d_k);
    const std::int64_t key_tile = std::int64_t{64} * columns * 2;
    square_p = square_y + (delta ? kSquareBytes : 0);
    in = square_p + (lean ? 0 : kSquareBytes);
    out = in + 64 * 4;
    gain = out + 64 * 4;
    keep = gain + 64 * 4;
    precise = keep + (lean ? kLeanKeep : columns) * 4;
    sums = precise + 16;
    query = sums + (lean ? kSumBytes : 0);
    const bool scaled = gate == GateKind::channel;
    erase = query + (scaled ? key_tile : 0);
    write = erase + (scaled && delta ? key_tile : 0);
    square_low = write + (scaled ? key_tile : 0);
    bytes = square_low + (delta ? kSquareBytes : 0);
  }
};

// Everything the chunk kernels share in one call.
struct ChunkCall {
  TwoKeyCall call;
  RecordLayout layout;
  unsigned char* records = nullptr;  // [C, HV] records

  // Training only.
  // S_0 of every chunk and its cotangent dS_C at the end of the chunk, transposed: [C, HV, value
  // tiles] tiles of [64 value columns as rows, key_columns].
  void* states = nullptr;
  void* d_states = nullptr;
  const void* z = nullptr;        // [R, HV, V], the call's format; of an additive call v itself
  const void* d_value = nullptr;  // the gradient of v, likewise: that of the call or scratch
  float* gate_sums = nullptr;     // of the gradients: chunk_grad_floats() of them

  __host__ __device__ unsigned char* record(std::int64_t chunk, std::int64_t head) const {
    return records + (chunk * call.value_heads + head) * layout.bytes;
  }
  // In elements from `states` or `d_states`.
  __host__ __device__ std::int64_t state_tile(std::int64_t chunk, std::int64_t head,
                                              int tile) const {
    return ((chunk * call.value_heads + head) * value_tiles(call.d_v) + tile) * 64 *
           key_columns(call.d_k);
  }
};

}  // namespace rankone::recurrence::cuda
