#pragma once

// Inputs of the case list in a 16-bit format: rounded first, then once as the kernels take them and
// once as float32 of the same values, for the plain implementation and the reference.

#include "tests/cases/cases.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {

// Gates may be float32 beside 16-bit inputs: they are with bf16, as models have them; with f16 they
// are 16-bit too, but for a decay that f16 can not hold.
inline Dtype gate_dtype(const Case& c, Dtype format) {
  const bool fits = c.gates != GateValues::lost;
  return format == Dtype::f16 && fits ? Dtype::f16 : Dtype::f32;
}

inline Tensor in_dtype(const Tensor& tensor, Dtype dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

// Tied keys stay one tensor.
inline Inputs in_format(const Inputs& inputs, Dtype format, Dtype gates) {
  const recurrence::TwoKey& in = inputs.two_key;
  Inputs result{inputs.sequences, {}, {}};
  recurrence::TwoKey& to = result.two_key;
  to.q = in_dtype(in.q, format);
  to.w = in_dtype(in.w, format);
  to.e = in.e.raw() == in.w.raw() ? to.w : in_dtype(in.e, format);
  to.v = in_dtype(in.v, format);
  to.g = in_dtype(in.g, gates);
  to.b = in_dtype(in.b, gates);
  to.initial_state = in.initial_state;
  to.scale = in.scale;
  result.cotangents = {in_dtype(inputs.cotangents.o, format), inputs.cotangents.final_state};
  return result;
}

// The same values in float32.
inline Inputs as_float(const Inputs& inputs) {
  Inputs result = inputs;
  recurrence::TwoKey& to = result.two_key;
  to.q = in_dtype(to.q, Dtype::f32);
  const bool tied = to.e.defined() && to.e.raw() == to.w.raw();
  to.w = in_dtype(to.w, Dtype::f32);
  to.e = tied ? to.w : in_dtype(to.e, Dtype::f32);
  to.v = in_dtype(to.v, Dtype::f32);
  to.g = in_dtype(to.g, Dtype::f32);
  to.b = in_dtype(to.b, Dtype::f32);
  result.cotangents.o = in_dtype(result.cotangents.o, Dtype::f32);
  return result;
}

inline constexpr Dtype kFormats[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

// Of one: the distance from 1 to the next number.
inline double spacing(Dtype format) {
  return format == Dtype::bf16 ? 0x1p-7 : format == Dtype::f16 ? 0x1p-10 : 0x1p-23;
}

}  // namespace rankone::test
