#pragma once

// The parameters of a model: declared by its layers (name, shapes, initial value), then filled from
// the seeded generator or from a file.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "core/safetensors.hpp"
#include "nn/parameter.hpp"

namespace rankone::model {

// The distribution of a new value.
struct Init {
  enum class Kind { constant, normal, uniform, log_uniform_a, step_bias };
  Kind kind = Kind::constant;
  double a = 0;  // constant: the value; normal: the deviation; others: low
  double b = 0;  // high
  double c = 0;  // step_bias: floor

  static Init constant(double value) { return {Kind::constant, value, 0, 0}; }
  static Init normal(double deviation) { return {Kind::normal, deviation, 0, 0}; }
  static Init uniform(double bound) { return {Kind::uniform, -bound, bound, 0}; }
  // log A, A uniform in (low, high].
  static Init log_uniform_a(double low, double high) { return {Kind::log_uniform_a, low, high, 0}; }
  // The inverse softplus of a log-uniform step in [low, high], at least `floor`.
  static Init step_bias(double low, double high, double floor) {
    return {Kind::step_bias, low, high, floor};
  }
  double draw(Random& random) const;
};

struct ParameterSpec {
  std::string name;
  Shape shape;       // in memory
  Shape file_shape;  // in the file; the same count. Rank 0: as in memory
  Init init;
  bool decays = true;
  bool weight = false;     // a matrix that stays bf16 or f16 where the model is stored so
  std::string alias;       // another name that a file may use, or empty
  bool any_shape = false;  // the file may hold any shape of this count (KDA's A_log)
};

class ParameterSet {
 public:
  const nn::Parameter* add(ParameterSpec spec);

  // Every parameter draws from a stream of its own, named by its name, so that its values depend
  // neither on the order nor on the presence of others.
  void initialize(Dtype dtype, std::uint64_t seed);
  // From a checkpoint; `storage` is f64 or f32 (all values), or bf16 or f16 (weights; the rest
  // f32). Fails (corrupt) on a missing tensor, a wrong shape and a tensor that no parameter has,
  // except those named in `ignored`.
  void load(const TensorFile& file, Dtype storage, std::string_view where,
            const std::vector<std::string>& ignored);
  // Tensors of `dtype`, in the order of declaration.
  TensorFile save(Dtype dtype) const;
  void enable_gradients();

  std::vector<nn::Parameter*> list();
  std::int64_t count() const;  // of all values

 private:
  struct Entry {
    ParameterSpec spec;
    std::unique_ptr<nn::Parameter> parameter;
  };
  std::vector<Entry> entries_;
};

}  // namespace rankone::model
