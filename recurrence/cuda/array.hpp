#pragma once

// Tensors whose dtype is known at run time, as kernels see them, and wide accesses to global
// memory. In the functions that move Count elements at a time the address is a multiple of their
// size.

#include "core/cuda/instructions.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

using rankone::cuda::narrow;
using rankone::cuda::store_word;
using rankone::cuda::widen;

// A register or several, of 4, 8 or 16 bytes.
template <class Word>
__device__ __forceinline__ Word read_word(const void* from) {
#if defined(RANKONE_CUDA_EMULATION)
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
#else
  return *static_cast<const Word*>(from);
#endif
}
// (To global memory better by store_word(): this may become several stores.)
template <class Word>
__device__ __forceinline__ void write_word(void* to, const Word& word) {
#if defined(RANKONE_CUDA_EMULATION)
  std::memcpy(to, &word, sizeof word);
#else
  *static_cast<Word*>(to) = word;
#endif
}

// Count elements, 1, 4 or 8, from `from` on.
template <class Format, int Count>
__device__ __forceinline__ void load(float (&to)[Count], const Format* from) {
  static_assert(Count == 1 || Count == 4 || Count == 8);
  if constexpr (Count == 1) {
    to[0] = widen(from[0]);
  } else if constexpr (std::is_same_v<Format, float>) {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      const auto word = read_word<float4>(from + i);
      to[i] = word.x;
      to[i + 1] = word.y;
      to[i + 2] = word.z;
      to[i + 3] = word.w;
    }
  } else {
    std::uint32_t pairs[Count / 2];
    if constexpr (Count == 4) {
      const auto word = read_word<uint2>(from);
      pairs[0] = word.x;
      pairs[1] = word.y;
    } else {
      const auto word = read_word<uint4>(from);
      pairs[0] = word.x;
      pairs[1] = word.y;
      pairs[2] = word.z;
      pairs[3] = word.w;
    }
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      const float2 both = rankone::cuda::unpack<Format>(pairs[i]);
      to[2 * i] = both.x;
      to[2 * i + 1] = both.y;
    }
  }
}
template <class Format, int Count>
__device__ __forceinline__ void store(Format* to, const float (&from)[Count]) {
  static_assert(Count == 1 || Count == 4 || Count == 8);
  if constexpr (Count == 1) {
    to[0] = narrow<Format>(from[0]);
  } else if constexpr (std::is_same_v<Format, float>) {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      write_word(to + i, make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]));
    }
  } else {
    std::uint32_t pairs[Count / 2];
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      pairs[i] = rankone::cuda::pack<Format>(from[2 * i], from[2 * i + 1]);
    }
    if constexpr (Count == 4) {
      write_word(to, make_uint2(pairs[0], pairs[1]));
    } else {
      write_word(to, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
  }
}

// Count elements, 1 or 4, as they lie in memory: half the registers for a 16-bit format, until
// used.
template <class Format, int Count>
struct Words {
  static_assert(Count == 1 || Count == 4);
  using Word = std::conditional_t<Count == 1, Format,
                                  std::conditional_t<std::is_same_v<Format, float>, float4, uint2>>;
  Word word;

  __device__ void read(const Format* from) { word = read_word<Word>(from); }
  __device__ void clear() { word = Word{}; }
  __device__ void get(float (&to)[Count]) const {
    if constexpr (Count == 1) {
      to[0] = widen(word);
    } else if constexpr (std::is_same_v<Format, float>) {
      to[0] = word.x;
      to[1] = word.y;
      to[2] = word.z;
      to[3] = word.w;
    } else {
      const float2 low = rankone::cuda::unpack<Format>(word.x);
      const float2 high = rankone::cuda::unpack<Format>(word.y);
      to[0] = low.x;
      to[1] = low.y;
      to[2] = high.x;
      to[3] = high.y;
    }
  }
};

// The same for a dtype of the run; all threads take the same way. An absent tensor is `absent`
// everywhere, and what is stored there is dropped.
template <int Count>
__device__ __forceinline__ void load(float (&to)[Count], const Source& from, std::int64_t at,
                                     float absent = 0.0F) {
  if (from.data == nullptr) {
#pragma unroll
    for (int i = 0; i < Count; ++i) to[i] = absent;
  } else if (from.dtype == Dtype::f32) {
    load(to, static_cast<const float*>(from.data) + at);
  } else if (from.dtype == Dtype::bf16) {
    load(to, static_cast<const bf16*>(from.data) + at);
  } else {
    load(to, static_cast<const f16*>(from.data) + at);
  }
}
template <int Count>
__device__ __forceinline__ void store(const Sink& to, std::int64_t at, const float (&from)[Count]) {
  if (to.data == nullptr) return;
  const bool brain = to.dtype == Dtype::bf16;
  if constexpr (Count == 4) {
    if (to.dtype == Dtype::f32) {
      store_word(static_cast<float*>(to.data) + at,
                 make_float4(from[0], from[1], from[2], from[3]));
    } else {  // one store for both formats
      using rankone::cuda::pack;
      const std::uint32_t low = brain ? pack<bf16>(from[0], from[1]) : pack<f16>(from[0], from[1]);
      const std::uint32_t high = brain ? pack<bf16>(from[2], from[3]) : pack<f16>(from[2], from[3]);
      store_word(static_cast<std::uint16_t*>(to.data) + at, make_uint2(low, high));
    }
  } else if (to.dtype == Dtype::f32) {
    store(static_cast<float*>(to.data) + at, from);
  } else if (brain) {
    store(static_cast<bf16*>(to.data) + at, from);
  } else {
    store(static_cast<f16*>(to.data) + at, from);
  }
}
__device__ __forceinline__ float load(const Source& from, std::int64_t at, float absent = 0.0F) {
  float value[1];
  load(value, from, at, absent);
  return value[0];
}
__device__ __forceinline__ void store(const Sink& to, std::int64_t at, float value) {
  const float one[1] = {value};
  store(to, at, one);
}

// The sum over the warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xffffffffU, value, bits);
  return value;
}

// The lower Half of the numbers become those of this lane and the lane across, each in its own
// half; among `Lanes` lanes side by side.
template <int Half, int Lanes = 32, int Count>
__device__ __forceinline__ void fold_lanes(float (&x)[Count]) {
  constexpr int kBit = Lanes * Half / Count;
  const bool upper = (static_cast<int>(threadIdx.x) & kBit) != 0;
#pragma unroll
  for (int i = 0; i < Half; ++i) {
    const float low = x[i], high = x[i + Half];
    x[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffU, upper ? low : high, kBit);
  }
  if constexpr (Half > 1) fold_lanes<Half / 2, Lanes>(x);
}

// Count numbers of every lane, a power of two, each summed over the lanes: number i comes out in
// the lanes i * (32 / Count) and following. The numbers are lost.
template <int Count>
__device__ __forceinline__ float warp_sums(float (&x)[Count]) {
  fold_lanes<Count / 2>(x);
  float sum = x[0];
#pragma unroll
  for (int rest = 16 / Count; rest > 0; rest /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, rest);
  return sum;
}

// ---- Host side ---------------------------------------------------------------------------------

// Whether rows of `width` elements can be moved in words of 16 bytes.
template <class... Arrays>
bool in_words(std::int64_t width, const Arrays&... arrays) {
  return width % 8 == 0 && ((reinterpret_cast<std::uintptr_t>(arrays.data) % 16 == 0) && ...);
}

}  // namespace rankone::recurrence::cuda
