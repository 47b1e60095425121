#pragma once

// Which anchors the decays of a chunk allow (chunk_grad_anchored.hpp): sums of gates, and whether
// they stay within the range.

#include "recurrence/cuda/chunk_grad_anchored_blocks.hpp"

namespace rankone::recurrence::cuda {

// Blocks: with anchors of blocks, else with one anchor a channel.
template <class Format, bool Delta, bool Blocks>
class AnchoredGates : protected AnchoredBlocks<Format, Delta> {
 protected:
  using Base = AnchoredBlocks<Format, Delta>;
  using Shared = AnchoredShared;
  using Base::at;
  using Base::Base;
  using Base::call_;
  using Base::decay;
  using Base::decay_place;
  using Base::key;
  using Base::lane;
  using Base::rows_;
  using Base::sizes;
  using Base::warp_;
  using typename Base::Keys;
  using typename Base::Start;

  // Bits between the smallest and the largest factor, and of the gains.
  static constexpr float kRange = std::is_same_v<Format, f16> ? 8.0F : 128.0F;
  // With an anchor for every block of 16 rows; sums that grow are bounded as well.
  static constexpr float kBlockRange = std::is_same_v<Format, f16> ? 8.0F : 192.0F;
  static constexpr float kMostGrowth = 32.0F;
  static constexpr float kLeastBlockGain = std::is_same_v<Format, f16> ? 0.015625F : 0x1p-16F;
  static constexpr float kMostBlockGain = std::is_same_v<Format, f16> ? 4.0F : 0x1p16F;
  static constexpr float kLeastGain = std::is_same_v<Format, f16> ? 0.015625F : 0x1p-40F;
  static constexpr float kMostGain = std::is_same_v<Format, f16> ? 4.0F : 0x1p40F;

  // Sums of a block of 16 rows, two channels a thread, that all look at.
  struct Spans {
    float2 sum[4][64], least[4][64], most[4][64];
  };
  __device__ __forceinline__ float2 gate(int i, int pair, bool valid) const {
    float2 g;
    if (sizes().g.dtype == Dtype::f32) {
      g = decay(i * 512 + pair * 8);
    } else {
      g = key(Shared::kNarrow, i * 256 + pair * 4);
    }
    return valid ? g : make_float2(0.0F, 0.0F);
  }
  __device__ __forceinline__ Spans& spans() const {
    return *reinterpret_cast<Spans*>(
        at(sizes().g.dtype == Dtype::f32 ? Shared::kColumns : Shared::kDecays));
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
  // Finds the anchors; notes for the warp whether all is within the range.
  __device__ __forceinline__ Start find_anchor(int count) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    float2 sum = make_float2(0.0F, 0.0F), least = sum, most = sum, before = sum, behind = sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == part) before = sum;
      const float2 low = spans().least[i][pair], high = spans().most[i][pair];
      const float2 all = spans().sum[i][pair];
      least = make_float2(fminf(least.x, sum.x + low.x), fminf(least.y, sum.y + low.y));
      most = make_float2(fmaxf(most.x, sum.x + high.x), fmaxf(most.y, sum.y + high.y));
      sum = make_float2(sum.x + all.x, sum.y + all.y);
      if (i > part) behind = make_float2(behind.x + all.x, behind.y + all.y);
    }
    const int i = static_cast<int>(threadIdx.x % 64);
    const float gain = i < count ? fabsf(rows_.gain[i]) : 1.0F;
    const auto within = [](float2 low, float2 high, float range) {
      return high.x - low.x <= range && high.y - low.y <= range;
    };
    const bool number = sum.x == sum.x && sum.y == sum.y;
    const bool one =
        number && within(least, most, kRange / kLog2e) && gain >= kLeastGain && gain <= kMostGain;
    const float2 low = spans().least[part][pair], high = spans().most[part][pair];
    const float growth = kMostGrowth / kLog2e;
    const bool each = number && within(low, high, kBlockRange / kLog2e) && most.x <= growth &&
                      most.y <= growth && gain >= kLeastBlockGain && gain <= kMostBlockGain;
    const int fits = __all_sync(0xffffffffU, (Blocks ? each : one) ? 1 : 0);
    if (lane() == 0) rows_.fits[warp_] = fits;
    const float2 anchor = make_float2(0.5F * (least.x + most.x), 0.5F * (least.y + most.y));
    if (part == 0) {
      *reinterpret_cast<float2*>(rows_.anchor + 2 * pair) =
          make_float2(exp2_fast(anchor.x * kLog2e), exp2_fast(anchor.y * kLog2e));
    }
    const float2 middle = make_float2(0.5F * (low.x + high.x), 0.5F * (low.y + high.y));
    const float2 own = spans().sum[part][pair];
    return {make_float2(before.x - anchor.x, before.y - anchor.y), middle,
            make_float2(own.x - middle.x, own.y - middle.y), behind};
  }
  __device__ __forceinline__ bool all_fit() const {
    bool fits = true;
#pragma unroll
    for (int i = 0; i < 8; ++i) fits = fits && rows_.fits[i] != 0;
    return fits;
  }
  // Least and greatest sum of four gates from the first one on.
  static __device__ __forceinline__ void span_four(const float2 (&g)[4], float2& low,
                                                   float2& high) {
    float2 sum = make_float2(0.0F, 0.0F);
    low = high = sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = make_float2(sum.x + g[i].x, sum.y + g[i].y);
      low = make_float2(fminf(low.x, sum.x), fminf(low.y, sum.y));
      high = make_float2(fmaxf(high.x, sum.x), fmaxf(high.y, sum.y));
    }
  }
  // Whether blocks of four rows are within the range, where those of 16 are not. The caller waits
  // for the others before it looks at what that leaves.
  __device__ __forceinline__ void fit_four(const GradItem& item) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    const int inside = 2 * pair < sizes().d_k ? item.count - 16 * part : 0;
    const float gain = static_cast<int>(threadIdx.x % 64) < item.count
                           ? fabsf(rows_.gain[threadIdx.x % 64])
                           : 1.0F;
    bool fits = gain >= kLeastBlockGain && gain <= kMostBlockGain;
    float2 sum = make_float2(0.0F, 0.0F);
#pragma unroll 1
    for (int first = 0; first < 16; first += 4) {
      float2 g[4], low, high;
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] = gate(16 * part + first + i, pair, first + i < inside);
      span_four(g, low, high);
      const float range = kBlockRange / kLog2e, growth = kMostGrowth / kLog2e;
      // Growth of blocks of 16 together.
      sum = make_float2(fmaxf(sum.x, 0.0F) + high.x, fmaxf(sum.y, 0.0F) + high.y);
      fits = fits && high.x - low.x <= range && high.y - low.y <= range && 4.0F * sum.x <= growth &&
             4.0F * sum.y <= growth;
    }
    const int all = __all_sync(0xffffffffU, fits ? 1 : 0);
    if (lane() == 0) rows_.fits[warp_] = all;
  }
};

}  // namespace rankone::recurrence::cuda
