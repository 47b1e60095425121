// Model directories: what is written is read back, in the same layout; what does not fit is
// refused.

#include <fstream>

#include "core/files.hpp"
#include "core/safetensors.hpp"
#include "core/status.hpp"
#include "support/paths.hpp"
#include "support/scratch.hpp"
#include "tests/model/support.hpp"

namespace rankone::test {
namespace {

namespace fs = std::filesystem;

fs::path golden(const char* name) {
  return source_dir() / "tests" / "data" / "golden_models" / name;
}

std::string refusal_of(const fs::path& directory) {
  try {
    Model::load(directory, Dtype::f32);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::corrupt) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "loaded";
  return "";
}

TEST(Checkpoint, AForeignOneIsWrittenWithTheSameNamesShapesAndValues) {
  for (const char* name : {"gated_deltanet_nogate_gva", "gla"}) {
    Scratch scratch;
    Model::load(golden(name), Dtype::f32).save(scratch.path());
    const TensorFile before = read_safetensors_model(golden(name));
    const TensorFile after = read_safetensors_model(scratch.path());
    EXPECT_EQ(before.tensors.size(), after.tensors.size());
    for (const auto& [tensor_name, tensor] : before.tensors) {
      EXPECT_TRUE(same_bits(tensor, after.at(tensor_name))) << tensor_name;
    }
    const Json old_config = Json::parse(read_file(golden(name) / "config.json", 1 << 20));
    const Json config = Json::parse(read_file(scratch / "config.json", 1 << 20));
    for (const auto& [key, value] : config.items()) {
      // Keys of our own aside, every key is one that the published class writes, with its value.
      const bool own = key == "hidden_act" || key == "attn" || !old_config.contains(key);
      if (!own && !old_config.at(key).is_null()) {
        EXPECT_EQ(value, old_config.at(key)) << key;
      }
    }
    EXPECT_EQ(config.at("architectures"), old_config.at("architectures"));
  }
}

TEST(Checkpoint, EveryModelIsReadBackAsItWas) {
  for (const NamedConfig& named : tiny_models()) {
    Scratch scratch;
    Model model = Model::create(named.config, Dtype::f32, 9);
    model.save(scratch.path());
    Model again = Model::load(scratch.path(), Dtype::f32);
    EXPECT_EQ(again.config(), named.config) << named.name;
    const auto a = model.parameters(), b = again.parameters();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i]->name, b[i]->name);
      EXPECT_EQ(a[i]->decays, b[i]->decays);
      EXPECT_TRUE(same_bits(a[i]->value, b[i]->value)) << a[i]->name;
    }
  }
}

TEST(Checkpoint, HalfPrecisionIsStorageOfTheMatricesOnly) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    Scratch scratch;
    const ModelConfig config = tiny_config(tiny_mixer("kla"));
    const Model model = Model::create(config, Dtype::f32, 9);
    model.save(scratch.path(), dtype);
    Model half = Model::load(scratch.path(), dtype);
    Model wide = Model::load(scratch.path(), Dtype::f32);
    EXPECT_EQ(half.dtype(), Dtype::f32);
    int matrices = 0;
    for (const nn::Parameter* parameter : half.parameters()) {
      const bool matrix = parameter->value.dtype() == dtype;
      matrices += matrix ? 1 : 0;
      if (!matrix) {
        EXPECT_EQ(parameter->value.dtype(), Dtype::f32) << parameter->name;
      }
    }
    EXPECT_GT(matrices, 10);
    Context context = cpu_context();
    const Tensor ids = random_ids(6, 13, 2);
    const Sequences sequences = Sequences::dense(1, 6);
    const Tensor want = run_hidden(wide, context, sequences, ids);
    EXPECT_LT(largest_difference(want, run_hidden(half, context, sequences, ids)),
              1e-5 * largest(want));
    EXPECT_THROW(half.enable_gradients(), Error);
  }
}

TEST(Checkpoint, ANewModelDependsOnItsSeedAndNamesOnly) {
  const ModelConfig config = tiny_config(tiny_mixer("gdn"));
  ModelConfig deeper = tiny_config(tiny_mixer("gdn"), 3);
  Model a = Model::create(config, Dtype::f32, 4), b = Model::create(config, Dtype::f32, 4);
  Model other = Model::create(config, Dtype::f32, 5), deep = Model::create(deeper, Dtype::f32, 4);
  bool differs = false;
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    const nn::Parameter& parameter = *a.parameters()[i];
    EXPECT_TRUE(same_bits(parameter.value, b.parameters()[i]->value));
    differs = differs || !same_bits(parameter.value, other.parameters()[i]->value);
    for (const nn::Parameter* same : deep.parameters()) {
      const bool rescaled = same->name.find("down_proj") != std::string::npos;
      if (same->name == parameter.name && !rescaled) {
        EXPECT_TRUE(same_bits(parameter.value, same->value)) << same->name;
      }
    }
  }
  EXPECT_TRUE(differs);
}

TEST(Checkpoint, NoWeightDecayOnGatesNormsAndBiases) {
  for (const NamedConfig& named : tiny_models()) {
    Model model = Model::create(named.config, Dtype::f32, 1);
    for (const nn::Parameter* parameter : model.parameters()) {
      const std::string& name = parameter->name;
      bool plain = name.ends_with(".bias") || name.find("norm") != std::string::npos;
      for (const char* mark :
           {"A_log", "dt_bias", "center", "lambda_params", "gain_theta", "q_correction", ".D"}) {
        plain = plain || name.find(mark) != std::string::npos;
      }
      EXPECT_EQ(parameter->decays, !plain) << name;
    }
  }
}

TEST(Checkpoint, TensorsThatDoNotFitAreRefusedByName) {
  const auto changed = [](auto&& change) {
    auto scratch = std::make_unique<Scratch>();
    fs::copy(golden("gla"), scratch->path(), fs::copy_options::recursive);
    TensorFile file = read_safetensors(scratch->path() / "model.safetensors");
    change(file);
    write_safetensors(scratch->path() / "model.safetensors", file);
    return scratch;
  };
  auto scratch = changed([](TensorFile& file) { file.tensors.pop_back(); });
  EXPECT_NE(refusal_of(scratch->path()).find("has no tensor"), std::string::npos);
  scratch = changed([](TensorFile& file) {
    file.add("model.layers.0.attn.extra", Tensor::zeros({2}, Dtype::f32));
  });
  EXPECT_NE(refusal_of(scratch->path()).find("attn.extra"), std::string::npos);
  scratch = changed([](TensorFile& file) {
    for (auto& [name, tensor] : file.tensors) {
      if (name == "model.norm.weight") tensor = Tensor::zeros({65}, Dtype::f32);
    }
  });
  EXPECT_NE(refusal_of(scratch->path()).find("model.norm.weight"), std::string::npos);
  scratch = changed([](TensorFile& file) {
    for (auto& [name, tensor] : file.tensors) {
      if (name == "model.norm.weight") tensor = Tensor::zeros({64}, Dtype::i32);
    }
  });
  refusal_of(scratch->path());
}

// g_norm is another name of the same tensor; the file's name depends on a switch of the writer.
TEST(Checkpoint, GlaMayCallItsNormByEitherName) {
  Scratch scratch;
  fs::copy(golden("gla"), scratch.path(), fs::copy_options::recursive);
  TensorFile file = read_safetensors(scratch / "model.safetensors");
  for (auto& [name, tensor] : file.tensors) {
    const std::size_t at = name.find("g_norm_swish_gate");
    if (at != std::string::npos) name.replace(at, 17, "g_norm");
  }
  write_safetensors(scratch / "model.safetensors", file);
  EXPECT_NO_THROW(Model::load(scratch.path(), Dtype::f32));
}

// The exact preconditioner is an oracle: float64, on the reference backend.
TEST(Checkpoint, GramIsRefusedOutsideFloat64) {
  MixerConfig mixer = tiny_mixer("pgdn");
  mixer.axes.preconditioner = recurrence::PreconditionerChoice::gram;
  model::normalise(mixer);
  const ModelConfig config = tiny_config(mixer);
  EXPECT_NO_THROW(Model::create(config, Dtype::f64, 1));
  EXPECT_THROW(Model::create(config, Dtype::f32, 1), Error);
}

TEST(Checkpoint, DirectoriesThatAreNoModelsAreRefused) {
  Scratch scratch;
  EXPECT_THROW(Model::load(scratch / "absent", Dtype::f32), Error);
  EXPECT_THROW(Model::load(scratch.path(), Dtype::f32), Error);
  std::ofstream(scratch / "config.json") << R"({"model_type": "gla"})";
  EXPECT_THROW(Model::load(scratch.path(), Dtype::f32), Error);
  EXPECT_THROW(Model::create(ModelConfig(), Dtype::f32, 1), Error);
}

}  // namespace
}  // namespace rankone::test
