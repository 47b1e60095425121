#pragma once

// The float32 matrix product inside the CPU backend: for whole calls over the threads of a context,
// and for one thread inside a task of its own.

#include "core/isa.hpp"
#include "nn/cpu/isa/gemm_kernels.hpp"
#include "nn/operators.hpp"

namespace rankone::nn {

// The kernels of an instruction set; those of best_isa() where not given.
const GemmKernels& gemm_kernels(Isa isa);
const GemmKernels& gemm_kernels();

// A matrix of the product as it lies in memory: [rows, columns] with `stride` elements from one
// row to the next, or its transpose.
struct GemmMatrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
  Storage storage = Storage::f32;
};

struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
};

// c [m, n] = op(a) op(b), or c +=. Every element is the sum, in increasing order, of its pieces of
// 2048 terms, each the sum of its blocks of 256 terms, each one chain of multiply-adds: bits depend
// on k and on the row and the column alone, never on m, n, tiles or threads.
void cpu_gemm(Context& context, const GemmKernels& kernels, const GemmShape& shape,
              const GemmMatrix& a, const GemmMatrix& b, float* c, std::int64_t c_stride,
              bool accumulate);

// The same bits on the calling thread alone. `scratch` has gemm_scratch(kernels, shape) floats.
std::int64_t gemm_scratch(const GemmKernels& kernels, const GemmShape& shape);
void gemm_serial(const GemmKernels& kernels, const GemmShape& shape, const GemmMatrix& a,
                 const GemmMatrix& b, float* c, std::int64_t c_stride, bool accumulate,
                 float* scratch);

// The two-dimensional tensor as a matrix of the product.
GemmMatrix gemm_matrix(const Tensor& tensor, bool transposed);

}  // namespace rankone::nn
