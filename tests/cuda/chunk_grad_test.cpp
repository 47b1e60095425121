// The gradient kernel alone, on emulated threads: inputs and expected gradients come step by step
// from the recurrence in float64. On a GPU it runs with the others, on the case list.

#if defined(RANKONE_CUDA_EMULATION)

#include <gtest/gtest.h>

#include "cuda/chunk_grad_fixture.hpp"
#include "cuda/host_memory.hpp"

namespace rankone::test {
namespace {

using Tensors = GradTensors<HostMemory<16>>;  // as aligned as the kernels want

GradCase shaped(GateKind gate, std::int64_t heads, std::int64_t group, int d_k, int d_v,
                std::vector<std::int64_t> lengths, int gates) {
  GradCase c;
  c.gate = gate;
  c.heads = heads;
  c.group = group;
  c.d_k = d_k;
  c.d_v = d_v;
  c.lengths = std::move(lengths);
  c.gates = gates;
  return c;
}

std::vector<GradCase> grad_cases() {
  std::vector<GradCase> cases;
  for (const GateKind gate : {GateKind::none, GateKind::scalar, GateKind::channel}) {
    cases.push_back(shaped(gate, 2, 1, 128, 128, {100}, 0));
    cases.push_back(shaped(gate, 1, 3, 72, 8, {64}, 1));
    cases.push_back(shaped(gate, 2, 2, 128, 72, {70}, 1));
    cases.push_back(shaped(gate, 1, 1, 200, 64, {128}, 1));
    cases.push_back(shaped(gate, 2, 1, 64, 64, {0, 5, 0, 64, 65, 0}, 0));
    // Several pairs of value tiles, and several sequences where the keys fill all columns.
    for (const bool same_key : {false, true}) {
      GradCase wide = shaped(gate, 2, 1, 128, 200, {70}, 1);
      wide.same_key = wide.sum_keys = same_key;
      cases.push_back(wide);
      GradCase packed = shaped(gate, 2, 1, 128, 128, {0, 5, 64, 65, 0}, 1);
      packed.same_key = packed.sum_keys = same_key;
      cases.push_back(packed);
    }
    for (int gates = 2; gates < 6; ++gates) {
      cases.push_back(shaped(gate, 1, 1, 64, 64, {128}, gates));
    }
    if (gate == GateKind::channel) {  // kernels for decays within a bound and for all
      for (int gates = 2; gates < 8; ++gates) {
        GradCase decayed = shaped(gate, 2, 1, 128, 128, {200}, gates);
        decayed.same_key = decayed.sum_keys = gates % 2 == 0;
        decayed.zero_gains = gates == 5;
        decayed.gate_dtype = gates == 7 ? Dtype::bf16 : Dtype::f32;
        cases.push_back(decayed);
      }
      for (const int gates : {2, 3}) {  // anchors of blocks of 16 rows and of four
        GradCase blocks = shaped(gate, 1, 1, 128, 72, {64, 70}, gates);
        blocks.delta = false;
        cases.push_back(blocks);
        blocks.delta = blocks.same_key = true;
        blocks.sum_keys = gates == 3;
        blocks.gate_dtype = gates == 2 ? Dtype::bf16 : Dtype::f32;
        cases.push_back(blocks);
      }
      GradCase apart = shaped(gate, 3, 1, 96, 128, {64, 3, 130}, 0);
      apart.same_key = true;
      cases.push_back(apart);
      apart.same_key = apart.delta = false;
      cases.push_back(apart);
      apart.delta = true;
      apart.format = apart.gate_dtype = Dtype::f16;
      apart.gates = 1;
      cases.push_back(apart);
    }
    GradCase tied = shaped(gate, 1, 1, 96, 72, {70}, 1);
    tied.same_key = true;
    cases.push_back(tied);
    tied.sum_keys = true;
    tied.format = tied.gate_dtype = Dtype::f16;
    cases.push_back(tied);
    GradCase additive = shaped(gate, 1, 1, 72, 40, {130}, 0);
    additive.delta = false;
    additive.gate_dtype = Dtype::bf16;
    cases.push_back(additive);
    GradCase zeros = shaped(gate, 1, 1, 64, 64, {128}, 1);
    zeros.zero_gains = true;
    cases.push_back(zeros);
  }
  return cases;
}

// The dtypes round to 2^-9 (2^-12) of a number; db and dg are differences of larger sums.
void expect_close(const GradProblem& p, const Tensors& tensors) {
  const GradCase& c = p.c;
  const double bound = c.format == Dtype::bf16 ? 4e-3 : 6e-4;
  const kernels::TwoKeyBack& back = tensors.back;
  EXPECT_LE(tensors.error(p.d_q, back.d_q, c.format), bound);
  EXPECT_LE(tensors.error(p.d_w, back.d_w, c.format), bound);
  if (c.delta && !c.sum_keys) {
    EXPECT_LE(tensors.error(p.d_e, back.d_e, c.format), bound);
  }
  if (c.gate != GateKind::none) {
    EXPECT_LE(tensors.error(p.d_g, back.d_g, c.gate_dtype), 2 * bound);
  }
  EXPECT_LE(tensors.error(p.d_b, back.d_b, c.gate_dtype), 2 * bound);
}

TEST(ChunkGrad, IsTheGradientOfTheRecurrence) {
  for (const GradCase& c : grad_cases()) {
    const GradProblem p = make_problem(c);
    for (const kernels::Engine engine : {kernels::Engine::mma, kernels::Engine::wgmma}) {
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << "gate " << static_cast<int>(c.gate) << " values " << c.gates << " heads "
                     << c.heads << " x " << c.group << " d_k " << c.d_k << " d_v " << c.d_v
                     << " delta " << c.delta << " tied " << c.same_key << " engine "
                     << static_cast<int>(engine) << " order " << seed);
        cuda::emulation::set_order(seed);
        const Tensors tensors(p);
        // Little shared memory (as far as the kernel can do with it) means one stage.
        const int least = c.gate == GateKind::channel ? 163 : 99;
        kernels::launch_chunk_grad(tensors.chunk, tensors.back,
                                   {engine, 3, (seed == 1 ? least : 227) * 1024}, nullptr);
        expect_close(p, tensors);
      }
    }
  }
  cuda::emulation::set_order(0);
}

}  // namespace
}  // namespace rankone::test

#endif
