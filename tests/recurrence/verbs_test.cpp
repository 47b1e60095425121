// The verbs that need nothing but the recurrence: mixers and golden.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/safetensors.hpp"
#include "support/command.hpp"
#include "support/paths.hpp"
#include "support/scratch.hpp"

namespace rankone::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

fs::path golden_ops() { return source_dir() / "tests/data/golden_ops"; }

// A copy whose output or gradient is off by a thousandth in one element.
void write_spoiled(const fs::path& from, const fs::path& to) {
  TensorFile file = read_safetensors(from);
  for (auto& [name, tensor] : file.tensors) {
    if (name == "grad.v") tensor.data<double>()[3] *= 1.001;
  }
  write_safetensors(to, file);
}

TEST(MixersVerb, PrintsTheFamily) {
  const CommandResult result = run_rankone({"mixers"});
  EXPECT_EQ(result.status, 0) << result.err;
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 22U);
  EXPECT_TRUE(lines[0].starts_with("mixer"));
  bool found = false;
  for (const std::string& line : lines) {
    found = found || (line.starts_with("kla ") && line.find("kaczmarz") != std::string::npos);
  }
  EXPECT_TRUE(found);
}

TEST(GoldenVerb, ComparesAFolderOnTwoBackends) {
  const CommandResult result =
      run_rankone({"golden", golden_ops().string(), "--backend", "reference", "--backend", "cpu"});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 35U);  // 17 files, 2 backends, the count
  EXPECT_EQ(lines.back(), "34 passed, 0 failed");
}

TEST(GoldenVerb, ComparesOneFile) {
  const CommandResult result =
      run_rankone({"golden", (golden_ops() / "kda_e.safetensors").string()});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(lines_of(result.out).back(), "1 passed, 0 failed");
  EXPECT_TRUE(result.out.starts_with("kda_e.safetensors cpu: passed"));
}

TEST(GoldenVerb, SeesAWrongElement) {
  const Scratch scratch;
  fs::copy_file(golden_ops() / "kda_e.safetensors", scratch / "a.safetensors");
  write_spoiled(golden_ops() / "kda_e.safetensors", scratch / "b.safetensors");
  const CommandResult result = run_rankone({"golden", scratch.path().string()});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.out.find("b.safetensors cpu: FAILED; grad.v"), std::string::npos) << result.out;
  EXPECT_EQ(lines_of(result.out).back(), "1 passed, 1 failed");
}

TEST(GoldenVerb, AMalformedFileInAFolderIsAFailure) {
  const Scratch scratch;
  fs::copy_file(golden_ops() / "kda_e.safetensors", scratch / "a.safetensors");
  std::ofstream(scratch / "b.safetensors") << "nothing of the kind";
  TensorFile no_metadata = read_safetensors(golden_ops() / "kda_e.safetensors");
  no_metadata.metadata.clear();
  write_safetensors(scratch / "c.safetensors", no_metadata);
  TensorFile no_input = read_safetensors(golden_ops() / "kda_e.safetensors");
  std::erase_if(no_input.tensors, [](const auto& entry) { return entry.first == "in.v"; });
  write_safetensors(scratch / "d.safetensors", no_input);
  const CommandResult result = run_rankone({"golden", scratch.path().string()});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(lines_of(result.out).back(), "1 passed, 3 failed") << result.out;
  for (const char* name : {"b.safetensors", "c.safetensors", "d.safetensors"}) {
    expect_refusal(run_rankone({"golden", (scratch / name).string()}), "rankone: ");
  }
}

// Shapes that do not fit together are refused, whatever the op makes of them.
TEST(GoldenVerb, WrongShapesAreRefused) {
  const Scratch scratch;
  for (const fs::directory_entry& entry : fs::directory_iterator(golden_ops())) {
    for (const char* input : {"in.k", "in.q", "in.v", "in.h0", "cot.o"}) {
      TensorFile file = read_safetensors(entry.path());
      for (auto& [name, tensor] : file.tensors) {
        if (name == input) tensor = Tensor::zeros({3, 2, 1}, Dtype::f32);
      }
      if (file.find(input) == nullptr) continue;
      write_safetensors(scratch / "x.safetensors", file);
      expect_refusal(run_rankone({"golden", (scratch / "x.safetensors").string()}), "rankone: ");
    }
  }
}

TEST(GoldenVerb, RefusesWhatItCanNotRead) {
  const Scratch scratch;
  const std::string good = (golden_ops() / "kda_e.safetensors").string();
  expect_refusal(run_rankone({"golden", (scratch / "absent").string()}), "does not exist");
  expect_refusal(run_rankone({"golden", scratch.path().string()}), "holds no .safetensors file");
  std::ofstream(scratch / "x.txt") << "text";
  expect_refusal(run_rankone({"golden", (scratch / "x.txt").string()}), "no .safetensors file");
  expect_refusal(run_rankone({"golden", good, "--backend", "abacus"}), "abacus");
  expect_refusal(run_rankone({"golden", good, "--dtype", "f8"}), "f8");
  expect_refusal(run_rankone({"golden", good, "--dtype", "bf16"}), "bf16");
  expect_refusal(run_rankone({"golden"}), "PATH");
}

}  // namespace
}  // namespace rankone::test
