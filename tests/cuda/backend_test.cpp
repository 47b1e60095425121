// The backend's place among the others: which calls it takes, and what it says to the rest; memory;
// the rows of a call on the device.

#include <vector>

#include "core/cuda/device_rows.hpp"
#include "core/status.hpp"
#include "support.hpp"
#include "tests/cases/cases.hpp"

namespace rankone::test {
namespace {

TEST(CudaBackend, TakesTheFormatsOfItsKernels) {
  const recurrence::CudaBackend backend;
  const Device device = kEmulated ? Device::cpu : Device::cuda;
  EXPECT_EQ(backend.name(), backend_name());
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    EXPECT_TRUE(backend.accepts({dtype, device, false}));
    EXPECT_FALSE(backend.accepts({dtype, device, true})) << "gram";
  }
  EXPECT_FALSE(backend.accepts({Dtype::f64, device, false}));
  EXPECT_FALSE(backend.accepts({Dtype::f32, kEmulated ? Device::cuda : Device::cpu, false}));
}

TEST(CudaBackend, NothingOnAGpuFallsToTheHost) {
  Context context;
  for (const recurrence::CallShape& call :
       {recurrence::CallShape{Dtype::f64, Device::cuda, false},
        recurrence::CallShape{Dtype::f32, Device::cuda, true}}) {
    try {
      recurrence::select_backend(context, call);
      FAIL() << "a backend was found";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::unsupported);
      EXPECT_NE(std::string(error.what()).find("on cuda"), std::string::npos) << error.what();
    }
  }
}

// Lengths 0, 1, 70, 3, 200, 0, ... in turn.
Sequences many(std::int64_t count) {
  constexpr std::int64_t kLengths[] = {0, 1, 70, 3, 200};
  std::vector<std::int64_t> boundaries{0};
  for (std::int64_t i = 0; i < count; ++i)
    boundaries.push_back(boundaries.back() + kLengths[i % 5]);
  return Sequences::packed(boundaries);
}

TEST(CudaRows, BoundariesReachTheDevice) {
  RANKONE_NEEDS_CUDA();
  Context context = cuda_context();
  for (const std::int64_t count : {2, 329, 330, 331, 1000}) {
    const Sequences sequences = many(count);
    const ArenaScope scope(context.arena());
    cuda::Rows rows = cuda::device_rows(context, sequences, 64);
    ASSERT_NE(rows.boundaries, nullptr);
    std::vector<std::int64_t> boundaries(static_cast<std::size_t>(count + 1));
    std::vector<std::int64_t> chunks(boundaries.size());
    copy_bytes(context, boundaries.data(), rows.boundaries, 8 * boundaries.size());
    copy_bytes(context, chunks.data(), rows.chunk_boundaries, 8 * chunks.size());
    rows.boundaries = boundaries.data();
    rows.chunk_boundaries = chunks.data();
    std::int64_t number = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(rows.begin(i), sequences.begin(i));
      ASSERT_EQ(rows.end(i), sequences.end(i));
      for (std::int64_t row = sequences.begin(i); row < sequences.end(i); row += 64, ++number) {
        const cuda::Span span = rows.span(number);
        ASSERT_EQ(span.sequence, i);
        ASSERT_EQ(span.first, row);
        ASSERT_EQ(span.count, std::min<std::int64_t>(64, sequences.end(i) - row));
        ASSERT_EQ(span.starts, row == sequences.begin(i));
        ASSERT_EQ(span.ends, row + span.count == sequences.end(i));
      }
    }
    EXPECT_EQ(rows.chunks, number);
  }
}

TEST(CudaRows, AnEvenCallNeedsNoMemory) {
  Context context;
  const std::vector<std::int64_t> even{0, 100, 200, 300};
  for (const Sequences& sequences : {Sequences::dense(3, 100), Sequences::packed(even)}) {
    const cuda::Rows rows = cuda::device_rows(context, sequences, 64);
    EXPECT_EQ(rows.boundaries, nullptr);
    EXPECT_EQ(rows.chunks, 6);
    EXPECT_EQ(rows.span(3).first, 164);
    EXPECT_EQ(rows.span(3).count, 36);
  }
  EXPECT_EQ(context.arena().capacity(), 0U);
  EXPECT_EQ(cuda::device_rows(context, Sequences::dense(4, 0), 64).chunks, 0);
  EXPECT_EQ(cuda::device_rows(context, Sequences::dense(0, 5), 64).chunks, 0);
}

}  // namespace
}  // namespace rankone::test
