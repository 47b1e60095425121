#pragma once

// The one list of inputs that drives the tests of the two-key recurrence on every backend:
// correctness, gradients, determinism, splitting, packing and bounds. A case is a description;
// make_inputs() turns it into tensors, from its seed alone.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "core/sequences.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::test {

enum class GateShape { none, scalar, channel };

enum class GateValues {
  weak,     // logsigmoid(N(0,1)) / 16, as GDN and GLA start
  typical,  // logsigmoid(N(0,1))
  zero,     // 0
  minus_3,
  minus_5,      // the lower bound of KDA, saturated
  minus_30,     // U(-32, -28)
  mixed,        // -30 or -0.01, even odds
  alternating,  // 0 and -5, changing from channel to channel and step to step
  heavy,        // -exp(N(-2, 3)), down to -2661
  harsh,        // logsigmoid(U(0, 1)) / 0.01: -31 .. -69                            (T1)
  jump,         // +176 at the first step, then 0 and below                          (T4)
  lost          // -1e30 at every fifth step, else weak
};

enum class Keys {
  unit,        // N(0,1), L2-normalised
  raw,         // N(0,1)
  correlated,  // unit, mean cosine about 0.9
  identical,   // one unit key for all steps
  squares,     // one key for all steps, entries +-2^-m with |k| = 1 (d_k a power of 4)
  rounded,     // unit, rounded to bf16; runs of 64 identical ones                   (T5)
  wild,        // unit times exp(N(0, 1)); every eleventh is zero
};

enum class Gains { none, uniform, up_to_two, near_two, two, some_zero };

struct Case {
  std::string name;
  GateShape gate = GateShape::scalar;
  GateValues gates = GateValues::weak;
  Keys keys = Keys::unit;
  Gains gains = Gains::uniform;
  std::int64_t batch = 1, time = 64, heads = 1, value_heads = 1, d_k = 32, d_v = 32;
  std::vector<std::int64_t> cu_seqlens = {};  // packed where not empty; then batch is 1
  bool delta = true;
  bool two_keys = false;  // w = M * e, M in (1/1.5, 1.5) per channel; else w = e
  bool initial = true;
  std::uint64_t seed = 1;
  // Where float32 itself is at its limit, an absolute bound on the relative error instead of the
  // ratio to the plain implementation (docs of the case say why); 0: the ratio.
  double bound = 0.0;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case>& cases();

struct Inputs {
  Sequences sequences;
  recurrence::TwoKey two_key;
  recurrence::TwoKeyCotangents cotangents;
};

// float32, owned tensors.
Inputs make_inputs(const Case& c);
Sequences sequences_of(const Case& c);

// The same values as float64.
Inputs widened(const Inputs& inputs);

// Outputs and gradients of the right shapes, every element NaN.
recurrence::TwoKeyOut make_out(const Inputs& inputs);
recurrence::TwoKeyGrads make_grads(const Inputs& inputs);

}  // namespace rankone::test
