// The 16-bit formats of core/dtype.hpp and the GPU's own conversions must agree bit for bit: a
// tensor may be rounded on either side.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/dtype.hpp"

namespace rankone {
namespace {

__global__ void round_all(const float* in, std::uint16_t* brain, std::uint16_t* half, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  brain[i] = __bfloat16_as_ushort(__float2bfloat16_rn(in[i]));
  half[i] = __half_as_ushort(__float2half_rn(in[i]));
}

// Every exponent and sign with mantissas at, below and above the rounding points of both formats.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (std::uint32_t top = 0; top < 0x200; ++top) {
    for (const std::uint32_t mantissa :
         {0x0U, 0x1U, 0xfffU, 0x1000U, 0x1001U, 0x1800U, 0x3000U, 0x7fffU, 0x8000U, 0x8001U,
          0x18000U, 0x400000U, 0x7fefffU, 0x7ff000U, 0x7fffffU}) {
      const std::uint32_t bits = top << 23 | mantissa;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      if (!std::isnan(value)) values.push_back(value);
    }
  }
  return values;
}

TEST(CudaDtype, RoundsLikeTheHost) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const std::vector<float> values = interesting_floats();
  const int count = static_cast<int>(values.size());
  float* in = nullptr;
  std::uint16_t* brain = nullptr;
  std::uint16_t* half = nullptr;
  ASSERT_EQ(cudaMallocManaged(&in, values.size() * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&brain, values.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&half, values.size() * 2), cudaSuccess);
  std::memcpy(in, values.data(), values.size() * sizeof(float));
  round_all<<<(count + 255) / 256, 256>>>(in, brain, half, count);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(brain[i], to_bf16(in[i]).bits) << in[i];
    EXPECT_EQ(half[i], to_f16(in[i]).bits) << in[i];
  }
  cudaFree(in);
  cudaFree(brain);
  cudaFree(half);
}

}  // namespace
}  // namespace rankone
