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
// Other chunks are marked for the kernel of chunk_grad_channel.hpp, which asks nothing of decays.
//
// A block has two groups of four warps, each with 64 of the 128 channels and 16 rows of the chunk
// per warp; two blocks share a multiprocessor and fill each other's waits. Its tiles stand in slots
// of shared memory that the copy engine fills: first values and states, whose products wait in
// registers, then keys and gates.

#include "recurrence/cuda/chunk_grad_anchored_tiles.hpp"

namespace rankone::recurrence::cuda {

template <class Format, class Engine, bool Delta, bool Tied>
class GradAnchored : AnchoredTiles<Format, Delta> {
  using Base = AnchoredTiles<Format, Delta>;
  using Shared = AnchoredShared;
  using typename Base::Keys;
  using typename Base::Slot;
  using typename Base::State;
  using typename Base::Values;
  static constexpr bool kOwnErase = Delta && !Tied;
  // Bits between the smallest and the largest factor, and of the gains.
  static constexpr float kRange = std::is_same_v<Format, f16> ? 8.0F : 128.0F;
  static constexpr float kLeastGain = std::is_same_v<Format, f16> ? 0.015625F : 0x1p-40F;
  static constexpr float kMostGain = std::is_same_v<Format, f16> ? 4.0F : 0x1p40F;

 public:
  __device__ explicit GradAnchored(const StreamCall& c) : Base(c) {}

  __device__ void run() {
    const auto count = static_cast<std::uint32_t>(sizes().rows.chunks * sizes().heads);
    std::uint32_t number = blockIdx.x;
    if (threadIdx.x == 0) {
      for (int i = 0; i < 7; ++i) mbarrier_init(rows_.arrived + i, 1);
      mbarrier_fence();
    }
    if (warp_ == 0) find_item(sizes(), number, rows_.items);
    __syncthreads();
    if (number >= count) return;
    ask_first(rows_.items[0]);
    ask_rest(rows_.items[0]);
    ask_last(rows_.items[0]);
    int turn = 0;
    for (; number < count; number += gridDim.x) {
      const bool more = number + gridDim.x < count;
      const int after = turn == 2 ? 0 : turn + 1;
      if (warp_ == 7 && more) find_item(sizes(), number + gridDim.x, rows_.items + after);
      work(number, rows_.items[turn], rows_.items[after], more);
      turn = after;
    }
  }

 private:
  using Base::ask_first;
  using Base::ask_last;
  using Base::ask_rest;
  using Base::asks;
  using Base::at;
  using Base::bring;
  using Base::call_;
  using Base::clear;
  using Base::key;
  using Base::kKeysBelow;
  using Base::kSumsBelow;
  using Base::lane;
  using Base::rows_;
  using Base::sizes;
  using Base::sum;
  using Base::sum_place;
  using Base::wait;
  using Base::warp_;
  using typename Base::Place;

  // ---- Products of values and states ------------------------------------------------------------

  // d += values states, both tiles of values; the group's channels.
  __device__ __forceinline__ void through(float (&d)[32], Slot values, Slot first) const {
    const int offset = Place().group * 8 * State::kColumn;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply_tiles<Values, false, State, true>(
            d, at(values) + i * Values::kBytes, at(first + i) + offset, k);
      }
    }
  }
  // M1 (the first group) or M2, rounded.
  __device__ __forceinline__ void interactions(std::uint32_t (&m)[16]) const {
    float d[32];
    zero(d);
    const Place here;
    if (Delta || here.group == 0) {
      const unsigned char* left = at(here.group == 0 ? Slot::output : Slot::value);
      Engine::begin();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Engine::template multiply_tiles<Values, false, Values, false>(
              d, left + i * Values::kBytes, at(Slot::update) + i * Values::kBytes, k);
        }
      }
      finish<Engine>(d);
    }
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
                                          j * kKeysBelow) = m[2 * n + j];
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

  // Sums of a block of 16 rows, two channels a thread, that all look at.
  struct Spans {
    float2 sum[4][64], least[4][64], most[4][64];
  };
  __device__ __forceinline__ float2 gate(int i, int pair, bool valid) const {
    float2 g;
    if (sizes().g.dtype == Dtype::f32) {
      g = *reinterpret_cast<const float2*>(at(Shared::kSums) + i * 512 + pair * 8);
    } else {
      const auto both =
          *reinterpret_cast<const std::uint32_t*>(at(Shared::kNarrow) + i * 256 + pair * 4);
      g = unpack<Format>(both);
    }
    return valid ? g : make_float2(0.0F, 0.0F);
  }
  __device__ __forceinline__ Spans& spans() const {
    return *reinterpret_cast<Spans*>(
        at(sizes().g.dtype == Dtype::f32 ? Slot::update : Slot::state_a));
  }
  // Sums of the blocks of rows.
  __device__ __forceinline__ void span_rows(const GradItem& item) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    const int inside = 2 * pair < sizes().d_k ? item.count - 16 * part : 0;
    float2 sum = make_float2(0.0F, 0.0F), least = sum, most = sum;
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const float2 g = gate(16 * part + i, pair, i < inside);
      sum = make_float2(sum.x + g.x, sum.y + g.y);
      least = make_float2(sum.x < least.x ? sum.x : least.x, sum.y < least.y ? sum.y : least.y);
      most = make_float2(sum.x > most.x ? sum.x : most.x, sum.y > most.y ? sum.y : most.y);
    }
    spans().sum[part][pair] = sum;
    spans().least[part][pair] = least;
    spans().most[part][pair] = most;
  }
  // The anchor of the thread's channels, and what goes before its rows. Whether all is within the
  // range is noted for the warp.
  __device__ __forceinline__ void find_anchor(int count, float2& before, float2& anchor) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    float2 sum = make_float2(0.0F, 0.0F), least = sum, most = sum;
    before = sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == part) before = sum;
      const float2 low = spans().least[i][pair], high = spans().most[i][pair];
      const float2 all = spans().sum[i][pair];
      least = make_float2(fminf(least.x, sum.x + low.x), fminf(least.y, sum.y + low.y));
      most = make_float2(fmaxf(most.x, sum.x + high.x), fmaxf(most.y, sum.y + high.y));
      sum = make_float2(sum.x + all.x, sum.y + all.y);
    }
    anchor = make_float2(0.5F * (least.x + most.x), 0.5F * (least.y + most.y));
    const float span = kRange / kLog2e;
    bool fits =
        most.x - least.x <= span && most.y - least.y <= span && sum.x == sum.x && sum.y == sum.y;
    const int i = static_cast<int>(threadIdx.x % 64);
    const float gain = fabsf(rows_.gain[i]);
    fits = fits && (i >= count || (gain >= kLeastGain && gain <= kMostGain));
    const int all = __all_sync(0xffffffffU, fits ? 1 : 0);
    if (lane() == 0) rows_.fits[warp_] = all;
    if (part == 0) {
      *reinterpret_cast<float2*>(rows_.anchor + 2 * pair) =
          make_float2(anchor.x * kLog2e, anchor.y * kLog2e);
    }
  }
  // G - A in base 2, and the keys scaled.
  __device__ __forceinline__ void scale_keys(const GradItem& item, float2 before,
                                             float2 anchor) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    const int inside = 2 * pair < sizes().d_k ? item.count - 16 * part : 0;
    float2 sum = make_float2((before.x - anchor.x) * kLog2e, (before.y - anchor.y) * kLog2e);
    // Of the first row of four: of rows further down, ^ 16 i and ^ 32 i.
    int keys = Keys::place(16 * part, pair / 4) + pair % 4 * 4;
    int sums = sum_place(16 * part, pair);
#pragma unroll 1
    for (int first = 0; first < 16; first += 4) {
      float2 g[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] = gate(16 * part + first + i, pair, first + i < inside);
      __syncwarp();  // what the warp writes of these rows stands where it reads them
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool valid = first + i < inside;
        sum = make_float2(sum.x + g[i].x * kLog2e, sum.y + g[i].y * kLog2e);
        *reinterpret_cast<float2*>(at(Shared::kSums) + (sums ^ 32 * i) + 512 * i) = sum;
        const float2 in = make_float2(exp2_fast(sum.x), exp2_fast(sum.y));
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
      sums += 4 * 512;
    }
  }

  // ---- Rows -------------------------------------------------------------------------------------

  // d times exp(A) `factor`.
  __device__ __forceinline__ void scale_columns(float (&d)[32], float factor) const {
    const Place here;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 a = *reinterpret_cast<const float2*>(rows_.anchor + here.column + 8 * n);
      const float2 x = make_float2(factor * exp2_fast(a.x), factor * exp2_fast(a.y));
      d[4 * n] *= x.x;
      d[4 * n + 1] *= x.y;
      d[4 * n + 2] *= x.x;
      d[4 * n + 3] *= x.y;
    }
  }
  // d times exp(G_last - A), and what all dg have of it: sums over the rows of the warp, of
  // channels 8 (lane / 4) + 2 (lane % 4) of the group and the next.
  __device__ __forceinline__ float2 sum_updates(float (&d)[32]) const {
    const Place here;
    const int last = sum_place(63, 32 * here.group + lane() % 4);
    float all[16];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 a = sum(last ^ 32 * n);
      const float2 keep = make_float2(exp2_fast(a.x), exp2_fast(a.y));
      all[2 * n] = all[2 * n + 1] = 0.0F;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 w = key(Shared::kWrite, (here.keys ^ 16 * n) + j * kKeysBelow);
        d[4 * n + 2 * j] *= keep.x;
        d[4 * n + 2 * j + 1] *= keep.y;
        all[2 * n] += w.x * d[4 * n + 2 * j];
        all[2 * n + 1] += w.y * d[4 * n + 2 * j + 1];
      }
    }
    fold_lanes<2>(all, lane());
    return make_float2(all[0], all[1]);
  }
  __device__ __forceinline__ AnchoredSums& sums() const {
    return *reinterpret_cast<AnchoredSums*>(at(Shared::kSquares));
  }

  // Two neighbouring tiles of a row of a gradient, of which this lane has a pair each: neighbours
  // exchange pairs, and each has four columns of one tile, those that `to` is at.
  static __device__ __forceinline__ void store(std::uint32_t first, std::uint32_t second,
                                               Format* to, bool wanted) {
    const bool odd = lane() % 2 != 0;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffU, odd ? first : second, 1);
    if (wanted) {
      *reinterpret_cast<uint2*>(to) = make_uint2(odd ? other : first, odd ? second : other);
    }
  }
  // Where that is for the first two tiles of the thread's first row; `wanted`: such a tile is
  // there.
  struct Rows {
    std::int64_t offset, below;
    int column;
    __device__ __forceinline__ Rows(const Place& here, const GradItem& item, const TwoKeyCall& call)
        : below(8 * call.heads * call.d_k),
          column(64 * here.group + lane() % 2 * 8 + lane() % 4 / 2 * 4) {
      offset = ((item.first + here.row) * call.heads + item.key_head) * call.d_k + column;
    }
  };
  // The gradients of the keys, and in place of `query` what the decays have of the rows.
  __device__ __forceinline__ void finish_rows(float (&query)[32], const float (&erase)[32],
                                              const float (&write)[32], bool joined,
                                              const GradItem& item) const {
    const TwoKeyBack& back = call_.grad.back;
    const Place here;
    const Rows to(here, item, sizes());
    auto* const d_query = static_cast<Format*>(back.d_q) + to.offset;
    auto* const d_erase = static_cast<Format*>(back.d_e) + to.offset;
    auto* const d_write = static_cast<Format*>(back.d_w) + to.offset;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool inside = here.row + 8 * j < item.count;
      const float gain = rows_.gain[here.row + 8 * j];
      float dot = 0.0F;
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        std::uint32_t of_query[2], of_erase[2], of_write[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = 4 * (n + i) + 2 * j;
          const int place = (here.keys ^ 16 * (n + i)) + j * kKeysBelow;
          const float2 g = sum((here.sums ^ 32 * (n + i)) + j * kSumsBelow);
          const float2 in = make_float2(exp2_fast(g.x), exp2_fast(g.y));
          const float2 q = key(Shared::kQuery, place), w = key(Shared::kWrite, place);
          of_query[i] = pack<Format>(in.x * query[at], in.y * query[at + 1]);
          const float x = w.x * write[at], y = w.y * write[at + 1];
          dot += x + y;
          query[at] = q.x * query[at] - x;
          query[at + 1] = q.y * query[at + 1] - y;
          float out_x = gain * exp2_fast(-g.x) * write[at];
          float out_y = gain * exp2_fast(-g.y) * write[at + 1];
          if constexpr (Delta) {
            const float2 e = key(Shared::kErase, place);
            query[at] += e.x * erase[at];
            query[at + 1] += e.y * erase[at + 1];
            if constexpr (!Tied) of_erase[i] = pack<Format>(in.x * erase[at], in.y * erase[at + 1]);
            if (joined) {
              out_x += in.x * erase[at];
              out_y += in.y * erase[at + 1];
            }
          }
          of_write[i] = pack<Format>(out_x, out_y);
        }
        const bool wanted = inside && to.column + 8 * n < sizes().d_k;
        const std::int64_t offset = j * to.below + 8 * n;
        store(of_query[0], of_query[1], d_query + offset, wanted && back.d_q != nullptr);
        if constexpr (kOwnErase) {
          store(of_erase[0], of_erase[1], d_erase + offset, wanted && back.d_e != nullptr);
        }
        store(of_write[0], of_write[1], d_write + offset, wanted && back.d_w != nullptr);
      }
      dot = quad_sum(dot);
      if (lane() % 4 == 0) sums().gain[here.group][here.row + 8 * j] = dot;
    }
  }
  // Of one key whose gradients are wanted apart.
  __device__ __forceinline__ void finish_erase(const float (&erase)[32],
                                               const GradItem& item) const {
    const Place here;
    const Rows to(here, item, sizes());
    auto* const d_erase = static_cast<Format*>(call_.grad.back.d_e) + to.offset;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        std::uint32_t pairs[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = 4 * (n + i) + 2 * j;
          const float2 g = sum((here.sums ^ 32 * (n + i)) + j * kSumsBelow);
          pairs[i] = pack<Format>(exp2_fast(g.x) * erase[at], exp2_fast(g.y) * erase[at + 1]);
        }
        store(pairs[0], pairs[1], d_erase + j * to.below + 8 * n,
              here.row + 8 * j < item.count && to.column + 8 * n < sizes().d_k);
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
    std::uint32_t m[16];
    float query[32], erase[32], write[32];
    wait(Slot::update);
    wait(Slot::output);
    if (Delta) wait(Slot::value);
    if (partial) {
      clear(Slot::update, item.count);
      clear(Slot::output, item.count);
      if (Delta) clear(Slot::value, item.count);
      fence_async();
      __syncthreads();
    }
    interactions(m);
    wait(Slot::state_a);
    wait(Slot::state_b);
    zero(query);
    zero(erase);
    Engine::begin();
    through(query, Slot::output, Slot::state_a);
    if constexpr (Delta) through(erase, Slot::value, Slot::state_a);
    finish<Engine>(query);
    Engine::hold(erase);
    __syncthreads();
    if (asks()) bring(Shared::kQuery, call_.tensors.query, item);
    put_square(m);
    wait(Slot::back_a);
    wait(Slot::back_b);
    zero(write);
    Engine::begin();
    through(write, Slot::update, Slot::back_a);
    Engine::commit();
    float state = state_product();
    Engine::template wait<0>();
    Engine::hold(write);
    if (threadIdx.x < 64) rows_.gain[threadIdx.x] = gain;
    __syncthreads();
    if (warp_ == 7) {
      if (sizes().g.dtype == Dtype::f32) {
        this->template bring_gates<float>(item);
      } else {
        this->template bring_gates<Format>(item);
      }
      if (asks()) {
        bring(Shared::kWrite, call_.tensors.write, item);
        if (kOwnErase) bring(Shared::kErase, call_.tensors.erase, item);
      }
    }
    wait(sizes().g.dtype == Dtype::f32 ? Shared::kSums : Shared::kNarrow);
    span_rows(item);
    __syncthreads();
    float2 before, anchor;
    find_anchor(item.count, before, anchor);
    wait(Shared::kQuery);
    wait(Shared::kWrite);
    if (kOwnErase) wait(Shared::kErase);
    __syncthreads();
    bool fits = true;
#pragma unroll
    for (int i = 0; i < 8; ++i) fits = fits && rows_.fits[i] != 0;
    if (threadIdx.x == 0) call_.grad.marks[number] = fits ? 0 : 1;
    if (!fits) {
      fence_async();
      __syncthreads();
      if (more) {
        ask_first(next);
        ask_rest(next);
        ask_last(next);
      }
      return;
    }
    scale_keys(item, before, anchor);
    scale_columns(query, sizes().scale);
    if constexpr (Delta) scale_columns(erase, -1.0F);
    fence_async();
    __syncthreads();
    if (more) ask_first(next);
    const float2 updates = sum_updates(write);
    {
      const unsigned char* const seen = at(Shared::kSquares);
      const unsigned char* const read = seen + Values::kBytes;
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int offset = Place().group * Values::kBytes;
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
    __syncthreads();  // M1 and M2 have been read
    *reinterpret_cast<float2*>(sums().whole[warp_ % 4] + Place().column + 8 * (lane() / 4)) =
        updates;
    if (lane() < 16) {
      const int channel = 16 * warp_ + lane();
      const float last = *reinterpret_cast<const float*>(
          at(Shared::kSums) + sum_place(63, channel / 2) + channel % 2 * 4);
      sums().state[channel] = exp2_fast(last + rows_.anchor[channel]) * state;
    }
    const bool joined = Delta && Tied && back.d_e == back.d_w;
    finish_rows(query, erase, write, joined, item);
    if (Delta && Tied && !joined && back.d_e != nullptr) finish_erase(erase, item);
    __syncthreads();
    if (more) ask_rest(next);
    sum_blocks(query);
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
    if (back.d_g != nullptr) {
      if (sizes().g.dtype == Dtype::f32) {
        store_decays(query, item, static_cast<float*>(back.d_g));
      } else {
        store_decays(query, item, static_cast<Format*>(back.d_g));
      }
    }
    fence_async();
    __syncthreads();
    if (more) ask_last(next);
  }
};

}  // namespace rankone::recurrence::cuda
