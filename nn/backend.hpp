#pragma once

// What a backend of this layer implements: one virtual function per operator of operators.hpp, with
// the arguments already validated. A backend function first takes its scratch from context.arena()
// (inside an ArenaScope) and then returns if context.planning().

#include <string_view>

#include "nn/operators.hpp"

namespace rankone::nn {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // dtype is that of the activations (for optimiser and copies: of the tensors).
  virtual bool accepts(Dtype dtype, Device device) const = 0;

  virtual void gemm(Context& context, const Gemm& args) const = 0;
  virtual void linear(Context& context, const Linear& args, const Tensor& y) const = 0;
  virtual void linear_vjp(Context& context, const Linear& args, const Tensor& dy,
                          const LinearGrads& grads) const = 0;
  virtual void embedding(Context& context, const Tensor& ids, const Tensor& table,
                         const Tensor& y) const = 0;
  virtual void embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy,
                             const Tensor& dtable) const = 0;
  virtual void rms_norm(Context& context, const RmsNorm& args, const Tensor& y) const = 0;
  virtual void rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy,
                            const RmsNormGrads& grads) const = 0;
  virtual void vector_norm(Context& context, const VectorNorm& args, const Tensor& y) const = 0;
  virtual void vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy,
                               const Tensor& dx) const = 0;
  virtual void short_conv(Context& context, const Sequences& sequences, const ShortConv& args,
                          const ShortConvOut& out) const = 0;
  virtual void short_conv_vjp(Context& context, const Sequences& sequences, const ShortConv& args,
                              const ShortConvCotangents& cotangents,
                              const ShortConvGrads& grads) const = 0;
  virtual void activate(Context& context, const Tensor& x, Activation activation,
                        const Tensor& y) const = 0;
  virtual void activate_vjp(Context& context, const Tensor& x, Activation activation,
                            const Tensor& dy, const Tensor& dx) const = 0;
  virtual void swiglu(Context& context, const Tensor& gate, const Tensor& up,
                      const Tensor& y) const = 0;
  virtual void swiglu_vjp(Context& context, const Tensor& gate, const Tensor& up, const Tensor& dy,
                          const Tensor& dgate, const Tensor& dup) const = 0;
  virtual void multiply(Context& context, const Tensor& a, const Tensor& b,
                        const Tensor& y) const = 0;
  virtual void multiply_vjp(Context& context, const Tensor& a, const Tensor& b, const Tensor& dy,
                            const Tensor& da, const Tensor& db) const = 0;
  virtual void add(Context& context, const Tensor& a, const Tensor& b, const Tensor& y) const = 0;
  virtual void scale(Context& context, const Tensor& a, double factor, const Tensor& y) const = 0;
  virtual void fill(Context& context, const Tensor& y, double value) const = 0;
  virtual void copy(Context& context, const Tensor& from, const Tensor& to) const = 0;
  virtual void head_skip(Context& context, const Tensor& o, const Tensor& x, const Tensor& skip,
                         const Tensor& y) const = 0;
  virtual void head_skip_vjp(Context& context, const Tensor& x, const Tensor& skip,
                             const Tensor& dy, const Tensor& dx, const Tensor& dskip) const = 0;
  virtual void exp_scale(Context& context, const Tensor& x, const Tensor& g, double factor,
                         const Tensor& y) const = 0;
  virtual void exp_scale_vjp(Context& context, const Tensor& x, const Tensor& g, double factor,
                             const Tensor& dy, const Tensor& dx, const Tensor& dg) const = 0;
  virtual void feature_map(Context& context, const Tensor& x, FeatureMap map,
                           const Tensor& y) const = 0;
  virtual void feature_map_vjp(Context& context, const Tensor& x, FeatureMap map, const Tensor& dy,
                               const Tensor& dx) const = 0;
  virtual void repeat_heads(Context& context, const Tensor& x, std::int64_t repeats,
                            const Tensor& y) const = 0;
  virtual void repeat_heads_vjp(Context& context, const Tensor& dy, std::int64_t repeats,
                                const Tensor& dx) const = 0;
  virtual void columns(Context& context, const Tensor& x, std::int64_t begin,
                       const Tensor& y) const = 0;
  virtual void columns_vjp(Context& context, const Tensor& dy, std::int64_t begin,
                           const Tensor& dx) const = 0;
  virtual void gather_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                           const Tensor& y) const = 0;
  virtual void rope(Context& context, const Sequences& sequences, const Rope& args,
                    const Tensor& y) const = 0;
  virtual void rope_vjp(Context& context, const Sequences& sequences, const Rope& args,
                        const Tensor& dy, const Tensor& dx) const = 0;
  virtual void attention(Context& context, const Sequences& sequences, const Attention& args,
                         const Tensor& o) const = 0;
  virtual void attention_vjp(Context& context, const Sequences& sequences, const Attention& args,
                             const Tensor& o, const Tensor& do_,
                             const AttentionGrads& grads) const = 0;
  virtual void cross_entropy(Context& context, const CrossEntropy& args,
                             const Tensor& losses) const = 0;
  virtual void cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                                 const Tensor& losses, const CrossEntropyGrads& grads) const = 0;
  virtual void add_sum_of_squares(Context& context, const Tensor& x, const Tensor& sum) const = 0;
  virtual void add_sum(Context& context, const Tensor& x, double factor,
                       const Tensor& sum) const = 0;
  virtual void clip_factor(Context& context, const Tensor& sum, double limit, const Tensor& factor,
                           const Tensor& ok) const = 0;
  virtual void adamw(Context& context, const AdamW& args) const = 0;
};

const Backend& reference_backend();
const Backend& cpu_backend();

// Adds a backend that the preference list of a Context can then name (tests). Unregisters on
// destruction; the backend must outlive it.
class RegisteredBackend {
 public:
  explicit RegisteredBackend(const Backend& backend);
  ~RegisteredBackend();
  RegisteredBackend(const RegisteredBackend&) = delete;
  RegisteredBackend& operator=(const RegisteredBackend&) = delete;

 private:
  const Backend* backend_;
};

// The first backend of the context's list that accepts; the reference if none does.
const Backend& select_backend(const Context& context, Dtype dtype);

}  // namespace rankone::nn
