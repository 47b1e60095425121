#pragma once

// Differentiable functions: each computes with an operator of operators.hpp or recurrence.hpp into
// the arena and notes its vjp on the tape. Shapes and ranges are those of the operator. An absent
// Var is an undefined tensor. Sequences passed here must outlive the tape (Tape::keep holds derived
// ones). Where a function takes a state tensor (history, initial state, cache) it is read and
// advanced in place and has no gradient: states belong to inference.

#include <cstdint>

#include "nn/operators.hpp"
#include "nn/tape.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::nn {

// ---- Operators of this layer -------------------------------------------------------------------

Var linear(Tape& tape, Var x, Var weight, Var bias = {});  // [..., in] -> [..., out]
Var embedding(Tape& tape, const Tensor& ids, Var table);   // ids i32 [R] -> [R, width]
struct NormGate {
  Var gate;
  Activation activation = Activation::silu;
  bool first = false;  // multiplied before the norm
};
Var rms_norm(Tape& tape, Var x, Var weight, double eps, const NormGate& gate = {});
Var vector_norm(Tape& tape, Var x, VectorNormForm form, double eps);
Var short_conv(Tape& tape, const Sequences& sequences, Var x, Var weight, Var bias,
               Activation activation, const Tensor& history = {});
Var activate(Tape& tape, Var x, Activation activation);  // none: x itself
Var softplus(Tape& tape, Var x, double shift);           // log(1 + e^x) + shift, any shape
Var swiglu(Tape& tape, Var gate, Var up);
Var multiply(Tape& tape, Var a, Var b);
Var add(Tape& tape, Var a, Var b);
Var scale(Tape& tape, Var x, double factor);
Var head_skip(Tape& tape, Var o, Var x, Var skip);
Var exp_scale(Tape& tape, Var x, Var g, double factor);
Var feature_map(Tape& tape, Var x, FeatureMap map);
Var repeat_heads(Tape& tape, Var x, std::int64_t repeats);  // 1: x itself
Var columns(Tape& tape, Var x, std::int64_t begin, std::int64_t width);
// [R, C] -> [R, width]: x in the first columns, zero after them.
Var pad_columns(Tape& tape, Var x, std::int64_t width);
Var reshape(Tape& tape, Var x, const Shape& shape);  // a view
Var rope(Tape& tape, const Sequences& sequences, Var x, double theta, const Tensor& positions = {});
struct AttentionArgs {
  Var q, k, v;
  std::int64_t window = 0;
  double scale = 1.0;
  Tensor cache_k, cache_v, positions;
};
Var attention(Tape& tape, const Sequences& sequences, const AttentionArgs& args);

// ---- The recurrence ----------------------------------------------------------------------------

struct TwoKeyArgs {
  Var q, e, w, v, g, b;  // e absent: additive solve; e and w may be the same Var
  double scale = 1.0;
  Tensor state;  // S; undefined: zero and not kept
};
Var two_key(Tape& tape, const Sequences& sequences, const TwoKeyArgs& args);

struct PreconditionArgs {
  recurrence::PreconditionerKind kind = recurrence::PreconditionerKind::atk;
  Var k, target, g, b, center, ridge;
  double x = 1.5;
  double eps = 1e-6;
  bool normalize = false;
  Tensor state;  // A
};
Var precondition(Tape& tape, const Sequences& sequences, const PreconditionArgs& args);

// Both in one call: the write key (atk, gram) or the query (atq) of the recurrence, absent there,
// is what the preconditioner makes.
Var preconditioned_two_key(Tape& tape, const Sequences& sequences,
                           const PreconditionArgs& precondition, const TwoKeyArgs& args);

struct DecayArgs {
  recurrence::DecayForm form = recurrence::DecayForm::softplus;
  Var x, a_log, dt_bias;
  bool channel = false;
  double bound = -5.0, normalizer = 1.0, clamp = -1e30, dt_min = 0.0, dt_max = 1e30;
  // Of g, in the fixed form only, which has no x.
  Shape shape;
  Dtype dtype = Dtype::f32;
};
struct DecayResult {
  Var g, dt;  // dt only where wanted
};
DecayResult decay(Tape& tape, const DecayArgs& args, bool want_dt);

struct GainArgs {
  recurrence::GainKind kind = recurrence::GainKind::sigmoid;
  recurrence::TimeFactor time_factor = recurrence::TimeFactor::none;
  Var x, x_v, theta, e, w, v;
  double eps = 1e-6;
  Tensor positions;
  Shape shape;  // of b: [R, HV]
  Dtype dtype = Dtype::f32;
};
struct GainResult {
  Var b, e, w, v;  // b absent: one; e, w and v: scaled, or those of the arguments
};
GainResult gain(Tape& tape, const Sequences& sequences, const GainArgs& args);

struct MesaArgs {
  Var q, k, v, g, b, lambda;
  int max_iterations = 30;
  double tolerance = 0.0, damping = 0.0;
  Tensor hkk, hkv;
};
Var mesa(Tape& tape, const Sequences& sequences, const MesaArgs& args);

struct LonghornArgs {
  Var q, k, v, beta;
  Tensor state;
};
Var longhorn(Tape& tape, const Sequences& sequences, const LonghornArgs& args);

}  // namespace rankone::nn
