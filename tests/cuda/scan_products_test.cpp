// P as the forward scan makes it of queries, keys and sums of gates is P as preparation makes it,
// bit for bit: on emulated threads, where a kernel of the test can have a stage of its own.

#if defined(RANKONE_CUDA_EMULATION)

#include "recurrence/cuda/chunk_scan_products.hpp"

#include <gtest/gtest.h>

#include "recurrence/cuda/chunk_prep.hpp"
#include "tests/cuda/chunk_prep_cases.hpp"
#include "tests/cuda/support.hpp"

namespace rankone::test {
namespace {

using kernels::GateKind;
using kernels::WgmmaEngine;

// Of one (chunk, head) of 64 rows with `columns` channels: the keys as copy_rows() leaves them.
template <class Format, int DK, bool Fragments>
void make_products(const unsigned char* query, const unsigned char* write,
                   const unsigned char* record, kernels::RecordLayout layout, float scale,
                   unsigned char* to) {
  using Stage = kernels::FedStage<DK, false, true, true, true>;
  unsigned char* const stage = cuda::shared_memory();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    std::memcpy(stage + Stage::kQuery, query, Stage::Key::kBytes);
    std::memcpy(stage + Stage::kWrite, write, Stage::Key::kBytes);
    std::memcpy(stage + Stage::kSums, record + layout.sums, kernels::kSumBytes);
    std::memset(stage + Stage::kSquareP, 0xff, Stage::Square::kBytes);
  }
  __syncthreads();
  kernels::make_products<Format, Stage, WgmmaEngine<Format>, Fragments>(stage, scale);
  __syncthreads();
  if (thread == 0) std::memcpy(to, stage + Stage::kSquareP, Stage::Square::kBytes);
}

template <class Format, int DK>
void expect_same(PrepCase c) {
  using Key = kernels::RowTile<64, DK>;
  PrepData data = PrepMaker(c).make();
  const auto prepare = [&](bool lean) {
    auto call = data.call([](auto& values) { return values.data(); });
    call.layout = {c.d_k, c.kind, c.delta, lean};
    std::vector<unsigned char> records(
        static_cast<std::size_t>(call.layout.bytes * data.chunks * c.value_heads) + 16, 0xff);
    call.records =
        records.data() + (16 - reinterpret_cast<std::uintptr_t>(records.data()) % 16) % 16;
    kernels::launch_chunk_prep(call, {kernels::Engine::wgmma, 2}, nullptr);
    return std::vector<unsigned char>(call.records, records.data() + records.size());
  };
  const std::vector<unsigned char> full = prepare(false), lean = prepare(true);
  const kernels::RecordLayout full_layout(c.d_k, c.kind, c.delta);
  const kernels::RecordLayout layout(c.d_k, c.kind, c.delta, true);
  for (std::int64_t chunk = 0; chunk < data.chunks; ++chunk) {
    for (int head = 0; head < c.value_heads; ++head) {
      const std::int64_t first = 64 * chunk, number = chunk * c.value_heads + head;
      std::vector<unsigned char> query(Key::kBytes, 0), write(Key::kBytes, 0),
          p(kernels::kSquareBytes);
      const int count = static_cast<int>(std::min<std::int64_t>(64, data.rows - first));
      for (int row = 0; row < count; ++row) {
        for (int d = 0; d < c.d_k; ++d) {
          const auto from = static_cast<std::size_t>(
              ((first + row) * c.heads + head / (c.value_heads / c.heads)) * c.d_k + d);
          const int place = Key::place(row, d / 8) + d % 8 * 2;
          std::memcpy(query.data() + place, &data.q[from], 2);
          std::memcpy(write.data() + place, &data.w[from], 2);
        }
      }
      const unsigned char* const right =
          full.data() + number * full_layout.bytes + full_layout.square_p;
      for (const bool fragments : {false, true}) {
        cuda::launch(fragments ? make_products<Format, DK, true> : make_products<Format, DK, false>,
                     1, 128, 128 * 1024, nullptr, query.data(), write.data(),
                     lean.data() + number * layout.bytes, layout, c.scale, p.data());
        for (int row = 0; row < count; ++row) {
          for (int piece = 0; piece < 8; ++piece) {
            const int at = piece * 1024 + row * 16;
            ASSERT_EQ(std::memcmp(p.data() + at, right + at, 16), 0)
                << "row " << row << " piece " << piece << " fragments " << fragments;
          }
        }
      }
    }
  }
}

TEST(ScanProducts, AreThoseOfPreparation) {
  for (int gates = 0; gates < 7; ++gates) {
    for (const bool same_key : {true, false}) {
      PrepCase c;
      c.gates = PrepGates(gates);
      c.kind = gates == 0 ? GateKind::none : GateKind::scalar;
      c.heads = 1;
      c.value_heads = 1 + gates % 2;
      c.lengths = {same_key ? 128 : 75};
      c.same_key = same_key;
      c.seed = static_cast<unsigned>(gates + 1);
      SCOPED_TRACE(testing::Message() << "gates " << gates << " same key " << same_key);
      set_thread_order(static_cast<std::uint64_t>(gates));
      c.d_k = same_key ? 128 : 72;
      expect_same<bf16, 128>(c);
      c.format = Dtype::f16;
      c.d_k = same_key ? 64 : 40;
      expect_same<f16, 64>(c);
    }
  }
  set_thread_order(0);
}

}  // namespace
}  // namespace rankone::test

#endif
