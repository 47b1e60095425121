#pragma once

// The sizes of a validated call, read in one place so that every backend reads them alike.

#include <cstdint>

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence {

struct TwoKeyShape {
  std::int64_t rows = 0;         // R
  std::int64_t sequences = 0;    // N
  std::int64_t heads = 0;        // H
  std::int64_t value_heads = 0;  // HV
  std::int64_t d_k = 0;          // K
  std::int64_t d_v = 0;          // V
  bool channel_decay = false;    // g is [R, HV, K]; false where g is [R, HV] or undefined

  std::int64_t group() const { return value_heads / heads; }  // value heads of one key head
};
TwoKeyShape shape_of(const Sequences& sequences, const TwoKey& inputs);

struct PreconditionShape {
  std::int64_t rows = 0, sequences = 0, heads = 0, d_k = 0;
};
PreconditionShape shape_of(const Sequences& sequences, const Precondition& inputs);

struct DecayShape {
  std::int64_t rows = 0;         // R
  std::int64_t value_heads = 0;  // HV
  std::int64_t channels = 1;     // K where the decay is per channel, else 1
};
// `g` is the output (or its cotangent): it alone knows the shape where x is not used.
DecayShape shape_of(const Decay& inputs, const Tensor& g);

struct GainShape {
  std::int64_t rows = 0, sequences = 0;
  std::int64_t heads = 0, value_heads = 0;  // heads is 0 where the gain looks at no key
  std::int64_t d_k = 0, d_v = 0;            // 0 where the gain looks at no key or value
  std::int64_t group() const { return heads > 0 ? value_heads / heads : 0; }
};
// `b` is the output (or its cotangent): it alone knows HV where neither x nor v is given.
GainShape shape_of(const Sequences& sequences, const Gain& inputs, const Tensor& b);

struct MesaShape {
  std::int64_t rows = 0, sequences = 0, heads = 0, d_k = 0, d_v = 0;
};
MesaShape shape_of(const Sequences& sequences, const Mesa& inputs);

struct LonghornShape {
  std::int64_t rows = 0, sequences = 0, heads = 0, value_heads = 0, d_k = 0, d_v = 0;
  std::int64_t group() const { return value_heads / heads; }
};
LonghornShape shape_of(const Sequences& sequences, const Longhorn& inputs);

}  // namespace rankone::recurrence
