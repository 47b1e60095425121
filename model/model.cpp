#include "model/model.hpp"

#include <utility>

#include "core/files.hpp"
#include "core/status.hpp"
#include "model/model_impl.hpp"

namespace rankone::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestConfig = std::size_t{4} << 20;

const nn::Parameter* add_norm(ParameterSet& set, std::string name, std::int64_t width) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = {width};
  spec.init = Init::constant(1.0);
  spec.decays = false;
  return set.add(std::move(spec));
}

const nn::Parameter* add_table(ParameterSet& set, std::string name, std::string alias,
                               const ModelConfig& config, Init init) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.alias = std::move(alias);
  spec.shape = {config.vocab_size, config.hidden_size};
  spec.init = init;
  spec.weight = true;
  return set.add(std::move(spec));
}

// Refuses what only the reference backend, a float64 model, can run.
void check_axes_for(const ModelConfig& config, Dtype dtype) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.mixer) recurrence::check_axes(layer.mixer->axes, dtype == Dtype::f64);
  }
}

// Tensors that files of this kind may hold beside the parameters.
std::vector<std::string> ignored_tensors(const ModelConfig& config) {
  std::vector<std::string> names;
  const Layout& layout = layout_of(config.model_type);
  if (config.tie_word_embeddings) names.push_back(layout.head);
  for (std::size_t i = 0; config.model_type == "llama" && i < config.layers.size(); ++i) {
    // Frequencies that older writers stored; they follow from the configuration.
    names.push_back(layout.layers + std::to_string(i) + ".self_attn.rotary_emb.inv_freq");
  }
  return names;
}

}  // namespace

Model::Impl::Impl(ModelConfig config_) : config(std::move(config_)) {
  check_config(config, "configuration");
  const Layout& layout = layout_of(config.model_type);
  const Declare top(parameters, config, -1);
  embeddings = add_table(parameters, layout.embeddings, layout.embeddings_alias, config,
                         Init::normal(config.initializer_range));
  std::size_t first_entry = 0;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const Declare declare(parameters, config, static_cast<int>(i));
    Block block;
    block.mixing_norm =
        add_norm(parameters, declare.prefix() + layout.mixer_norm, config.hidden_size);
    block.mixing =
        layer.mixer ? make_mixer(declare, *layer.mixer) : make_attention(declare, *layer.attention);
    block.mixing->place_state(first_entry);
    first_entry += block.mixing->state_shapes().size();
    if (layer.intermediate_size > 0) {
      block.mlp_norm = add_norm(parameters, declare.prefix() + layout.mlp_norm, config.hidden_size);
      block.mlp = std::make_unique<Mlp>(declare, layer.intermediate_size, layer.mlp_bias);
    }
    blocks.push_back(std::move(block));
  }
  final_norm = add_norm(parameters, layout.final_norm, config.hidden_size);
  head = config.tie_word_embeddings
             ? embeddings
             : add_table(parameters, layout.head, "", config, top.matrix_init(config.hidden_size));
}

State Model::Impl::make_state(std::int64_t sequences) const {
  std::vector<State::Entry> entries;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const StateShape& shape : blocks[i].mixing->state_shapes()) {
      std::vector<std::int64_t> whole{sequences};
      for (int axis = 0; axis < shape.shape.rank(); ++axis) whole.push_back(shape.shape[axis]);
      State::Entry entry;
      entry.name = "layers." + std::to_string(i) + "." + shape.name;
      entry.value = Tensor::zeros(Shape(whole), dtype);
      entry.grows = shape.grows;
      const Tensor fresh = blocks[i].mixing->fresh_state(shape);
      if (fresh.defined()) entry.fresh = fresh.to(dtype);
      entries.push_back(std::move(entry));
    }
  }
  return State(sequences, std::move(entries));
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::create(const ModelConfig& config, Dtype dtype, std::uint64_t seed) {
  require(dtype == Dtype::f32 || dtype == Dtype::f64,
          "[model] a new model can not be {} (must be f32 or f64)", name(dtype));
  check_axes_for(config, dtype);
  auto impl = std::make_unique<Impl>(config);
  impl->dtype = dtype;
  impl->parameters.initialize(dtype, seed);
  return Model(std::move(impl));
}

Model Model::load(const fs::path& directory, Dtype dtype) {
  const std::string where = directory.string();
  require(is_floating(dtype), "[model] {} is no dtype of weights", name(dtype));
  const fs::path file = directory / "config.json";
  auto impl = std::make_unique<Impl>(parse_config(read_file(file, kLargestConfig), file.string()));
  impl->dtype = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  check_axes_for(impl->config, impl->dtype);
  impl->parameters.load(read_safetensors_model(directory), dtype, where,
                        ignored_tensors(impl->config));
  return Model(std::move(impl));
}

void Model::save(const fs::path& directory, Dtype dtype) const {
  require(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16,
          "[model] can not be written as {} (f32, bf16 or f16)", name(dtype));
  fs::create_directories(directory);
  write_safetensors(directory / "model.safetensors", impl_->parameters.save(dtype));
  write_file(directory / "config.json", format_config(impl_->config).dump(2) + "\n");
}

const ModelConfig& Model::config() const { return impl_->config; }
Dtype Model::dtype() const { return impl_->dtype; }
std::vector<nn::Parameter*> Model::parameters() { return impl_->parameters.list(); }
std::int64_t Model::parameter_count() const { return impl_->parameters.count(); }

std::int64_t Model::non_embedding_parameter_count() const {
  const std::int64_t table = impl_->config.vocab_size * impl_->config.hidden_size;
  return parameter_count() - table * (impl_->config.tie_word_embeddings ? 1 : 2);
}

void Model::enable_gradients() { impl_->parameters.enable_gradients(); }
const nn::Parameter& Model::output_weight() const { return *impl_->head; }
State Model::make_state(std::int64_t sequences) const {
  require(sequences >= 0, "[model] a state of {} sequences (must not be negative)", sequences);
  return impl_->make_state(sequences);
}

ModelSummary summarise(const ModelConfig& config) {
  const Model::Impl model(config);
  ModelSummary summary;
  summary.parameters = model.parameters.count();
  summary.embedding_parameters =
      config.vocab_size * config.hidden_size * (config.tie_word_embeddings ? 1 : 2);
  summary.state_bytes = static_cast<std::int64_t>(sizeof(std::int64_t));  // the position
  for (const Block& block : model.blocks) {
    LayerSummary layer;
    for (const StateShape& shape : block.mixing->state_shapes()) {
      // A cache has capacity 0 here: one token of it counts by the token.
      Shape one = shape.shape;
      if (shape.grows) one[1] = 1;
      const std::int64_t bytes = one.count() * static_cast<std::int64_t>(size_of(Dtype::f32));
      (shape.grows ? layer.cache_bytes_per_token : layer.state_bytes) += bytes;
    }
    summary.state_bytes += layer.state_bytes;
    summary.cache_bytes_per_token += layer.cache_bytes_per_token;
    summary.layers.push_back(layer);
  }
  return summary;
}

Tensor Model::logits(Context& context, const Tensor& hidden,
                     std::span<const std::int64_t> rows) const {
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor logits = context.empty({count, impl_->config.vocab_size}, impl_->dtype);
  const ArenaScope scope(context.arena());
  const Tensor chosen = context.empty({count, hidden.dim(-1)}, hidden.dtype());
  nn::gather_rows(context, hidden, rows, chosen);
  nn::linear(context, {chosen, impl_->head->value, {}}, logits);
  return logits;
}

}  // namespace rankone::model
