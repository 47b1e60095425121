#pragma once

// A chunk of rows of the preconditioner's scan for 128 channels of 16 bits, as a block of threads
// holds it: part of precondition.cu and precondition_back.cu. A lane has 8 channels (a word of 16
// bytes), so 16 lanes have a row; they take 8 rows one behind the other, a segment, and the eight
// segments of a block are a chunk.

#include "recurrence/axes/preconditioner.hpp"
#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/precondition_factor.hpp"
#include "recurrence/cuda/precondition_scan.hpp"

namespace rankone::recurrence::cuda::precondition_wide {

constexpr int kWidth = 128, kSize = 8, kLanes = kWidth / kSize;  // channels; of a lane; lanes

// How a chunk lies in a block.
template <int Threads>
struct Segments {
  static constexpr int kThreads = Threads, kSegments = Threads / kLanes;
  static constexpr int kRows = kPreconditionChunk / kSegments;  // of a segment
};

// Eight numbers of 16 bits as they lie in memory.
template <class Format>
struct Word {
  std::uint32_t pairs[4];

  __device__ __forceinline__ void read(const Format* from) {
    const auto word = read_word<uint4>(from);
    pairs[0] = word.x;
    pairs[1] = word.y;
    pairs[2] = word.z;
    pairs[3] = word.w;
  }
  __device__ __forceinline__ void clear() { pairs[0] = pairs[1] = pairs[2] = pairs[3] = 0; }
  __device__ __forceinline__ void get(float (&to)[kSize]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = rankone::cuda::unpack<Format>(pairs[i]);
      to[2 * i] = both.x;
      to[2 * i + 1] = both.y;
    }
  }
};

template <class Format>
__device__ __forceinline__ uint4 word_of(const float (&from)[kSize]) {
  using rankone::cuda::pack;
  return make_uint4(pack<Format>(from[0], from[1]), pack<Format>(from[2], from[3]),
                    pack<Format>(from[4], from[5]), pack<Format>(from[6], from[7]));
}
// To global memory where `wanted`, without a branch.
template <class Format>
__device__ __forceinline__ void store_if(bool wanted, Format* to, const float (&from)[kSize]) {
  rankone::cuda::store_word_if(wanted, to, word_of<Format>(from));
}

// Channels of the float arrays in shared memory: first the lower four of every lane.
__device__ __forceinline__ int channel_of(int slot) {
  return slot / 4 % kLanes * kSize + slot / (4 * kLanes) * 4 + slot % 4;
}
// A number of every row summed over the lanes of the segment: each row in kLanes / Rows lanes.
template <int Rows>
__device__ __forceinline__ float segment_sums(float (&x)[Rows]) {
  fold_lanes<Rows / 2, kLanes>(x);
  float sum = x[0];
#pragma unroll
  for (int rest = kLanes / Rows / 2; rest > 0; rest /= 2) {
    sum += __shfl_xor_sync(0xffffffffU, sum, rest);
  }
  return sum;
}

// Shared memory of a block.
template <class Format, int Threads>
struct Shared {
  static constexpr int kSegments = Segments<Threads>::kSegments, kWarps = Threads / 32;
  float* decay;           // [chunk] exp(g)
  float* gain;            // [chunk] b / |k|^2: of the raw key
  float* weight;          // [chunk] gain, decayed to the end of the segment
  float* square_inverse;  // [chunk] 1 / |k|^2, 1 where keys are not normalised
  float* decays;          // [segments]
  float* window;          // [2, kScanWindow]: of chunks, on the way there and back
  float* totals;          // [warps]
  float* sums;            // [segments, width]: what a segment adds, then the state before it
  Format* keys;           // [chunk, width]
  float* history;         // [chunk, width]: A before each row
  Format* added;          // [chunk, width]: what is added to the gradient of k

  static std::size_t bytes(bool back, bool adds = false) {
    const std::size_t gates = 4 * kPreconditionChunk + kSegments + 2 * kScanWindow + kWarps;
    const std::size_t rows = back ? kSegments + kPreconditionChunk : kSegments;
    const std::size_t tiles = adds ? 2 : back ? 1 : 0;
    return (gates + rows * kWidth) * sizeof(float) +
           tiles * kPreconditionChunk * kWidth * sizeof(Format);
  }
  __device__ Shared() {
    decay = reinterpret_cast<float*>(rankone::cuda::shared_memory());
    gain = decay + kPreconditionChunk;
    weight = gain + kPreconditionChunk;
    square_inverse = weight + kPreconditionChunk;
    decays = square_inverse + kPreconditionChunk;
    window = decays + kSegments;
    totals = window + 2 * kScanWindow;
    sums = totals + kWarps;
    keys = reinterpret_cast<Format*>(sums + kSegments * kWidth);
    history = reinterpret_cast<float*>(keys + kPreconditionChunk * kWidth);
    added = reinterpret_cast<Format*>(history + kPreconditionChunk * kWidth);
  }
};

// What a block works on. A row that the chunk lacks is one of zeros that adds and decays nothing.
template <class F, int Threads>
struct Chunk {
  using Format = F;
  static constexpr int kSegments = Segments<Threads>::kSegments, kRows = Segments<Threads>::kRows;
  static constexpr int kRowLanes = kLanes / kRows;  // lanes that have the gates of a row
  static constexpr int kGroup = 4;                  // rows whose gates are read together

  const PreconditionCall& call;
  Shared<F, Threads> shared;
  int number, heads, head;
  ChunkPlace place;
  int lane, segment, begin, count;  // rows of the segment, within the chunk

  // Of the block with this number, heads innermost.
  __device__ __forceinline__ Chunk(const PreconditionCall& of, unsigned block)
      : call(of),
        number(static_cast<int>(block / static_cast<unsigned>(of.heads))),
        heads(static_cast<int>(of.heads)),
        head(
            static_cast<int>(block - static_cast<unsigned>(number) * static_cast<unsigned>(heads))),
        place(of.rows, kPreconditionChunk, number) {
    lane = static_cast<int>(threadIdx.x) % kLanes;
    segment = static_cast<int>(threadIdx.x) / kLanes;
    begin = segment * kRows;
    count = place.count - begin;
  }

  __device__ std::int64_t gate_at(int r) const { return (place.first + begin + r) * heads + head; }
  // The first element of this lane in a tensor like k, and elements from row to row.
  __device__ std::int64_t first_at() const { return gate_at(0) * kWidth + lane * kSize; }
  __device__ std::int64_t stride() const { return static_cast<std::int64_t>(heads) * kWidth; }

  // Rows of the segment from `first` on; zero where there are no more.
  template <int Count>
  __device__ __forceinline__ void read_rows(Word<F> (&to)[Count], const Source& from,
                                            int first) const {
    const F* row = static_cast<const F*>(from.data) + first_at() + first * stride();
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      to[i].clear();
      if (first + i < count) to[i].read(row);
      row += stride();
    }
  }
  // Rows of the segment to shared memory, zeros where there are none; each lane copies what it
  // reads itself.
  __device__ __forceinline__ void copy_rows(F* to, const Source& source) const {
    const int rows = source.data != nullptr ? count : 0;
    const auto* from = static_cast<const F*>(source.data) + first_at();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rankone::cuda::copy_16(own_row(to, r), r < rows ? from : call.k.data, r < rows);
      from += stride();
    }
  }
  __device__ F* own_row(F* rows, int r) const { return rows + (begin + r) * kWidth + lane * kSize; }
  __device__ F* key_row(int r) const { return own_row(shared.keys, r); }

  // The gates of row lane / kRowLanes of the segment, on their way.
  struct Gates {
    float g = 0.0F, b = 0.0F;
  };
  __device__ __forceinline__ Gates read_gates() const {
    Gates gates;
    const int own = lane / kRowLanes;
    if (own < count) {
      gates.g = load(call.g, gate_at(own));
      gates.b = load(call.b, gate_at(own), 1.0F);
    }
    return gates;
  }
  // Gates and norms of the rows, in shared memory, for the lanes of this warp. `key(r, to)` gives
  // the key of a row.
  template <class Key>
  __device__ __forceinline__ void put_gates(const Gates& gates, Key&& key) const {
    const int own = lane / kRowLanes;
    const float decay = std::exp(gates.g), gain = gates.b;
    float through = decay;
#pragma unroll
    for (int step = 1; step < kRows; step *= 2) {
      const float later = __shfl_down_sync(0xffffffffU, through, kRowLanes * step, kLanes);
      if (own + step < kRows) through *= later;
    }
    float behind = __shfl_down_sync(0xffffffffU, through, kRowLanes, kLanes);
    if (own == kRows - 1) behind = 1.0F;
    float inverse = 1.0F;
    if (call.normalize) {
      float squares[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float k[kSize];
        key(r, k);
        squares[r] = 0.0F;
#pragma unroll
        for (int c = 0; c < kSize; ++c) squares[r] += k[c] * k[c];
      }
      inverse = 1.0F / (segment_sums(squares) + 1e-6F);
    }
    if (lane % kRowLanes == 0) {
      shared.decay[begin + own] = decay;
      shared.gain[begin + own] = gain * inverse;
      shared.weight[begin + own] = gain * inverse * behind;
      shared.square_inverse[begin + own] = inverse;
      if (lane == 0) shared.decays[segment] = through;
    }
    __syncwarp();
  }
  // The channels of the lane in a row of floats in shared memory.
  __device__ __forceinline__ void load_slots(float (&to)[kSize], const float* row) const {
    float some[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load(some, row + 4 * (half * kLanes + lane));
#pragma unroll
      for (int i = 0; i < 4; ++i) to[4 * half + i] = some[i];
    }
  }
  __device__ __forceinline__ void store_slots(float* row, const float (&from)[kSize]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* some = from + 4 * half;
      write_word(row + 4 * (half * kLanes + lane), make_float4(some[0], some[1], some[2], some[3]));
    }
  }

  // Gates of four rows of the segment.
  __device__ __forceinline__ void load_group(float (&to)[kGroup], const float* from, int r) const {
    load(to, from + begin + r);
  }

  // Puts what the rows of each segment add to the state into shared memory.
  template <class Key>
  __device__ __forceinline__ void sum_rows(Key&& key) const {
    float state[kSize] = {};
#pragma unroll
    for (int first = 0; first < kRows; first += kGroup) {
      float weights[kGroup];
      load_group(weights, shared.weight, first);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float k[kSize];
        key(first + i, k);
#pragma unroll
        for (int c = 0; c < kSize; ++c) state[c] += weights[i] * (k[c] * k[c]);
      }
    }
    store_slots(shared.sums + segment * kWidth, state);
    __syncthreads();
  }

  __device__ __forceinline__ float fold(int slot, bool reverse, float state) const {
#pragma unroll
    for (int i = 0; i < kSegments; ++i) {
      const int from = reverse ? kSegments - 1 - i : i;
      state = shared.decays[from] * state + shared.sums[from * kWidth + slot];
    }
    return state;
  }
  __device__ __forceinline__ void spread(int slot, bool reverse, float state) const {
#pragma unroll
    for (int i = 0; i < kSegments; ++i) {
      const int from = reverse ? kSegments - 1 - i : i;
      float& place_of = shared.sums[from * kWidth + slot];
      const float sum = place_of;
      place_of = state;
      state = shared.decays[from] * state + sum;
    }
  }
  __device__ std::int64_t sequence_state(int slot) const {
    return (static_cast<std::int64_t>(place.sequence) * heads + head) * kWidth + channel_of(slot);
  }
  __device__ std::int64_t chunk_state(int slot) const {
    return (static_cast<std::int64_t>(number) * heads + head) * kWidth + channel_of(slot);
  }
  __device__ LookBack look_back(const ChunkScan& scan, bool reverse) const {
    return {scan, place, reverse, kWidth, heads, head};
  }
  __device__ float* window(bool reverse) const {
    return shared.window + (reverse ? kScanWindow : 0);
  }

  // As that of precondition_chunk.hpp. A thread takes a channel.
  // `initial` and `final` are `unit` times the state.
  __device__ __forceinline__ void join(const ChunkScan& scan, bool reverse, const float* initial,
                                       float* final, float* states, bool wanted,
                                       float unit = 1.0F) const {
    const LookBack back = look_back(scan, reverse);
    const float* decays = window(reverse);
    const bool ends = back.index == place.chunks - 1;
    const int slot = static_cast<int>(threadIdx.x);
    if (Threads > kWidth && slot >= kWidth) return __syncthreads();
    float state = back.starts() && initial != nullptr ? initial[sequence_state(slot)] / unit : 0.0F;
    float sum = fold(slot, reverse, state);
    back.publish_sum(slot, sum);
    if (wanted || states != nullptr || back.ends_window() || (ends && final != nullptr)) {
      if (!back.starts()) {
        state = back.before(slot, decays);
        sum += decays[back.index % kScanWindow] * state;
      }
      back.publish_state(slot, sum);
      if (ends && final != nullptr) final[sequence_state(slot)] = unit * sum;
      if (states != nullptr) states[chunk_state(slot)] = state;
      if (wanted) spread(slot, reverse, state);
    }
    __syncthreads();
  }
};

// The factors of precondition_factor.hpp for the eight channels of a lane. With p = -ln(x) and rho'
// = p rho: factor = 2^(rho' / range), range = 1 + |r|, and p / (1 + |r|)^2 / (A + eps) times it is
// its derivative. p stays away from what adds up: `unit` times lambda is dL/dA.
struct Factor {
  float power, shift, slope, eps;
  float d_center = 0.0F;

  template <class AnyChunk>
  __device__ explicit Factor(const AnyChunk& chunk)
      : power(-chunk.call.log_x),
        shift(-power * kLog2OfE * load(chunk.call.parameter, chunk.head)),
        slope(kLn2 / std::abs(power)),
        eps(chunk.call.eps) {}

  // One reciprocal for two channels.
  __device__ __forceinline__ void values(float (&to)[kSize], const float (&state)[kSize]) const {
#pragma unroll
    for (int c = 0; c < kSize; c += 2) {
      const float first = power * rankone::cuda::log2_fast(state[c] + eps) + shift;
      const float second = power * rankone::cuda::log2_fast(state[c + 1] + eps) + shift;
      const float of_first = 1.0F + slope * std::abs(first);
      const float of_second = 1.0F + slope * std::abs(second);
      const float both = rankone::cuda::reciprocal_fast(of_first * of_second);
      to[c] = rankone::cuda::exp2_fast(both * (of_second * first));
      to[c + 1] = rankone::cuda::exp2_fast(both * (of_first * second));
    }
  }
  // `d` are the cotangents of factor * target and become those of target.
  __device__ __forceinline__ void back(const float (&state)[kSize], const float (&target)[kSize],
                                       float (&d)[kSize], float (&d_state)[kSize]) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      const float with_eps = state[c] + eps;
      const float rho = power * rankone::cuda::log2_fast(with_eps) + shift;
      const float range = 1.0F + slope * std::abs(rho);
      const float both = rankone::cuda::reciprocal_fast(range * with_eps);
      const float inverse = both * with_eps;
      d[c] *= rankone::cuda::exp2_fast(inverse * rho);
      const float d_rho = d[c] * target[c] * inverse;
      d_center -= d_rho * inverse;
      d_state[c] = d_rho * both;
    }
  }
};

// ---- Host side ---------------------------------------------------------------------------------

// `arrays` are what is read and written beside k. A factor of atk does not change anything where
// its log_x is 0, which Factor divides by.
template <class... Arrays>
bool fits(const PreconditionCall& call, const Arrays&... arrays) {
  return call.d_k == kWidth && call.kind == PreconditionerKind::atk &&
         call.target.data == call.k.data && call.log_x != 0.0F && call.k.dtype != Dtype::f32 &&
         in_words(kWidth, call.k, arrays...);
}

template <class Run>
void with_format(const PreconditionCall& call, Run&& run) {
  if (call.k.dtype == Dtype::bf16) return run(bf16{});
  return run(f16{});
}

}  // namespace rankone::recurrence::cuda::precondition_wide
