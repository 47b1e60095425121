// Bad calls of a context on a GPU: a status with a sentence, nothing on the stream, and the next
// good call works. Skipped where there is no GPU.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "capi/support.hpp"

#if defined(RANKONE_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace rankone::test {
namespace {

#if defined(RANKONE_WITH_CUDA)

TEST(CapiCuda, RefusesWhatIsNoMemoryOfTheGpu) {
  const rankone_options options = {RANKONE_CUDA, 0, 0, 0};
  rankone_context* context = nullptr;
  char message[256];
  if (rankone_context_create(&options, &context, message, sizeof message) != RANKONE_OK) {
    GTEST_SKIP() << message;
  }
  const std::int64_t keys[3] = {4, 1, 16}, values[3] = {4, 1, 8};
  std::vector<float> host(256);
  float* device = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), 4096), cudaSuccess);
  ASSERT_EQ(cudaMemset(device, 0, 4096), cudaSuccess);
  rankone_sequences* sequences = nullptr;
  ASSERT_EQ(rankone_sequences_dense(context, 1, 4, &sequences), RANKONE_OK);
  rankone_two_key_inputs in = {};
  in.q = in.w = rankone_row_major(device, RANKONE_F32, 3, keys);
  in.v = rankone_row_major(device, RANKONE_F32, 3, values);
  in.scale = 1;
  rankone_two_key_outputs out = {};
  out.o = rankone_row_major(device + 256, RANKONE_F32, 3, values);
  rankone_call how = {};
  const auto refuses = [&](rankone_status status, const char* words) {
    EXPECT_EQ(rankone_two_key(context, sequences, &in, &out, &how), status);
    EXPECT_NE(std::string(rankone_last_error(context)).find(words), std::string::npos)
        << rankone_last_error(context);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  };
  const rankone_two_key_inputs good = in;
  in.q.data = host.data();
  refuses(RANKONE_INVALID_ARGUMENT, "q is no memory that the GPU can read");
  in = good;
  in.q.data = device + 1;
  refuses(RANKONE_INVALID_ARGUMENT, "q starts 4 bytes off a multiple of 16");
  in = good;
  in.q.strides[0] = 32;
  refuses(RANKONE_UNSUPPORTED, "q is not row-major");
  in = good;
  how.workspace = host.data();
  how.workspace_bytes = 64;
  how.workspace =
      reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(host.data()) + 63) / 64 * 64);
  refuses(RANKONE_INVALID_ARGUMENT, "workspace is no memory of the GPU");
  how = {};
  in.q.dtype = in.w.dtype = in.v.dtype = out.o.dtype = RANKONE_F64;
  refuses(RANKONE_UNSUPPORTED, "f64 on cuda");
  in = good;
  out.o.dtype = RANKONE_F32;
  EXPECT_EQ(rankone_two_key(context, sequences, &in, &out, &how), RANKONE_OK)
      << rankone_last_error(context);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  rankone_sequences_free(sequences);
  rankone_context_free(context);
  cudaFree(device);
}

// Memory of the GPU with what a tensor holds, guards before and behind, for as long as a test
// lasts.
class OnGpu {
 public:
  explicit OnGpu(const Tensor& host) : host_(host.clone()) {
    EXPECT_EQ(cudaMalloc(&memory_, host_.bytes() + 2 * kGuard), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory_, kMark, host_.bytes() + 2 * kGuard), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(inner(), host_.raw(), host_.bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  OnGpu(const OnGpu&) = delete;
  ~OnGpu() { cudaFree(memory_); }

  rankone_tensor tensor() const {
    rankone_tensor result = c_tensor(host_);
    result.data = inner();
    return result;
  }
  // What it holds now.
  Tensor get() const {
    const Tensor result = Tensor::empty(host_.shape(), host_.dtype());
    EXPECT_EQ(cudaMemcpy(result.raw(), inner(), result.bytes(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    std::vector<unsigned char> all(host_.bytes() + 2 * kGuard);
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_TRUE(all[i] == kMark && all[all.size() - 1 - i] == kMark) << "a guard was written";
    }
    return result;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr int kMark = 0xa5;
  void* inner() const { return static_cast<unsigned char*>(memory_) + kGuard; }

  Tensor host_;
  void* memory_ = nullptr;
};

// Steps of 1 to 8 tokens with bf16 inputs and states as on the CPU in float32 from the same
// numbers, the workspace no larger than asked for.
TEST(CapiCuda, DecodesWithNarrowStatesInPlace) {
  const rankone_options options = {RANKONE_CUDA, 0, 0, 0};
  const rankone_options plain = {RANKONE_CPU, 0, 1, RANKONE_PRECISION_F32};
  rankone_context *context = nullptr, *cpu = nullptr;
  char message[256];
  if (rankone_context_create(&options, &context, message, sizeof message) != RANKONE_OK) {
    GTEST_SKIP() << message;
  }
  ASSERT_EQ(rankone_context_create(&plain, &cpu, message, sizeof message), RANKONE_OK) << message;
  const std::int64_t batch = 3, heads = 2, d_k = 64, d_v = 128;
  for (std::int64_t time = 1; time <= 8; ++time) {
    const auto drawn = [&](const Shape& shape, Dtype dtype, double low, double high, int seed) {
      return uniform(shape, dtype, low, high, static_cast<std::uint64_t>(8 * time + seed));
    };
    const Tensor q = drawn({batch * time, heads, d_k}, Dtype::bf16, -0.2, 0.2, 0);
    const Tensor k = drawn({batch * time, heads, d_k}, Dtype::bf16, -0.2, 0.2, 1);
    const Tensor v = drawn({batch * time, heads, d_v}, Dtype::bf16, -1, 1, 2);
    const Tensor g = drawn({batch * time, heads}, Dtype::f32, -1, 0, 3);
    const Tensor b = drawn({batch * time, heads}, Dtype::f32, 0, 1, 4);
    const Tensor state = drawn({batch, heads, d_k, d_v}, Dtype::bf16, -1, 1, 5);

    const auto step = [&](rankone_context* where, rankone_two_key_inputs in, rankone_tensor o,
                          const auto& allocate) {
      in.scale = 0.125;
      rankone_sequences* sequences = nullptr;
      ASSERT_EQ(rankone_sequences_dense(where, batch, time, &sequences), RANKONE_OK);
      std::size_t bytes = 0;
      rankone_call how = {};
      how.query = &bytes;
      ASSERT_EQ(rankone_two_key_step(where, sequences, &in, &o, &how), RANKONE_OK)
          << rankone_last_error(where);
      how.query = nullptr;
      how.workspace_bytes = bytes;
      how.workspace = allocate(bytes);
      ASSERT_EQ(rankone_two_key_step(where, sequences, &in, &o, &how), RANKONE_OK)
          << rankone_last_error(where);
      rankone_sequences_free(sequences);
    };
    const OnGpu gpu_q(q), gpu_k(k), gpu_v(v), gpu_g(g), gpu_b(b), gpu_state(state),
        gpu_o(unwritten(v));
    void* scratch = nullptr;
    step(context,
         {gpu_q.tensor(), gpu_k.tensor(), gpu_k.tensor(), gpu_v.tensor(), gpu_g.tensor(),
          gpu_b.tensor(), gpu_state.tensor(), 0},
         gpu_o.tensor(), [&](std::size_t bytes) {
           EXPECT_EQ(cudaMalloc(&scratch, bytes + 1), cudaSuccess);
           return scratch;
         });
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(scratch);

    std::vector<Tensor> wide;
    for (const Tensor& tensor : {q, k, v, state, unwritten(v)}) {
      wide.push_back(tensor.to(Dtype::f32));
    }
    std::unique_ptr<WorkspaceMemory> memory;
    step(cpu,
         {c_tensor(wide[0]), c_tensor(wide[1]), c_tensor(wide[1]), c_tensor(wide[2]), c_tensor(g),
          c_tensor(b), c_tensor(wide[3]), 0},
         c_tensor(wide[4]), [&](std::size_t bytes) {
           memory = std::make_unique<WorkspaceMemory>(bytes);
           return memory->data();
         });
    const auto compare = [&](const Tensor& stored, const Tensor& expected, const char* name) {
      const Tensor got = stored.to(Dtype::f32);
      double worst = 0;
      for (std::int64_t i = 0; i < got.count(); ++i) {
        const double right = expected.data<float>()[i];
        const double error = std::abs(got.data<float>()[i] - right);
        worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error / (std::abs(right) + 1e-2));
      }
      EXPECT_LE(worst, 0x1p-8) << name << ", " << time << " tokens";  // rounded once
    };
    compare(gpu_o.get(), wide[4], "o");
    compare(gpu_state.get(), wide[3], "state");
    expect_same_bits(k, gpu_k.get(), "k");
    expect_same_bits(g, gpu_g.get(), "g");
  }
  rankone_context_free(cpu);
  rankone_context_free(context);
}

// What the preconditioner leaves to its vjp: the outputs do not depend on it, and the gradients are
// those without it.
TEST(CapiCuda, ThePreconditionerLeavesItsStatesToTheVjp) {
  const rankone_options options = {RANKONE_CUDA, 0, 0, 0};
  rankone_context* context = nullptr;
  char message[256];
  if (rankone_context_create(&options, &context, message, sizeof message) != RANKONE_OK) {
    GTEST_SKIP() << message;
  }
  const std::int64_t batch = 2, time = 200, heads = 2, d_k = 128;
  const Tensor k = uniform({batch * time, heads, d_k}, Dtype::bf16, -0.2, 0.2, 0);
  const Tensor d_out = uniform({batch * time, heads, d_k}, Dtype::bf16, -1, 1, 1);
  const Tensor g = uniform({batch * time, heads}, Dtype::f32, -0.2, 0, 2);
  const Tensor center = uniform({heads}, Dtype::f32, -3, -2, 3);
  const OnGpu gpu_k(k), gpu_d_out(d_out), gpu_g(g), gpu_center(center);
  rankone_sequences* sequences = nullptr;
  ASSERT_EQ(rankone_sequences_dense(context, batch, time, &sequences), RANKONE_OK);
  rankone_precondition_inputs in = {};
  in.k = in.target = gpu_k.tensor();
  in.g = gpu_g.tensor();
  in.center = gpu_center.tensor();
  in.x = 1.5;
  in.eps = 1e-6;
  std::int64_t numbers = 0;
  ASSERT_EQ(rankone_precondition_saved(context, sequences, &in, &numbers), RANKONE_OK)
      << rankone_last_error(context);
  ASSERT_GT(numbers, 0);
  EXPECT_LE(numbers, heads * (2 * batch * time + 128 * batch));
  const OnGpu saved(Tensor::empty({numbers}, Dtype::f32));

  struct Results {
    Tensor out, k, target, g, center;
  };
  const auto run = [&](bool saves) {
    const OnGpu out(unwritten(k)), d_k(unwritten(k)), d_target(unwritten(k)), d_g(unwritten(g)),
        d_center(unwritten(center));
    rankone_precondition_outputs to = {};
    rankone_precondition_cotangents from = {};
    to.out = out.tensor();
    from.out = gpu_d_out.tensor();
    if (saves) to.saved = from.saved = saved.tensor();
    rankone_precondition_grads grads = {};
    grads.k = d_k.tensor();
    grads.target = d_target.tensor();
    grads.g = d_g.tensor();
    grads.center = d_center.tensor();
    const auto call = [&](const auto& function) {
      std::size_t bytes = 0;
      rankone_call how = {};
      how.query = &bytes;
      EXPECT_EQ(function(&how), RANKONE_OK) << rankone_last_error(context);
      void* scratch = nullptr;
      EXPECT_EQ(cudaMalloc(&scratch, bytes + 1), cudaSuccess);
      how = {nullptr, scratch, bytes, nullptr};
      EXPECT_EQ(function(&how), RANKONE_OK) << rankone_last_error(context);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      cudaFree(scratch);
    };
    call([&](const rankone_call* how) {
      return rankone_precondition(context, sequences, &in, &to, how);
    });
    call([&](const rankone_call* how) {
      return rankone_precondition_vjp(context, sequences, &in, &from, &grads, how);
    });
    return Results{out.get(), d_k.get(), d_target.get(), d_g.get(), d_center.get()};
  };
  const Results with = run(true), without = run(false);
  expect_same_bits(without.out, with.out, "out");
  const auto close = [](const Tensor& expected, const Tensor& got, double bound, const char* name) {
    const Tensor right = expected.to(Dtype::f32), other = got.to(Dtype::f32);
    double sum = 0, difference = 0;
    for (std::int64_t i = 0; i < right.count(); ++i) {
      const double x = right.data<float>()[i], y = other.data<float>()[i];
      sum += x * x;
      difference += (x - y) * (x - y);
    }
    EXPECT_GT(sum, 0) << name;
    EXPECT_LE(difference, bound * bound * sum) << name;
  };
  close(without.k, with.k, 0x1p-9, "k");  // rounded once, to either side
  close(without.target, with.target, 0x1p-9, "target");
  close(without.g, with.g, 1e-5, "g");
  close(without.center, with.center, 1e-5, "center");
  rankone_sequences_free(sequences);
  rankone_context_free(context);
}

#endif

}  // namespace
}  // namespace rankone::test
