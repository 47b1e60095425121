#pragma once

// The recurrence of one mixer on inputs as a model would make them, for the benchmarks. What a call
// times: the preconditioner's scan where the mixer has one, and the recurrence. What it does not:
// projections, convolution, norms, and the decay and gain prologue, which make the inputs.

#include <cstdint>
#include <string>
#include <vector>

#include "core/context.hpp"
#include "core/random.hpp"
#include "recurrence/presets.hpp"

namespace rankone::apps {

struct MixerShape {
  std::int64_t batch, time, heads, d_k, d_v;
};

// Names for the distribution of the log decays of a mixer that has some.
//   usual     what the mixer's models start with
//   typical   logsigmoid(N(0, 1))
//   strong    -30 or -0.01, even odds
//   none      0 (the decay is there, and does nothing)
enum class GateChoice { usual, typical, strong, none };
GateChoice parse_gates(const std::string& text);  // fails with invalid_argument

class MixerCall {
 public:
  // float32 inputs; with `rounded` the keys, queries and values hold bf16 numbers.
  MixerCall(const recurrence::MixerPreset& preset, const MixerShape& shape, std::uint64_t seed,
            bool rounded, GateChoice gates = GateChoice::usual);

  // Rounds what a call of `format` holds in that format, and the gates to theirs, in place.
  void round(Dtype format, Dtype gates);
  // The same call with tensors on the device of `context`, in those formats. Tensors that were one
  // stay one; states are float32.
  MixerCall on(Context& context, Dtype format, Dtype gates) const;

  // The first tokens and heads of the first sequence, in float32 or float64, with the same state.
  MixerCall part(std::int64_t tokens, std::int64_t heads, Dtype dtype) const;

  // As in inference; forward_kept() also keeps what a preconditioner makes, as in training: vjp()
  // reads it.
  void forward(Context& context) const;
  void forward_kept(Context& context) const;
  void vjp(Context& context) const;
  // From now on forward passes leave for the vjp what a training step would have them leave.
  void save(Context& context);
  double saved_bytes() const;

  // Keeps the state between calls, updated in place: the next forward() goes on from it.
  void carry_state(Dtype dtype = Dtype::f32);
  void take_state(const MixerCall& other);  // of a call of the same mixer and sizes

  // What forward() and vjp() wrote.
  const Tensor& output() const { return cg_ ? mesa_out_.o : two_key_out_.o; }
  std::vector<Tensor> gradients() const;
  // The inputs that a bf16 model stores in 16 bits.
  std::vector<Tensor> narrow_inputs() const;
  const Tensor& cotangent() const { return cotangent_; }

  // What a call does at least. Operations are those of the recurrence written token by token, two
  // for a multiply-add: forward S^T e, w u^T and S^T q; the vjp these states again and the six
  // products of the gradients. Not counted: the decay, the preconditioner's scan, MesaNet's solve
  // (its calls count no operations at all). Bytes are those of the tensors of the call; what a
  // preconditioner makes need not be written to be used, so forward() counts it not.
  double forward_operations() const;
  double vjp_operations() const;
  double forward_bytes() const;
  double vjp_bytes() const;
  double state_bytes() const;  // of the states a call leaves

  const MixerShape& shape() const { return shape_; }
  const std::string& gates() const { return gates_; }  // the distribution, in words

 private:
  void make_gates(const recurrence::MixerPreset& preset, GateChoice choice, std::uint64_t seed);
  std::vector<Tensor*> row_inputs();   // held in the format of the call
  std::vector<Tensor*> gate_inputs();  // and their gradients
  std::vector<Tensor*> state_tensors();
  std::vector<Tensor*> row_results();
  void make_gain(const recurrence::MixerPreset& preset, Random& random);
  void make_writes(const recurrence::MixerPreset& preset);
  void make_preconditioner(const Tensor& k, Random& random);
  void make_outputs();
  void run(Context& context, const recurrence::PreconditionOut& made) const;

  MixerShape shape_{};
  std::int64_t writes_ = 1;  // rows per token
  bool cg_ = false;
  bool preconditioned_ = false;
  bool query_side_ = false;
  std::string gates_;
  Sequences sequences_;
  recurrence::TwoKey two_key_;
  recurrence::TwoKeyOut two_key_out_;
  recurrence::TwoKeyGrads two_key_grads_;
  recurrence::Mesa mesa_;
  recurrence::MesaOut mesa_out_;
  recurrence::MesaGrads mesa_grads_;
  recurrence::Precondition precondition_;
  recurrence::PreconditionOut precondition_out_;
  recurrence::PreconditionGrads precondition_grads_;
  Tensor cotangent_;  // of the output
};

}  // namespace rankone::apps
