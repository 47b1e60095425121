#pragma once

// The scan over the chunks of a sequence in one pass. A block publishes what its chunk adds to the
// state and looks back: over the chunks of its window, in their order, and to the state that
// was published behind the window before. So a state is always the same sum, however far other
// blocks are. Part of precondition.cu and precondition_back.cu.

#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/precondition.hpp"

namespace rankone::recurrence::cuda {

// Where a chunk stands, with 32-bit arithmetic.
struct ChunkPlace {
  int sequence, first_number, chunks;  // its sequence, with the number of the first of its chunks
  int within;                          // counted from the beginning of the sequence
  std::int64_t first;                  // row
  int count;                           // rows

  // `chunk` is that of `rows`.
  __device__ ChunkPlace(const rankone::cuda::Rows& rows, int chunk, int number) {
    std::int64_t length, begin;
    if (rows.chunk_boundaries == nullptr) {
      length = rows.time;
      chunks = static_cast<int>((length + chunk - 1) / chunk);
      sequence = static_cast<int>(static_cast<unsigned>(number) / static_cast<unsigned>(chunks));
      first_number = sequence * chunks;
      begin = sequence * length;
    } else {  // the last sequence whose first chunk is at most `number`
      int low = 0, high = static_cast<int>(rows.sequences);
      while (high - low > 1) {
        const int middle = static_cast<int>((static_cast<unsigned>(low) + high) / 2);
        (rows.chunk_boundaries[middle] <= number ? low : high) = middle;
      }
      sequence = low;
      first_number = static_cast<int>(rows.chunk_boundaries[low]);
      chunks = static_cast<int>(rows.chunk_boundaries[low + 1]) - first_number;
      begin = rows.boundaries[low];
      length = rows.boundaries[low + 1] - begin;
    }
    within = number - first_number;
    const std::int64_t done = static_cast<std::int64_t>(within) * chunk;
    first = begin + done;
    const std::int64_t left = length - done;
    count = left < chunk ? static_cast<int>(left) : chunk;
  }
};

// No arithmetic gives this NaN, and publish() turns the NaN of an input into another.
constexpr std::uint32_t kUnpublished = 0xffffffffU;

__device__ __forceinline__ bool published(float value) {
  return rankone::cuda::float_to_bits(value) != kUnpublished;
}
__device__ __forceinline__ void publish(float* to, float value) {
  rankone::cuda::put_word(
      to, value == value ? value : rankone::cuda::bits_to_float(0x7fffffffU));  // NOLINT
}

// One head of the scan of a sequence, from its beginning or from its end: chunk `index` counts in
// the direction of the scan.
struct LookBack {
  const ChunkScan& scan;
  std::int64_t width;  // of the states of a chunk, H K
  int d_k, heads, head;
  int first, step;  // the number of chunk 0, and 1 or -1
  int index;

  __device__ LookBack(const ChunkScan& of, const ChunkPlace& place, bool reverse, int d_k,
                      int heads, int head)
      : scan(of),
        width(static_cast<std::int64_t>(heads) * d_k),
        d_k(d_k),
        heads(heads),
        head(head) {
    first = place.first_number + (reverse ? place.chunks - 1 : 0);
    step = reverse ? -1 : 1;
    index = reverse ? place.chunks - 1 - place.within : place.within;
  }
  __device__ bool starts() const { return index == 0; }
  __device__ bool ends_window() const { return index % kScanWindow == kScanWindow - 1; }

  __device__ std::int64_t at(int chunk, int channel) const {
    return (first + step * static_cast<std::int64_t>(chunk)) * width + head * d_k + channel;
  }
  // The last chunks of two windows are a window apart, in whatever sequences they are.
  __device__ float* window_state(int last, int channel) const {
    const int slot = (first + step * last) / kScanWindow;
    return scan.windows + slot * width + head * d_k + channel;
  }

  // The decays of this window of chunks, for before(): by the first threads of the block.
  __device__ void load_decays(float* to) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i > index % kScanWindow) return;
    const std::int64_t chunk = index / kScanWindow * kScanWindow + i;
    to[i] = scan.decays[(first + step * chunk) * heads + head];
  }
  // What this chunk adds; for chunk 0 with what the state before it leaves.
  __device__ void publish_sum(int channel, float sum) const {
    if (ends_window()) return;
    publish(scan.sums + at(index, channel), sum);
  }
  // The state behind this chunk.
  __device__ void publish_state(int channel, float state) const {
    if (ends_window()) publish(window_state(index, channel), state);
  }
  // The state before this chunk, not for chunk 0. Waits for what is not published yet: for the
  // state behind the last window at the end, since that is what comes last. `decays` are those of
  // load_decays().
  __device__ __forceinline__ float before(int channel, const float* decays) const {
    const int ahead = index % kScanWindow, window = index - ahead;
    const float* from = scan.sums + at(window, channel);
    const float* const behind = window != 0 ? window_state(window - 1, channel) : from;
    float sum = 0.0F, through = 1.0F, state = rankone::cuda::peek_word(behind);
    constexpr int kTogether = 5;  // loads under way
#pragma unroll 1
    for (int first = 0; first < ahead; first += kTogether) {
      float sums[kTogether];
      for (bool all = false; !all;) {
        const float* next = from;  // again where there are no more
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          sums[i] = rankone::cuda::peek_word(next);
          next += first + i + 1 < ahead ? step * width : 0;
        }
        all = true;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) all = all && published(sums[i]);
        if (!all) rankone::cuda::wait_a_moment();
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= ahead) break;
        sum = decays[first + i] * sum + sums[i];
        through *= decays[first + i];
      }
      from += kTogether * step * width;
    }
    if (window == 0) return sum;
    while (!published(state)) {
      rankone::cuda::wait_a_moment();
      state = rankone::cuda::peek_word(behind);
    }
    return through * state + sum;
  }
};

}  // namespace rankone::recurrence::cuda
