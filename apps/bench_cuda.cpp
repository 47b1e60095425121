#include "apps/bench_cuda.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>

#include "apps/bench.hpp"
#include "core/device.hpp"
#include "core/status.hpp"

namespace rankone::apps {
namespace {

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSeed = 1;
constexpr std::int64_t kErrorHeads = 2;
constexpr std::int64_t kErrorTokens = 4096;
constexpr std::int64_t kPiece = 1024;  // tokens that the context of a decode run is read in
constexpr int kRuns = 30;
constexpr double kWarmMicroseconds = 400;  // of work in one graph of the warm timing

double relative_error(const Tensor& result, const Tensor& expected) {
  double error = 0, reference = 0;
  const Tensor wide = result.to(Dtype::f64);
  for (std::int64_t i = 0; i < wide.count(); ++i) {
    const double y = expected.data<double>()[i], x = wide.data<double>()[i] - y;
    error += x * x;
    reference += y * y;
  }
  return std::sqrt(reference > 0 ? error / reference : error);
}

Timing timing_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), at(0.2), at(0.8), static_cast<int>(times.size())};
}

struct CudaTimes {
  Timing flushed, warm, eager;
  double host_us = 0;  // of a call one by one, until it returns
  std::size_t workspace_bytes = 0;
};

class CudaBench {
 public:
  explicit CudaBench(const CudaBenchOptions& options)
      : options_(options),
        preset_(recurrence::preset(options.mixer)),
        gpu_(gpu_properties()),
        context_({.device = Device::cuda, .stream = stream_.get(), .threads = 1}),
        flush_(empty_on(context_, {static_cast<std::int64_t>(2 * gpu_.cache_bytes) / 4 + 1},
                        Dtype::f32)) {
    copy_gb_per_s_ = copy_bandwidth();
    std::printf(
        "%s, compute capability %d.%d, %d multiprocessors; copies %.0f GB/s, read and "
        "written\n",
        gpu_.name.c_str(), gpu_.major, gpu_.minor, gpu_.multiprocessors, copy_gb_per_s_);
  }

  void recurrence() {
    MixerCall host(preset_, options_.shape, kSeed, false, options_.gates);
    host.round(options_.format, options_.gate_format);
    introduce(host);
    const std::int64_t heads = std::min(kErrorHeads, options_.shape.heads);
    const std::int64_t tokens = std::min(kErrorTokens, options_.shape.time);
    const MixerCall exact = host.part(tokens, heads, Dtype::f64);
    MixerCall part = on_gpu(host.part(tokens, heads, Dtype::f32)), call = on_gpu(host);
    if (options_.forward && options_.vjp) {  // as in a training step
      part.save(context_);
      call.save(context_);
      saved_bytes_ = call.saved_bytes();
    }
    const double token_heads =
        static_cast<double>(options_.shape.batch * options_.shape.time * options_.shape.heads);
    Context reference({.backends = {"reference"}});
    if (options_.forward || options_.vjp) exact.forward_kept(reference);
    part.forward_kept(context_);  // the vjp of a preconditioner's mixer reads what it writes
    if (options_.forward) {
      const double error = relative_error(to_host(part.output(), context_), exact.output());
      report("forward", token_heads, error, heads, tokens,
             time([&] { call.forward_kept(context_); }));
    }
    if (options_.vjp) {
      part.vjp(context_);
      exact.vjp(reference);
      double worst = 0;
      const std::vector<Tensor> gradients = part.gradients(), expected = exact.gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        worst = std::max(worst, relative_error(to_host(gradients[i], context_), expected[i]));
      }
      call.forward_kept(context_);
      report("vjp", token_heads, worst, heads, tokens, time([&] { call.vjp(context_); }));
    }
    write_rows(options_.json, rows_);
  }

  void decode() {
    const MixerShape one{options_.shape.batch, 1, options_.shape.heads, options_.shape.d_k,
                         options_.shape.d_v};
    MixerCall first(preset_, one, kSeed, false, options_.gates);
    introduce(first);
    const double error = decode_error();
    first.carry_state();
    first.round(options_.format, options_.gate_format);
    // Different tokens, one state.
    std::vector<MixerCall> steps{on_gpu(first)};
    for (std::uint64_t i = 1; i < 16; ++i) {
      MixerCall step(preset_, one, kSeed + i, false, options_.gates);
      step.carry_state();
      step.round(options_.format, options_.gate_format);
      steps.push_back(on_gpu(step));
      steps.back().take_state(steps.front());
    }
    std::size_t next = 0;
    const auto work = [&] { steps[next++ % steps.size()].forward(context_); };
    for (std::int64_t read = 0; read < options_.shape.time; ++read) work();
    report("step", static_cast<double>(options_.shape.batch * options_.shape.heads), error,
           std::min(kErrorHeads, options_.shape.heads), std::min(kErrorTokens, options_.shape.time),
           time(work));
    write_rows(options_.json, rows_);
  }

 private:
  MixerCall on_gpu(const MixerCall& host) {
    return host.on(context_, options_.format, options_.gate_format);
  }

  // The step after at most kErrorTokens tokens, against the reference that read the same ones.
  double decode_error() {
    const MixerShape& shape = options_.shape;
    const std::int64_t heads = std::min(kErrorHeads, shape.heads);
    const std::int64_t tokens = std::min(kErrorTokens, shape.time);
    MixerCall base(preset_, {1, 1, heads, shape.d_k, shape.d_v}, kSeed, false, options_.gates);
    base.carry_state();
    base.round(options_.format, options_.gate_format);
    const MixerCall exact = base.part(1, heads, Dtype::f64);
    const MixerCall step = on_gpu(base);
    Context reference({.backends = {"reference"}});
    for (std::int64_t read = 0; read < tokens; read += kPiece) {
      const MixerShape sizes{1, std::min(kPiece, tokens - read), heads, shape.d_k, shape.d_v};
      MixerCall piece(preset_, sizes, kSeed + 100 + static_cast<std::uint64_t>(read), false,
                      options_.gates);
      piece.round(options_.format, options_.gate_format);
      MixerCall slow = piece.part(sizes.time, heads, Dtype::f64), fast = on_gpu(piece);
      fast.take_state(step);
      slow.take_state(exact);
      fast.forward(context_);
      slow.forward(reference);
    }
    step.forward(context_);
    exact.forward(reference);
    return relative_error(to_host(step.output(), context_), exact.output());
  }

  CudaTimes time(const Work& work) {
    CudaTimes times;
    Arena& arena = context_.arena();
    arena.reset();
    arena.set_planning(true);
    work();
    times.workspace_bytes = arena.peak();
    arena.set_planning(false);
    synchronize(context_);
    arena.reserve(times.workspace_bytes);
    work();
    synchronize(context_);

    const GpuGraph once(context_, work);
    const GpuTimer timer;
    const auto timed = [&](const Work& run) {
      timer.start(context_);
      run();
      timer.stop(context_);
      return timer.microseconds();
    };
    std::vector<double> flushed, warm, eager, host;
    for (int i = 0; i < kRuns; ++i) {
      // Enough work ahead that the graph waits for the GPU and not for the host.
      fill_bytes(context_, flush_.raw(), i, flush_.bytes());
      flushed.push_back(timed([&] { once.launch(context_); }));
    }
    times.flushed = timing_of(flushed);

    const int copies =
        std::clamp(static_cast<int>(kWarmMicroseconds / times.flushed.median_us), 1, 64);
    const GpuGraph many(context_, [&] {
      for (int i = 0; i < copies; ++i) work();
    });
    many.launch(context_);
    for (int i = 0; i < kRuns; ++i) {
      warm.push_back(timed([&] { many.launch(context_); }) / copies);
    }
    times.warm = timing_of(warm);

    const int calls = std::clamp(copies, 1, 20);
    for (int i = 0; i < kRuns; ++i) {
      synchronize(context_);
      eager.push_back(timed([&] {
                        const auto start = Clock::now();
                        for (int j = 0; j < calls; ++j) work();
                        const std::chrono::duration<double, std::micro> spent =
                            Clock::now() - start;
                        host.push_back(spent.count() / calls);
                      }) /
                      calls);
    }
    times.eager = timing_of(eager);
    times.host_us = timing_of(host).median_us;
    return times;
  }

  double copy_bandwidth() {
    // Milliseconds, so that the host's wait behind a copy does not count.
    const std::size_t bytes = std::size_t{1} << 32;
    const std::int64_t floats = static_cast<std::int64_t>(bytes / 4);
    const Tensor from = empty_on(context_, {floats}, Dtype::f32);
    const Tensor to = empty_on(context_, {floats}, Dtype::f32);
    fill_bytes(context_, from.raw(), 0, bytes);
    const GpuTimer timer;
    std::vector<double> times;
    for (int i = 0; i < 10; ++i) {
      timer.start(context_);
      copy_bytes(context_, to.raw(), from.raw(), bytes);
      timer.stop(context_);
      times.push_back(timer.microseconds());
    }
    return 2e-3 * static_cast<double>(bytes) / timing_of(times).median_us;
  }

  void introduce(const MixerCall& call) {
    gates_ = call.gates();
    std::printf("%s, seed %d; log decay: %s; timed: the recurrence%s, not the prologue\n",
                std::string(preset_.name).c_str(), static_cast<int>(kSeed), gates_.c_str(),
                preset_.axes.preconditioner == recurrence::PreconditionerChoice::none
                    ? ""
                    : " and the scan of the preconditioner");
  }

  void report(const std::string& direction, double token_heads, double error, std::int64_t heads,
              std::int64_t tokens, const CudaTimes& times) {
    std::printf(
        "%-8s %10.2f us flushed (%.2f .. %.2f), %.2f warm, %.2f one by one (%.2f on the host); "
        "%.3f ns per token-head; scratch %.1f MB, saved %.1f MB; relative error %.1e on %d head%s "
        "and %d "
        "token%s\n",
        direction.c_str(), times.flushed.median_us, times.flushed.low_us, times.flushed.high_us,
        times.warm.median_us, times.eager.median_us, times.host_us,
        times.flushed.median_us * 1e3 / token_heads,
        static_cast<double>(times.workspace_bytes) * 1e-6, saved_bytes_ * 1e-6, error,
        static_cast<int>(heads), heads == 1 ? "" : "s", static_cast<int>(tokens),
        tokens == 1 ? "" : "s");
    std::fflush(stdout);
    BenchRow row;
    row["mixer"] = preset_.name;
    row["direction"] = direction;
    row["device"] = "cuda";
    row["gpu"] = gpu_.name;
    row["kernel"] = kernel();
    row["b"] = options_.shape.batch;
    row["t"] = options_.shape.time;
    row["h"] = options_.shape.heads;
    row["dk"] = options_.shape.d_k;
    row["dv"] = options_.shape.d_v;
    row["dtype"] = name(options_.format);
    row["gate_dtype"] = name(options_.gate_format);
    row["threads"] = 1;
    row["median_us"] = times.flushed.median_us;
    row["low_us"] = times.flushed.low_us;
    row["high_us"] = times.flushed.high_us;
    row["warm_us"] = times.warm.median_us;
    row["warm_low_us"] = times.warm.low_us;
    row["warm_high_us"] = times.warm.high_us;
    row["eager_us"] = times.eager.median_us;
    row["host_us"] = times.host_us;
    row["ns_per_token_head"] = times.flushed.median_us * 1e3 / token_heads;
    row["relative_error"] = error;
    row["error_heads"] = heads;
    row["error_tokens"] = tokens;
    row["workspace_bytes"] = times.workspace_bytes;
    row["saved_bytes"] = saved_bytes_;
    row["runs"] = kRuns;
    row["seed"] = kSeed;
    row["gates"] = gates_;
    row["peak_memory_gb_per_s"] = copy_gb_per_s_;
    rows_.push_back(row);
  }

  static std::string kernel() {
    const char* path = std::getenv("RANKONE_CUDA_PATH");
    return path == nullptr || *path == '\0' ? "cuda" : std::string("cuda-") + path;
  }

  CudaBenchOptions options_;
  const recurrence::MixerPreset& preset_;
  GpuProperties gpu_;
  GpuStream stream_;
  Context context_;
  Tensor flush_;
  double copy_gb_per_s_ = 0;
  std::string gates_;
  std::vector<BenchRow> rows_;
  double saved_bytes_ = 0;  // for the vjp, by a forward pass
};

}  // namespace

void bench_recurrence_on_cuda(const CudaBenchOptions& options) { CudaBench(options).recurrence(); }
void bench_decode_on_cuda(const CudaBenchOptions& options) { CudaBench(options).decode(); }

}  // namespace rankone::apps
