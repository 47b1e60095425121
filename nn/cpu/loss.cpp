#include <algorithm>
#include <cmath>

#include "nn/arguments.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "nn/cpu/gemm.hpp"
#include "nn/cpu/softmax.hpp"

namespace rankone::nn {
namespace {

// Logits in memory at a time: about what the second-level caches of a few cores hold, but enough
// rows that the gradient of the weight is not read and written for too few of them.
constexpr std::int64_t kLogits = std::int64_t{1} << 20;
constexpr std::int64_t kLeastRows = 128;
constexpr std::int64_t kMostRows = 512;

std::int64_t block_rows(std::int64_t rows, std::int64_t vocabulary) {
  return std::min(rows, std::clamp(kLogits / vocabulary, kLeastRows, kMostRows));
}

// The work on one block of scored rows, whose numbers are rows[0 .. count).
class Block {
 public:
  Block(Context& context, const CrossEntropy& args, double factor, const Tensor& losses,
        const CrossEntropyGrads& grads)
      : context_(context),
        args_(args),
        factor_(static_cast<float>(factor)),
        losses_(losses),
        grads_(grads),
        vocabulary_(args.weight.dim(0)),
        width_(args.weight.dim(1)),
        most_(block_rows(args.targets.count(), vocabulary_)) {
    x_ = context.empty({most_, width_}, Dtype::f32).data<float>();
    logits_ = context.empty({most_, vocabulary_}, Dtype::f32).data<float>();
    if (grads.x.defined()) dx_ = context.empty({most_, width_}, Dtype::f32).data<float>();
  }

  std::int64_t most() const { return most_; }

  void run(const std::int32_t* rows, std::int64_t count) const {
    const bool compute = !context_.planning();
    if (compute) gather(rows, count);
    const GemmMatrix x = {x_, width_, false, Storage::f32};
    const GemmMatrix d = {logits_, vocabulary_, false, Storage::f32};
    multiply({count, vocabulary_, width_}, x, gemm_matrix(args_.weight, true), logits_, false);
    if (compute) {
      context_.threads().run(count, [&](std::int64_t i, int) { softmax(rows[i], i); });
    }
    if (grads_.x.defined()) {
      multiply({count, width_, vocabulary_}, d, gemm_matrix(args_.weight, false), dx_, false);
      if (compute) scatter(rows, count);
    }
    if (grads_.weight.defined()) {
      const GemmMatrix transposed = {logits_, vocabulary_, true, Storage::f32};
      multiply({vocabulary_, width_, count}, transposed, x, grads_.weight.data<float>(), true);
    }
  }

 private:
  void multiply(const GemmShape& shape, const GemmMatrix& a, const GemmMatrix& b, float* c,
                bool accumulate) const {
    cpu_gemm(context_, gemm_kernels(), shape, a, b, c, shape.n, accumulate);
  }

  void gather(const std::int32_t* rows, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(args_.x.data<float>() + rows[i] * width_, width_, x_ + i * width_);
    }
  }

  void scatter(const std::int32_t* rows, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(dx_ + i * width_, width_, grads_.x.data<float>() + rows[i] * width_);
    }
  }

  // The loss of a row; its logits become their gradient where one is wanted.
  void softmax(std::int64_t row, std::int64_t i) const {
    const SoftmaxKernels& kernels = softmax_kernels();
    float* const logits = logits_ + i * vocabulary_;
    const std::int32_t target = args_.targets.data<std::int32_t>()[row];
    const bool wanted = grads_.x.defined() || grads_.weight.defined();
    const float largest = kernels.maximum(logits, vocabulary_);
    const float below = largest - logits[target];
    const float sum = kernels.exp_sum(logits, vocabulary_, largest, wanted ? logits : nullptr);
    if (losses_.defined()) losses_.data<float>()[row] = below + std::log(sum);
    if (!wanted) return;
    kernels.scale(logits, vocabulary_, factor_ / sum);
    logits[target] -= factor_;
  }

  Context& context_;
  const CrossEntropy& args_;
  float factor_;
  const Tensor& losses_;
  const CrossEntropyGrads& grads_;
  std::int64_t vocabulary_, width_, most_;
  float* x_ = nullptr;
  float* logits_ = nullptr;
  float* dx_ = nullptr;
};

// The numbers of the rows that are scored.
std::int64_t scored_rows(const Tensor& targets, std::int64_t vocabulary, std::int32_t* rows) {
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < targets.count(); ++r) {
    const std::int32_t target = targets.data<std::int32_t>()[r];
    if (target < 0) continue;
    Arguments("cross_entropy").index("targets", target, vocabulary);
    rows[count++] = static_cast<std::int32_t>(r);
  }
  return count;
}

}  // namespace

const SoftmaxKernels& softmax_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::kSoftmaxKernels;
  if (isa == Isa::avx2) return avx2::kSoftmaxKernels;
#endif
  static_cast<void>(isa);
  return baseline::kSoftmaxKernels;
}

const SoftmaxKernels& softmax_kernels() {
  static const SoftmaxKernels& kernels = softmax_kernels(best_isa());
  return kernels;
}

void CpuBackend::cross_entropy(Context& context, const CrossEntropy& args,
                               const Tensor& losses) const {
  cross_entropy_vjp(context, args, 1.0, losses, {});
}

void CpuBackend::cross_entropy_vjp(Context& context, const CrossEntropy& args, double factor,
                                   const Tensor& losses, const CrossEntropyGrads& grads) const {
  const ArenaScope scope(context.arena());
  const std::int64_t total = args.targets.count();
  auto* const rows = context.empty({total}, Dtype::i32).data<std::int32_t>();
  const Block block(context, args, factor, losses, grads);
  if (context.planning()) {
    // How many rows the last block has depends on the targets, and the scratch of its products
    // does not simply grow with it.
    for (std::int64_t count = 1; count <= block.most(); ++count) block.run(nullptr, count);
    return;
  }
  const std::int64_t scored = scored_rows(args.targets, args.weight.dim(0), rows);
  if (scored < total) {
    if (losses.defined()) std::fill_n(losses.data<float>(), total, 0.0F);
    if (grads.x.defined()) std::fill_n(grads.x.data<float>(), grads.x.count(), 0.0F);
  }
  for (std::int64_t first = 0; first < scored; first += block.most()) {
    block.run(rows + first, std::min(block.most(), scored - first));
  }
}

}  // namespace rankone::nn
