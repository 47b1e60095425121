#pragma once

// Sequences (core/sequences.hpp) as kernels see them. A dense call needs no memory on the device; a
// packed one has its boundaries there.

#include "core/cuda/language.hpp"

namespace rankone::cuda {

// Rows first .. first + count - 1 of one sequence.
struct Span {
  std::int64_t sequence;
  std::int64_t first;
  int count;
  bool starts, ends;  // the sequence
};

struct Rows {
  std::int64_t sequences = 0;
  std::int64_t count = 0;                    // rows of all sequences
  std::int64_t time = 0;                     // dense: rows of each sequence
  const std::int64_t* boundaries = nullptr;  // packed: [sequences + 1]
  // Packed: the number of the first chunk of each sequence, [sequences + 1]. Empty sequences have
  // none.
  const std::int64_t* chunk_boundaries = nullptr;
  std::int64_t chunks = 0;  // of all sequences
  int chunk = 64;           // rows of a chunk; the last of a sequence may have fewer

  __host__ __device__ std::int64_t begin(std::int64_t sequence) const {
    return boundaries != nullptr ? boundaries[sequence] : sequence * time;
  }
  __host__ __device__ std::int64_t end(std::int64_t sequence) const { return begin(sequence + 1); }
  __host__ __device__ std::int64_t first_chunk(std::int64_t sequence) const {
    return chunk_boundaries != nullptr ? chunk_boundaries[sequence]
                                       : sequence * ((time + chunk - 1) / chunk);
  }

  // The rows of chunk `number`, 0 .. chunks - 1, counted through all sequences.
  __host__ __device__ Span span(std::int64_t number) const {
    std::int64_t sequence;
    if (chunk_boundaries == nullptr) {
      sequence = number / ((time + chunk - 1) / chunk);
    } else {  // the last sequence whose first chunk is at most `number`
      std::int64_t low = 0, high = sequences;
      while (high - low > 1) {
        const std::int64_t middle = (low + high) / 2;
        (chunk_boundaries[middle] <= number ? low : high) = middle;
      }
      sequence = low;
    }
    const std::int64_t start = begin(sequence), stop = end(sequence);
    const std::int64_t first = start + (number - first_chunk(sequence)) * chunk;
    const std::int64_t left = stop - first;
    return {sequence, first, static_cast<int>(left < chunk ? left : chunk), first == start,
            left <= chunk};
  }
};

}  // namespace rankone::cuda
