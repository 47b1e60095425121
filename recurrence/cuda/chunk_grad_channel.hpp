#pragma once

// The gradients with one log decay per row and channel, in passes of 64 channels.
//
// The rows fall into four blocks of 16. Between blocks b < a the decay of a pair goes over the
// boundaries: with p_i the decay from the start of i's block through i, s_j that behind j to the
// end of its block, and t_b that of a whole block, it is p_i t_(b+1) .. t_(a-1) s_j, every factor
// at most one. So with M1 = scale tril(dO Z^T), M2 = - strictly tril(dV Z^T) in blocks, and rows
// scaled by p or s and rounded, the sums over pairs are products, and Horner's rule applies the t:
//
//     dq_a = p (dQ t_0 .. t_(a-1) + sum_(b<a) M1_ab (s w)_b t_(b+1) .. t_(a-1)) + pairs within a
//
// with dQ = scale dO S^T; likewise de, and dw from the end. Pairs within a block are summed one by
// one, in float32, by a thread for every block and channel, which takes the products of its 16 rows
// through shared memory; the sum over t of the crossing form (chunk_grad_scalar.hpp) is then
// the thread's own, per channel.

#include "recurrence/cuda/chunk_grad_loop.hpp"

namespace rankone::recurrence::cuda {

struct ChannelShared {
  using Base = GradShared<64>;
  static constexpr int kRowFloats = 72;                  // spreads the fragments over the banks
  static constexpr int kExchange = 64 * kRowFloats * 4;  // [64 rows, 64 channels] float
  // M1 and M2 between blocks and the scaled rows; behind the products the exchange of their results
  static constexpr int kScaledQuery = Base::kRead + Base::Values::kBytes,
                       kScaledErase = kScaledQuery + Base::Keys::kBytes,
                       kScaledWrite = kScaledErase + Base::Keys::kBytes, kQueries = Base::kSeen,
                       kErases = kQueries + kExchange, kInner = kErases + kExchange,
                       kWrites = kInner + kExchange;
  static constexpr int kPairs = kWrites + kExchange;  // M1, M2 within blocks: [4, 16, 16, 2]
  static constexpr int kWhole = kPairs + 4 * 16 * 16 * 2 * 4;  // t: [4, 64] float
  static constexpr int kBehind = kWhole + 1024,
                       kBefore = kBehind + 1024;  // sums of blocks, likewise
  static constexpr int kState = kBefore + 1024;   // <S, dS>: [64] float
  static constexpr int kRows = kState + 256,
                       kStages = kRows +
                                 (static_cast<int>(sizeof(GradRows)) + kRows % 1024 + 1023) / 1024 *
                                     1024 -
                                 kRows % 1024;
  static_assert(kStages % 1024 == 0);
  static_assert(kScaledWrite + Base::Keys::kBytes <= kPairs);

  static constexpr int bytes(int stages) { return kStages + stages * Base::kStage; }
};

template <class Format, bool Totals>
struct GradChannel {
  using Shared = ChannelShared;
  using Base = GradShared<64>;
  using Values = Base::Values;
  using Keys = Base::Keys;
  using Sums = GradSums<64, true>;
  using Products = MmaEngine<Format>;  // between blocks, whatever the engine of the sums

  const GradCall& call;
  unsigned char* shared;
  GradRows& rows;
  bool gated;
  int group, lane, block, row;  // as fragments: block of rows of the warp, row of the thread
  int part, channel;  // as threads of the first two groups: block of rows, channel of the pass
  int erase_tile;
  float decay[16];  // g, then exp(g), of the thread's rows
  // Over the value heads of a group, where there are several.
  float query_sum[Totals ? 16 : 1], erase_sum[Totals ? 16 : 1], write_sum[Totals ? 16 : 1];

  __device__ explicit GradChannel(const GradCall& c)
      : call(c),
        shared(shared_memory()),
        rows(*reinterpret_cast<GradRows*>(shared_memory() + Shared::kRows)),
        gated(c.back.d_g != nullptr),
        group(grad_group()),
        lane(static_cast<int>(threadIdx.x % 32)),
        block(static_cast<int>(threadIdx.x / 32 % 4)),
        row(16 * block + lane / 4),
        part(static_cast<int>(threadIdx.x / 64 % 4)),
        channel(static_cast<int>(threadIdx.x % 64)),
        erase_tile(c.chunk.call.delta && !c.chunk.call.same_key ? Base::kErase : Base::kWrite) {}

  template <class T>
  __device__ __forceinline__ T& at(int offset, int index) const {
    return reinterpret_cast<T*>(shared + offset)[index];
  }
  // Elements of the thread's channel in key tiles.
  __device__ __forceinline__ int element(int i) const {
    return Keys::place(16 * part + i, channel / 8) + channel % 8 * 2;
  }
  __device__ __forceinline__ float key(int tile, int i) const {
    return widen(*reinterpret_cast<const Format*>(shared + tile + element(i)));
  }

  __device__ __forceinline__ void start_head(const GradStep& step) {
    if (group == 2) return;
    const TwoKeyCall& sizes = call.chunk.call;
    const int column = step.pass * 64 + channel;
    const int inside = column < sizes.d_k ? step.item().count - 16 * part : 0;  // rows
    // Where there is nothing, some element that is there, and then not it: no branch to wait at.
    const std::int64_t stride = sizes.value_heads * sizes.d_k;
    const std::int64_t first = (step.item().first + (inside > 0 ? 16 * part : 0)) * stride +
                               step.value_head(call) * sizes.d_k + (inside > 0 ? column : 0);
    const auto read = [&](const auto* from) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float g = widen(from[first + (i < inside ? i * stride : 0)]);
        decay[i] = i < inside ? g : 0.0F;
      }
    };
    if (sizes.g.dtype == Dtype::f32) read(static_cast<const float*>(sizes.g.data));
    if (sizes.g.dtype == Dtype::bf16) read(static_cast<const bf16*>(sizes.g.data));
    if (sizes.g.dtype == Dtype::f16) read(static_cast<const f16*>(sizes.g.data));
  }
  // M1 and M2: where they join blocks rounded, with b as left sides and without as tiles; in
  // float32 within them.
  __device__ __forceinline__ void write_interactions(const Sums& sums,
                                                     std::uint32_t (&m)[4][4]) const {
    const float factor = group == 0 ? call.chunk.call.scale : -1.0F;
    unsigned char* const tile = shared + (group == 0 ? Base::kSeen : Base::kRead);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int column = 8 * n + 2 * (lane % 4);
      const float2 gains = *reinterpret_cast<const float2*>(rows.gain + column);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = row + 8 * j;
        const float x = factor * sums.inner[4 * n + 2 * j];
        const float y = factor * sums.inner[4 * n + 2 * j + 1];
        m[n / 2][n % 2 * 2 + j] = pack<Format>(gains.x * x, gains.y * y);
        if (n / 2 < block) {
          *reinterpret_cast<std::uint32_t*>(tile + Values::place(i, n) + lane % 4 * 4) =
              pack<Format>(x, y);
        } else if (n / 2 == block) {
          at<float>(Shared::kPairs, (i * 16 + column % 16) * 2 + group) = x;
          at<float>(Shared::kPairs, (i * 16 + column % 16) * 2 + 2 + group) = y;
        }
      }
    }
    if (!gated) return;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float state = warp_sum(sums.state[c]);
      if (lane == 0) at<float>(Shared::kState, 8 * static_cast<int>(threadIdx.x / 32) + c) = state;
    }
  }

  // The decays of the thread's rows, and its rows scaled by them.
  __device__ __forceinline__ void write_scaled() {
    float product = 1.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      decay[i] = exp2_bounded(bounded_decay(decay[i]) * 1.44269504F);
      product *= decay[i];
      put(Shared::kScaledQuery, i, product * key(Base::kQuery, i));
      put(Shared::kScaledErase, i, product * key(erase_tile, i));
    }
    at<float>(Shared::kWhole, 64 * part + channel) = product;
    product = 1.0F;
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      put(Shared::kScaledWrite, i, product * key(Base::kWrite, i));
      product *= decay[i];
    }
  }
  __device__ __forceinline__ void put(int tile, int i, float value) const {
    *reinterpret_cast<Format*>(shared + tile + element(i)) = narrow<Format>(value);
  }

  // d *= t of a block, per column.
  __device__ __forceinline__ void cross(float (&d)[32], int over) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 t = at<float2>(Shared::kWhole, (64 * over + 8 * n + 2 * (lane % 4)) / 2);
      d[4 * n] *= t.x;
      d[4 * n + 1] *= t.y;
      d[4 * n + 2] *= t.x;
      d[4 * n + 3] *= t.y;
    }
  }

  // dq or de over the blocks before.
  __device__ __forceinline__ void add_writes(float (&d)[32], const std::uint32_t (&m)[4][4]) const {
    const float factor = group == 0 ? call.chunk.call.scale : -1.0F;
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] *= factor;
#pragma unroll
    for (int b = 0; b < 3; ++b) {
      if (b >= block) continue;
      cross(d, b);
      Products::template multiply<Keys, true>(d, m[b], shared + Shared::kScaledWrite, b, false);
    }
  }

  // dw over the blocks behind, in `inner` that of pairs.
  __device__ __forceinline__ void add_reads(float (&d)[32], float (&inner)[32]) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) inner[i] = 0.0F;
#pragma unroll
    for (int a = 3; a > 0; --a) {
      if (a <= block) continue;
      cross(inner, a);
      cross(d, a);
      std::uint32_t seen[4], read[4];
      load_a_transposed<Values>(seen, shared + Base::kSeen, 16 * block, a);
      load_a_transposed<Values>(read, shared + Base::kRead, 16 * block, a);
      Products::template multiply<Keys, true>(inner, seen, shared + Shared::kScaledQuery, a, false);
      Products::template multiply<Keys, true>(inner, read, shared + Shared::kScaledErase, a, false);
    }
  }

  __device__ __forceinline__ void write_exchange(const float (&d)[32], int to) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int index = (row + 8 * j) * Shared::kRowFloats + 8 * n + 2 * (lane % 4);
        at<float2>(to, index / 2) = make_float2(d[4 * n + 2 * j], d[4 * n + 2 * j + 1]);
      }
    }
  }
  // The thread's own element of row i there. What it has read it may overwrite: registers are
  // short.
  __device__ __forceinline__ float& exchanged(int from, int i) const {
    return at<float>(from, (16 * part + i) * Shared::kRowFloats + channel);
  }

  // A gradient of a key of row i, `offset` elements behind the thread's first: added up over the
  // group, or stored at once.
  template <int Count>
  __device__ __forceinline__ void put_key(const GradStep& step, float (&sums)[Count], int i,
                                          float value, Format* to, std::int64_t offset) const {
    if constexpr (Totals) {
      sums[i] = value + (step.member == 0 ? 0.0F : sums[i]);
      if (!step.last_of_pass(call)) return;
      value = sums[i];
    }
    if (to == nullptr || 16 * part + i >= step.item().count) return;
    to[offset] = narrow<Format>(value);
  }
  // Where the thread's first row of a gradient is; null if there is none.
  __device__ __forceinline__ Format* first_key(const GradStep& step, void* gradient) const {
    const TwoKeyCall& sizes = call.chunk.call;
    if (gradient == nullptr || step.pass * 64 + channel >= sizes.d_k) return nullptr;
    return static_cast<Format*>(gradient) +
           ((step.item().first + 16 * part) * sizes.heads + step.item().key_head) * sizes.d_k +
           step.pass * 64 + channel;
  }

  // The gradients of the thread's rows. Leaves at kQueries what the decays up to a row have of it,
  // at kWrites what the decays behind it have, and the sums of both for the block.
  __device__ __forceinline__ void finish_rows(const GradStep& step) {
    float w[16], between[16], inner[16];  // w with its b
    const TwoKeyBack& back = call.back;
    const bool summed = back.d_e != nullptr && back.d_e == back.d_w;
    Format* const d_query = first_key(step, back.d_q);
    Format* const d_erase = first_key(step, call.chunk.call.delta && !summed ? back.d_e : nullptr);
    Format* const d_write = first_key(step, back.d_w);
    const std::int64_t stride = call.chunk.call.heads * call.chunk.call.d_k;
    std::int64_t offset = 0;
    float product = 1.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      product *= decay[i];
      const float q = key(Base::kQuery, i), e = key(erase_tile, i);
      w[i] = rows.gain[16 * part + i] * key(Base::kWrite, i);
      float d_q = product * exchanged(Shared::kQueries, i);
      float d_e = product * exchanged(Shared::kErases, i);
      inner[i] = 0.0F;
#pragma unroll
      for (int j = 0; j < i; ++j) {  // between[j]: exp(G_i - G_j)
        between[j] = j == i - 1 ? decay[i] : between[j] * decay[i];
        const float2 m = at<float2>(Shared::kPairs, (16 * part + i) * 16 + j);
        const float right = between[j] * w[j];
        d_q += m.x * right;
        d_e += m.y * right;
        inner[j] += (m.x * q + m.y * e) * between[j];
      }
      exchanged(Shared::kQueries, i) = q * d_q + e * d_e;
      exchanged(Shared::kErases, i) = d_e;
      d_q += at<float2>(Shared::kPairs, (16 * part + i) * 16 + i).x * w[i];
      put_key(step, query_sum, i, d_q, d_query, offset);
      if (!summed) put_key(step, erase_sum, i, d_e, d_erase, offset);
      offset = forget(offset + stride);
    }
    product = 1.0F;
    float behind = 0.0F, before = 0.0F;
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      inner[i] += product * exchanged(Shared::kInner, i);
      const float old = product * exchanged(Shared::kWrites, i);
      const float inside = exchanged(Shared::kQueries, i) - w[i] * inner[i];
      exchanged(Shared::kQueries, i) = inside;
      behind += inside;
      exchanged(Shared::kWrites, i) = w[i] * old;
      before += w[i] * old;
      const float diagonal = at<float2>(Shared::kPairs, (16 * part + i) * 16 + i).x;
      inner[i] += old + diagonal * key(Base::kQuery, i);
      const float d_w = rows.gain[16 * part + i] * inner[i];
      offset = forget(offset - stride);
      put_key(step, write_sum, i, summed ? d_w + exchanged(Shared::kErases, i) : d_w, d_write,
              offset);
      inner[i] *= key(Base::kWrite, i);
      product *= decay[i];
    }
    at<float>(Shared::kBehind, 64 * part + channel) = behind;
    at<float>(Shared::kBefore, 64 * part + channel) = before;
    if (back.d_b != nullptr) write_gain_sums(inner);
  }

  // Sums of d over the channels of a warp: 16 rows for 32 lanes.
  __device__ __forceinline__ void write_gain_sums(float (&d)[16]) const {
    fold_lanes<1>(d, lane);
    const float sum = d[0] + __shfl_xor_sync(0xffffffffU, d[0], 1);
    if (lane % 2 == 0) rows.part_gain[channel / 32][16 * part + lane / 2] = sum;
  }

  // dg: sums over blocks, then within the thread's own.
  template <class Element>
  __device__ __forceinline__ void finish_decays(const GradStep& step, Element* to) const {
    const TwoKeyCall& sizes = call.chunk.call;
    float whole = at<float>(Shared::kState, channel), before = 0.0F, behind = 0.0F;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      whole *= at<float>(Shared::kWhole, 64 * b + channel);
      if (b < part) before += at<float>(Shared::kBefore, 64 * b + channel);
      if (b > part) behind += at<float>(Shared::kBehind, 64 * b + channel);
    }
    float d_g[16];
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      behind += exchanged(Shared::kQueries, i);
      d_g[i] = behind;
    }
    if (step.pass * 64 + channel >= sizes.d_k) return;
    before += whole;
    to +=
        ((step.item().first + 16 * part) * sizes.value_heads + step.value_head(call)) * sizes.d_k +
        step.pass * 64 + channel;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (16 * part + i < step.item().count) *to = narrow<Element>(d_g[i] + before);
      to += sizes.value_heads * sizes.d_k;
      before += exchanged(Shared::kWrites, i);
    }
  }

  template <class KeysRead>
  __device__ __forceinline__ void finish_head(const GradStep& step, Sums& sums,
                                              KeysRead&& keys_read) {
    std::uint32_t m[4][4];
    if (group < 2) {
      write_scaled();
      write_interactions(sums, m);
    }
    __syncthreads();
    float inner[32];
    if (group < 2) {
      add_writes(sums.through, m);
    } else {
      add_reads(sums.through, inner);
    }
    __syncthreads();  // all have read what the exchange overwrites
    write_exchange(sums.through, group == 0   ? Shared::kQueries
                                 : group == 1 ? Shared::kErases
                                              : Shared::kWrites);
    if (group == 2) write_exchange(inner, Shared::kInner);
    __syncthreads();
    if (group == 2) {
      barrier_sync(kGradParts, kGradThreads);
      keys_read();
      if (threadIdx.x / 32 == 10 && call.back.d_b != nullptr) {
        finish_gains(call, step, rows);
      }
      return;
    }
    finish_rows(step);
    barrier_arrive(kGradParts, kGradThreads);
    if (!gated) return;
    barrier_sync(kGradRows, 256);
    void* const to = call.back.d_g;
    const Dtype dtype = call.chunk.call.g.dtype;
    if (dtype == Dtype::f32) finish_decays(step, static_cast<float*>(to));
    if (dtype == Dtype::bf16) finish_decays(step, static_cast<bf16*>(to));
    if (dtype == Dtype::f16) finish_decays(step, static_cast<f16*>(to));
  }
};

}  // namespace rankone::recurrence::cuda
