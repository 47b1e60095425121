#include "core/cuda/tensor_map.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "core/cuda/check.hpp"
#include "core/status.hpp"

namespace rankone::cuda {
namespace {

// The driver's function, found through the runtime: nothing links to the driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess) {
      fail(Status::unsupported,
           "[cuda] the driver has no cuTensorMapEncodeTiled (CUDA 12 or newer)");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

}  // namespace

TensorMap row_map(const void* data, std::int64_t rows, std::int64_t heads, int size, int columns) {
  TensorMap map = {};
  if (data == nullptr || rows == 0) return map;
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(size), static_cast<cuuint64_t>(heads),
                                 static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[2] = {extents[0] * 2, extents[0] * extents[1] * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(columns), 1, 64}, steps[3] = {1, 1, 1};
  // bf16 and f16 alike: the copy engine only moves them.
  // Pieces of 16 bytes are swizzled within a row, but in long rows.
  const CUtensorMapSwizzle swizzle = columns > 64    ? CU_TENSOR_MAP_SWIZZLE_NONE
                                     : columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void*>(data), extents, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(Status::failed, "[cuda] cuTensorMapEncodeTiled refused [{}, {}, {}]: error {}", rows,
         heads, size, static_cast<int>(result));
  }
  return map;
}

}  // namespace rankone::cuda
