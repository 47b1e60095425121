#pragma once

// The gradients with one log decay per row and channel, in passes of 64 channels.
//
// The rows fall into four blocks of 16. Between blocks b < a the decay of a pair goes over the
// boundaries: with p_i the decay from the start of i's block through i, s_j that behind j to the
// end of its block, and t_b that of a whole block, it is p_i t_(b+1) .. t_(a-1) s_j, every factor
// at most one. So with M1 = scale tril(dO U^T), M2 = - strictly tril(dV U^T) in blocks, and rows
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
  static constexpr int kScaledQuery = Base::kRows, kScaledErase = kScaledQuery + Base::Keys::kBytes,
                       kScaledWrite = kScaledErase + Base::Keys::kBytes, kQueries = Base::kSeen,
                       kErases = kQueries + kExchange, kInner = kErases + kExchange,
                       kWrites = kInner + kExchange;
  static constexpr int kPairs = kWrites + kExchange;  // M1, M2 within blocks: [4, 16, 16, 2]
  static constexpr int kWhole = kPairs + 4 * 16 * 16 * 2 * 4;  // t: [4, 64] float
  static constexpr int kBehind = kWhole + 1024,
                       kBefore = kBehind + 1024;  // sums of blocks, likewise
  static constexpr int kState = kBefore + 1024;   // <S, dS>: [64] float
  static constexpr int kRows = kState + 256,
                       kStages = kRows + (static_cast<int>(sizeof(GradRows)) + 127) / 128 * 128;
  static_assert(kScaledWrite + Base::Keys::kBytes <= kPairs);

  static constexpr int bytes(int stages) { return kStages + stages * Base::kStage; }
};

template <class Format>
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
  int lane, block, half, row;  // as fragments: block of rows of the warp, half of its columns
  int part, channel;           // as threads: block of rows, and channel of the pass
  int erase_tile;
  GradGates gates;
  float decay[16];                                    // g, then exp(g), of the thread's rows
  float query_sum[16], erase_sum[16], write_sum[16];  // over the group

  __device__ explicit GradChannel(const GradCall& c)
      : call(c),
        shared(shared_memory()),
        rows(*reinterpret_cast<GradRows*>(shared_memory() + Shared::kRows)),
        gated(c.back.d_g != nullptr),
        lane(static_cast<int>(threadIdx.x % 32)),
        block(static_cast<int>(threadIdx.x / 32 % 4)),
        half(static_cast<int>(threadIdx.x / 128)),
        row(16 * block + lane / 4),
        part(static_cast<int>(threadIdx.x / 64)),
        channel(static_cast<int>(threadIdx.x % 64)),
        erase_tile(c.chunk.call.delta && !c.chunk.call.same_key ? Base::kErase : Base::kWrite) {}

  template <class T>
  __device__ __forceinline__ T& at(int offset, int index) const {
    return reinterpret_cast<T*>(shared + offset)[index];
  }
  // Elements of the thread's channel in key tiles.
  __device__ __forceinline__ int element(int i) const {
    return channel / 8 * Keys::kColumn + (16 * part + i) * 16 + channel % 8 * 2;
  }
  __device__ __forceinline__ float key(int tile, int i) const {
    return widen(*reinterpret_cast<const Format*>(shared + tile + element(i)));
  }

  __device__ __forceinline__ void start_head(const GradStep& step) {
    if (threadIdx.x < 32) gates.ask(call, step);
    const TwoKeyCall& sizes = call.chunk.call;
    const int column = step.pass * 64 + channel;
    const int count = column < sizes.d_k ? step.span.count - 16 * part : 0;
    const std::int64_t first =
        ((step.span.first + 16 * part) * sizes.value_heads + step.value_head(call)) * sizes.d_k +
        column;
    const std::int64_t stride = sizes.value_heads * sizes.d_k;
    const auto read = [&](const auto* from) {
#pragma unroll
      for (int i = 0; i < 16; ++i) decay[i] = i < count ? widen(from[first + i * stride]) : 0.0F;
    };
    if (sizes.g.dtype == Dtype::f32) read(static_cast<const float*>(sizes.g.data));
    if (sizes.g.dtype == Dtype::bf16) read(static_cast<const bf16*>(sizes.g.data));
    if (sizes.g.dtype == Dtype::f16) read(static_cast<const f16*>(sizes.g.data));
  }
  __device__ __forceinline__ void write_gates() const {
    if (threadIdx.x < 32) gates.write(rows);
  }

  // M1 and M2: rounded where they join blocks, in float32 within them. And sums of the warps.
  __device__ __forceinline__ void write_interactions(const Sums& sums) const {
    const float scale = call.chunk.call.scale;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = row + 8 * j;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int column = half * 32 + 8 * n + 2 * (lane % 4);
        const float seen[2] = {scale * sums.seen[4 * n + 2 * j],
                               scale * sums.seen[4 * n + 2 * j + 1]};
        const float read[2] = {-sums.read[4 * n + 2 * j], -sums.read[4 * n + 2 * j + 1]};
        if (column / 16 < block) {
          unsigned char* to = shared + column / 8 * Values::kColumn + i * 16 + lane % 4 * 4;
          *reinterpret_cast<std::uint32_t*>(to + Base::kSeen) = pack<Format>(seen[0], seen[1]);
          *reinterpret_cast<std::uint32_t*>(to + Base::kRead) = pack<Format>(read[0], read[1]);
        } else if (column / 16 == block) {
          at<float4>(Shared::kPairs, (i * 16 + column % 16) / 2) =
              make_float4(seen[0], read[0], seen[1], read[1]);
        }
      }
    }
    write_gain_sums(sums.gain, rows);
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
  __device__ __forceinline__ void cross(float (&d)[16], int over) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 t =
          at<float2>(Shared::kWhole, (64 * over + half * 32 + 8 * n + 2 * (lane % 4)) / 2);
      d[4 * n] *= t.x;
      d[4 * n + 1] *= t.y;
      d[4 * n + 2] *= t.x;
      d[4 * n + 3] *= t.y;
    }
  }

  __device__ __forceinline__ void add_interactions(Sums& sums, float (&inner)[16]) const {
    const int offset = half * 4 * Keys::kColumn;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      sums.query[i] *= call.chunk.call.scale;
      sums.erase[i] = -sums.erase[i];
      inner[i] = 0.0F;
    }
#pragma unroll
    for (int b = 0; b < 3; ++b) {
      if (b >= block) continue;
      cross(sums.query, b);
      cross(sums.erase, b);
      std::uint32_t seen[4], read[4];
      load_a<Values>(seen, shared + Base::kSeen, 16 * block, b);
      load_a<Values>(read, shared + Base::kRead, 16 * block, b);
      multiply_both<Products, Format, Keys, true>(sums.query, sums.erase, seen, read,
                                                  shared + Shared::kScaledWrite + offset, b);
    }
#pragma unroll
    for (int a = 3; a > 0; --a) {
      if (a <= block) continue;
      cross(inner, a);
      cross(sums.write, a);
      std::uint32_t seen[4], read[4];
      load_a_transposed<Values>(seen, shared + Base::kSeen, 16 * block, a);
      load_a_transposed<Values>(read, shared + Base::kRead, 16 * block, a);
      Products::template multiply<Keys, true>(inner, seen, shared + Shared::kScaledQuery + offset,
                                              a, false);
      Products::template multiply<Keys, true>(inner, read, shared + Shared::kScaledErase + offset,
                                              a, false);
    }
  }

  __device__ __forceinline__ void write_exchange(const float (&d)[16], int to) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int index = (row + 8 * j) * Shared::kRowFloats + half * 32 + 8 * n + 2 * (lane % 4);
        at<float2>(to, index / 2) = make_float2(d[4 * n + 2 * j], d[4 * n + 2 * j + 1]);
      }
    }
  }
  __device__ __forceinline__ float exchanged(int from, int i) const {
    return at<float>(from, (16 * part + i) * Shared::kRowFloats + channel);
  }

  // The gradients of the thread's rows, added to the sums over the group. Leaves in `inside` what
  // the decays up to a row have of it, in `through` what the decays behind it have.
  __device__ __forceinline__ void finish_rows(const GradStep& step, float (&inside)[16],
                                              float (&through)[16]) {
    float w[16], between[16], inner[16];
    const bool first = step.member == 0;
    float product = 1.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      product *= decay[i];
      const float q = key(Base::kQuery, i), e = key(erase_tile, i);
      w[i] = key(Base::kWrite, i);
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
      inside[i] = q * d_q + e * d_e;
      d_q += at<float2>(Shared::kPairs, (16 * part + i) * 16 + i).x * w[i];
      query_sum[i] = d_q + (first ? 0.0F : query_sum[i]);
      erase_sum[i] = d_e + (first ? 0.0F : erase_sum[i]);
    }
    product = 1.0F;
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      inner[i] += product * exchanged(Shared::kInner, i);
      const float old = product * exchanged(Shared::kWrites, i);
      inside[i] -= w[i] * inner[i];
      through[i] = w[i] * old;
      const float diagonal = at<float2>(Shared::kPairs, (16 * part + i) * 16 + i).x;
      write_sum[i] =
          old + inner[i] + diagonal * key(Base::kQuery, i) + (first ? 0.0F : write_sum[i]);
      product *= decay[i];
    }
  }

  template <class Element>
  __device__ __forceinline__ void store_gates(const GradStep& step, const float (&d_g)[16],
                                              Element* to) const {
    const TwoKeyCall& sizes = call.chunk.call;
    const std::int64_t first =
        ((step.span.first + 16 * part) * sizes.value_heads + step.value_head(call)) * sizes.d_k +
        step.pass * 64 + channel;
    const std::int64_t stride = sizes.value_heads * sizes.d_k;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (16 * part + i < step.span.count) to[first + i * stride] = narrow<Element>(d_g[i]);
    }
  }

  // dg: sums over blocks, then within the thread's own.
  __device__ __forceinline__ void finish_gates(const GradStep& step, float (&inside)[16],
                                               const float (&through)[16]) const {
    float whole = at<float>(Shared::kState, channel), before = 0.0F, behind = 0.0F;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      whole *= at<float>(Shared::kWhole, 64 * b + channel);
      if (b < part) before += at<float>(Shared::kBefore, 64 * b + channel);
      if (b > part) behind += at<float>(Shared::kBehind, 64 * b + channel);
    }
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      behind += inside[i];
      inside[i] = behind;
    }
    before += whole;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      inside[i] += before;
      before += through[i];
    }
    if (step.pass * 64 + channel >= call.chunk.call.d_k) return;
    void* const to = call.back.d_g;
    const Dtype dtype = call.chunk.call.g.dtype;
    if (dtype == Dtype::f32) store_gates(step, inside, static_cast<float*>(to));
    if (dtype == Dtype::bf16) store_gates(step, inside, static_cast<bf16*>(to));
    if (dtype == Dtype::f16) store_gates(step, inside, static_cast<f16*>(to));
  }

  __device__ __forceinline__ void store(const GradStep& step, const float (&d)[16],
                                        void* to) const {
    const TwoKeyCall& sizes = call.chunk.call;
    if (to == nullptr || step.pass * 64 + channel >= sizes.d_k) return;
    Format* first =
        static_cast<Format*>(to) +
        ((step.span.first + 16 * part) * sizes.heads + step.key_head(call)) * sizes.d_k +
        step.pass * 64 + channel;
    const std::int64_t stride = sizes.heads * sizes.d_k;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (16 * part + i < step.span.count) first[i * stride] = narrow<Format>(d[i]);
    }
  }

  __device__ __forceinline__ void finish_head(const GradStep& step, Sums& sums) {
    write_interactions(sums);
    __syncthreads();  // the keys of all threads, and M1 and M2
    write_scaled();
    __syncthreads();
    float products[16];
    add_interactions(sums, products);
    __syncthreads();  // all have read what the exchange overwrites
    write_exchange(sums.query, Shared::kQueries);
    write_exchange(sums.erase, Shared::kErases);
    write_exchange(products, Shared::kInner);
    write_exchange(sums.write, Shared::kWrites);
    __syncthreads();
    float inside[16], through[16];
    finish_rows(step, inside, through);
    float behind = 0.0F, before = 0.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      behind += inside[i];
      before += through[i];
    }
    at<float>(Shared::kBehind, 64 * part + channel) = behind;
    at<float>(Shared::kBefore, 64 * part + channel) = before;
    __syncthreads();
    if (call.back.d_b != nullptr && step.pass == 0 && threadIdx.x < 32) {
      finish_gains(call, step, rows);
    }
    if (gated) finish_gates(step, inside, through);
    if (!step.last_of_pass(call)) return;
    const TwoKeyBack& back = call.back;
    store(step, query_sum, back.d_q);
    if (call.chunk.call.delta && back.d_e != nullptr) {
      if (back.d_e == back.d_w) {
#pragma unroll
        for (int i = 0; i < 16; ++i) write_sum[i] += erase_sum[i];
      } else {
        store(step, erase_sum, back.d_e);
      }
    }
    store(step, write_sum, back.d_w);
  }
};

}  // namespace rankone::recurrence::cuda
