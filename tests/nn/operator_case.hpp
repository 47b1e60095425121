#pragma once

// One operator call as data, so that the same checks run over all of them: finite differences, the
// CPU backend against the reference, thread counts, guard bands, planning.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/context.hpp"
#include "core/random.hpp"
#include "core/tensor.hpp"

namespace rankone::nn::test {

using Tensors = std::vector<Tensor>;

struct OperatorCase {
  std::string name;
  Tensors inputs;                // f64, every value a float32
  std::vector<bool> parameters;  // which inputs are parameters: their gradients accumulate
  std::vector<Shape> outputs;
  std::function<void(Context&, const Tensors& in, const Tensors& out)> forward;
  // dout: cotangents of the outputs; din: gradients of the inputs.
  std::function<void(Context&, const Tensors& in, const Tensors& dout, const Tensors& din)> vjp;
  // Not 0: the size of the terms whose difference a gradient is, where they cancel almost wholly
  // (the norm of one number); rounding errors are then compared with it.
  double cancelling_terms = 0;
};

inline Context reference_context() { return Context({.threads = 1, .backends = {"reference"}}); }
inline Context cpu_context(int threads = 2) {
  return Context({.threads = threads, .backends = {"cpu"}});
}

// Normal values times `deviation`, each exactly a float32, of dtype f64.
Tensor normals(Random& random, const Shape& shape, double deviation = 1.0);
// A tensor in the middle of a larger allocation; overrun() tells whether its surroundings changed.
class Guarded {
 public:
  Guarded(const Shape& shape, Dtype dtype);
  const Tensor& tensor() const { return tensor_; }
  bool overrun() const;

 private:
  Tensor memory_;
  Tensor tensor_;
};

struct Results {
  Tensors outputs;
  Tensors gradients;
};
// Forward and vjp with inputs of `dtype`, outputs and gradients guarded; the vjp runs twice, and
// parameter gradients must come out doubled and the others unchanged. Inputs must stay as they
// were. Cotangents are normals of a fixed seed.
Results run(Context& context, const OperatorCase& op, Dtype dtype);

void expect_gradients_match_differences(const OperatorCase& op);
void expect_cpu_matches_reference(const OperatorCase& op);
void expect_same_bits_for_any_thread_count(const OperatorCase& op);
void expect_plan_is_what_a_run_uses(const OperatorCase& op);

// Errors of a against b: the RMS over max(RMS of b, floor), and the largest |a - b| over
// max(|b|, RMS of b, floor).
struct Difference {
  double rms = 0;
  double largest = 0;
};
Difference difference(const Tensor& a, const Tensor& b, double floor = 0);
bool same_bits(const Tensor& a, const Tensor& b);

}  // namespace rankone::nn::test
