// The scans cut into segments, forward and back, on emulated threads: their states, cotangents, Z
// and dV against the recurrence step by step in float64, and O against that of a scan in one piece.

#if defined(RANKONE_CUDA_EMULATION)

#include <gtest/gtest.h>

#include "cuda/chunk_grad_fixture.hpp"
#include "cuda/host_memory.hpp"
#include "recurrence/cuda/chunk_narrow.hpp"
#include "recurrence/cuda/chunk_prep.hpp"
#include "recurrence/cuda/chunk_split.hpp"

namespace rankone::test {
namespace {

using SplitMemory = HostMemory<256>;

class SplitRun {
 public:
  SplitRun(const GradProblem& p, const GradTensors<SplitMemory>& tensors, kernels::Engine engine)
      : p_(p), tensors_(tensors), engine_(engine), chunk_(tensors.chunk) {
    kernels::TwoKeyCall& call = chunk_.call;
    call.rows.count = p.rows;
    states_ = bytes(chunk_.state_tile(p.chunks, 0, 0) * 2);
    d_states_ = bytes(chunk_.state_tile(p.chunks, 0, 0) * 2);
    const std::int64_t values = p.rows * p.value_heads * p.c.d_v * 2;
    z_ = bytes(values);
    d_v_ = bytes(values);
    call.initial_state = boundary(p.states, false);
    d_final_ = boundary(p.d_states, true);
    kernels::launch_chunk_prep(chunk_, {engine, 3}, nullptr);
  }

  // O. Lean: from records of that kind. `carries`: the scan carries states to the starts of
  // segments itself.
  std::vector<unsigned char> forward(int segments, bool lead = false, bool lean = false,
                                     bool carries = false) {
    kernels::ChunkCall chunk = chunk_;
    const kernels::TwoKeyCall& call = chunk.call;
    const std::int64_t bytes_of_o = p_.rows * p_.value_heads * p_.c.d_v * 2;
    chunk.call.o = bytes(bytes_of_o);
    chunk.call.final_state = static_cast<float*>(bytes(boundary_floats(1) * 4));
    if (lean) prepare_lean(chunk, -1);
    prepare(segments);
    segments_.lead = lead;
    if (segments > 1) {
      kernels::launch_segment_maps(chunk, tensors_of_call(), segments_, maps_, engine_, nullptr);
      if (carries) {
        segments_.maps = maps_.m;
      } else {
        kernels::launch_segment_boundaries(chunk, segments, maps_, starts_, nullptr, engine_,
                                           nullptr);
      }
    }
    kernels::launch_scan(chunk, tensors_of_call(), segments_, engine_, nullptr);
    return memory_.read(call.o, static_cast<std::size_t>(bytes_of_o));
  }

  // The same, a window after the other, with one more prepared beside the first, ... and the state
  // at the end.
  std::vector<unsigned char> forward_windows(int windows) {
    kernels::ChunkCall chunk = chunk_;
    const std::int64_t bytes_of_o = p_.rows * p_.value_heads * p_.c.d_v * 2;
    chunk.call.o = bytes(bytes_of_o);
    chunk.call.final_state = static_cast<float*>(bytes(boundary_floats(1) * 4));
    const std::int64_t chunks = chunk.call.rows.chunks / chunk.call.rows.sequences;
    const auto end = [&](int window) { return chunks * (window + 1) / windows; };
    prepare_lean(chunk, end(0));
    prepare(windows);
    segments_.scan_tiles = 2;
    for (int i = 0; i < windows; ++i) {
      const bool more = i + 1 < windows;
      launch_scan_window(chunk, tensors_of_call(), segments_, maps_.h, i,
                         {end(i), more ? end(i + 1) : end(i), more ? 2 : 0}, nullptr);
    }
    return memory_.read(chunk.call.o, static_cast<std::size_t>(bytes_of_o));
  }

  // Of Segments, from here on.
  void set_parts(int first, int last) { first_part_ = first, last_part_ = last; }
  void set_scan_tiles(int tiles) { scan_tiles_ = tiles; }  // 0: one or two
  bool takes_lean() const { return kernels::takes_lean_records(chunk_.call, engine_); }

  // Of both directions; with a cluster by the narrow scans, in one segment. The cotangent of the
  // initial state.
  std::vector<unsigned char> back(int segments, int cluster = 0) {
    kernels::ChunkCall chunk = chunk_;
    chunk.states = states_;
    chunk.d_states = d_states_;
    prepare(segments);
    kernels::ScanBack scan{tensors_.back.d_o,
                           d_final_,
                           p_.c.delta ? z_ : nullptr,
                           d_v_,
                           static_cast<float*>(bytes(boundary_floats(1) * 4)),
                           static_cast<float*>(bytes(boundary_floats(segments) * 4))};
    if (segments > 1) {
      kernels::launch_segment_maps_back(chunk, tensors_of_call(), segments_, maps_, scan, engine_,
                                        nullptr);
      kernels::launch_segment_boundaries(chunk, segments, maps_, starts_, scan.ends, engine_,
                                         nullptr);
    }
    if (cluster > 0) {
      kernels::launch_narrow_scan_back(chunk, cluster, scan, nullptr);
    } else {
      kernels::launch_scan_back(chunk, tensors_of_call(), segments_, scan, engine_, nullptr);
    }
    const double bound = p_.c.format == Dtype::bf16 ? 5e-3 : 8e-4;
    EXPECT_LE(state_error(p_.states, states_), bound);
    EXPECT_LE(state_error(p_.d_states, d_states_), bound);
    if (p_.c.delta) {
      EXPECT_LE(tensors_.error(p_.z, z_, p_.c.format), bound);
    }
    EXPECT_LE(tensors_.error(p_.d_v, d_v_, p_.c.format), bound);
    return memory_.read(scan.d_initial, static_cast<std::size_t>(boundary_floats(1) * 4));
  }

  // Z, if there is one, and the states of all chunks, as the last back() left them.
  std::vector<unsigned char> carried() const {
    std::vector<unsigned char> all;
    const auto append = [&](const void* from, std::int64_t count) {
      const std::vector<unsigned char> more = memory_.read(from, static_cast<std::size_t>(count));
      all.insert(all.end(), more.begin(), more.end());
    };
    if (p_.c.delta) append(z_, p_.rows * p_.value_heads * p_.c.d_v * 2);
    append(states_, chunk_.state_tile(p_.chunks, 0, 0) * 2);
    return all;
  }

 private:
  kernels::ScanTensors tensors_of_call() const {
    return kernels::scan_tensors(chunk_.call, engine_);
  }
  void prepare_lean(kernels::ChunkCall& chunk, std::int64_t chunks) {
    const kernels::TwoKeyCall& call = chunk.call;
    chunk.layout = kernels::RecordLayout(call.d_k, call.gate, call.delta, true);
    chunk.records = static_cast<unsigned char*>(
        bytes(call.rows.chunks * call.value_heads * chunk.layout.bytes));
    kernels::launch_chunk_prep(chunk, {engine_, 3, chunks}, nullptr);
  }
  void* bytes(std::int64_t count) { return memory_.empty(count); }
  std::int64_t boundary_floats(int segments) const {
    return static_cast<std::int64_t>(p_.c.lengths.size()) * p_.value_heads * segments * p_.c.d_k *
           p_.c.d_v;
  }
  void prepare(int segments) {
    const int scan_tiles = scan_tiles_ > 0 ? scan_tiles_ : 1 + segments / 2 % 2;
    segments_ = {segments,    scan_tiles, 1 + segments % 2, false,
                 first_part_, last_part_, nullptr,          nullptr};
    if (segments == 1) return;
    starts_ = static_cast<float*>(bytes(boundary_floats(segments) * 4));
    segments_.starts = starts_;
    maps_.h = starts_ + std::int64_t{p_.c.d_k} * p_.c.d_v;
    maps_.m = bytes(static_cast<std::int64_t>(p_.c.lengths.size()) * p_.value_heads * segments *
                    kernels::map_bytes(p_.c.d_k));
  }
  // The states before the first, or behind the last chunk of every sequence.
  float* boundary(const Doubles& states, bool last) {
    const std::int64_t size = p_.value_heads * p_.c.d_k * p_.c.d_v;
    auto* const to = static_cast<float*>(bytes(boundary_floats(1) * 4));
    for (std::size_t s = 0; s < p_.c.lengths.size(); ++s) {
      if (p_.c.lengths[s] == 0) continue;
      const std::int64_t chunk = last ? p_.chunk_boundaries[s + 1] - 1 : p_.chunk_boundaries[s];
      for (std::int64_t i = 0; i < size; ++i) {
        to[static_cast<std::int64_t>(s) * size + i] =
            static_cast<float>(states[static_cast<std::size_t>(chunk * size + i)]);
      }
    }
    return to;
  }
  double state_error(const Doubles& expected, const void* tiles) const {
    const std::vector<unsigned char> right = state_tiles(p_, expected);
    const std::vector<unsigned char> mine = memory_.read(tiles, right.size());
    double sum = 0.0, whole = 0.0;
    for (std::size_t i = 0; i < right.size() / 2; ++i) {
      const double x = element_of(right.data(), i, p_.c.format);
      const double difference = element_of(mine.data(), i, p_.c.format) - x;
      sum += difference * difference;
      whole += x * x;
    }
    return std::sqrt(sum / whole);
  }

  const GradProblem& p_;
  const GradTensors<SplitMemory>& tensors_;
  kernels::Engine engine_;
  kernels::ChunkCall chunk_;
  kernels::Segments segments_;
  int first_part_ = 0, last_part_ = 0, scan_tiles_ = 0;
  kernels::SegmentMaps maps_;
  float *starts_ = nullptr, *d_final_ = nullptr;
  void *states_, *d_states_, *z_, *d_v_;
  SplitMemory memory_;
};

double difference(const std::vector<unsigned char>& mine, const std::vector<unsigned char>& right,
                  Dtype format) {
  double sum = 0.0, whole = 0.0;
  for (std::size_t i = 0; i < right.size() / (format == Dtype::f32 ? 4 : 2); ++i) {
    const double x = element_of(right.data(), i, format);
    if (std::isnan(x)) continue;  // of a sequence without rows
    sum += std::pow(element_of(mine.data(), i, format) - x, 2);
    whole += x * x;
  }
  return std::sqrt(sum / whole);
}

// Where each access to memory is looked at, which takes long, less is done.
using cuda::emulation::races::kWatched;

std::vector<GradCase> split_cases() {
  std::vector<GradCase> cases;
  for (const GateKind gate : {GateKind::none, GateKind::scalar, GateKind::channel}) {
    GradCase c;
    c.gate = gate;
    c.gates = 1;
    c.d_k = c.d_v = 128;
    c.lengths = {kWatched ? 150 : 265};
    c.same_key = true;
    cases.push_back(c);
    if (gate == GateKind::none && !kWatched) {
      c.same_key = false;
      c.lengths = {200, 200};
      cases.push_back(c);
    }
    c.same_key = false;
    c.d_k = 72;
    c.d_v = 136;
    c.lengths = {0, 70, 0, 260};
    c.format = Dtype::f16;
    if (!kWatched) cases.push_back(c);
    c.d_k = c.d_v = 64;
    c.heads = c.group = 2;
    c.lengths = {kWatched ? 150 : 200};
    c.delta = gate == GateKind::none;
    cases.push_back(c);
  }
  return cases;
}

TEST(ChunkSplit, IsTheRecurrenceInOnePiece) {
  for (const GradCase& c : split_cases()) {
    const GradProblem p = make_problem(c);
    for (const kernels::Engine engine : {kernels::Engine::mma, kernels::Engine::wgmma}) {
      const GradTensors<SplitMemory> tensors(p);
      SplitRun run(p, tensors, engine);
      const std::vector<unsigned char> whole = run.forward(1);
      for (const int segments : {2, 3, 4}) {
        if (kWatched && segments != 3) continue;
        SCOPED_TRACE(testing::Message() << "gate " << static_cast<int>(c.gate) << " d_k " << c.d_k
                                        << " d_v " << c.d_v << " delta " << c.delta << " engine "
                                        << static_cast<int>(engine) << " segments " << segments);
        cuda::emulation::set_order(static_cast<std::uint64_t>(segments));
        const std::vector<unsigned char> parts = run.forward(segments);
        const double bound = c.format == Dtype::bf16 ? 4e-3 : 6e-4;
        EXPECT_LE(difference(parts, whole, c.format), bound);
        if (segments > 2) {
          EXPECT_TRUE(run.forward(segments, true) == parts);
        }
        if (segments > 2 && engine == kernels::Engine::wgmma) {
          const std::vector<unsigned char> carried = run.forward(segments, false, false, true);
          EXPECT_LE(difference(carried, parts, c.format), bound / 4);
          EXPECT_LE(difference(carried, whole, c.format), bound);
          EXPECT_TRUE(run.forward(segments, true, false, true) == carried);
          run.set_scan_tiles(1);  // as lean scans that carry states want it
          if (run.takes_lean()) {
            EXPECT_TRUE(run.forward(segments, false, true, true) == carried);
            EXPECT_TRUE(run.forward(segments, true, true, true) == carried);
          }
          run.set_parts(150, 300);
          const std::vector<unsigned char> uneven = run.forward(segments, true, false, true);
          EXPECT_LE(difference(uneven, whole, c.format), bound);
          if (run.takes_lean()) {
            EXPECT_TRUE(run.forward(segments, true, true, true) == uneven);
          }
          run.set_parts(0, 0);
          run.set_scan_tiles(0);
        }
        if (run.takes_lean()) {
          EXPECT_TRUE(run.forward(1, false, true) == whole);
          EXPECT_TRUE(run.forward(segments, segments > 2, true) == parts);
        }
        if (run.takes_lean() && c.delta && c.d_k > 64 && c.lengths.front() > 0) {
          EXPECT_TRUE(run.forward_windows(segments) == whole);
        }
        run.back(segments);
      }
    }
  }
  cuda::emulation::set_order(0);
}

// Of an H200 and 128 x 128, as docs/kernel-notes.md has it.
TEST(ForwardPlan, TakesLeanRecordsWhereTheyPay) {
  const auto plan = [](std::int64_t sequences, std::int64_t time, std::int64_t heads,
                       bool takes_lean = true) {
    kernels::TwoKeyCall call;
    call.rows.sequences = sequences;
    call.rows.time = time;
    call.rows.count = sequences * time;
    call.rows.chunks = sequences * ((time + 63) / 64);
    call.heads = call.value_heads = heads;
    call.d_k = call.d_v = 128;
    call.delta = true;
    call.gate = GateKind::scalar;
    return kernels::plan_forward(call, (time + 63) / 64, takes_lean, 132);
  };
  EXPECT_TRUE(plan(8, 2048, 8).lean);
  EXPECT_EQ(plan(8, 2048, 8).segments.count, 1);
  const kernels::ForwardPlan longer = plan(1, 131072, 16);
  EXPECT_TRUE(longer.lean && longer.segments.lead);
  EXPECT_EQ(longer.segments.count, 5);
  EXPECT_EQ(longer.segments.scan_tiles, 1);
  const kernels::ForwardPlan split = plan(1, 8192, 16);
  EXPECT_TRUE(split.lean && split.segments.lead);
  EXPECT_EQ(split.segments.count, 5);
  EXPECT_LT(split.segments.first_part, split.segments.last_part);
  EXPECT_LT(split.segments.last_part, 1024 / 5);
  for (const auto& [heads, first] : {std::pair{96, 0.45}, {80, 1.0 / 6}}) {
    const kernels::ForwardPlan wide = plan(1, 65536, heads);
    EXPECT_TRUE(wide.lean);
    ASSERT_EQ(wide.windows.count, 6);
    EXPECT_EQ(wide.windows.blocks, 132 - heads);
    EXPECT_NEAR(static_cast<double>(wide.windows.prepared(0)) / 1024, first, 0.01);
    for (int i = 0; i < 6; ++i) {
      EXPECT_GE(wide.windows.prepared(i), 1024 * (i + 1) / 6);
      EXPECT_GE(wide.windows.prepared(i + 1), wide.windows.prepared(i));
    }
    EXPECT_EQ(wide.windows.prepared(6), 1024);
  }
  EXPECT_EQ(plan(1, 65536, 110).windows.count, 1);
  EXPECT_EQ(plan(1, 65536, 64).windows.count, 1);
  EXPECT_EQ(plan(1, 16384, 96).windows.count, 1);
  EXPECT_FALSE(plan(8, 2048, 8, false).lean);
  EXPECT_FALSE(plan(1, 2048, 4).lean);
  EXPECT_FALSE(plan(1, 7424, 2).lean);
  EXPECT_TRUE(plan(1, 1024, 64).lean);
  EXPECT_TRUE(plan(4, 4096, 16).lean);
  EXPECT_TRUE(plan(2, 4096, 16).lean);
  EXPECT_FALSE(plan(2, 2048, 16).lean);
  EXPECT_FALSE(plan(64, 512, 16).lean);
}

TEST(ChunkNarrow, BothDirectionsAreTheRecurrence) {
  for (const GradCase& c : split_cases()) {
    const GradProblem p = make_problem(c);
    const GradTensors<SplitMemory> tensors(p);
    SplitRun run(p, tensors, kernels::Engine::wgmma);
    const std::vector<unsigned char> initial = run.back(1);
    const std::vector<unsigned char> carried = run.carried();
    for (const int cluster : {1, 2, 4}) {
      if (kWatched && cluster != 2) continue;
      SCOPED_TRACE(testing::Message()
                   << "gate " << static_cast<int>(c.gate) << " d_k " << c.d_k << " d_v " << c.d_v
                   << " delta " << c.delta << " cluster " << cluster);
      cuda::emulation::set_order(static_cast<std::uint64_t>(cluster));
      // The narrow scan rounds D with the mantissa of the scale, the other without.
      EXPECT_LE(difference(run.back(1, cluster), initial, Dtype::f32),
                c.format == Dtype::bf16 ? 4e-3 : 6e-4);
      EXPECT_TRUE(run.carried() == carried);  // forward sums have the same order in both scans
    }
  }
  cuda::emulation::set_order(0);
}

}  // namespace
}  // namespace rankone::test

#endif
