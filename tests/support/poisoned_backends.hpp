#pragma once

// Backends whose tensors the host can not touch: the memory is closed to reads and writes except
// while a backend runs, as memory of a device would be. A step that runs on them never reads tensor
// data above the backends.

#include <sys/mman.h>

#include <cstddef>

#include "core/context.hpp"
#include "core/status.hpp"
#include "nn/backend.hpp"
#include "recurrence/backend.hpp"

namespace rankone::test {

class PoisonedMemory {
 public:
  explicit PoisonedMemory(std::size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory_ != MAP_FAILED, "[test] no memory");
  }
  ~PoisonedMemory() { ::munmap(memory_, bytes_); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

  void close() { protect(PROT_NONE); }
  void open() { protect(PROT_READ | PROT_WRITE); }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t bytes() const { return bytes_; }

  // Open during its life; backends call each other.
  class Access {
   public:
    explicit Access(PoisonedMemory& memory) : memory_(memory) {
      if (memory_.depth_++ == 0) memory_.open();
      ++memory_.calls_;
    }
    ~Access() {
      if (--memory_.depth_ == 0) memory_.close();
    }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    PoisonedMemory& memory_;
  };
  int calls() const { return calls_; }

 private:
  void protect(int mode) {
    require(::mprotect(memory_, bytes_, mode) == 0, "[test] mprotect failed");
  }

  void* memory_;
  std::size_t bytes_;
  int depth_ = 0;
  int calls_ = 0;
};

}  // namespace rankone::test

namespace rankone::nn {

using test::PoisonedMemory;

// `inner` with the memory open while it runs. Its name is "poisoned".
class Poisoned final : public Backend {
 public:
  Poisoned(const Backend& inner, PoisonedMemory& memory) : inner_(inner), memory_(memory) {}
  std::string_view name() const override { return "poisoned"; }
  bool accepts(Dtype dtype, Device device) const override { return inner_.accepts(dtype, device); }
  void gemm(Context& context, const Gemm& args) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.gemm(context, args);
  }
  void linear(Context& context, const Linear& args, const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.linear(context, args, y);
  }
  void linear_vjp(Context& context, const Linear& args, const Tensor& dy,
                  const LinearGrads& grads) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.linear_vjp(context, args, dy, grads);
  }
  void embedding(Context& context, const Tensor& ids, const Tensor& table,
                 const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.embedding(context, ids, table, y);
  }
  void embedding_vjp(Context& context, const Tensor& ids, const Tensor& dy,
                     const Tensor& dtable) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.embedding_vjp(context, ids, dy, dtable);
  }
  void rms_norm(Context& context, const RmsNorm& args, const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.rms_norm(context, args, y);
  }
  void rms_norm_vjp(Context& context, const RmsNorm& args, const Tensor& dy,
                    const RmsNormGrads& grads) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.rms_norm_vjp(context, args, dy, grads);
  }
  void vector_norm(Context& context, const VectorNorm& args, const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.vector_norm(context, args, y);
  }
  void vector_norm_vjp(Context& context, const VectorNorm& args, const Tensor& dy,
                       const Tensor& dx) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.vector_norm_vjp(context, args, dy, dx);
  }
  void short_conv(Context& context, const Sequences& sequences, const ShortConv& args,
                  const ShortConvOut& out) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.short_conv(context, sequences, args, out);
  }
  void short_conv_vjp(Context& context, const Sequences& sequences, const ShortConv& args,
                      const ShortConvCotangents& cotangents,
                      const ShortConvGrads& grads) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.short_conv_vjp(context, sequences, args, cotangents, grads);
  }
  void activate(Context& context, const Tensor& x, Activation activation,
                const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.activate(context, x, activation, y);
  }
  void activate_vjp(Context& context, const Tensor& x, Activation activation, const Tensor& dy,
                    const Tensor& dx) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.activate_vjp(context, x, activation, dy, dx);
  }
  void swiglu(Context& context, const Tensor& gate, const Tensor& up,
              const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.swiglu(context, gate, up, y);
  }
  void swiglu_vjp(Context& context, const Tensor& gate, const Tensor& up, const Tensor& dy,
                  const Tensor& dgate, const Tensor& dup) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.swiglu_vjp(context, gate, up, dy, dgate, dup);
  }
  void multiply(Context& context, const Tensor& a, const Tensor& b,
                const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.multiply(context, a, b, y);
  }
  void multiply_vjp(Context& context, const Tensor& a, const Tensor& b, const Tensor& dy,
                    const Tensor& da, const Tensor& db) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.multiply_vjp(context, a, b, dy, da, db);
  }
  void add(Context& context, const Tensor& a, const Tensor& b, const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.add(context, a, b, y);
  }
  void scale(Context& context, const Tensor& a, double factor, const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.scale(context, a, factor, y);
  }
  void fill(Context& context, const Tensor& y, double value) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.fill(context, y, value);
  }
  void copy(Context& context, const Tensor& from, const Tensor& to) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.copy(context, from, to);
  }
  void head_skip(Context& context, const Tensor& o, const Tensor& x, const Tensor& skip,
                 const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.head_skip(context, o, x, skip, y);
  }
  void head_skip_vjp(Context& context, const Tensor& x, const Tensor& skip, const Tensor& dy,
                     const Tensor& dx, const Tensor& dskip) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.head_skip_vjp(context, x, skip, dy, dx, dskip);
  }
  void exp_scale(Context& context, const Tensor& x, const Tensor& g, double factor,
                 const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.exp_scale(context, x, g, factor, y);
  }
  void exp_scale_vjp(Context& context, const Tensor& x, const Tensor& g, double factor,
                     const Tensor& dy, const Tensor& dx, const Tensor& dg) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.exp_scale_vjp(context, x, g, factor, dy, dx, dg);
  }
  void feature_map(Context& context, const Tensor& x, FeatureMap map,
                   const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.feature_map(context, x, map, y);
  }
  void feature_map_vjp(Context& context, const Tensor& x, FeatureMap map, const Tensor& dy,
                       const Tensor& dx) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.feature_map_vjp(context, x, map, dy, dx);
  }
  void repeat_heads(Context& context, const Tensor& x, std::int64_t repeats,
                    const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.repeat_heads(context, x, repeats, y);
  }
  void repeat_heads_vjp(Context& context, const Tensor& dy, std::int64_t repeats,
                        const Tensor& dx) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.repeat_heads_vjp(context, dy, repeats, dx);
  }
  void columns(Context& context, const Tensor& x, std::int64_t begin,
               const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.columns(context, x, begin, y);
  }
  void columns_vjp(Context& context, const Tensor& dy, std::int64_t begin,
                   const Tensor& dx) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.columns_vjp(context, dy, begin, dx);
  }
  void gather_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                   const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.gather_rows(context, x, rows, y);
  }
  void rope(Context& context, const Sequences& sequences, const Rope& args,
            const Tensor& y) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.rope(context, sequences, args, y);
  }
  void rope_vjp(Context& context, const Sequences& sequences, const Rope& args, const Tensor& dy,
                const Tensor& dx) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.rope_vjp(context, sequences, args, dy, dx);
  }
  void attention(Context& context, const Sequences& sequences, const Attention& args,
                 const Tensor& o) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.attention(context, sequences, args, o);
  }
  void attention_vjp(Context& context, const Sequences& sequences, const Attention& args,
                     const Tensor& o, const Tensor& do_,
                     const AttentionGrads& grads) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.attention_vjp(context, sequences, args, o, do_, grads);
  }
  void cross_entropy(Context& context, const CrossEntropy& args,
                     const Tensor& losses) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.cross_entropy(context, args, losses);
  }
  void cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                         const Tensor& losses, const CrossEntropyGrads& grads) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.cross_entropy_vjp(context, args, factor, losses, grads);
  }
  void add_sum_of_squares(Context& context, const Tensor& x, const Tensor& sum) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.add_sum_of_squares(context, x, sum);
  }
  void add_sum(Context& context, const Tensor& x, double factor, const Tensor& sum) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.add_sum(context, x, factor, sum);
  }
  void clip_factor(Context& context, const Tensor& sum, double limit, const Tensor& factor,
                   const Tensor& ok) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.clip_factor(context, sum, limit, factor, ok);
  }
  void adamw(Context& context, const AdamW& args) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.adamw(context, args);
  }

 private:
  const Backend& inner_;
  PoisonedMemory& memory_;
};

}  // namespace rankone::nn

namespace rankone::recurrence {

using test::PoisonedMemory;

// `inner` with the memory open while it runs. Its name is "poisoned".
class Poisoned final : public Backend {
 public:
  Poisoned(const Backend& inner, PoisonedMemory& memory) : inner_(inner), memory_(memory) {}
  std::string_view name() const override { return "poisoned"; }
  bool accepts(const CallShape& call) const override { return inner_.accepts(call); }
  void two_key(Context& a0, const Sequences& a1, const TwoKey& a2,
               const TwoKeyOut& a3) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.two_key(a0, a1, a2, a3);
  }
  std::int64_t two_key_saved(Context& a0, const Sequences& a1, const TwoKey& a2) const override {
    return inner_.two_key_saved(a0, a1, a2);
  }
  void two_key_vjp(Context& a0, const Sequences& a1, const TwoKey& a2, const TwoKeyCotangents& a3,
                   const TwoKeyGrads& a4) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.two_key_vjp(a0, a1, a2, a3, a4);
  }
  void precondition(Context& a0, const Sequences& a1, const Precondition& a2,
                    const PreconditionOut& a3) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.precondition(a0, a1, a2, a3);
  }
  std::int64_t precondition_saved(Context& a0, const Sequences& a1,
                                  const Precondition& a2) const override {
    return inner_.precondition_saved(a0, a1, a2);
  }
  void precondition_vjp(Context& a0, const Sequences& a1, const Precondition& a2,
                        const PreconditionCotangents& a3,
                        const PreconditionGrads& a4) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.precondition_vjp(a0, a1, a2, a3, a4);
  }
  void decay(Context& a0, const Decay& a1, const DecayOut& a2) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.decay(a0, a1, a2);
  }
  void decay_vjp(Context& a0, const Decay& a1, const DecayCotangents& a2,
                 const DecayGrads& a3) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.decay_vjp(a0, a1, a2, a3);
  }
  void gain(Context& a0, const Sequences& a1, const Gain& a2, const GainOut& a3) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.gain(a0, a1, a2, a3);
  }
  void gain_vjp(Context& a0, const Sequences& a1, const Gain& a2, const GainCotangents& a3,
                const GainGrads& a4) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.gain_vjp(a0, a1, a2, a3, a4);
  }
  void mesa(Context& a0, const Sequences& a1, const Mesa& a2, const MesaOut& a3) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.mesa(a0, a1, a2, a3);
  }
  void mesa_vjp(Context& a0, const Sequences& a1, const Mesa& a2, const MesaCotangents& a3,
                const MesaGrads& a4) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.mesa_vjp(a0, a1, a2, a3, a4);
  }
  void longhorn(Context& a0, const Sequences& a1, const Longhorn& a2,
                const LonghornOut& a3) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.longhorn(a0, a1, a2, a3);
  }
  void longhorn_vjp(Context& a0, const Sequences& a1, const Longhorn& a2,
                    const LonghornCotangents& a3, const LonghornGrads& a4) const override {
    const PoisonedMemory::Access access(memory_);
    inner_.longhorn_vjp(a0, a1, a2, a3, a4);
  }

 private:
  const Backend& inner_;
  PoisonedMemory& memory_;
};

}  // namespace rankone::recurrence
