#include "recurrence/cuda/chunk_prep.hpp"

#include "recurrence/cuda/chunk_inputs.hpp"
#include "recurrence/cuda/chunk_inverse.hpp"

// Without decay and for scalar decay. One block of four warps per (chunk, value head): warp w makes
// rows 16 w .. of a and P from the keys as they are, exact products of 16-bit numbers summed in
// float32, and scales them by exp(G_i - G_j); then Y.

namespace rankone::recurrence::cuda {
namespace {

constexpr int kThreads = 128;

struct Shared {
  float sums[2 * 64];  // of sum_gates()
  float gain[64];
  int notes[32];  // of note_size(); padded

  __device__ float2 sum(int row) const { return make_float2(sums[2 * row], sums[2 * row + 1]); }
};
constexpr int kTiles = sizeof(Shared);  // where the key tiles begin; later the triangle and Y
static_assert(kTiles % 128 == 0);

template <int Columns>
std::size_t shared_bytes(bool delta, bool same_key) {
  const std::size_t keys = KeyTile<Columns>::kBytes * (delta && !same_key ? 3 : 2);
  const std::size_t solve = delta ? kTriangleBytes + 2 * kSquareBytes : 0;
  return kTiles + (keys > solve ? keys : solve);
}

// Rows of the record that depend on gates alone. `thread` counts all threads.
__device__ __forceinline__ void put_decays(const ChunkCall& c, unsigned char* record,
                                           const Shared& shared, int columns) {
  const int thread = static_cast<int>(threadIdx.x);
  const float2 last = shared.sum(63);
  const auto row = [&](std::int64_t at) { return reinterpret_cast<float*>(record + at); };
  if (thread < 64) {
    const float2 sum = shared.sum(thread);
    row(c.layout.in)[thread] = decay_factor(sum.x + sum.y);
    row(c.layout.gain)[thread] = shared.gain[thread];
  } else {
    row(c.layout.out)[thread - 64] = decay_factor(between(last, shared.sum(thread - 64)));
  }
  const float keep = decay_factor(last.x + last.y);
  for (int i = thread; i < columns; i += kThreads) {
    row(c.layout.keep)[i] = i < c.call.d_k ? keep : 0.0F;
  }
}

// Rows of block Blocks - 1 with columns up to that block, before any decay: q w^T and e w^T.
template <int Blocks, class Format, class T, bool Delta>
__device__ __forceinline__ void multiply_keys(float (&p)[8][4], float (&a)[8][4],
                                              const unsigned char* keys,
                                              const unsigned char* erase) {
  constexpr int kFirst = 16 * (Blocks - 1);
#pragma unroll 2
  for (int k = 0; k < T::kColumns / 16; ++k) {
    std::uint32_t q[4], e[4], w[Blocks][4];
    load_a<T>(q, keys, kFirst, k);
    if constexpr (Delta) load_a<T>(e, erase, kFirst, k);
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
      load_b<T>(w[block], keys + T::kBytes, 16 * block, k);
#pragma unroll
    for (int n = 0; n < 2 * Blocks; ++n) {
      const std::uint32_t* const right = &w[n / 2][n % 2 * 2];
      mma_m16n8k16<Format>(p[n], q, right[0], right[1]);
      if constexpr (Delta) mma_m16n8k16<Format>(a[n], e, right[0], right[1]);
    }
  }
}

template <class Format, int Columns, bool Delta>
__global__ void __launch_bounds__(kThreads, Columns == 256 ? 3 : 5)
    prepare_scalar(const ChunkCall c) {
  using T = KeyTile<Columns>;
  auto& shared = *reinterpret_cast<Shared*>(shared_memory());
  unsigned char* const tiles = shared_memory() + kTiles;
  const int thread = static_cast<int>(threadIdx.x), warp = warp_number(), lane = thread % 32;
  const int g = lane / 4, t = lane % 4;
  const TwoKeyCall& call = c.call;
  const auto heads = static_cast<std::uint32_t>(call.value_heads);
  const std::int64_t chunk = blockIdx.x / heads, head = blockIdx.x % heads;
  const Span span = call.rows.span(chunk);
  const int count = span.count;
  unsigned char* const record = c.record(chunk, head);

  load_keys<Columns>(call, span.first, count, head, Delta && !call.same_key, tiles);
  copy_commit();
  const std::int64_t gate = span.first * call.value_heads + head;
  if (warp == 0) {
    sum_gates<Format>(shared.sums, call.g, gate, call.value_heads, count);
  } else if (warp < 3) {
    const int row = thread - 32;
    shared.gain[row] =
        row < count ? gain_value<Format>(call.b, gate + row * call.value_heads) : 0.0F;
  }
  copy_wait<0>();
  __syncthreads();
  put_decays(c, record, shared, Columns);

  float a[8][4] = {}, p[8][4] = {};
  const int m = 16 * warp;
  const unsigned char* const erase = tiles + (call.same_key ? 1 : 2) * T::kBytes;
  switch (warp) {  // no branches inside the loops
    case 0:
      multiply_keys<1, Format, T, Delta>(p, a, tiles, erase);
      break;
    case 1:
      multiply_keys<2, Format, T, Delta>(p, a, tiles, erase);
      break;
    case 2:
      multiply_keys<3, Format, T, Delta>(p, a, tiles, erase);
      break;
    default:
      multiply_keys<4, Format, T, Delta>(p, a, tiles, erase);
  }

  // Decays and the triangle; P leaves from the registers, 128 bytes in a row at a time. Left of the
  // diagonal block the decay is that from its first row times that to it.
  const int upper = m + g, lower = upper + 8;  // the rows of this lane
  const bool decay = call.g.data != nullptr;
  const float2 anchor = shared.sum(m == 0 ? 0 : m - 1);
  const float2 upper_sum = shared.sum(upper), lower_sum = shared.sum(lower);
  const float upper_factor = decay ? decay_factor(between(upper_sum, anchor)) : 1.0F;
  const float lower_factor = decay ? decay_factor(between(lower_sum, anchor)) : 1.0F;
  unsigned char* const to = record + c.layout.square_p + upper * 16 + t * 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    std::uint32_t pairs[2] = {0, 0};
    const int column = 8 * n + 2 * t;
    if (8 * n < m + 16) {
      float factor[4] = {1.0F, 1.0F, 1.0F, 1.0F};
      if (decay) {
        const float4 sums = *reinterpret_cast<const float4*>(shared.sums + 2 * column);
        const float2 left = make_float2(sums.x, sums.y), right = make_float2(sums.z, sums.w);
        if (8 * n < m) {
          const float left_factor = decay_factor(between(anchor, left));
          const float right_factor = decay_factor(between(anchor, right));
          factor[0] = upper_factor * left_factor;
          factor[1] = upper_factor * right_factor;
          factor[2] = lower_factor * left_factor;
          factor[3] = lower_factor * right_factor;
        } else {
          factor[0] = decay_factor(between(upper_sum, left));
          factor[1] = decay_factor(between(upper_sum, right));
          factor[2] = decay_factor(between(lower_sum, left));
          factor[3] = decay_factor(between(lower_sum, right));
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] *= call.scale * factor[i];
        if constexpr (Delta) a[n][i] *= factor[i];
      }
      if (8 * n >= m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = i < 2 ? upper : lower, j = column + i % 2;
          if (j > row) p[n][i] = 0.0F;
          if (j >= row) a[n][i] = 0.0F;
        }
      }
      pairs[0] = pack<Format>(p[n][0], p[n][1]);
      pairs[1] = pack<Format>(p[n][2], p[n][3]);
    }
    *reinterpret_cast<std::uint32_t*>(to + n * 1024) = pairs[0];
    *reinterpret_cast<std::uint32_t*>(to + n * 1024 + 128) = pairs[1];
  }
  if constexpr (!Delta) return;

  auto* const triangle = reinterpret_cast<float*>(tiles);
  __syncthreads();  // the keys are used up
  float squares[2] = {0.0F, 0.0F};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (8 * n >= m + 16) break;
    const float2 gain = *reinterpret_cast<const float2*>(shared.gain + 8 * n + 2 * t);
    float* const to = triangle + upper * kTriangleRow + 8 * n + 2 * t;
    const float2 above = make_float2(gain.x * a[n][0], gain.y * a[n][1]);
    const float2 below = make_float2(gain.x * a[n][2], gain.y * a[n][3]);
    squares[0] += above.x * above.x + above.y * above.y;
    squares[1] += below.x * below.x + below.y * below.y;
    *reinterpret_cast<float2*>(to) = above;
    *reinterpret_cast<float2*>(to + 8 * kTriangleRow) = below;
  }
  note_size(squares[0], squares[1], shared.notes);
  const bool precise =
      invert_triangle<Format>(triangle, tiles + kTriangleBytes, record + c.layout.square_y,
                              record + c.layout.square_low, shared.notes);
  if (thread == 0) *reinterpret_cast<float*>(record + c.layout.precise) = precise ? 1.0F : 0.0F;
}

template <class Format, int Columns>
void launch_columns(const ChunkCall& c, void* stream) {
  const auto start = [&](auto kernel) {
    launch(kernel, c.call.rows.chunks * c.call.value_heads, kThreads,
           shared_bytes<Columns>(c.call.delta, c.call.same_key), stream, c);
  };
  c.call.delta ? start(prepare_scalar<Format, Columns, true>)
               : start(prepare_scalar<Format, Columns, false>);
}

template <class Format>
void launch_format(const ChunkCall& c, void* stream) {
  switch (key_columns(c.call.d_k)) {
    case 64:
      return launch_columns<Format, 64>(c, stream);
    case 128:
      return launch_columns<Format, 128>(c, stream);
    default:
      return launch_columns<Format, 256>(c, stream);
  }
}

}  // namespace

void launch_chunk_prep(const ChunkCall& call, void* stream) {
  if (call.call.gate == GateKind::channel) return launch_chunk_prep_channel(call, stream);
  call.call.format == Dtype::bf16 ? launch_format<bf16>(call, stream)
                                  : launch_format<f16>(call, stream);
}

}  // namespace rankone::recurrence::cuda
