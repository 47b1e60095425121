#pragma once

// The matrix-product kernels that exist once per instruction set. Plain declarations only: this
// header is read by sources compiled for different processors.

#include <cstdint>

namespace rankone::nn {

enum class Storage { f32, bf16, f16 };  // of a matrix; everything is multiplied as float32

// Terms of one chain of multiply-adds: a packed panel of b of this depth stays in the first-level
// cache while the panels of a stream past it.
constexpr std::int64_t kGemmDepth = 256;
// Terms of a piece, the sum of its chains. Pieces can be summed by different threads.
constexpr std::int64_t kGemmPiece = 8 * kGemmDepth;

struct GemmKernels {
  int panel_rows;     // most rows of `multiply`
  int panel_columns;  // columns of a packed panel of b
  int stream_rows;    // most rows of `stream`

  // Widens a block of `width` by `depth` elements to out[k * out_stride + p], zero for
  // width <= p < out_stride. Element (p, k) is data[p * stride + k] where `along_depth`, else
  // data[k * stride + p]. out_stride is panel_columns, or at most panel_rows; then up to
  // panel_columns floats behind the block may be overwritten.
  void (*pack)(const void* data, Storage storage, std::int64_t stride, bool along_depth, int width,
               std::int64_t depth, float* out, int out_stride);

  // c[r, j] = or += sum over k, in increasing order, of a[k * rows + r] * b[k * b_stride + j], for
  // j < columns <= panel_columns. b is readable up to panel_columns in every row.
  void (*multiply)(std::int64_t depth, int rows, const float* a, const float* b,
                   std::int64_t b_stride, float* c, std::int64_t c_stride, int columns, bool add);

  // The same for any depth and number of columns, with b read once from where it lies: element
  // (k, j) is b[j * b_stride + k]. Chains are added up to pieces and pieces to the result, in
  // order.
  void (*stream)(std::int64_t depth, int rows, const float* a, const void* b, Storage storage,
                 std::int64_t b_stride, std::int64_t columns, float* c, std::int64_t c_stride,
                 bool add);
};

namespace baseline {
extern const GemmKernels kGemmKernels;
}
namespace avx2 {
extern const GemmKernels kGemmKernels;
}
namespace avx512 {
extern const GemmKernels kGemmKernels;
}

}  // namespace rankone::nn
