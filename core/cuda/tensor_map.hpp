#pragma once

// A tensor of rows, [rows, heads, size] of 16-bit elements, as the copy engine of Hopper wants it
// described: it brings 64 rows of 64 elements of one head (or of 16 or 32 columns, where asked for)
// to a RowTile block of shared memory, with zeros for what lies beyond the tensor's rows or a
// head's elements. Rows of 128 or 256 columns come as they are.

#include <cstdint>

#if defined(RANKONE_CUDA_EMULATION)

namespace rankone::cuda {
struct TensorMap {
  const void* data = nullptr;
  std::int64_t rows = 0, heads = 0;
  int size = 0, columns = 64;
};
inline TensorMap row_map(const void* data, std::int64_t rows, std::int64_t heads, int size,
                         int columns = 64) {
  return {data, rows, heads, size, columns};
}
}  // namespace rankone::cuda

#else

#include <cuda.h>

namespace rankone::cuda {
using TensorMap = CUtensorMap;
// `data` and `size` elements are multiples of 16 bytes. An empty map for a null `data` or no rows.
TensorMap row_map(const void* data, std::int64_t rows, std::int64_t heads, int size,
                  int columns = 64);
}  // namespace rankone::cuda

#endif
