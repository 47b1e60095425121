#pragma once

// The CPU backend: float32, vectorised, threads over independent work.
// Each function is defined in the file of its subject in this folder.

#include "nn/backend.hpp"

namespace rankone::nn {

class CpuBackend : public Backend {
 public:
  std::string_view name() const override;
  bool accepts(Dtype dtype, Device device) const override;
  void gemm(Context& context, const Gemm& args) const override;
  void linear(Context& context, const Linear& args, const Tensor& y) const override;
  void linear_vjp(Context& context, const Linear& args, const Tensor& dy,
                  const LinearGrads& grads) const override;
  void embedding(Context& context, const Tensor& ids, const Tensor& table,
                 const Tensor& y) const override;
  void embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy,
                     const Tensor& dtable) const override;
  void rms_norm(Context& context, const RmsNorm& args, const Tensor& y) const override;
  void rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy,
                    const RmsNormGrads& grads) const override;
  void vector_norm(Context& context, const VectorNorm& args, const Tensor& y) const override;
  void vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy,
                       const Tensor& dx) const override;
  void short_conv(Context& context, const Sequences& sequences, const ShortConv& args,
                  const ShortConvOut& out) const override;
  void short_conv_vjp(Context& context, const Sequences& sequences, const ShortConv& args,
                      const ShortConvCotangents& cotangents,
                      const ShortConvGrads& grads) const override;
  void activate(Context& context, const Tensor& x, Activation activation,
                const Tensor& y) const override;
  void activate_vjp(Context& context, const Tensor& x, Activation activation, const Tensor& dy,
                    const Tensor& dx) const override;
  void swiglu(Context& context, const Tensor& gate, const Tensor& up,
              const Tensor& y) const override;
  void swiglu_vjp(Context& context, const Tensor& gate, const Tensor& up, const Tensor& dy,
                  const Tensor& dgate, const Tensor& dup) const override;
  void multiply(Context& context, const Tensor& a, const Tensor& b, const Tensor& y) const override;
  void multiply_vjp(Context& context, const Tensor& a, const Tensor& b, const Tensor& dy,
                    const Tensor& da, const Tensor& db) const override;
  void add(Context& context, const Tensor& a, const Tensor& b, const Tensor& y) const override;
  void scale(Context& context, const Tensor& a, double factor, const Tensor& y) const override;
  void fill(Context& context, const Tensor& y, double value) const override;
  void copy(Context& context, const Tensor& from, const Tensor& to) const override;
  void head_skip(Context& context, const Tensor& o, const Tensor& x, const Tensor& skip,
                 const Tensor& y) const override;
  void head_skip_vjp(Context& context, const Tensor& x, const Tensor& skip, const Tensor& dy,
                     const Tensor& dx, const Tensor& dskip) const override;
  void exp_scale(Context& context, const Tensor& x, const Tensor& g, double factor,
                 const Tensor& y) const override;
  void exp_scale_vjp(Context& context, const Tensor& x, const Tensor& g, double factor,
                     const Tensor& dy, const Tensor& dx, const Tensor& dg) const override;
  void feature_map(Context& context, const Tensor& x, FeatureMap map,
                   const Tensor& y) const override;
  void feature_map_vjp(Context& context, const Tensor& x, FeatureMap map, const Tensor& dy,
                       const Tensor& dx) const override;
  void repeat_heads(Context& context, const Tensor& x, std::int64_t repeats,
                    const Tensor& y) const override;
  void repeat_heads_vjp(Context& context, const Tensor& dy, std::int64_t repeats,
                        const Tensor& dx) const override;
  void columns(Context& context, const Tensor& x, std::int64_t begin,
               const Tensor& y) const override;
  void columns_vjp(Context& context, const Tensor& dy, std::int64_t begin,
                   const Tensor& dx) const override;
  void gather_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                   const Tensor& y) const override;
  void rope(Context& context, const Sequences& sequences, const Rope& args,
            const Tensor& y) const override;
  void rope_vjp(Context& context, const Sequences& sequences, const Rope& args, const Tensor& dy,
                const Tensor& dx) const override;
  void attention(Context& context, const Sequences& sequences, const Attention& args,
                 const Tensor& o) const override;
  void attention_vjp(Context& context, const Sequences& sequences, const Attention& args,
                     const Tensor& o, const Tensor& do_,
                     const AttentionGrads& grads) const override;
  void cross_entropy(Context& context, const CrossEntropy& args,
                     const Tensor& losses) const override;
  void cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                         const Tensor& losses, const CrossEntropyGrads& grads) const override;
  void add_sum_of_squares(Context& context, const Tensor& x, const Tensor& sum) const override;
  void add_sum(Context& context, const Tensor& x, double factor, const Tensor& sum) const override;
  void clip_factor(Context& context, const Tensor& sum, double limit, const Tensor& factor,
                   const Tensor& ok) const override;
  void adamw(Context& context, const AdamW& args) const override;
};

}  // namespace rankone::nn
