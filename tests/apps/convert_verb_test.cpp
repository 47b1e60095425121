#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/files.hpp"
#include "core/safetensors.hpp"
#include "tests/support/command.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::run_rankone;
using test::Scratch;

class ConvertVerb : public testing::Test {
 protected:
  ConvertVerb() {
    const std::vector<float> values{1.0F, -0.1F, 3.14159F};
    weights_.metadata = {{"format", "pt"}};
    weights_.add("z", Tensor::of<float>(values, {3}));
    weights_.add("a", Tensor::of<float>(values, {1, 3}).to(Dtype::bf16));
    weights_.add("n", Tensor::of<std::int64_t>(std::vector<std::int64_t>{7}, {1}));
    fs::create_directory(scratch_ / "model");
    write_safetensors(scratch_ / "model" / "model.safetensors", weights_);
    write_file(scratch_ / "model" / "config.json", "{\"model_type\": \"x\"}");
    write_file(scratch_ / "model" / "tokenizer.model", "pieces");
    write_file(scratch_ / "model" / "notes.txt", "other");
  }
  std::string at(const char* name) const { return (scratch_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) {
      result.push_back(entry.path().filename());
    }
    std::sort(result.begin(), result.end());
    return result;
  }
  Scratch scratch_;
  TensorFile weights_;
};

TEST_F(ConvertVerb, RewritesADirectory) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const std::string out = at(dtype) + "/";
    const auto result = run_rankone({"convert", at("model"), out, "--dtype", dtype});
    ASSERT_EQ(result.status, 0) << result.err;
    const TensorFile file = read_safetensors_model(out);
    EXPECT_EQ(file.metadata, weights_.metadata);
    ASSERT_EQ(file.tensors.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& [name, tensor] = file.tensors[i];
      EXPECT_EQ(name, weights_.tensors[i].first);
      EXPECT_EQ(tensor.shape(), weights_.tensors[i].second.shape());
      if (name == "n") {
        EXPECT_EQ(tensor.data<std::int64_t>()[0], 7);
        continue;
      }
      EXPECT_EQ(rankone::name(tensor.dtype()), dtype);
      const Tensor expected = weights_.tensors[i].second.to(tensor.dtype());
      EXPECT_EQ(std::memcmp(tensor.raw(), expected.raw(), tensor.bytes()), 0);
    }
    EXPECT_EQ(read_file(scratch_ / dtype / "config.json", 100), "{\"model_type\": \"x\"}");
    EXPECT_EQ(read_file(scratch_ / dtype / "tokenizer.model", 100), "pieces");
    EXPECT_FALSE(fs::exists(scratch_ / dtype / "notes.txt"));
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"bf16", "f16", "f32", "model"}));
}

TEST_F(ConvertVerb, RewritesAFileAndIsExactThereAndBack) {
  const std::string original = at("model") + "/model.safetensors";
  ASSERT_EQ(run_rankone({"convert", original, at("b"), "--dtype", "bf16"}).status, 0);
  ASSERT_EQ(run_rankone({"convert", at("b"), at("w")}).status, 0);  // f32 by default
  ASSERT_EQ(run_rankone({"convert", at("w"), at("b2"), "--dtype", "bf16"}).status, 0);
  EXPECT_EQ(read_file(at("b"), 1 << 20), read_file(at("b2"), 1 << 20));
  EXPECT_EQ(read_safetensors(at("w")).at("z").dtype(), Dtype::f32);
}

TEST_F(ConvertVerb, JoinsShardsAndUsesAnEmptyFolder) {
  const fs::path model = scratch_ / "model";
  TensorFile first;
  first.add("z", weights_.at("z"));
  TensorFile second;
  second.add("a", weights_.at("a"));
  write_safetensors(model / "m-1.safetensors", first);
  write_safetensors(model / "m-2.safetensors", second);
  fs::remove(model / "model.safetensors");
  write_file(model / "model.safetensors.index.json",
             R"({"weight_map":{"z":"m-1.safetensors","a":"m-2.safetensors"}})");
  fs::create_directory(scratch_ / "out");
  ASSERT_EQ(run_rankone({"convert", model.string(), at("out")}).status, 0);
  EXPECT_EQ(read_safetensors(scratch_ / "out" / "model.safetensors").tensors.size(), 2U);
  EXPECT_FALSE(fs::exists(scratch_ / "out" / "model.safetensors.index.json"));
}

TEST_F(ConvertVerb, RefusesAndLeavesNothing) {
  const auto before = names();
  expect_refusal(run_rankone({"convert", at("absent"), at("out")}), "does not exist");
  expect_refusal(run_rankone({"convert", at("model"), at("model")}), "exists");
  expect_refusal(run_rankone({"convert", at("model"), at("model/.")}), "exists");
  const std::string file = at("model") + "/model.safetensors";
  expect_refusal(run_rankone({"convert", file, file}), "exists");
  expect_refusal(run_rankone({"convert", at("model"), at("out"), "--dtype", "f8"}), "f8");
  expect_refusal(run_rankone({"convert", at("model"), "/absent/out"}), "/absent");
  expect_refusal(run_rankone({"convert", at("model")}), "OUT");
  write_file(file, read_file(file, 1 << 20).substr(0, 100));
  expect_refusal(run_rankone({"convert", at("model"), at("out")}), "model.safetensors");
  fs::remove(scratch_ / "model" / "config.json");
  expect_refusal(run_rankone({"convert", at("model"), at("out")}), "config.json");
  EXPECT_EQ(names(), before);
}

TEST_F(ConvertVerb, WeightsBeyondTheRangeAreAFailure) {
  weights_.add("large", Tensor::of<float>(std::vector<float>{1.0F, 65'520.0F}, {2}));
  write_safetensors(scratch_ / "model" / "model.safetensors", weights_);
  const auto result = run_rankone({"convert", at("model"), at("out"), "--dtype", "f16"});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("'large': element 1 is 65520"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
  EXPECT_EQ(run_rankone({"convert", at("model"), at("out"), "--dtype", "bf16"}).status, 0);
}

}  // namespace
}  // namespace rankone
