// The op files of published recurrences, in float32.

#include <filesystem>

#include "apps/golden_ops.hpp"
#include "core/status.hpp"
#include "support.hpp"
#include "support/paths.hpp"

namespace rankone::test {
namespace {

namespace fs = std::filesystem;
using namespace rankone::apps;

// The folder in the source tree, or, carried to another machine, below where the test runs.
fs::path small_set() {
  const fs::path here = "tests/data/golden_ops";
  return fs::exists(source_dir() / here) ? source_dir() / here : here;
}

TEST(CudaGolden, SmallSetAgrees) {
  RANKONE_NEEDS_CUDA();
  if (!fs::exists(small_set())) GTEST_SKIP() << small_set() << " is not here";
  Context context = host_context();
  int files = 0;
  std::string missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(small_set())) {
    if (entry.path().extension() != ".safetensors") continue;
    const TensorFile file = read_safetensors(entry.path());
    if (!is_recurrence_op(golden_op(file))) continue;
    ++files;
    SCOPED_TRACE(entry.path().filename());
    try {
      for (const TensorCheck& check : check_op_file(file, context, Dtype::f32)) {
        EXPECT_TRUE(check.passed) << check.name << " " << check.detail << ": " << check.error
                                  << " of its bound";
      }
    } catch (const Error& error) {
      if (error.status() != Status::unsupported) ADD_FAILURE() << error.what();
      missing = error.what();
    }
  }
  EXPECT_EQ(files, 17);
  if (!missing.empty()) GTEST_SKIP() << "not all files: " << missing;
}

}  // namespace
}  // namespace rankone::test
