// The preparation kernels against float64 loops: every kind of decay, at all strengths.

#include "recurrence/cuda/chunk_prep.hpp"

#include <gtest/gtest.h>

#include "core/device.hpp"
#include "recurrence/cuda/path.hpp"
#include "tests/cuda/chunk_prep_cases.hpp"
#include "tests/cuda/support.hpp"

namespace rankone::test {
namespace {

using kernels::GateKind;

// On Hopper's path the few multiprocessors of `device` have blocks take one chunk after another.
PrepErrors run(const PrepCase& c, const kernels::ChunkPrepDevice& device) {
  PrepData data = PrepMaker(c).make();
  Context context = cuda_context();
  std::vector<Tensor> kept;
  const auto bytes = [&](std::size_t size) {
    kept.push_back(empty_on(context, {static_cast<std::int64_t>(size)}, Dtype::u16));
    return static_cast<unsigned char*>(kept.back().raw());
  };
  auto call = data.call([&](auto& values) {
    using T = typename std::remove_reference_t<decltype(values)>::value_type;
    unsigned char* const to = bytes((values.size() * sizeof(T) + 1) / 2);
    copy_bytes(context, to, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(to);
  });
  std::vector<unsigned char> records(data.record_bytes(), 0xff);
  call.records = bytes(records.size() / 2);
  copy_bytes(context, call.records, records.data(), records.size());
  kernels::launch_chunk_prep(call, device, context.stream());
  copy_bytes(context, records.data(), call.records, records.size());
  PrepErrors errors;
  for (std::int64_t chunk = 0; chunk < data.chunks; ++chunk) {
    for (int head = 0; head < c.value_heads; ++head) {
      errors.merge(PrepCheck(data, records.data(), chunk, head).run());
    }
  }
  return errors;
}

// Sizes, packing, grouped heads, dtypes and keys in turn, so that each meets most of the others.
PrepCase numbered_case(GateKind kind, int number) {
  static const std::vector<std::vector<std::int64_t>> kLengths = {
      {64}, {1}, {75}, {0, 5, 0, 130, 0}, {17, 64}};
  static const int kKeys[] = {8, 64, 72, 128, 256};
  PrepCase c;
  c.kind = kind;
  c.gates = kind == GateKind::none ? PrepGates::none : PrepGates(1 + number % 6);
  c.format = number / 6 % 2 == 0 ? Dtype::bf16 : Dtype::f16;
  c.d_k = kKeys[number % 5];
  c.lengths = kLengths[static_cast<std::size_t>(number / 2 % 5)];
  c.delta = number % 3 < 2;
  c.same_key = number % 3 == 0;
  c.wide_gates = number % 4 != 3 || c.gates == PrepGates::jump;
  c.heads = 1 + number % 2;
  c.value_heads = c.heads * (1 + number / 2 % 2);
  c.keys = number % 7 < 4 ? PrepKeys::independent : PrepKeys::correlated;
  c.gains = c.keys == PrepKeys::correlated ? PrepGains::two : PrepGains(number % 4);
  c.seed = static_cast<unsigned>(number + 1);
  return c;
}

void expect_right(GateKind kind, int cases) {
  RANKONE_NEEDS_CUDA();
  for (int number = 0; number < cases; ++number) {
    set_thread_order(static_cast<std::uint64_t>(number % 3));
    for (const kernels::Engine engine : {kernels::Engine::mma, kernels::Engine::wgmma}) {
      if (engine == kernels::Engine::wgmma && !kernels::has_sm90a()) continue;
      PrepCase c = numbered_case(kind, number);
      const bool lean = engine == kernels::Engine::wgmma && kind != GateKind::channel;
      for (int form = 0; form < (lean && c.d_k <= 128 ? 2 : 1); ++form) {
        c.lean = form == 1;
        const PrepErrors errors = run(c, {engine, 1 + number % 3});
        const std::string which = "case " + std::to_string(number) +
                                  (engine == kernels::Engine::mma ? ", mma" : ", wgmma") +
                                  (c.lean ? ", lean" : "");
        EXPECT_LE(errors.p, 1) << which;
        EXPECT_LE(errors.y, 1) << which;
        EXPECT_LE(errors.decays, 1) << which;
        EXPECT_LE(errors.scaled, 1) << which;
      }
    }
  }
  set_thread_order(0);
}

TEST(ChunkPrep, NoDecay) { expect_right(GateKind::none, 30); }
TEST(ChunkPrep, ScalarDecay) { expect_right(GateKind::scalar, 120); }
TEST(ChunkPrep, ChannelDecay) { expect_right(GateKind::channel, 180); }

}  // namespace
}  // namespace rankone::test
