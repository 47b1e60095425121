// The op files of published recurrences: a small set that lies in tests/data, and the full set
// where the developers' shared folder is.

#include <gtest/gtest.h>

#include "apps/golden_ops.hpp"
#include "core/isa.hpp"
#include "support/paths.hpp"
#include "support/recurrence_support.hpp"

namespace rankone::test {
namespace {

namespace fs = std::filesystem;
using namespace rankone::apps;

int check_folder(const fs::path& folder, Context& context, Dtype dtype) {
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const TensorFile file = read_safetensors(entry.path());
    if (!is_recurrence_op(golden_op(file))) continue;
    ++files;
    for (const TensorCheck& check : check_op_file(file, context, dtype)) {
      EXPECT_TRUE(check.passed) << entry.path().filename() << " " << check.name << " "
                                << check.detail << ": " << check.error << " of its bound";
    }
  }
  return files;
}

class GoldenOps : public testing::TestWithParam<const char*> {
 protected:
  Dtype dtype() const {
    return std::string_view(GetParam()) == "reference" ? Dtype::f64 : Dtype::f32;
  }
};

TEST_P(GoldenOps, SmallSetAgrees) {
  Context context = make_context(GetParam(), 2);
  EXPECT_EQ(check_folder(source_dir() / "tests/data/golden_ops", context, dtype()), 17);
}

TEST_P(GoldenOps, FullSetAgrees) {
  const fs::path folder = shared_dir() / "golden/ops";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not here";
  Context context = make_context(GetParam(), 2);
  EXPECT_GE(check_folder(folder, context, dtype()), 74);
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenOps, testing::Values("reference", "cpu"),
                         [](const auto& suite) { return std::string(suite.param); });

// Asked for by name, so that files with per-channel decay run on tiles too.
TEST(GoldenOpsOnTiles, BothSetsAgree) {
  if (tile_unit() == TileUnit::none) GTEST_SKIP() << "no tile unit (RANKONE_ISA=amx-emulated)";
  Context context({.threads = 2, .precision = Precision::bf16x3, .backends = {"cpu"}});
  EXPECT_EQ(check_folder(source_dir() / "tests/data/golden_ops", context, Dtype::f32), 17);
  const fs::path folder = shared_dir() / "golden/ops";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not here";
  EXPECT_GE(check_folder(folder, context, Dtype::f32), 74);
}

// The comparison itself must see what is wrong.
TEST(GoldenComparison, SeesErrors) {
  Random random(1);
  const GoldenBounds bounds = golden_bounds(Dtype::f32);
  const Tensor expected = normal(random, {2, 5, 2, 8});
  const auto passes = [&](const Tensor& got) {
    return compare_golden("x", expected, got, GoldenRows::rows, bounds).passed;
  };
  EXPECT_TRUE(passes(expected));
  EXPECT_TRUE(passes(expected.to(Dtype::f32)));
  EXPECT_FALSE(passes(Tensor()));
  EXPECT_FALSE(passes(expected.reshape({2, 10, 8})));
  EXPECT_FALSE(passes(times(expected, 1.0 + 3e-5)));
  Tensor bad = expected.clone();
  bad.data<double>()[7] = NAN;
  EXPECT_FALSE(passes(bad));
  bad.data<double>()[7] = INFINITY;
  EXPECT_FALSE(passes(bad));
  // A small row that is wrong is not hidden by large ones.
  Tensor uneven = expected.clone();
  for (int i = 0; i < 8; ++i) uneven.data<double>()[i] *= 1e-3;
  bad = uneven.clone();
  for (int i = 0; i < 8; ++i) bad.data<double>()[i] *= 1.001;
  EXPECT_FALSE(compare_golden("x", uneven, bad, GoldenRows::rows, bounds).passed);
  // Nor one head of a scalar gradient.
  const Tensor scalars = normal(random, {1, 9, 3});
  Tensor head = scalars.clone();
  for (int t = 0; t < 9; ++t) head.data<double>()[t * 3 + 1] *= 1.0 + 1e-4;
  EXPECT_FALSE(compare_golden("g", scalars, head, GoldenRows::scalars, bounds).passed);
}

TEST(GoldenOpFile, AMissingResultFails) {
  TensorFile file =
      read_safetensors(source_dir() / "tests/data/golden_ops/delta_rule_e.safetensors");
  file.add("grad.unheard_of", filled({1}, 0.0));
  Context context = make_context();
  EXPECT_FALSE(all_passed(check_op_file(file, context, Dtype::f64)));
}

}  // namespace
}  // namespace rankone::test
