#include "model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "core/status.hpp"

namespace rankone::model {
namespace {

// FNV-1a: the random stream of a parameter.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

Tensor storage_of(const ParameterSpec& spec, const Tensor& tensor, Dtype storage) {
  const bool half = storage == Dtype::bf16 || storage == Dtype::f16;
  const Dtype dtype = half && !spec.weight ? Dtype::f32 : storage;
  return tensor.to(dtype).reshape(spec.shape);
}

}  // namespace

double Init::draw(Random& random) const {
  switch (kind) {
    case Kind::constant:
      return a;
    case Kind::normal:
      return a * random.normal();
    case Kind::uniform:
      return random.uniform(a, b);
    case Kind::log_uniform_a:
      return std::log(a + (b - a) * (1.0 - random.uniform()));
    case Kind::step_bias: {
      const double step = std::exp(random.uniform(std::log(a), std::log(b)));
      const double floored = std::max(step, c);
      return floored + std::log(-std::expm1(-floored));
    }
  }
  return 0;
}

const nn::Parameter* ParameterSet::add(ParameterSpec spec) {
  if (spec.file_shape.rank() == 0) spec.file_shape = spec.shape;
  auto parameter = std::make_unique<nn::Parameter>();
  parameter->name = spec.name;
  parameter->decays = spec.decays;
  const nn::Parameter* result = parameter.get();
  entries_.push_back(Entry{std::move(spec), std::move(parameter)});
  return result;
}

void ParameterSet::initialize(Dtype dtype, std::uint64_t seed) {
  for (Entry& entry : entries_) {
    const Tensor value = Tensor::empty(entry.spec.shape, Dtype::f64);
    Random random(seed, stream_of(entry.spec.name));
    for (double& element : value.span<double>()) element = entry.spec.init.draw(random);
    entry.parameter->value = dtype == Dtype::f64 ? value : value.to(dtype);
  }
}

void ParameterSet::load(const TensorFile& file, Dtype storage, std::string_view where,
                        const std::vector<std::string>& ignored) {
  std::unordered_map<std::string_view, const Tensor*> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.emplace(name, &tensor);
  std::unordered_set<std::string_view> used(ignored.begin(), ignored.end());
  for (Entry& entry : entries_) {
    const ParameterSpec& spec = entry.spec;
    auto found = tensors.find(spec.name);
    if (found == tensors.end() && !spec.alias.empty()) found = tensors.find(spec.alias);
    if (found == tensors.end()) {
      fail(Status::corrupt,
           "[model] {} has no tensor {} (its config.json asks for one of shape {})", where,
           spec.name, spec.file_shape.str());
    }
    const Tensor& tensor = *found->second;
    const bool fits =
        spec.any_shape ? tensor.count() == spec.shape.count() : tensor.shape() == spec.file_shape;
    if (!fits || !is_floating(tensor.dtype())) {
      fail(Status::corrupt, "[model] {}: {} is {} {} (config.json asks for {})", where, spec.name,
           name(tensor.dtype()), tensor.shape().str(), spec.file_shape.str());
    }
    entry.parameter->value = storage_of(spec, tensor, storage);
    if (spec.any_shape) entry.spec.file_shape = tensor.shape();
    used.insert(spec.name);
    if (!spec.alias.empty()) used.insert(spec.alias);
  }
  for (const auto& [name, tensor] : file.tensors) {
    if (!used.contains(name)) {
      fail(Status::corrupt, "[model] {} has a tensor {} {} that its config.json does not ask for",
           where, name, tensor.shape().str());
    }
  }
}

TensorFile ParameterSet::save(Dtype dtype) const {
  TensorFile file;
  file.metadata.emplace_back("format", "pt");
  for (const Entry& entry : entries_) {
    file.add(entry.spec.name, entry.parameter->value.to(dtype).reshape(entry.spec.file_shape));
  }
  return file;
}

void ParameterSet::enable_gradients() {
  for (Entry& entry : entries_) {
    nn::Parameter& parameter = *entry.parameter;
    require(parameter.value.dtype() == Dtype::f32 || parameter.value.dtype() == Dtype::f64,
            "[model] {} is stored as {} (only f32 and f64 models can be trained)", parameter.name,
            name(parameter.value.dtype()));
    parameter.grad = Tensor::zeros(parameter.value.shape(), parameter.value.dtype());
  }
}

std::vector<nn::Parameter*> ParameterSet::list() {
  std::vector<nn::Parameter*> result;
  for (const Entry& entry : entries_) result.push_back(entry.parameter.get());
  return result;
}

std::int64_t ParameterSet::count() const {
  std::int64_t total = 0;
  for (const Entry& entry : entries_) total += entry.spec.shape.count();
  return total;
}

}  // namespace rankone::model
