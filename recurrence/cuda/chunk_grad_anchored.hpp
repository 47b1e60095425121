#pragma once

// The gradients with one log decay per row and channel, of chunks whose decays leave room for one
// anchor a channel: a number A between the sums G of the log decays, such that no exp(G - A) and
// no exp(A - G) goes beyond what the format holds well. Then all rows are scaled once,
//
//     q' = q exp(G - A)      e' = e exp(G - A)      w' = b w exp(A - G),
//
// and everything is products of tiles. With M1 = scale tril(dO Z^T), M2 = - strictly tril(dV Z^T):
//
//     Dq = exp(A) scale dO S^T + M1 w'                   dq = exp(G - A) Dq
//     De = - exp(A) dV S^T + M2 w'                       de = exp(G - A) De
//     Dw = exp(G_last - A) Z dS^T + M1^T q' + M2^T e'    dw = b exp(A - G) Dw
//     db = w' . Dw / b
//     dg_t = exp(G_last) <S, dS> + sum_j (w' exp(G_last - A) Z dS^T)_j
//            + sum_{i >= t} (q' Dq + e' De - w' Dw)_i
//
// Pairs on one side of t cancel in the last line, and so does what a row's decay leaves alone;
// their products are of the same rounded numbers in all three terms, so that nothing is left of
// them but rounding in float32, which the bound on the decays keeps small beside the rest.
//
// Other chunks are marked and done afterwards: by this kernel with anchors of blocks of rows
// (Blocks), and what that leaves by the kernel of chunk_grad_channel.hpp, which asks nothing of
// decays.
//
// A block has two groups of four warps, each with 64 of the 128 channels and 16 rows of the chunk
// per warp; two blocks share a multiprocessor and fill each other's waits. Its tiles stand in slots
// of shared memory that the copy engine fills: first values and states, whose products wait in
// registers, then gates and keys. The products with dS come first, so that the gates are on their
// way while those with S are made.

#include "recurrence/cuda/chunk_grad_anchored_gates.hpp"

namespace rankone::recurrence::cuda {

template <class Format, class Engine, bool Delta, bool Tied, bool Blocks>
class GradAnchored : AnchoredGates<Format, Delta, Blocks> {
  using Base = AnchoredGates<Format, Delta, Blocks>;
  using Shared = AnchoredShared;
  using typename Base::Keys;
  using typename Base::Slot;
  using typename Base::Start;
  using typename Base::State;
  using typename Base::Values;
  static constexpr bool kOwnErase = Delta && !Tied;

 public:
  __device__ explicit GradAnchored(const StreamCall& c) : Base(c) {}

  __device__ void run() {
    const auto count = static_cast<std::uint32_t>(sizes().rows.chunks * sizes().heads);
    std::uint32_t number = after(blockIdx.x);
    if (threadIdx.x == 0) {
      for (int i = 0; i < 7; ++i) mbarrier_init(rows_.arrived + i, 1);
      mbarrier_fence();
    }
    if (number >= count) return;
    if (warp_ == 0) find_item(sizes(), number, rows_.items);
    __syncthreads();
    ask_all(rows_.items[0]);
    int turn = 0;
    while (number < count) {
      const std::uint32_t next = after(number + gridDim.x);
      const int place = turn == 2 ? 0 : turn + 1;
      if (warp_ == 7 && next < count) find_item(sizes(), next, rows_.items + place);
      work(number, rows_.items[turn], rows_.items[place], next < count);
      number = next;
      turn = place;
    }
  }

 private:
  // The first of the block's items from there on that this kernel looks at.
  __device__ __forceinline__ std::uint32_t after(std::uint32_t from) const {
    return Blocks ? GradStep::wanted(call_.grad, from) : from;
  }
  using Base::all_fit;
  using Base::ask_all;
  using Base::ask_back;
  using Base::ask_last;
  using Base::ask_update;
  using Base::ask_values;
  using Base::asks;
  using Base::at;
  using Base::bring;
  using Base::bring_gates;
  using Base::call_;
  using Base::clear;
  using Base::decay;
  using Base::decay_place;
  using Base::find_anchor;
  using Base::fit_four;
  using Base::frames;
  using Base::gate;
  using Base::group;
  using Base::kBelow;
  using Base::kDecaysBelow;
  using Base::key;
  using Base::lane;
  using Base::rows_;
  using Base::sizes;
  using Base::span_rows;
  using Base::wait;
  using Base::warp_;
  using typename Base::Place;

  // ---- Products of values and states ------------------------------------------------------------

  // d = values states, both tiles of values; the group's channels.
  __device__ __forceinline__ void through(float (&d)[32], Slot values, Slot first) const {
    const int offset = group() * 8 * State::kColumn;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply_tiles<Values, false, State, true>(
            d, at(values) + i * Values::kBytes, at(first + i) + offset, k, i + k == 0);
      }
    }
  }
  // The products for M1 (the first group) or M2.
  __device__ __forceinline__ void multiply_values(float (&d)[32]) const {
    if (!Delta && group() != 0) return;
    const unsigned char* left = at(group() == 0 ? Slot::output : Slot::value);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply_tiles<Values, false, Values, false>(
            d, left + i * Values::kBytes, at(Slot::update) + i * Values::kBytes, k, i + k == 0);
      }
    }
  }
  // M1 or M2, rounded.
  __device__ __forceinline__ void interactions(const float (&d)[32], std::uint32_t (&m)[16]) const {
    const Place here;
    const float factor = here.group == 0 ? sizes().scale : -1.0F;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // Columns up to the row's own, or before it.
      const int last = here.row + 8 * j - here.group - 2 * (lane() % 4);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        m[2 * n + j] = pack<Format>(8 * n <= last ? factor * d[4 * n + 2 * j] : 0.0F,
                                    8 * n + 1 <= last ? factor * d[4 * n + 2 * j + 1] : 0.0F);
      }
    }
  }
  __device__ __forceinline__ void put_square(const std::uint32_t (&m)[16]) const {
    const Place here;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        *reinterpret_cast<std::uint32_t*>(at(Shared::kSquares) + (here.keys ^ 16 * n) +
                                          j * kBelow) = m[2 * n + j];
      }
    }
  }
  // <S, dS> of 16 channels for every warp: the diagonal of S^T dS.
  __device__ __forceinline__ float state_product() const {
    float d[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned char* state = at(Slot::state_a + i);
      const unsigned char* back = at(Slot::back_a + i);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t left[4], right[4];
        load_a_transposed<State>(left, state, 16 * warp_, k);
        load_b_transposed<State>(right, back, 16 * warp_, k);
        mma_m16n8k16<Format>(d[0], left, right[0], right[1]);
        mma_m16n8k16<Format>(d[1], left, right[2], right[3]);
      }
    }
    // Rows g and g + 8, columns 2t and 2t + 1, and 8 more: lane 0 .. 15 gets channel 16 warp +
    // lane.
    const bool even = lane() / 4 == 2 * (lane() % 4);
    const int channel = lane() % 8, from = 4 * channel + channel / 2;
    const float low = __shfl_sync(0xffffffffU, even ? d[0][0] : d[0][1], from);
    const float high = __shfl_sync(0xffffffffU, even ? d[1][2] : d[1][3], from);
    return lane() < 8 ? low : high;
  }

  // ---- Decays -----------------------------------------------------------------------------------

  // exp(G - A), and the keys scaled.
  __device__ __forceinline__ void scale_keys(const GradItem& item, const Start& start,
                                             bool fine) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    const int inside = 2 * pair < sizes().d_k ? item.count - 16 * part : 0;
    float2 sum = Blocks ? make_float2(-start.to_anchor.x * kLog2e, -start.to_anchor.y * kLog2e)
                        : make_float2(start.from_anchor.x * kLog2e, start.from_anchor.y * kLog2e);
    // Of the first row of four: of rows further down, ^ 16 i and ^ 32 i.
    int keys = Keys::place(16 * part, pair / 4) + pair % 4 * 4;
    int decays = decay_place(16 * part, pair);
#pragma unroll 1
    for (int first = 0; first < 16; first += 4) {
      float2 g[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] = gate(16 * part + first + i, pair, first + i < inside);
      __syncwarp();  // what the warp writes of these rows stands where it reads them
      if (Blocks && fine) {
        float2 low, high;
        this->span_four(g, low, high);
        const float2 middle = make_float2(0.5F * (low.x + high.x), 0.5F * (low.y + high.y));
        this->fine_frames().to_anchor[4 * part + first / 4][pair] = this->decays_of(middle);
        sum = make_float2(-middle.x * kLog2e, -middle.y * kLog2e);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool valid = first + i < inside;
        sum = make_float2(sum.x + g[i].x * kLog2e, sum.y + g[i].y * kLog2e);
        const float2 in = make_float2(exp2_fast(sum.x), exp2_fast(sum.y));
        *reinterpret_cast<float2*>(at(Shared::kDecays) + (decays ^ 32 * i) + 512 * i) = in;
        const float gain = rows_.gain[16 * part + first + i];
        const float2 out = make_float2(gain * exp2_fast(-sum.x), gain * exp2_fast(-sum.y));
        unsigned char* const place = shared_memory() + (keys ^ 16 * i) + 128 * i;
        const auto element = [place](int slot) {
          return reinterpret_cast<std::uint32_t*>(place + slot * Shared::kSlot);
        };
        const float2 q = unpack<Format>(*element(Shared::kQuery));
        const float2 w = unpack<Format>(*element(Shared::kWrite));
        const float2 e = kOwnErase ? unpack<Format>(*element(Shared::kErase)) : w;
        const std::uint32_t scaled_q = pack<Format>(in.x * q.x, in.y * q.y);
        const std::uint32_t scaled_e = pack<Format>(in.x * e.x, in.y * e.y);
        const std::uint32_t scaled_w = pack<Format>(out.x * w.x, out.y * w.y);
        *element(Shared::kQuery) = valid ? scaled_q : 0U;
        if (Delta) *element(Shared::kErase) = valid ? scaled_e : 0U;
        *element(Shared::kWrite) = valid ? scaled_w : 0U;
      }
      keys = (keys ^ 64) + 4 * 128;
      decays += 4 * 512;
    }
  }

  // ---- Rows -------------------------------------------------------------------------------------

  // d times `factor`, and exp(A) where there is one.
  __device__ __forceinline__ void scale_columns(float (&d)[32], float factor) const {
    const Place here;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 a = *reinterpret_cast<const float2*>(rows_.anchor + here.column + 8 * n);
      const float2 x =
          Blocks ? make_float2(factor, factor) : make_float2(factor * a.x, factor * a.y);
      d[4 * n] *= x.x;
      d[4 * n + 1] *= x.y;
      d[4 * n + 2] *= x.x;
      d[4 * n + 3] *= x.y;
    }
  }
  // d times exp(G_last - A) where there is one anchor, and what all dg have of that product: sums
  // over the rows of the warp, of channels 8 (lane / 4) + 2 (lane % 4) of the group and the next.
  __device__ __forceinline__ float2 sum_updates(float (&d)[32], bool fine) const {
    const Place here;
    const int last = decay_place(63, 32 * here.group + lane() % 4);
    float all[16];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float2 keep[2];
      if (Blocks && fine) {
        this->fine_last(keep, here, n);
      } else {
        keep[0] = keep[1] =
            Blocks ? frames().to_last[warp_ % 4][here.column / 2 + 4 * n] : decay(last ^ 32 * n);
      }
      all[2 * n] = all[2 * n + 1] = 0.0F;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 w = key(Shared::kWrite, (here.keys ^ 16 * n) + j * kBelow);
        const float x = d[4 * n + 2 * j] * keep[j].x, y = d[4 * n + 2 * j + 1] * keep[j].y;
        all[2 * n] += w.x * x;
        all[2 * n + 1] += w.y * y;
        if (Blocks) continue;
        d[4 * n + 2 * j] = x;
        d[4 * n + 2 * j + 1] = y;
      }
    }
    fold_lanes<2>(all, lane());
    return make_float2(all[0], all[1]);
  }
  __device__ __forceinline__ AnchoredSums& sums() const {
    return *reinterpret_cast<AnchoredSums*>(at(Shared::kColumns));
  }

  // The gradients of the keys, in the places of these; in place of `query` what the decays have of
  // the rows.
  template <bool Joined>
  __device__ __forceinline__ void finish_rows(float (&query)[32], const float (&erase)[32],
                                              const float (&write)[32]) const {
    const Place here;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float gain = rows_.gain[here.row + 8 * j];
      float dot = 0.0F;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int at = 4 * n + 2 * j;
        unsigned char* const place = shared_memory() + (here.keys ^ 16 * n) + j * kBelow;
        const auto element = [place](int slot) -> std::uint32_t& {
          return *reinterpret_cast<std::uint32_t*>(place + slot * Shared::kSlot);
        };
        const float2 in = decay((here.decays ^ 32 * n) + j * kDecaysBelow);
        const float2 q = unpack<Format>(element(Shared::kQuery));
        const float2 w = unpack<Format>(element(Shared::kWrite));
        element(Shared::kQuery) = pack<Format>(in.x * query[at], in.y * query[at + 1]);
        const float x = w.x * write[at], y = w.y * write[at + 1];
        dot += x + y;
        query[at] = q.x * query[at] - x;
        query[at + 1] = q.y * query[at + 1] - y;
        float out_x = gain * reciprocal_fast(in.x) * write[at];
        float out_y = gain * reciprocal_fast(in.y) * write[at + 1];
        if constexpr (Delta) {
          const float2 e = unpack<Format>(element(Shared::kErase));
          query[at] += e.x * erase[at];
          query[at + 1] += e.y * erase[at + 1];
          if constexpr (Joined) {
            out_x += in.x * erase[at];
            out_y += in.y * erase[at + 1];
          } else {
            element(Shared::kErase) = pack<Format>(in.x * erase[at], in.y * erase[at + 1]);
          }
        }
        element(Shared::kWrite) = pack<Format>(out_x, out_y);
      }
      dot = quad_sum(dot);
      if (lane() % 4 == 0) sums().gain[here.group][here.row + 8 * j] = dot;
    }
  }
  // A gradient that stands in the place of a key.
  __device__ __forceinline__ void store_rows(int slot, void* gradient, const GradItem& item) const {
    if (gradient == nullptr) return;
    const int thread = forget(static_cast<int>(threadIdx.x)), row = thread / 16,
              piece = thread % 16;
    if (8 * piece >= sizes().d_k) return;
    auto* to = static_cast<Format*>(gradient) +
               ((item.first + row) * sizes().heads + item.key_head) * sizes().d_k + 8 * piece;
    const std::int64_t below = 16 * sizes().heads * sizes().d_k;
    const unsigned char* const from = at(slot) + Keys::place(row, piece);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + 16 * i < item.count) {
        *reinterpret_cast<uint4*>(to + i * below) =
            *reinterpret_cast<const uint4*>(from + i * 16 * 128);
      }
    }
  }

  // Sums over the rows from each one on to the end of its block, in place: products with ones, of
  // two parts of the numbers.
  __device__ __forceinline__ void sum_blocks(float (&x)[32]) const {
    const int g = lane() / 4, t = lane() % 4, column = Place().column;
    constexpr std::uint32_t kOne = 0x3f80U;
    const std::uint32_t corner = (2 * t >= g ? kOne : 0U) | (2 * t + 1 >= g ? kOne << 16 : 0U);
    const std::uint32_t ones[4] = {corner, 0U, kOne | kOne << 16, corner};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      std::uint32_t high[2], low[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = x[4 * n + 2 * j], b = x[4 * n + 2 * j + 1];
        const std::uint32_t both = pack<bf16>(a, b);
        const float2 rounded = unpack<bf16>(both);
        high[j] = transpose_matrix(both);
        low[j] = transpose_matrix(pack<bf16>(a - rounded.x, b - rounded.y));
      }
      float d[4] = {};
      mma_m16n8k16<bf16>(d, ones, high[0], high[1]);
      mma_m16n8k16<bf16>(d, ones, low[0], low[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * n + i] = d[i];
      if (g == 0) {
        *reinterpret_cast<float2*>(sums().crossing[warp_ % 4] + column + 8 * n) =
            make_float2(d[0], d[1]);
      }
    }
  }
  template <class Element>
  __device__ __forceinline__ void store_decays(const float (&x)[32], const GradItem& item,
                                               Element* to) const {
    const Place here;
    to +=
        ((item.first + here.row) * sizes().value_heads + item.key_head) * sizes().d_k + here.column;
    const std::int64_t below = 8 * sizes().value_heads * sizes().d_k;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int column = here.column + 8 * n;
      float2 rest = *reinterpret_cast<const float2*>(sums().state + column);
#pragma unroll
      for (int i = 1; i < 4; ++i) {
        if (i <= warp_ % 4) continue;
        const float2 more = *reinterpret_cast<const float2*>(sums().crossing[i] + column);
        rest = make_float2(rest.x + more.x, rest.y + more.y);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (here.row + 8 * j >= item.count || column >= sizes().d_k) continue;
        const float2 out = make_float2(x[4 * n + 2 * j] + rest.x, x[4 * n + 2 * j + 1] + rest.y);
        if constexpr (std::is_same_v<Element, float>) {
          *reinterpret_cast<float2*>(to + j * below + 8 * n) = out;
        } else {
          *reinterpret_cast<std::uint32_t*>(to + j * below + 8 * n) = pack<Element>(out.x, out.y);
        }
      }
    }
  }

  // ---- One item ---------------------------------------------------------------------------------

  __device__ __forceinline__ void work(std::uint32_t number, const GradItem& item,
                                       const GradItem& next, bool more) {
    const TwoKeyBack& back = call_.grad.back;
    const bool partial = item.count < kChunkRows;
    float gain = 0.0F;
    if (threadIdx.x < 64) {
      gain = reinterpret_cast<const float*>(call_.grad.chunk.record(item.chunk, item.key_head) +
                                            call_.grad.chunk.layout.gain)[threadIdx.x];
    }
    const bool narrow = sizes().g.dtype != Dtype::f32;
    float query[32], erase[32], write[32], state;
    wait(Slot::update);
    wait(Slot::back_a);
    wait(Slot::back_b);
    wait(Slot::output);
    if (Delta) wait(Slot::value);
    if (partial) {
      clear(Slot::update, item.count);
      clear(Slot::output, item.count);
      if (Delta) clear(Slot::value, item.count);
      fence_async();
      __syncthreads();
    }
    {
      float inner[32];
      if (!Delta) zero(inner);
      Engine::begin();
      multiply_values(inner);
      through(write, Slot::update, Slot::back_a);
      Engine::commit();
      wait(Slot::state_a);
      wait(Slot::state_b);
      state = state_product();
      Engine::template wait<0>();
      Engine::hold(inner);
      Engine::hold(write);
      std::uint32_t m[16];
      interactions(inner, m);
      if (threadIdx.x < 64) rows_.gain[threadIdx.x] = gain;
      __syncthreads();
      if (asks() && !narrow) bring_gates(item, narrow);
      put_square(m);
    }
    Engine::begin();
    through(query, Slot::output, Slot::state_a);
    if constexpr (Delta) through(erase, Slot::value, Slot::state_a);
    finish<Engine>(query);
    Engine::hold(erase);
    __syncthreads();
    if (asks()) {
      if (narrow) bring_gates(item, narrow);
      bring(Shared::kQuery, call_.tensors.query, item);
      bring(Shared::kWrite, call_.tensors.write, item);
      if (kOwnErase) bring(Shared::kErase, call_.tensors.erase, item);
    }
    wait(narrow ? Shared::kNarrow : Shared::kDecays);
    span_rows(item);
    __syncthreads();
    const Start start = find_anchor(item.count);
    wait(Shared::kQuery);
    wait(Shared::kWrite);
    if (kOwnErase) wait(Shared::kErase);
    __syncthreads();
    bool fits = all_fit(), fine = false;
    if (Blocks && !fits && !narrow) {
      __syncthreads();
      fit_four(item);
      __syncthreads();
      fits = fine = all_fit();
    }
    if (threadIdx.x == 0) call_.grad.marks[number] = fits ? 0 : 1;
    if (!fits) {
      fence_async();
      __syncthreads();
      if (more) ask_all(next);
      return;
    }
    scale_keys(item, start, fine);
    scale_columns(query, sizes().scale);
    if constexpr (Delta) scale_columns(erase, -1.0F);
    fence_async();
    __syncthreads();
    if constexpr (Blocks) {
      this->put_frames(start, fine);
      __syncthreads();
    }
    const float2 updates = sum_updates(write, fine);
    if constexpr (Blocks) {
      if (fine) {
        this->add_fine_writes(query, 0);
        if constexpr (Delta) this->add_fine_writes(erase, 1);
        this->add_fine_reads(write);
      } else {
        this->add_writes(query, 0);
        if constexpr (Delta) this->add_writes(erase, 1);
        this->add_reads(write);
      }
    } else {
      const unsigned char* const seen = at(Shared::kSquares);
      const unsigned char* const read = seen + Values::kBytes;
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int offset = group() * Values::kBytes;
        const auto half = [offset](Slot slot) { return at(slot) + offset; };
        Engine::template multiply_tiles<Values, false, Values, true>(query, seen,
                                                                     half(Shared::kWrite), k);
        if constexpr (Delta) {
          Engine::template multiply_tiles<Values, false, Values, true>(erase, read,
                                                                       half(Shared::kWrite), k);
        }
        Engine::template multiply_tiles<Values, true, Values, true>(write, seen,
                                                                    half(Shared::kQuery), k);
        if constexpr (Delta) {
          Engine::template multiply_tiles<Values, true, Values, true>(write, read,
                                                                      half(Shared::kErase), k);
        }
      }
      finish<Engine>(query);
      Engine::hold(erase);
      Engine::hold(write);
    }
    fence_async();
    __syncthreads();  // M1 and M2 have been read
    if (more && asks()) ask_update(next);
    *reinterpret_cast<float2*>(sums().whole[warp_ % 4] + Place().column + 8 * (lane() / 4)) =
        updates;
    if (lane() < 16) {
      const int channel = 16 * warp_ + lane();
      const float last = *reinterpret_cast<const float*>(
          at(Shared::kDecays) + decay_place(63, channel / 2) + channel % 2 * 4);
      sums().state[channel] = state * rows_.anchor[channel] * (Blocks ? 1.0F : last);
    }
    const bool joined = Delta && Tied && back.d_e == back.d_w;
    if (joined) {
      finish_rows<Delta && Tied>(query, erase, write);
    } else {
      finish_rows<false>(query, erase, write);
    }
    fence_async();
    __syncthreads();
    if (more && asks()) ask_back(next);
    sum_blocks(query);
    store_rows(Shared::kQuery, back.d_q, item);
    if (Delta && !joined) store_rows(Shared::kErase, back.d_e, item);
    store_rows(Shared::kWrite, back.d_w, item);
    if (threadIdx.x < 128) {
      const int i = static_cast<int>(threadIdx.x);
      sums().state[i] +=
          sums().whole[0][i] + sums().whole[1][i] + sums().whole[2][i] + sums().whole[3][i];
    } else if (threadIdx.x < 192 && back.d_b != nullptr) {
      const int i = static_cast<int>(threadIdx.x) - 128;
      if (i < item.count) {
        put_gate(back.d_b, sizes().b.dtype, (item.first + i) * sizes().value_heads + item.key_head,
                 (sums().gain[0][i] + sums().gain[1][i]) / rows_.gain[i]);
      }
    }
    __syncthreads();
    if (more && asks()) ask_values(next);
    if (back.d_g != nullptr) {
      if (sizes().g.dtype == Dtype::f32) {
        store_decays(query, item, static_cast<float*>(back.d_g));
      } else {
        store_decays(query, item, static_cast<Format*>(back.d_g));
      }
    }
    fence_async();
    __syncthreads();
    if (more && asks()) ask_last(next);
  }
};

}  // namespace rankone::recurrence::cuda
