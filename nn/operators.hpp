#pragma once

// The operators of a language model beside the recurrence, each with its vjp (vector-Jacobian
// product).
//
// Conventions. R is the number of rows of the call (tokens; Sequences says how they are cut into
// sequences). Tensors are contiguous, and may carry more leading axes than written here: only the
// trailing ones are checked. Outputs are overwritten. Gradients of activations are overwritten;
// gradients of parameters (weight, bias, table) are ACCUMULATED, so that micro-batches and shared
// weights add up. An undefined gradient is one that is not wanted. Scratch comes from the arena of
// the context; in a planning pass nothing is computed. Results are the same bits for any thread
// count. Arguments are validated (Status::invalid_argument names operator and tensor).

#include <span>

#include "core/context.hpp"
#include "core/sequences.hpp"
#include "core/tensor.hpp"
#include "nn/choices.hpp"

namespace rankone::nn {

// ---- Matrix product: the only caller of a matrix kernel
// ------------------------------------------

// c = op(a) op(b), or c += where `accumulate`. Two-dimensional tensors whose last axis has stride 1
// (a row stride is allowed). c is f32 (f64 in the reference); a and b f32, or bf16/f16 weight
// storage, which is widened while it is packed.
struct Gemm {
  Tensor a;  // [M, K], or [K, M] where transpose_a
  Tensor b;  // [K, N], or [N, K] where transpose_b
  Tensor c;  // [M, N]
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};
void gemm(Context& context, const Gemm& args);

// y = x weight^T + bias.
struct Linear {
  Tensor x;       // [R, in]
  Tensor weight;  // [out, in]
  Tensor bias{};  // [out] or undefined
};
void linear(Context& context, const Linear& args, const Tensor& y);  // y [R, out]
struct LinearGrads {
  Tensor x, weight, bias;
};
void linear_vjp(Context& context, const Linear& args, const Tensor& dy, const LinearGrads& grads);

// y_r = table[ids_r]. ids i32 [R] in [0, rows of table): the caller has checked them.
void embedding(Context& context, const Tensor& ids, const Tensor& table, const Tensor& y);
// dtable += scatter of dy, in row order: deterministic.
void embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy, const Tensor& dtable);

// ---- Norms -------------------------------------------------------------------------------------

// RMSNorm over the last axis, optionally gated:
//   y = x rsqrt(mean(x^2) + eps) * weight [* act(gate)]        gate_first: x is multiplied by
//   act(gate)
// before the norm instead (Mamba-2). weight has length W, a multiple of the last axis D: row i of x
// uses the piece i mod (W / D).
struct RmsNorm {
  Tensor x;                                  // [..., D]
  Tensor weight{};                           // [W] or undefined (one)
  Tensor gate{};                             // as x, or undefined
  Activation activation = Activation::silu;  // of the gate: silu or sigmoid
  bool gate_first = false;
  double eps = 1e-6;
};
void rms_norm(Context& context, const RmsNorm& args, const Tensor& y);
struct RmsNormGrads {
  Tensor x, weight, gate;
};
void rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy,
                  const RmsNormGrads& grads);

// Norm of q or k over the last axis.
struct VectorNorm {
  Tensor x;  // [..., D]
  VectorNormForm form = VectorNormForm::rsqrt;
  double eps = 1e-6;
};
void vector_norm(Context& context, const VectorNorm& args, const Tensor& y);
void vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy, const Tensor& dx);

// ---- Short causal convolution
// --------------------------------------------------------------------

// Depthwise, along time inside each sequence: y_t[c] = act(bias[c] + sum_j weight[c, j]
// x_{t-W+1+j}[c]); tap W-1 multiplies the current row. Rows before the sequence come from
// `history`, oldest first.
struct ShortConv {
  Tensor x;                                  // [R, C]
  Tensor weight;                             // [C, W], 1 <= W <= 8
  Tensor bias{};                             // [C] or undefined
  Tensor history{};                          // [N, C, W-1] or undefined (zero)
  Activation activation = Activation::silu;  // none or silu
};
struct ShortConvOut {
  Tensor y;        // [R, C]
  Tensor history;  // [N, C, W-1] or undefined; may be the memory of the input history. Right also
                   // for a piece shorter than the window.
};
void short_conv(Context& context, const Sequences& sequences, const ShortConv& args,
                const ShortConvOut& out);
struct ShortConvCotangents {
  Tensor y;
  Tensor history;  // of the output history; undefined: zero
};
struct ShortConvGrads {
  Tensor x, weight, bias, history;
};
void short_conv_vjp(Context& context, const Sequences& sequences, const ShortConv& args,
                    const ShortConvCotangents& cotangents, const ShortConvGrads& grads);

// ---- Element-wise
// ---------------------------------------------------------------------------------

void activate(Context& context, const Tensor& x, Activation activation, const Tensor& y);
void activate_vjp(Context& context, const Tensor& x, Activation activation, const Tensor& dy,
                  const Tensor& dx);
// y = silu(gate) * up.
void swiglu(Context& context, const Tensor& gate, const Tensor& up, const Tensor& y);
void swiglu_vjp(Context& context, const Tensor& gate, const Tensor& up, const Tensor& dy,
                const Tensor& dgate, const Tensor& dup);
void multiply(Context& context, const Tensor& a, const Tensor& b, const Tensor& y);
void multiply_vjp(Context& context, const Tensor& a, const Tensor& b, const Tensor& dy,
                  const Tensor& da, const Tensor& db);
void add(Context& context, const Tensor& a, const Tensor& b, const Tensor& y);  // y may be a or b
void scale(Context& context, const Tensor& a, double factor, const Tensor& y);  // y may be a
void fill(Context& context, const Tensor& y, double value);
void copy(Context& context, const Tensor& from, const Tensor& to);  // converts floating dtypes

// y = o + skip_h x (the D of Mamba-2). o, x, y [R, HV, V]; skip [HV] or [HV, V].
void head_skip(Context& context, const Tensor& o, const Tensor& x, const Tensor& skip,
               const Tensor& y);
// do is dy itself; dskip is accumulated.
void head_skip_vjp(Context& context, const Tensor& x, const Tensor& skip, const Tensor& dy,
                   const Tensor& dx, const Tensor& dskip);

// y = x exp(min(factor g, 80)), g [R, H] or as x [R, H, D]: an erase key scaled by exp(-g) reads
// the state before its decay (Comba). The bound keeps it finite in float32; a decay of e^-80 a step
// leaves nothing to read anyway.
void exp_scale(Context& context, const Tensor& x, const Tensor& g, double factor, const Tensor& y);
void exp_scale_vjp(Context& context, const Tensor& x, const Tensor& g, double factor,
                   const Tensor& dy, const Tensor& dx, const Tensor& dg);

// y is 2 D (hedgehog) or 8 D (dpfp) wide.
void feature_map(Context& context, const Tensor& x, FeatureMap map, const Tensor& y);
void feature_map_vjp(Context& context, const Tensor& x, FeatureMap map, const Tensor& dy,
                     const Tensor& dx);

// y [R, H * repeats, D]: head j of y is head j / repeats of x [R, H, D].
void repeat_heads(Context& context, const Tensor& x, std::int64_t repeats, const Tensor& y);
void repeat_heads_vjp(Context& context, const Tensor& dy, std::int64_t repeats, const Tensor& dx);
// y = x[:, begin : begin + width of y]; x [R, C].
void columns(Context& context, const Tensor& x, std::int64_t begin, const Tensor& y);
void columns_vjp(Context& context, const Tensor& dy, std::int64_t begin, const Tensor& dx);
// y_i = x[rows_i]; rows i64 on the host side of the call, [n].
void gather_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                 const Tensor& y);

// ---- Softmax attention (the Transformer baseline)
// ---------------------------------------------------

// Rotary embedding in half-split (NeoX) order over the whole head: pair (i, i + D/2) turns by
// position * theta^(-2 i / D). x, y [R, H, D]; positions [N] i64 is the position of the first row
// of each sequence, undefined: 0.
struct Rope {
  Tensor x;
  Tensor positions{};
  double theta = 10000.0;
};
void rope(Context& context, const Sequences& sequences, const Rope& args, const Tensor& y);
void rope_vjp(Context& context, const Sequences& sequences, const Rope& args, const Tensor& dy,
              const Tensor& dx);

// Causal softmax attention, query head j reads key head j / (H / HK). Memory is linear in T: the
// probabilities are never stored.
struct Attention {
  Tensor q;     // [R, H, D]
  Tensor k, v;  // [R, HK, D]
  std::int64_t window =
      0;  // 0: all earlier rows; else the last `window` rows, the own one included
  double scale = 1.0;
  // Cache, [N, HK, capacity, D] each, or undefined. positions [N] i64 says how many tokens of each
  // sequence it holds; the new rows are stored after them, and attention reads cache and new rows.
  // The caller has made capacity >= position + length.
  Tensor cache_k{}, cache_v{}, positions{};
};
void attention(Context& context, const Sequences& sequences, const Attention& args,
               const Tensor& o);
struct AttentionGrads {
  Tensor q, k, v;
};
// Without a cache only.
void attention_vjp(Context& context, const Sequences& sequences, const Attention& args,
                   const Tensor& o, const Tensor& do_, const AttentionGrads& grads);

// ---- Loss
// -------------------------------------------------------------------------------------------

// Cross-entropy fused with the output projection: logits = x weight^T are formed a block of rows at
// a time and never whole. targets i32 [R]; a negative target is not scored and gets loss 0.
struct CrossEntropy {
  Tensor x;        // [R, d]
  Tensor weight;   // [vocabulary, d]
  Tensor targets;  // [R] i32
};
// losses [R] f32 (f64 in the reference): -log p(target) in nats.
void cross_entropy(Context& context, const CrossEntropy& args, const Tensor& losses);
// The gradient of factor * sum(losses). losses, if defined, is written as by cross_entropy, so that
// a training step forms the logits once. dweight is accumulated.
struct CrossEntropyGrads {
  Tensor x, weight;
};
void cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                       const Tensor& losses, const CrossEntropyGrads& grads);

// ---- Optimiser
// --------------------------------------------------------------------------------------

// sum [1] f64 += sum of the squares of x, in a fixed order (a non-finite element makes it
// non-finite).
void add_sum_of_squares(Context& context, const Tensor& x, const Tensor& sum);
// sum [1] f64 += factor * sum of x.
void add_sum(Context& context, const Tensor& x, double factor, const Tensor& sum);

// factor [1] f32 = min(1, limit / sqrt(sum)); ok [1] i32 = 1 if sum is finite, else 0 (then factor
// 0).
void clip_factor(Context& context, const Tensor& sum, double limit, const Tensor& factor,
                 const Tensor& ok);

// One AdamW step (decoupled weight decay, arXiv 1711.05101):
//   g = factor * grad; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
//   p -= lr (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay p)
// Does nothing where ok is 0: a non-finite gradient leaves parameters and moments as they were.
struct AdamW {
  Tensor parameter, grad, m, v;  // one shape and dtype
  Tensor factor;                 // [1] f32
  Tensor ok;                     // [1] i32
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;  // t, from 1
};
void adamw(Context& context, const AdamW& args);

}  // namespace rankone::nn
