#pragma once

// The recurrence of the whole family and what is computed before it. Per head, with state
// S [d_k, d_v] and at each step query q, erase key e, write key w, value v, log decay g and gain b:
//
//     S~ = diag(exp g) S
//     u  = b (v - S~^T e)      delta solve;      u = b v      additive solve (no e)
//     S  = S~ + w u^T
//     o  = scale * S^T q
//
// Shapes. R is the number of rows of the call, B * T (Sequences says how they are cut); N
// sequences; H key heads; HV value heads, HV % H = 0, value head j reads key head j / (HV / H); K =
// d_k in 1..256; V = d_v in 1..1024. Tensors may carry the batch and time axes separately, [B, T,
// H, K]: only the trailing axes are checked, and the product of the leading ones must be R. States
// are row-major [N, HV, K, V], f32 (f64 with f64 inputs).
//
// Every function validates its arguments (Status::invalid_argument names the function and the
// tensor), then runs on the first backend of the context that accepts the call. Scratch comes from
// the arena of the context; in a planning pass nothing is computed. Output tensors are overwritten,
// gradients too; an undefined output or gradient tensor is one that the caller does not want, an
// undefined cotangent of a final state is zero. Tensors are contiguous and of one dtype, f64, f32,
// bf16 or f16; in a bf16 or f16 call gates (g, b, dt), logits and parameters may be f32. States and
// their gradients are f32, in an f64 call f64.
// Results are the same bits for any number of threads.

#include <cstdint>
#include <string_view>

#include "core/context.hpp"
#include "core/sequences.hpp"
#include "core/tensor.hpp"
#include "recurrence/choices.hpp"

namespace rankone::recurrence {

// ---- The two-key recurrence --------------------------------------------------------------------

struct TwoKey {
  Tensor q;              // [R, H, K]
  Tensor e;              // [R, H, K]; undefined: additive solve
  Tensor w;              // [R, H, K]; may be the same memory as e
  Tensor v;              // [R, HV, V]
  Tensor g;              // natural log of the decay: undefined (none), [R, HV] or [R, HV, K]
  Tensor b;              // gain: undefined (one) or [R, HV]
  Tensor initial_state;  // [N, HV, K, V]; undefined: zero
  double scale = 1.0;
};

// The two states may be bf16 instead of f32 (both, not in an f64 call, not for the vjp): rounded
// once at the end of the call, all arithmetic is float32. On CUDA with at most 8 rows a sequence.
struct TwoKeyOut {
  Tensor o;            // [R, HV, V]
  Tensor final_state;  // [N, HV, K, V]; may be the memory of initial_state: then updated in place
  // [two_key_saved()] f32, or undefined: what the vjp of the same inputs can take instead of making
  // it again. o and final_state have the same bits with it and without.
  Tensor saved = {};
};

struct TwoKeyCotangents {
  Tensor o;            // dL/do
  Tensor final_state;  // dL/dS_T; undefined: zero
  Tensor saved = {};   // by two_key() of the same inputs; undefined: nothing was saved
};

struct TwoKeyGrads {  // shapes of the inputs
  Tensor q, e, w, v, g, b, initial_state;

  // e and w are the same memory: it receives the sum of both, the gradient of tied keys. (A
  // planning pass may have no memory yet and then counts scratch for both.)
  bool joins_keys() const { return e.defined() && e.raw() != nullptr && e.raw() == w.raw(); }
};

void two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
             const TwoKeyOut& out);
// Numbers of TwoKeyOut::saved; 0 where nothing is worth it (on a CPU, in float32, and where the vjp
// would not be faster). At most 700 bytes for each row and value head.
std::int64_t two_key_saved(Context& context, const Sequences& sequences, const TwoKey& inputs);
void two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                 const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads);

// ---- The preconditioner axis -------------------------------------------------------------------

// Diagonal: per key head A_t = exp(g_t) A_{t-1} + b_t k^ * k^, where k^ is k, L2-normalised by
// k * rsqrt(|k|^2 + 1e-6) where `normalize`. Then
//   atk: r = log(A_t + eps) - center_h; out = x^(-r / (1 + |r|)) * target     (the write key)
//   atq: out = target / (A_t + ridge)                                         (the query)
// Source: Preconditioned DeltaNet (arXiv 2604.21100), Eq. 8 and Sec. 4; notation in
// docs/notation.md.
//
// gram (reference backend only): G_t = exp(g_t) G_{t-1} + b_t k^ k^^T with G_0 = diag(ridge), and
// out = G_t^{-1} target; the state is [N, H, K, K].
struct Precondition {
  PreconditionerKind kind = PreconditionerKind::atk;
  Tensor k;        // [R, H, K]
  Tensor target;   // [R, H, K]: k for atk and gram, q for atq; may be the memory of k
  Tensor g;        // [R, H] log decay, or undefined (none)
  Tensor b;        // [R, H] gain, or undefined (one)
  Tensor center;   // [H], atk only
  Tensor ridge;    // [H, K] > 0, atq and gram only
  Tensor initial;  // A: [N, H, K] (gram: [N, H, K, K]); undefined: zero (gram: diag(ridge))
  double x = 1.5;  // squash range, atk: the factor stays in (1/x, x)
  double eps = 1e-6;
  bool normalize = false;
};

struct PreconditionOut {
  Tensor out;    // [R, H, K]
  Tensor final;  // as initial; may be its memory
  // [precondition_saved()] f32, or undefined: what the vjp of the same inputs can take instead of
  // making it again. out and final have the same bits with it and without.
  Tensor saved = {};
};

struct PreconditionCotangents {
  Tensor out, final;
  Tensor saved = {};  // by precondition() of the same inputs; undefined: nothing was saved
  // [R, H, K]: dL/dk through whatever else reads k, as a recurrence whose erase key it is. It is
  // added to the gradient of k, may be its memory, and is not read where that is not wanted.
  // Undefined: zero.
  Tensor k = {};
};

struct PreconditionGrads {
  // k receives the part through A, target the part through the product.
  Tensor k, target, g, b, center, ridge, initial;

  // k and target are the same memory: it receives the sum of both, the gradient of a tied target.
  bool joins_target() const { return k.defined() && k.raw() != nullptr && k.raw() == target.raw(); }
};

void precondition(Context& context, const Sequences& sequences, const Precondition& inputs,
                  const PreconditionOut& out);
// Numbers of PreconditionOut::saved; 0 where nothing is worth it. For each head of 128 channels at
// most 8 bytes a row and 512 a sequence.
std::int64_t precondition_saved(Context& context, const Sequences& sequences,
                                const Precondition& inputs);
void precondition_vjp(Context& context, const Sequences& sequences, const Precondition& inputs,
                      const PreconditionCotangents& cotangents, const PreconditionGrads& grads);

// precondition() and two_key() in one call: what the preconditioner makes is the write key (atk and
// gram) or the query (atq) of the recurrence, and that tensor of `inputs` is undefined. made.out
// may be undefined: then a backend need not write it anywhere, and on the CPU the rows stay in
// cache. The results are those of the two calls, bit for bit.
void preconditioned_two_key(Context& context, const Sequences& sequences,
                            const Precondition& precondition, const PreconditionOut& made,
                            const TwoKey& inputs, const TwoKeyOut& out);

// ---- The decay axis ----------------------------------------------------------------------------

// Log decays from logits. x is [R, HV] (scalar) or [R, HV, K] (channel); so is g.
//   softplus:    g = -exp(a_log_h) softplus(x + dt_bias)                  (Mamba-2, GDN, KDA)
//   lower_bound: g = bound * sigmoid(exp(a_log_h) (x + dt_bias)); no a_log: exp(a_log) = 1   (KDA)
//   logsigmoid:  g = max(logsigmoid(x) / normalizer, clamp)               (GLA, MesaNet)
//   fixed:       g = log(1 - 2^(-5 - h)); x is not used                    (RetNet)
struct Decay {
  DecayForm form = DecayForm::softplus;
  bool channel = false;  // one decay per key channel: the shapes with K
  Tensor x;              // [R, HV] or [R, HV, K]
  Tensor a_log;          // [HV]; undefined: zero
  Tensor dt_bias;        // [HV] or [HV, K]; undefined: zero
  double bound = -5.0;
  double normalizer = 1.0;
  double clamp = -1e30;  // no clamp
  // softplus form only: time step limits of Mamba-2, dt = clamp(softplus(x + dt_bias), dt_min,
  // dt_max).
  double dt_min = 0.0;
  double dt_max = 1e30;
};

struct DecayOut {
  Tensor g;   // as x; [R, HV] where x is not used
  Tensor dt;  // softplus form only, as x: the time step, the gain of Mamba-2
};

struct DecayCotangents {
  Tensor g, dt;  // undefined: zero; at least one
};

struct DecayGrads {
  // Parameter gradients (a_log, dt_bias) are overwritten like all others.
  Tensor x, a_log, dt_bias;
};

void decay(Context& context, const Decay& inputs, const DecayOut& out);
void decay_vjp(Context& context, const Decay& inputs, const DecayCotangents& cotangents,
               const DecayGrads& grads);

// ---- The gain axis -----------------------------------------------------------------------------

// The gain b, and for the key-norm gains the scaling of both keys and the value. With N = e . w
// (|k|^2 where there is no preconditioner; N >= 0) and beta = sigmoid(x):
//   one             b = 1
//   sigmoid         b = beta
//   sigmoid2        b = 2 beta
//   dt              b = x, where x is the time step that decay() returns
//   kaczmarz        b = beta / (N + eps)
//   nlms            b = 1 / (N + eps)
//   longhorn        b = beta / (1 + beta N)
//   efla            b = (1 - exp(-beta N)) / N
//   learned_scalar  b = beta / (softplus(theta) N + eps)
//   vector          e *= sigmoid(x) per key channel, v *= sigmoid(x_v) per value channel,
//                   b = 1 (GDN-2)
// and b is multiplied by the time factor f(t), t = 1 for the first row of a sequence at position 0:
// 1/t, 1/sqrt(t) or 1/ln(1 + t).
// The key-norm gains (kaczmarz .. learned_scalar) are returned in the bounded form of
// docs/notation.md: with n^2 = N + eps, e / n, w / n, v / n and b n^2, which is the same recurrence
// exactly. With eps > 0 a zero key is safe, in values and in gradients.
bool is_key_norm(GainKind kind);

struct Gain {
  GainKind kind = GainKind::sigmoid;
  TimeFactor time_factor = TimeFactor::none;
  Tensor x;      // logits: [R, HV]; for vector [R, H, K]; undefined for one and nlms
  Tensor x_v;    // vector only: [R, HV, V]
  Tensor theta;  // learned_scalar only: [1]
  Tensor e;      // [R, H, K]; key-norm gains, and vector unless the solve is additive (then no x)
  Tensor w;      // [R, H, K]; key-norm gains only; may be the memory of e
  Tensor v;      // [R, HV, V]; key-norm gains and vector
  double eps = 1e-6;
  // Position of the first row of each sequence (the number of tokens read before): [N] i64, or
  // undefined for 0. Only the time factors look at it.
  Tensor positions;
};

struct GainOut {
  // key-norm: e, w, v and b; vector: e, v and b = f(t); otherwise b only. The rest is undefined.
  Tensor b;  // [R, HV]
  Tensor e, w, v;
};

struct GainCotangents {
  Tensor b, e, w, v;  // undefined: zero; at least one
};

struct GainGrads {
  Tensor x, x_v, theta, e, w, v;
};

void gain(Context& context, const Sequences& sequences, const Gain& inputs, const GainOut& out);
void gain_vjp(Context& context, const Sequences& sequences, const Gain& inputs,
              const GainCotangents& cotangents, const GainGrads& grads);

// ---- MesaNet: the cg solve ---------------------------------------------------------------------

// Hkk_t = exp(g) Hkk_{t-1} + b k k^T;  Hkv_t = exp(g) Hkv_{t-1} + b k v^T;
// o = Hkv_t^T (Hkk_t + diag(lambda))^{-1} q.  HV = H, K <= 256.
// The reference solves exactly (Cholesky); cpu and cuda run conjugate gradients for at most
// max_iterations, stopping a row early once |r| <= tolerance |q| (tolerance 0: never early).
// The published MesaNet adds 1e-5 to both denominators of an iteration, which ends its progress at
// |r|^2 of about that: such a model is defined by its iterations. With damping > 0 every backend
// runs them so, also in the vjp, whose second solve then takes the place of the exact adjoint.
// Source: MesaNet (arXiv 2506.05233), notes in docs/notation.md.
struct Mesa {
  Tensor q, k;         // [R, H, K]
  Tensor v;            // [R, H, V]
  Tensor g;            // [R, H] or undefined
  Tensor b;            // [R, H] or undefined
  Tensor lambda;       // [H, K] > 0
  Tensor initial_hkk;  // [N, H, K, K] or undefined
  Tensor initial_hkv;  // [N, H, K, V] or undefined
  int max_iterations = 30;
  double tolerance = 0.0;
  double damping = 0.0;
};

struct MesaOut {
  Tensor o;                     // [R, H, V]
  Tensor final_hkk, final_hkv;  // may be the memory of the initial ones
};

struct MesaCotangents {
  Tensor o, final_hkk, final_hkv;
};

struct MesaGrads {
  Tensor q, k, v, g, b, lambda, initial_hkk, initial_hkv;
};

void mesa(Context& context, const Sequences& sequences, const Mesa& inputs, const MesaOut& out);
void mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
              const MesaCotangents& cotangents, const MesaGrads& grads);

// ---- Diagonal Longhorn -------------------------------------------------------------------------

// The released model: an element-wise scan with a gain per value channel. With N = |k|^2 and
// D_j = beta_j / (1 + beta_j N):  S_dj = (1 - D_j k_d^2) S_dj + D_j v_j k_d;  o_j = sum_d S_dj q_d.
// Source: Longhorn (arXiv 2407.14207), Sec. 3, the diagonal approximation.
struct Longhorn {
  Tensor q, k;           // [R, H, K]
  Tensor v;              // [R, HV, V]
  Tensor beta;           // [R, HV, V] > 0
  Tensor initial_state;  // [N, HV, K, V] or undefined
};

struct LonghornOut {
  Tensor o;            // [R, HV, V]
  Tensor final_state;  // [N, HV, K, V]
};

struct LonghornCotangents {
  Tensor o, final_state;
};

struct LonghornGrads {
  Tensor q, k, v, beta, initial_state;
};

void longhorn(Context& context, const Sequences& sequences, const Longhorn& inputs,
              const LonghornOut& out);
void longhorn_vjp(Context& context, const Sequences& sequences, const Longhorn& inputs,
                  const LonghornCotangents& cotangents, const LonghornGrads& grads);

}  // namespace rankone::recurrence
