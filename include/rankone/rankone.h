/* rankone: the recurrences of delta-rule sequence models, as plain C.
 *
 * Every function returns a status and computes one thing from buffers of the caller's into buffers
 * of the caller's. Nothing is allocated inside a call: scratch is the workspace that the caller
 * passes, and how much a call needs is asked by the same call with `query` set. No exception and no
 * signal leaves the library. The only global is a thread pool that contexts made with threads = 0
 * share.
 *
 * Dimensions: R rows (batch times time, or the rows of a packed call), N sequences, H key heads, HV
 * value heads (HV % H = 0), K key channels (1..256), V value channels (1..1024). A tensor may carry
 * batch and time as two axes, [B, T, H, K], instead of [R, H, K]. Element types: f32 or f64, all
 * tensors of a call alike, and bf16 or f16 where the backend takes them; states are f32, f64 in an
 * f64 call. Symbols and equations: docs/notation.md.
 */
#ifndef RANKONE_RANKONE_H
#define RANKONE_RANKONE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RANKONE_API __attribute__((visibility("default")))
#else
#define RANKONE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define RANKONE_VERSION "0.1.0"
RANKONE_API const char* rankone_version(void); /* of the library that is loaded */

typedef enum rankone_status {
  RANKONE_OK = 0,
  RANKONE_INVALID_ARGUMENT = 1, /* a call that can not be meant */
  RANKONE_UNSUPPORTED = 2,      /* a valid call that this build or machine can not do */
  RANKONE_OUT_OF_MEMORY = 3,    /* also: the workspace is too small */
  RANKONE_FAILED = 4            /* the work itself failed */
} rankone_status;

typedef enum rankone_device { RANKONE_CPU = 0, RANKONE_CUDA = 1 } rankone_device;

/* What the operands of products inside the two-key recurrence may be rounded to on a CPU with a
 * unit for them (AMX); state, triangular solve and sums are float32 in any case. Elsewhere float32.
 */
typedef enum rankone_precision {
  RANKONE_PRECISION_AUTOMATIC =
      0, /* the fastest of float32-class accuracy: F32 under per-channel decay, else BF16X3 */
  RANKONE_PRECISION_F32 = 1,
  RANKONE_PRECISION_BF16X3 = 2, /* a high and a low part of bf16, three products */
  RANKONE_PRECISION_BF16 = 3
} rankone_precision;

typedef enum rankone_dtype {
  RANKONE_F64 = 0,
  RANKONE_F32 = 1,
  RANKONE_BF16 = 2,
  RANKONE_F16 = 3,
  RANKONE_I64 = 4
} rankone_dtype;

#define RANKONE_MAX_RANK 8

/* A view of the caller's memory. rank 0 (a zeroed struct) means that the tensor is absent: not
 * given, or not wanted. Strides count elements and may be any number for an input; an output's
 * elements must be distinct. Tensors that are not row-major are copied through the workspace. */
typedef struct rankone_tensor {
  void* data; /* may be null in a query and where there are no elements */
  int32_t dtype;
  int32_t rank;
  int64_t shape[RANKONE_MAX_RANK];
  int64_t strides[RANKONE_MAX_RANK];
} rankone_tensor;

/* A row-major tensor. A rank outside 1..RANKONE_MAX_RANK gives an absent one. */
RANKONE_API rankone_tensor rankone_row_major(void* data, rankone_dtype dtype, int32_t rank,
                                             const int64_t* shape);

/* ---- Context and sequences ------------------------------------------------------------------ */

typedef struct rankone_options {
  int32_t device;       /* rankone_device */
  int32_t device_index; /* which of them; 0 on the CPU */
  int32_t threads;      /* 0: one a processor, in the pool shared by all such contexts; not looked
                           at on CUDA */
  int32_t precision;    /* rankone_precision; not looked at on CUDA */
} rankone_options;

/* On CUDA (compute capability 8.0 or above) tensors and workspace are memory of that GPU,
 * row-major, and start at a multiple of 16 bytes where the size of a row is one; dtypes are F32,
 * BF16 and F16, states F32, or BF16 where no sequence has more than 8 rows. A call puts its work on
 * the stream and returns; nothing waits or allocates, so a call can be captured in a CUDA graph,
 * which is then bound to the sequences and the workspace. A call that is refused leaves nothing on
 * the stream and no CUDA error behind. */

/* A context serves one thread at a time. Contexts with a pool of their own (threads > 0) work side
 * by side; those that share the default pool take turns. */
typedef struct rankone_context rankone_context;

/* On failure *context is null and, where message is not null, the reason is written into it, cut at
 * message_bytes. `options` may be null: the CPU and the default pool. */
RANKONE_API rankone_status rankone_context_create(const rankone_options* options,
                                                  rankone_context** context, char* message,
                                                  size_t message_bytes);
RANKONE_API void rankone_context_free(rankone_context* context); /* null is ignored */

/* Why the last call with this context failed, one line; empty after a call that succeeded. Valid
 * until the next call. */
RANKONE_API const char* rankone_last_error(const rankone_context* context);

/* How the rows of a call are cut along time; validated once, used by many calls. */
typedef struct rankone_sequences rankone_sequences;

/* `batch` sequences of `time` rows each; either may be 0. */
RANKONE_API rankone_status rankone_sequences_dense(rankone_context* context, int64_t batch,
                                                   int64_t time, rankone_sequences** sequences);
/* N = count - 1 sequences end to end. cu_seqlens (host memory, copied): first 0, non-decreasing,
 * the last is R. An empty sequence returns its initial state. */
RANKONE_API rankone_status rankone_sequences_packed(rankone_context* context,
                                                    const int64_t* cu_seqlens, int64_t count,
                                                    rankone_sequences** sequences);
RANKONE_API void rankone_sequences_free(rankone_sequences* sequences); /* null is ignored */

/* How one call is run. */
typedef struct rankone_call {
  void* stream;           /* a cudaStream_t; ignored on the CPU */
  void* workspace;        /* of the context's device, at a multiple of 64 bytes */
  size_t workspace_bytes; /* more than needed is fine */
  size_t*
      query; /* not null: compute nothing, store the workspace that this call needs. The answer
                holds for every call with the same shapes, strides, sequences and absent tensors */
} rankone_call;

/* ---- The two-key recurrence -----------------------------------------------------------------
 *
 *     S~ = diag(exp g) S
 *     u  = b (v - S~^T e)      delta solve;      u = b v      additive solve (no e)
 *     S  = S~ + w u^T
 *     o  = scale * S^T q
 */

typedef struct rankone_two_key_inputs {
  rankone_tensor q;             /* [R, H, K] */
  rankone_tensor e;             /* [R, H, K]; absent: additive solve */
  rankone_tensor w;             /* [R, H, K]; may be the memory of e */
  rankone_tensor v;             /* [R, HV, V] */
  rankone_tensor g;             /* log decay: absent (none), [R, HV] or [R, HV, K] */
  rankone_tensor b;             /* gain: absent (one) or [R, HV] */
  rankone_tensor initial_state; /* [N, HV, K, V]; absent: zero */
  double scale;                 /* must be set: 0 is refused */
} rankone_two_key_inputs;

typedef struct rankone_two_key_outputs {
  rankone_tensor o;           /* [R, HV, V] */
  rankone_tensor final_state; /* [N, HV, K, V]; may be the memory of initial_state */
  /* [rankone_two_key_saved()] float32, on CUDA at a multiple of 16 bytes; absent: nothing is saved.
   * What rankone_two_key_vjp with the same sequences and inputs takes instead of making it again.
   * The outputs have the same bits with it and without. */
  rankone_tensor saved;
} rankone_two_key_outputs;

typedef struct rankone_two_key_cotangents {
  rankone_tensor o;           /* dL/do */
  rankone_tensor final_state; /* absent: zero */
  rankone_tensor saved;       /* by rankone_two_key; absent: nothing was saved */
} rankone_two_key_cotangents;

/* Gradients are overwritten, here and below; an absent one is not wanted. Where e and w are the
 * same memory, it receives the sum of both: of tied keys, whose gradient that is. */
typedef struct rankone_two_key_grads {
  rankone_tensor q, e, w, v, g, b, initial_state;
} rankone_two_key_grads;

RANKONE_API rankone_status rankone_two_key(rankone_context* context,
                                           const rankone_sequences* sequences,
                                           const rankone_two_key_inputs* inputs,
                                           const rankone_two_key_outputs* outputs,
                                           const rankone_call* call);
/* Stores how many numbers `saved` has for these inputs, at most 175 for each row and value head
 * (700 bytes); 0 where there is nothing to save: on a CPU, in float32, and for some shapes.
 * `numbers` depends on shapes, dtypes, absent tensors, sequences and the device alone. */
RANKONE_API rankone_status rankone_two_key_saved(rankone_context* context,
                                                 const rankone_sequences* sequences,
                                                 const rankone_two_key_inputs* inputs,
                                                 int64_t* numbers);
RANKONE_API rankone_status rankone_two_key_vjp(rankone_context* context,
                                               const rankone_sequences* sequences,
                                               const rankone_two_key_inputs* inputs,
                                               const rankone_two_key_cotangents* cotangents,
                                               const rankone_two_key_grads* grads,
                                               const rankone_call* call);
/* Decoding: at most 8 rows a sequence, and the state, inputs->initial_state, is updated in place.
 * Here and in rankone_two_key the states may be bf16: they are rounded at the end of a call, all
 * arithmetic is float32. */
RANKONE_API rankone_status rankone_two_key_step(rankone_context* context,
                                                const rankone_sequences* sequences,
                                                const rankone_two_key_inputs* inputs,
                                                const rankone_tensor* o, const rankone_call* call);

/* ---- The preconditioner ---------------------------------------------------------------------
 *
 * Per key head A_t = exp(g_t) A_{t-1} + b_t k^ * k^, where k^ is k, L2-normalised where
 * `normalize`: ATK: r = log(A_t + eps) - center; out = x^(-r / (1 + |r|)) * target      (the write
 * key) ATQ: out = target / (A_t + ridge)                                        (the query)
 */

typedef enum rankone_preconditioner_kind {
  RANKONE_ATK = 0,
  RANKONE_ATQ = 1
} rankone_preconditioner_kind;

typedef struct rankone_precondition_inputs {
  int32_t kind;           /* rankone_preconditioner_kind */
  int32_t normalize;      /* 0 or 1 */
  rankone_tensor k;       /* [R, H, K] */
  rankone_tensor target;  /* [R, H, K]: k for ATK, q for ATQ; may be the memory of k */
  rankone_tensor g;       /* [R, H] log decay; absent: none */
  rankone_tensor b;       /* [R, H] gain; absent: one */
  rankone_tensor center;  /* [H], ATK only */
  rankone_tensor ridge;   /* [H, K] > 0, ATQ only */
  rankone_tensor initial; /* A: [N, H, K]; absent: zero */
  double x;               /* ATK: the factor stays in (1/x, x); x > 1 */
  double eps;             /* > 0 */
} rankone_precondition_inputs;

typedef struct rankone_precondition_outputs {
  rankone_tensor out;         /* [R, H, K] */
  rankone_tensor final_state; /* as initial; may be its memory */
  /* [rankone_precondition_saved()] float32, on CUDA at a multiple of 16 bytes; absent: nothing is
   * saved. What rankone_precondition_vjp with the same sequences and inputs takes, as `saved` of
   * its cotangents, instead of making it again. The outputs have the same bits with it and without.
   */
  rankone_tensor saved;
} rankone_precondition_outputs;

typedef struct rankone_precondition_cotangents {
  rankone_tensor out;         /* dL/dout */
  rankone_tensor final_state; /* absent: zero */
  rankone_tensor saved;       /* by rankone_precondition; absent: nothing was saved */
  rankone_tensor k;           /* dL/dk through what else reads k, as a recurrence whose erase key it
                               * is: added to the gradient of k, may be its memory; absent: zero */
} rankone_precondition_cotangents;

/* k: the part through A; target: the part through the product. Where both are the same memory, it
 * receives the sum: of a target that is k, whose gradient that is. */
typedef struct rankone_precondition_grads {
  rankone_tensor k, target, g, b, center, ridge, initial;
} rankone_precondition_grads;

RANKONE_API rankone_status rankone_precondition(rankone_context* context,
                                                const rankone_sequences* sequences,
                                                const rankone_precondition_inputs* inputs,
                                                const rankone_precondition_outputs* outputs,
                                                const rankone_call* call);
/* Stores how many numbers `saved` has for these inputs: for each head of 128 channels at most 2 a
 * row and 128 a sequence; 0 where there is nothing to save: on a CPU, in float32, and for other
 * kinds and sizes. `numbers` depends on what rankone_two_key_saved's does. */
RANKONE_API rankone_status rankone_precondition_saved(rankone_context* context,
                                                      const rankone_sequences* sequences,
                                                      const rankone_precondition_inputs* inputs,
                                                      int64_t* numbers);
RANKONE_API rankone_status rankone_precondition_vjp(
    rankone_context* context, const rankone_sequences* sequences,
    const rankone_precondition_inputs* inputs, const rankone_precondition_cotangents* cotangents,
    const rankone_precondition_grads* grads, const rankone_call* call);

/* ---- The decay ------------------------------------------------------------------------------
 *
 * Log decays g from logits x, both [R, HV] or, where `channel` is set, [R, HV, K]:
 *   SOFTPLUS     dt = clamp(softplus(x + dt_bias), dt_min, dt_max),  g = -exp(a_log) dt
 *   LOWER_BOUND  g = bound * sigmoid(exp(a_log) (x + dt_bias))
 *   LOGSIGMOID   g = max(logsigmoid(x) / normalizer, clamp)
 */

typedef enum rankone_decay_form {
  RANKONE_DECAY_SOFTPLUS = 0,
  RANKONE_DECAY_LOWER_BOUND = 1,
  RANKONE_DECAY_LOGSIGMOID = 2
} rankone_decay_form;

typedef struct rankone_decay_inputs {
  int32_t form;           /* rankone_decay_form */
  int32_t channel;        /* 0 or 1 */
  rankone_tensor x;       /* [R, HV] or [R, HV, K] */
  rankone_tensor a_log;   /* [HV]; absent: zero. Not for LOGSIGMOID */
  rankone_tensor dt_bias; /* [HV] or [HV, K]; absent: zero. Not for LOGSIGMOID */
  double dt_min, dt_max;  /* SOFTPLUS: 0 <= dt_min < dt_max; INFINITY is no limit */
  double bound;           /* LOWER_BOUND: below 0 */
  double normalizer;      /* LOGSIGMOID: above 0 */
  double clamp;           /* LOGSIGMOID: below 0; -INFINITY is no limit */
} rankone_decay_inputs;

typedef struct rankone_decay_outputs {
  rankone_tensor g;  /* as x */
  rankone_tensor dt; /* as x; SOFTPLUS only */
} rankone_decay_outputs;

typedef struct rankone_decay_grads {
  rankone_tensor x, a_log, dt_bias;
} rankone_decay_grads;

RANKONE_API rankone_status rankone_decay(rankone_context* context,
                                         const rankone_decay_inputs* inputs,
                                         const rankone_decay_outputs* outputs,
                                         const rankone_call* call);
RANKONE_API rankone_status rankone_decay_vjp(rankone_context* context,
                                             const rankone_decay_inputs* inputs,
                                             const rankone_decay_outputs* cotangents,
                                             const rankone_decay_grads* grads,
                                             const rankone_call* call);

/* ---- The gain -------------------------------------------------------------------------------
 *
 * The gain b from logits x. With beta = sigmoid(x) and N = e . w, times the time factor f(t):
 *   ONE 1; SIGMOID beta; SIGMOID2 2 beta; DT x (the time step of the decay);
 *   KACZMARZ beta / (N + eps); NLMS 1 / (N + eps); LONGHORN beta / (1 + beta N);
 *   EFLA (1 - exp(-beta N)) / N; LEARNED_SCALAR beta / (softplus(theta) N + eps);
 *   VECTOR e *= sigmoid(x) per key channel, v *= sigmoid(x_v) per value channel, b = 1
 * KACZMARZ to LEARNED_SCALAR return e / n, w / n, v / n and b n^2 with n^2 = N + eps: the same
 * recurrence in bounded numbers.
 */

typedef enum rankone_gain_kind {
  RANKONE_GAIN_ONE = 0,
  RANKONE_GAIN_SIGMOID = 1,
  RANKONE_GAIN_SIGMOID2 = 2,
  RANKONE_GAIN_DT = 3,
  RANKONE_GAIN_KACZMARZ = 4,
  RANKONE_GAIN_NLMS = 5,
  RANKONE_GAIN_LONGHORN = 6,
  RANKONE_GAIN_EFLA = 7,
  RANKONE_GAIN_LEARNED_SCALAR = 8,
  RANKONE_GAIN_VECTOR = 9
} rankone_gain_kind;

typedef enum rankone_time_factor {
  RANKONE_TIME_NONE = 0,
  RANKONE_TIME_INV_T = 1,      /* 1 / t, t = 1 for the first token */
  RANKONE_TIME_INV_SQRT_T = 2, /* 1 / sqrt(t) */
  RANKONE_TIME_INV_LOG_T = 3   /* 1 / ln(1 + t) */
} rankone_time_factor;

typedef struct rankone_gain_inputs {
  int32_t kind;         /* rankone_gain_kind */
  int32_t time_factor;  /* rankone_time_factor */
  rankone_tensor x;     /* [R, HV]; VECTOR: [R, H, K]; not for ONE and NLMS */
  rankone_tensor x_v;   /* VECTOR: [R, HV, V] */
  rankone_tensor theta; /* LEARNED_SCALAR: [1] */
  rankone_tensor e,
      w;            /* [R, H, K]; w may be the memory of e. KACZMARZ to LEARNED_SCALAR; VECTOR: e */
  rankone_tensor v; /* [R, HV, V] */
  rankone_tensor positions; /* [N] i64, tokens read before each sequence; absent: 0 */
  double eps;               /* above 0 for KACZMARZ to LEARNED_SCALAR */
} rankone_gain_inputs;

typedef struct rankone_gain_outputs {
  rankone_tensor b;       /* [R, HV] */
  rankone_tensor e, w, v; /* KACZMARZ to LEARNED_SCALAR: all; VECTOR: e and v */
} rankone_gain_outputs;

typedef struct rankone_gain_grads {
  rankone_tensor x, x_v, theta, e, w, v;
} rankone_gain_grads;

RANKONE_API rankone_status rankone_gain(rankone_context* context,
                                        const rankone_sequences* sequences,
                                        const rankone_gain_inputs* inputs,
                                        const rankone_gain_outputs* outputs,
                                        const rankone_call* call);
RANKONE_API rankone_status rankone_gain_vjp(rankone_context* context,
                                            const rankone_sequences* sequences,
                                            const rankone_gain_inputs* inputs,
                                            const rankone_gain_outputs* cotangents,
                                            const rankone_gain_grads* grads,
                                            const rankone_call* call);

/* ---- MesaNet --------------------------------------------------------------------------------
 *
 *     Hkk_t = exp(g) Hkk_{t-1} + b k k^T        Hkv_t = exp(g) Hkv_{t-1} + b k v^T
 *     o = Hkv_t^T (Hkk_t + diag(lambda))^{-1} q
 *
 * by conjugate gradients, except in f64, where the solve is exact.
 */

typedef struct rankone_mesa_inputs {
  rankone_tensor q, k;                     /* [R, H, K] */
  rankone_tensor v;                        /* [R, H, V] */
  rankone_tensor g, b;                     /* [R, H] or absent */
  rankone_tensor lambda;                   /* [H, K] > 0 */
  rankone_tensor initial_hkk, initial_hkv; /* [N, H, K, K], [N, H, K, V] or absent */
  int32_t max_iterations;                  /* at least 1 */
  double tolerance;                        /* stop once |r| <= tolerance |q|; 0: never early */
} rankone_mesa_inputs;

typedef struct rankone_mesa_outputs {
  rankone_tensor o;                    /* [R, H, V] */
  rankone_tensor final_hkk, final_hkv; /* may be the memory of the initial ones */
} rankone_mesa_outputs;

typedef struct rankone_mesa_grads {
  rankone_tensor q, k, v, g, b, lambda, initial_hkk, initial_hkv;
} rankone_mesa_grads;

RANKONE_API rankone_status rankone_mesa(rankone_context* context,
                                        const rankone_sequences* sequences,
                                        const rankone_mesa_inputs* inputs,
                                        const rankone_mesa_outputs* outputs,
                                        const rankone_call* call);
RANKONE_API rankone_status rankone_mesa_vjp(rankone_context* context,
                                            const rankone_sequences* sequences,
                                            const rankone_mesa_inputs* inputs,
                                            const rankone_mesa_outputs* cotangents,
                                            const rankone_mesa_grads* grads,
                                            const rankone_call* call);

/* ---- Diagonal Longhorn ----------------------------------------------------------------------
 *
 * With N = |k|^2 and D_j = beta_j / (1 + beta_j N):
 *     S_dj = (1 - D_j k_d^2) S_dj + D_j v_j k_d        o_j = sum_d S_dj q_d
 */

typedef struct rankone_longhorn_inputs {
  rankone_tensor q, k;          /* [R, H, K] */
  rankone_tensor v, beta;       /* [R, HV, V]; beta > 0 */
  rankone_tensor initial_state; /* [N, HV, K, V] or absent */
} rankone_longhorn_inputs;

typedef struct rankone_longhorn_outputs {
  rankone_tensor o;           /* [R, HV, V] */
  rankone_tensor final_state; /* [N, HV, K, V]; may be the memory of initial_state */
} rankone_longhorn_outputs;

typedef struct rankone_longhorn_grads {
  rankone_tensor q, k, v, beta, initial_state;
} rankone_longhorn_grads;

RANKONE_API rankone_status rankone_longhorn(rankone_context* context,
                                            const rankone_sequences* sequences,
                                            const rankone_longhorn_inputs* inputs,
                                            const rankone_longhorn_outputs* outputs,
                                            const rankone_call* call);
RANKONE_API rankone_status rankone_longhorn_vjp(rankone_context* context,
                                                const rankone_sequences* sequences,
                                                const rankone_longhorn_inputs* inputs,
                                                const rankone_longhorn_outputs* cotangents,
                                                const rankone_longhorn_grads* grads,
                                                const rankone_call* call);

#ifdef __cplusplus
}
#endif

#endif /* RANKONE_RANKONE_H */
