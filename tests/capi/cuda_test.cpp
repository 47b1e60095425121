// Bad calls of a context on a GPU: a status with a sentence, nothing on the stream, and the next
// good call works. Skipped where there is no GPU.

#include <vector>

#include "capi/support.hpp"

#if defined(RANKONE_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace rankone::test {
namespace {

#if defined(RANKONE_WITH_CUDA)

TEST(CapiCuda, RefusesWhatIsNoMemoryOfTheGpu) {
  const rankone_options options = {RANKONE_CUDA, 0, 0, 0};
  rankone_context* context = nullptr;
  char message[256];
  if (rankone_context_create(&options, &context, message, sizeof message) != RANKONE_OK) {
    GTEST_SKIP() << message;
  }
  const std::int64_t keys[3] = {4, 1, 16}, values[3] = {4, 1, 8};
  std::vector<float> host(256);
  float* device = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), 4096), cudaSuccess);
  ASSERT_EQ(cudaMemset(device, 0, 4096), cudaSuccess);
  rankone_sequences* sequences = nullptr;
  ASSERT_EQ(rankone_sequences_dense(context, 1, 4, &sequences), RANKONE_OK);
  rankone_two_key_inputs in = {};
  in.q = in.w = rankone_row_major(device, RANKONE_F32, 3, keys);
  in.v = rankone_row_major(device, RANKONE_F32, 3, values);
  in.scale = 1;
  rankone_two_key_outputs out = {};
  out.o = rankone_row_major(device + 256, RANKONE_F32, 3, values);
  rankone_call how = {};
  const auto refuses = [&](rankone_status status, const char* words) {
    EXPECT_EQ(rankone_two_key(context, sequences, &in, &out, &how), status);
    EXPECT_NE(std::string(rankone_last_error(context)).find(words), std::string::npos)
        << rankone_last_error(context);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  };
  const rankone_two_key_inputs good = in;
  in.q.data = host.data();
  refuses(RANKONE_INVALID_ARGUMENT, "q is no memory that the GPU can read");
  in = good;
  in.q.data = device + 1;
  refuses(RANKONE_INVALID_ARGUMENT, "q starts 4 bytes off a multiple of 16");
  in = good;
  in.q.strides[0] = 32;
  refuses(RANKONE_UNSUPPORTED, "q is not row-major");
  in = good;
  how.workspace = host.data();
  how.workspace_bytes = 64;
  how.workspace =
      reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(host.data()) + 63) / 64 * 64);
  refuses(RANKONE_INVALID_ARGUMENT, "workspace is no memory of the GPU");
  how = {};
  in.q.dtype = in.w.dtype = in.v.dtype = out.o.dtype = RANKONE_F64;
  refuses(RANKONE_UNSUPPORTED, "f64 on cuda");
  in = good;
  out.o.dtype = RANKONE_F32;
  EXPECT_EQ(rankone_two_key(context, sequences, &in, &out, &how), RANKONE_OK)
      << rankone_last_error(context);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  rankone_sequences_free(sequences);
  rankone_context_free(context);
  cudaFree(device);
}

#endif

}  // namespace
}  // namespace rankone::test
