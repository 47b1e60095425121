#include "recurrence/cuda/chunk_inputs.hpp"
#include "recurrence/cuda/chunk_inverse.hpp"
#include "recurrence/cuda/chunk_prep.hpp"

// Channel decay. Every product of keys has its decay split at an anchor row between them, so that
// both factors are decays (exponents <= 0, which can only underflow) and are rounded with a key:
//
//     rows 32 .. 63 with columns 0 .. 31       anchor 32   (Q64, E64 and W64)
//     rows 16 .. 31 with 0 .. 15, 48 .. with 32 .. 47      anchors 16 and 48   (Q32, E32 and W32)
//     the blocks of 16 on the diagonal         the block's middle, where no factor then exceeds
//                                              2^limit; otherwise again halves of halves
//
// Exponents are sums of the gates between two rows, never differences of longer sums. One block of
// four warps per (chunk, value head); warp w has rows 16 w .. of all products. A lane holds the
// same elements of keys and gates whether they are the left or the right side of a product.

namespace rankone::recurrence::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kMostFactor = 1e37F;

template <int Columns>
struct Shared {
  int notes[32];  // of note_size(); padded
  float gain[64];
  // By block of 16 rows and 32 channels: whether the middle row serves as its anchor.
  std::int32_t middle[4][8];
  // Decays by channel: over the first half of each block; over all blocks before and behind it;
  // over block 1 (for columns of block 0) and block 2 (for rows of block 3).
  float half[4][Columns], before[4][Columns], behind[4][Columns], skip[2][Columns];
  // Gates; where `middle`, log decays in base 2 from the middle row (to it: negated). Later the
  // left sides of rows 16 .., as fragments.
  static constexpr int kRow = Columns + 8;
  float gates[64][kRow];
};

// Elements of a fragment: register r holds rows g + 8 (r % 2), columns 2t + 8 (r / 2) and the next.
using Elements = float[4][2];

template <class Format>
__device__ __forceinline__ void unpack_all(Elements& out, const std::uint32_t (&in)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float2 pair = unpack<Format>(in[r]);
    out[r][0] = pair.x;
    out[r][1] = pair.y;
  }
}
template <class Format>
__device__ __forceinline__ void pack_product(std::uint32_t (&out)[4], const Elements& a,
                                             const Elements& b) {
#pragma unroll
  for (int r = 0; r < 4; ++r) out[r] = pack<Format>(a[r][0] * b[r][0], a[r][1] * b[r][1]);
}
// The same with one more factor for each column.
template <class Format>
__device__ __forceinline__ void pack_product(std::uint32_t (&out)[4], const Elements& a,
                                             const Elements& b, const float (&columns)[2][2]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      value[i] = a[r][i] * fminf(b[r][i] * columns[r / 2][i], kMostFactor);
      if constexpr (std::is_same_v<Format, f16>) {
        value[i] = fminf(fmaxf(value[i], -65504.0F), 65504.0F);
      }
    }
    out[r] = pack<Format>(value[0], value[1]);
  }
}
__device__ __forceinline__ void load_columns(float (&out)[2][2], const float* row, int column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 pair = *reinterpret_cast<const float2*>(row + column + 8 * half);
    out[half][0] = pair.x;
    out[half][1] = pair.y;
  }
}

// Gates into shared memory as floats; zero beyond the rows and channels of the call. Asynchronous
// where they are floats. A thread keeps its columns and goes down the rows.
template <class Format, int Columns>
__device__ __forceinline__ void load_channels(Shared<Columns>& shared, const TwoKeyCall& call,
                                              std::int64_t first, int count, std::int64_t head) {
  const int thread = static_cast<int>(threadIdx.x), channels = call.d_k;
  const std::int64_t stride = call.value_heads * call.d_k;
  const std::int64_t offset = first * stride + head * call.d_k;
  if (call.g.dtype == Dtype::f32) {
    constexpr int kStep = kThreads / (Columns / 4);
    const int start = thread / (Columns / 4), column = thread % (Columns / 4) * 4;
    const auto* const base = static_cast<const float*>(call.g.data);
    const float* from = base + offset + start * stride + column;
    if (count == kChunkRows && channels >= Columns) {
#pragma unroll
      for (int i = 0; i < kChunkRows; i += kStep) {
        copy_16(&shared.gates[start + i][column], from);
        from += kStep * stride;
      }
      return;
    }
#pragma unroll 2
    for (int i = 0; i < kChunkRows; i += kStep) {
      const bool valid = start + i < count && column < channels;
      copy_16(&shared.gates[start + i][column], valid ? from : base, valid);
      from += kStep * stride;
    }
    return;
  }
  constexpr int kStep = kThreads / (Columns / 8);
  const int start = thread / (Columns / 8), column = thread % (Columns / 8) * 8;
  const Format* const from = static_cast<const Format*>(call.g.data) + offset + column;
  uint4 pairs[kChunkRows / kStep];
#pragma unroll
  for (int i = 0; i < kChunkRows / kStep; ++i) {
    const int row = start + i * kStep;
    pairs[i] = make_uint4(0, 0, 0, 0);
    if (row < count && column < channels) {
      pairs[i] = *reinterpret_cast<const uint4*>(from + row * stride);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunkRows / kStep; ++i) {
    const float2 a = unpack<Format>(pairs[i].x), b = unpack<Format>(pairs[i].y);
    const float2 c = unpack<Format>(pairs[i].z), d = unpack<Format>(pairs[i].w);
    auto* const to = reinterpret_cast<float4*>(&shared.gates[start + i * kStep][column]);
    to[0] = make_float4(a.x, a.y, b.x, b.y);
    to[1] = make_float4(c.x, c.y, d.x, d.y);
  }
}

// One channel a lane: decays of whole blocks, and the gates of blocks with the middle as anchor.
template <class Format, int Columns>
__device__ __forceinline__ void sum_channels(Shared<Columns>& shared, float* keep, int d_k) {
  constexpr float kLimit = std::is_same_v<Format, f16> ? 4.0F : 100.0F;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  for (int group = warp; group < Columns / 32; group += 4) {
    const int channel = 32 * group + lane;
    float total[4];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      float* const gates = &shared.gates[16 * block][channel];
      float sum[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) sum[i] = gates[i * Shared<Columns>::kRow] * kLog2e;
      float first = 0.0F;  // row i: - (rows i + 1 .. 7)
#pragma unroll
      for (int i = 7; i >= 0; --i) {
        const float gate = sum[i];
        sum[i] = first;
        first -= gate;
      }
      first = -first;
      float second = 0.0F;  // row i: rows 8 .. i
#pragma unroll
      for (int i = 8; i < 16; ++i) sum[i] = second += sum[i];
      float span = fabsf(first);
#pragma unroll
      for (int i = 0; i < 16; ++i) span = fmaxf(span, fabsf(sum[i]));
      total[block] = first + second;
      shared.half[block][channel] = decay_factor(first);
      const bool middle = __all_sync(0xffffffffU, span <= kLimit ? 1 : 0) != 0;
      if (lane == 0) shared.middle[block][group] = middle ? 1 : 0;
      if (!middle) continue;
#pragma unroll
      for (int i = 0; i < 16; ++i) gates[i * Shared<Columns>::kRow] = sum[i];
    }
    shared.before[0][channel] = 1.0F;
    shared.before[1][channel] = decay_factor(total[0]);
    shared.before[2][channel] = decay_factor(total[0] + total[1]);
    shared.before[3][channel] = decay_factor(total[0] + total[1] + total[2]);
    shared.behind[0][channel] = decay_factor(total[1] + total[2] + total[3]);
    shared.behind[1][channel] = decay_factor(total[2] + total[3]);
    shared.behind[2][channel] = decay_factor(total[3]);
    shared.behind[3][channel] = 1.0F;
    shared.skip[0][channel] = decay_factor(total[1]);
    shared.skip[1][channel] = decay_factor(total[2]);
    keep[channel] = channel < d_k ? decay_factor(total[0] + total[1] + total[2] + total[3]) : 0.0F;
  }
}

// Gates as they came, base 2, of this lane's elements.
template <int Columns>
__device__ __forceinline__ void load_elements(Elements& out, const Shared<Columns>& shared, int row,
                                              int column, float factor) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float2 pair =
        *reinterpret_cast<const float2*>(&shared.gates[row + r % 2 * 8][column + r / 2 * 8]);
    out[r][0] = pair.x * factor;
    out[r][1] = pair.y * factor;
  }
}

// Sums of gates in aligned groups of rows: up to a row with it, behind it, and all.
struct RowSums {
  Elements prefix, suffix, total;

  __device__ explicit RowSums(const Elements& gates) {  // groups of one row
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      prefix[j / 2][j % 2] = total[j / 2][j % 2] = gates[j / 2][j % 2];
      suffix[j / 2][j % 2] = 0.0F;
    }
  }
  // Whether a row lies in the second half of its group of 2^(Level + 1).
  template <int Level>
  static __device__ bool second(int g, int r) {
    return (Level == 3 ? r & 1 : g >> Level & 1) != 0;
  }
  // From groups of 2^Level rows to groups of twice as many.
  template <int Level>
  __device__ void join(int g) {
    Elements other;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int r = j / 2, i = j % 2;
      other[r][i] =
          Level == 3 ? total[r ^ 1][i] : __shfl_xor_sync(0xffffffffU, total[r][i], 4 << Level);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int r = j / 2, i = j % 2;
      // No choice of an array by the row: that would put both into local memory.
      prefix[r][i] += second<Level>(g, r) ? other[r][i] : 0.0F;
      suffix[r][i] += second<Level>(g, r) ? 0.0F : other[r][i];
      total[r][i] += other[r][i];
    }
  }
};

// What the four warps of a block share, and a lane's place in it.
template <class Format, int Columns, bool Delta, bool SameKey>
struct Place {
  using T = KeyTile<Columns>;
  Shared<Columns>& shared;
  unsigned char* tiles;  // q, w, e
  int warp, g, t;

  __device__ int first_row() const { return 16 * warp; }
  __device__ unsigned char* query() const { return tiles; }
  __device__ unsigned char* write() const { return tiles + T::kBytes; }
  __device__ unsigned char* erase() const { return tiles + (SameKey ? 1 : 2) * T::kBytes; }
  // Sixteen bytes of this lane: its left side number `which` of step k, in place of the gates of
  // that step, or in the place of its own rows of keys.
  __device__ uint4* left(int k, int which) const {
    const int lane = 4 * g + t;
    return reinterpret_cast<uint4*>(&shared.gates[first_row() + lane / 2][16 * k + 8 * which]) +
           lane % 2;
  }
  // Where this lane's row of a fragment of step k stands in a tile of keys, as ldmatrix and
  // stmatrix want it for a left side of the warp's rows, or for a right side of the first 16: the
  // place for step 0 and how the others differ from it.
  __device__ int row_of_left() const {
    const int lane = 4 * g + t;
    return T::place(first_row() + lane % 16, lane / 16);
  }
  __device__ int row_of_right() const {
    const int lane = 4 * g + t;
    return T::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  static __device__ int step(int row, int k) { return (row ^ (k % 4 * 32)) + k / 4 * T::kBlock; }
  // A fragment into this warp's rows of a tile of layout To.
  template <class To>
  __device__ void put_rows(unsigned char* tile, int k, const std::uint32_t (&value)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      *reinterpret_cast<std::uint32_t*>(
          tile + To::place(first_row() + g + r % 2 * 8, 2 * k + r / 2) + t * 4) = value[r];
    }
  }
};

__device__ __forceinline__ void put(uint4* to, const std::uint32_t (&value)[4]) {
  *to = make_uint4(value[0], value[1], value[2], value[3]);
}
__device__ __forceinline__ void get(std::uint32_t (&value)[4], const uint4* from) {
  const uint4 all = *from;
  value[0] = all.x;
  value[1] = all.y;
  value[2] = all.z;
  value[3] = all.w;
}

// Accumulators of a block on the diagonal.
struct Block {
  float p[2][4], a[2][4];
};

// The products of pairs of rows in the two halves of a group of 2^(Level + 1), with the anchor
// between the halves: wherever those rows are, in `out`; the rest of it means nothing.
template <int Level, class Format, bool Delta>
__device__ __forceinline__ void multiply_level(Block& out, const RowSums& sums, int g,
                                               const Elements& query, const Elements& read,
                                               const Elements& write) {
  Elements factor;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int r = j / 2, i = j % 2;
    factor[r][i] =
        decay_factor(RowSums::second<Level>(g, r) ? sums.prefix[r][i] : sums.suffix[r][i]);
  }
  std::uint32_t left[4], right[4];
  pack_product<Format>(right, write, factor);
  pack_product<Format>(left, query, factor);
  mma_m16n8k16<Format>(out.p[0], left, right[0], right[2]);
  if constexpr (Level < 3) mma_m16n8k16<Format>(out.p[1], left, right[1], right[3]);
  if constexpr (Delta) {
    pack_product<Format>(left, read, factor);
    mma_m16n8k16<Format>(out.a[0], left, right[0], right[2]);
    if constexpr (Level < 3) mma_m16n8k16<Format>(out.a[1], left, right[1], right[3]);
  }
}

// A block on the diagonal: a and P of channels whose decays do not allow the middle as anchor,
// level by level; on the diagonal itself nothing decays.
template <class Format, int Columns, bool Delta, bool SameKey>
__device__ __noinline__ Block strong_block(const Place<Format, Columns, Delta, SameKey> at,
                                           std::uint32_t strong) {
  using T = KeyTile<Columns>;
  const int m = at.first_row();
  Block levels[4] = {}, out = {};
  for (int k = 0; k < Columns / 16; ++k) {
    if ((strong >> (k / 2) & 1) == 0) continue;
    Elements gates, query, read, write;
    std::uint32_t left[4], right[4];
    load_a<T>(right, at.write(), m, k);
    unpack_all<Format>(write, right);
    load_a<T>(left, at.query(), m, k);
    unpack_all<Format>(query, left);
    mma_m16n8k16<Format>(out.p[0], left, right[0], right[2]);
    mma_m16n8k16<Format>(out.p[1], left, right[1], right[3]);
    if constexpr (Delta) {
      load_a<T>(left, at.erase(), m, k);
      unpack_all<Format>(read, left);
    }
    load_elements(gates, at.shared, m + at.g, 16 * k + 2 * at.t, kLog2e);
    RowSums sums(gates);
    multiply_level<0, Format, Delta>(levels[0], sums, at.g, query, read, write);
    sums.template join<0>(at.g);
    multiply_level<1, Format, Delta>(levels[1], sums, at.g, query, read, write);
    sums.template join<1>(at.g);
    multiply_level<2, Format, Delta>(levels[2], sums, at.g, query, read, write);
    sums.template join<2>(at.g);
    multiply_level<3, Format, Delta>(levels[3], sums, at.g, query, read, write);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int n = j / 4, i = j % 4;
    const int row = at.g + i / 2 * 8, column = 8 * n + 2 * at.t + i % 2;
#pragma unroll
    for (int level = 0; level < 4; ++level) {  // the last that fits is the one
      if (row > column && (row ^ column) >> level == 1) {
        out.p[n][i] = levels[level].p[n][i];
        out.a[n][i] = levels[level].a[n][i];
      }
    }
  }
  return out;
}

// The blocks on the diagonal, the scaled tiles, and the sides of the products between blocks; in
// `own` q w^T without decays, of which the diagonal is wanted: there nothing decays, so nothing
// has to be rounded.
template <class Format, int Columns, bool Delta, bool SameKey>
__device__ __forceinline__ void scale_keys(const Place<Format, Columns, Delta, SameKey>& at,
                                           const ChunkCall& c, unsigned char* record,
                                           std::uint32_t strong, Block& block, float (&own)[2][4]) {
  using Out = Tile<64, Columns, false>;
  const int m = at.first_row(), warp = at.warp, first = at.row_of_left();
  for (int k = 0; k < Columns / 16; ++k) {
    const int column = 16 * k + 2 * at.t, own_row = at.step(first, k);
    Elements prefix, suffix, query, write, erase;
    std::uint32_t raw[4], out[4];
    load_matrix_x4(out, at.query() + own_row);
    unpack_all<Format>(query, out);
    load_matrix_x4(raw, at.write() + own_row);
    unpack_all<Format>(write, raw);
    if ((strong >> (k / 2) & 1) == 0) {
      mma_m16n8k16<Format>(own[0], out, raw[0], raw[2]);
      mma_m16n8k16<Format>(own[1], out, raw[1], raw[3]);
    }
    if constexpr (Delta && !SameKey) {
      load_matrix_x4(raw, at.erase() + own_row);
      unpack_all<Format>(erase, raw);
    }
    const Elements& read = SameKey ? write : erase;
    if ((strong >> (k / 2) & 1) == 0) {
      load_elements(prefix, at.shared, m + at.g, column, 1.0F);
      float half[2][2], other[2][2];
      load_columns(other, at.shared.gates[m + 15], column);
      load_columns(half, at.shared.half[warp], column);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float exponent = prefix[j / 2][j % 2];
        prefix[j / 2][j % 2] = exp2_fast(exponent);
        suffix[j / 2][j % 2] = exp2_fast(-exponent);
      }
      std::uint32_t right[4];
      pack_product<Format>(right, write, suffix);
      pack_product<Format>(out, query, prefix);
      mma_m16n8k16<Format>(block.p[0], out, right[0], right[2]);
      mma_m16n8k16<Format>(block.p[1], out, right[1], right[3]);
      if constexpr (Delta) {
        pack_product<Format>(out, read, prefix);
        mma_m16n8k16<Format>(block.a[0], out, right[0], right[2]);
        mma_m16n8k16<Format>(block.a[1], out, right[1], right[3]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int r = j / 2, i = j % 2;
        prefix[r][i] *= half[r / 2][i];
        suffix[r][i] *= exp2_fast(other[r / 2][i]);
      }
    } else {
      Elements gates;
      load_elements(gates, at.shared, m + at.g, column, kLog2e);
      RowSums sums(gates);
      sums.template join<0>(at.g);
      sums.template join<1>(at.g);
      sums.template join<2>(at.g);
      sums.template join<3>(at.g);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        prefix[j / 2][j % 2] = decay_factor(sums.prefix[j / 2][j % 2]);
        suffix[j / 2][j % 2] = decay_factor(sums.suffix[j / 2][j % 2]);
      }
    }
    float factor[2][2];
    load_columns(factor, at.shared.before[warp], column);
    pack_product<Format>(out, query, prefix, factor);
    at.template put_rows<Out>(record + c.layout.query, k, out);
    if constexpr (Delta) {
      pack_product<Format>(out, read, prefix, factor);
      at.template put_rows<Out>(record + c.layout.erase, k, out);
    }
    load_columns(factor, at.shared.behind[warp], column);
    pack_product<Format>(out, write, suffix, factor);
    at.template put_rows<Out>(record + c.layout.write, k, out);

    // From here on over what the warp has read.
    __syncwarp();
    if (warp > 0) {
      pack_product<Format>(out, query, prefix);
      put(at.left(k, 0), out);
      if constexpr (Delta) {
        pack_product<Format>(out, read, prefix);
        put(at.left(k, 1), out);
      }
    }
    if (warp == 3) {
      load_columns(factor, at.shared.skip[1], column);
      pack_product<Format>(out, query, prefix, factor);
      put(reinterpret_cast<uint4*>(at.query() + own_row), out);
      if constexpr (Delta) {
        pack_product<Format>(out, read, prefix, factor);
        put(reinterpret_cast<uint4*>(at.write() + own_row), out);
      }
    } else {
      pack_product<Format>(out, write, suffix);
      store_matrix_x4(at.write() + own_row, out);
      if (warp == 0) {
        load_columns(factor, at.shared.skip[0], column);
        pack_product<Format>(out, write, suffix, factor);
        store_matrix_x4(at.query() + own_row, out);
      }
    }
  }
}

// The products of block Warp of the rows with the blocks before it: columns 8 n of p and a.
template <int Warp, class Format, int Columns, bool Delta, bool SameKey>
__device__ __forceinline__ void multiply_between(const Place<Format, Columns, Delta, SameKey>& at,
                                                 float (&p)[6][4], float (&a)[6][4]) {
  constexpr int kBlock = 16 * 128;  // bytes of 16 rows
  const int first_left = at.row_of_left(), first_right = at.row_of_right();
#pragma unroll 2
  for (int k = 0; k < Columns / 16; ++k) {
    std::uint32_t query[4], erase[4], far_query[4], far_erase[4], right[3][4];
    get(query, at.left(k, 0));
    if constexpr (Delta) get(erase, at.left(k, 1));
    if constexpr (Warp == 3) {
      get(far_query, reinterpret_cast<const uint4*>(at.query() + at.step(first_left, k)));
      if constexpr (Delta)
        get(far_erase, reinterpret_cast<const uint4*>(at.write() + at.step(first_left, k)));
    }
    // Columns of block 0 for the rows of block 1 stand in their own place, for those behind in q's.
    const int row = at.step(first_right, k);
    load_matrix_x4(right[0], (Warp == 1 ? at.write() : at.query()) + row);
    if constexpr (Warp > 1) load_matrix_x4(right[1], at.write() + kBlock + row);
    if constexpr (Warp > 2) load_matrix_x4(right[2], at.write() + 2 * kBlock + row);
#pragma unroll
    for (int n = 0; n < 2 * Warp; ++n) {
      const bool far = Warp == 3 && n < 4;
      const std::uint32_t* const b = &right[n / 2][n % 2 * 2];
      mma_m16n8k16<Format>(p[n], far ? far_query : query, b[0], b[1]);
      if constexpr (Delta) mma_m16n8k16<Format>(a[n], far ? far_erase : erase, b[0], b[1]);
    }
  }
}

template <int Columns>
std::size_t shared_bytes(bool delta, bool same_key) {
  return sizeof(Shared<Columns>) + KeyTile<Columns>::kBytes * (delta && !same_key ? 3 : 2);
}

// Blocks of a multiprocessor.
template <int Columns>
constexpr int kBlocks = Columns == 256   ? 1
                        : Columns == 128 ? 3
                                         : 4;

template <class Format, int Columns, bool Delta, bool SameKey>
__global__ void __launch_bounds__(kThreads, kBlocks<Columns>)
    prepare_channel(const ChunkCall c, std::uint32_t multiprocessors) {
  static_assert(sizeof(Shared<Columns>) % 128 == 0);
  auto& shared = *reinterpret_cast<Shared<Columns>*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), warp = warp_number(), lane = thread % 32;
  const Place<Format, Columns, Delta, SameKey> at{shared, shared_memory() + sizeof(Shared<Columns>),
                                                  warp, lane / 4, lane % 4};
  const TwoKeyCall& call = c.call;
  // What all blocks want would arrive at the same time: the first of every multiprocessor, then the
  // second, then the third.
  if (const std::uint32_t at_once = kBlocks<Columns> * multiprocessors;
      blockIdx.x < at_once && at_once < gridDim.x) {
    pause(2000 * (blockIdx.x / multiprocessors));
  }
  const auto heads = static_cast<std::uint32_t>(call.value_heads);
  // From the last chunk to the first: what came before has left the last rows in the cache.
  const std::uint32_t number = gridDim.x - 1 - blockIdx.x;
  const std::int64_t chunk = number / heads, head = number % heads;
  const Span span = span_of(call.rows, number / heads);
  const int count = span.count;
  unsigned char* const record = c.record(chunk, head);

  load_channels<Format>(shared, call, span.first, count, head);
  copy_commit();
  load_keys<Columns>(call, span.first, count, head, Delta && !SameKey, at.tiles);
  copy_commit();
  if (thread < 64) {
    const std::int64_t gate = (span.first + thread) * call.value_heads + head;
    shared.gain[thread] = thread < count ? gain_value<Format>(call.b, gate) : 0.0F;
    reinterpret_cast<float*>(record + c.layout.in)[thread] = 1.0F;
    reinterpret_cast<float*>(record + c.layout.out)[thread] = 1.0F;
    reinterpret_cast<float*>(record + c.layout.gain)[thread] = shared.gain[thread];
  }
  copy_wait<1>();
  __syncthreads();
  sum_channels<Format>(shared, reinterpret_cast<float*>(record + c.layout.keep), call.d_k);
  copy_wait<0>();
  __syncthreads();

  Block block = {};
  const std::uint32_t strong =
      __ballot_sync(0xffffffffU, lane < Columns / 32 && shared.middle[warp][lane % 8] == 0 ? 1 : 0);
  if (strong != 0) block = strong_block(at, strong);
  float own[2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) own[i / 4][i % 4] = block.p[i / 4][i % 4];
  scale_keys(at, c, record, strong, block, own);
  __syncthreads();
  float p[6][4] = {}, a[6][4] = {};
  switch (warp) {
    case 1:
      multiply_between<1>(at, p, a);
      break;
    case 2:
      multiply_between<2>(at, p, a);
      break;
    case 3:
      multiply_between<3>(at, p, a);
      break;
    default:
      break;
  }

  const int m = at.first_row(), upper = m + at.g, lower = upper + 8;
  const auto put_p = [&](int n, const float(&value)[4]) {
    unsigned char* const to = record + c.layout.square_p + n * 1024 + at.t * 4;
    *reinterpret_cast<std::uint32_t*>(to + upper * 16) =
        pack<Format>(call.scale * value[0], call.scale * value[1]);
    *reinterpret_cast<std::uint32_t*>(to + lower * 16) =
        pack<Format>(call.scale * value[2], call.scale * value[3]);
  };
  constexpr float kNone[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
  for (int n = 0; n < 6; ++n) {
    if (n < 2 * warp) put_p(n, p[n]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = at.g + i / 2 * 8, column = 8 * n + 2 * at.t + i % 2;
      if (column == row) block.p[n][i] = own[n][i];
      if (column > row) block.p[n][i] = 0.0F;
    }
    put_p(2 * warp + n, block.p[n]);
  }
  for (int n = 2 * warp + 2; n < 8; ++n) put_p(n, kNone);
  if constexpr (Delta) {
    __syncthreads();  // gates and keys are used up
    auto* const triangle = &shared.gates[0][0];
    static_assert(sizeof shared.gates >= kTriangleBytes);
    static_assert(2 * KeyTile<Columns>::kBytes >= 2 * kSquareBytes);
    float squares[2] = {0.0F, 0.0F};
    const auto put_a = [&](int n, const float(&value)[4]) {
      const float2 gain = *reinterpret_cast<const float2*>(shared.gain + 8 * n + 2 * at.t);
      float* const to = triangle + upper * kTriangleRow + 8 * n + 2 * at.t;
      const float2 above = make_float2(gain.x * value[0], gain.y * value[1]);
      const float2 below = make_float2(gain.x * value[2], gain.y * value[3]);
      const int column = 8 * n + 2 * at.t;  // what is not below the diagonal is nothing
      squares[0] += (column < upper ? above.x * above.x : 0.0F) +
                    (column + 1 < upper ? above.y * above.y : 0.0F);
      squares[1] += (column < lower ? below.x * below.x : 0.0F) +
                    (column + 1 < lower ? below.y * below.y : 0.0F);
      *reinterpret_cast<float2*>(to) = above;
      *reinterpret_cast<float2*>(to + 8 * kTriangleRow) = below;
    };
#pragma unroll
    for (int n = 0; n < 6; ++n) {
      if (n < 2 * warp) put_a(n, a[n]);
    }
    put_a(2 * warp, block.a[0]);
    put_a(2 * warp + 1, block.a[1]);
    note_size(squares[0], squares[1], shared.notes);
    clear_above(at.tiles);
    const bool precise =
        invert_triangle<Format>(triangle, at.tiles, record + c.layout.square_low, shared.notes, 1);
    if (thread == 0) {
      *reinterpret_cast<float*>(record + c.layout.precise) = precise ? 1.0F : 0.0F;
    }
    __syncthreads();
    put_tile(record + c.layout.square_y, at.tiles);
  }
}

template <class Format, int Columns>
void launch_columns(const ChunkCall& c, int multiprocessors, void* stream) {
  const auto start = [&](auto kernel) {
    launch(kernel, c.call.rows.chunks * c.call.value_heads, kThreads,
           shared_bytes<Columns>(c.call.delta, c.call.same_key), stream, c,
           static_cast<std::uint32_t>(multiprocessors));
  };
  if (!c.call.delta) return start(prepare_channel<Format, Columns, false, false>);
  c.call.same_key ? start(prepare_channel<Format, Columns, true, true>)
                  : start(prepare_channel<Format, Columns, true, false>);
}

template <class Format>
void launch_format(const ChunkCall& c, int multiprocessors, void* stream) {
  switch (key_columns(c.call.d_k)) {
    case 64:
      return launch_columns<Format, 64>(c, multiprocessors, stream);
    case 128:
      return launch_columns<Format, 128>(c, multiprocessors, stream);
    default:
      return launch_columns<Format, 256>(c, multiprocessors, stream);
  }
}

}  // namespace

void launch_chunk_prep_channel(const ChunkCall& call, const ChunkPrepDevice& device, void* stream) {
  (call.call.format == Dtype::bf16 ? launch_format<bf16>
                                   : launch_format<f16>)(call, device.multiprocessors, stream);
}

}  // namespace rankone::recurrence::cuda
