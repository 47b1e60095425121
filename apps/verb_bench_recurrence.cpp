// rankone bench recurrence | decode: the recurrence of a mixer, forward, backward and one step at a
// time.

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <thread>

#include "apps/bench.hpp"
#include "apps/bench_cuda.hpp"
#include "apps/bench_mixer.hpp"
#include "apps/verb.hpp"
#include "core/status.hpp"
#include "recurrence/backend.hpp"

namespace rankone::apps {
namespace {

using recurrence::MixerPreset;

constexpr std::uint64_t kSeed = 1;
constexpr std::int64_t kErrorHeads = 2;
constexpr std::int64_t kErrorTokens = 4096;
constexpr std::int64_t kFewTokens = 16;  // up to here a call reads and writes a state by default
constexpr std::int64_t kPiece = 1024;    // tokens that the context of a decode run is read in

struct Options {
  std::string mixer, shape, json;
  std::string dtype = "f32";
  std::string precision;
  std::string gate_dtype = "f32";
  std::string gates = "usual";
  std::string direction = "both";
  std::string device = "cpu";
  std::string beside;
  std::string state = "auto";
  std::string state_dtype = "f32";
  int threads = 0;
  int busy = 0;
};

MixerShape shape_of(const Options& options) {
  const auto sizes = parse_shape(options.shape, 5, "BxTxHxDKxDV, for example 1x2048x8x128x128");
  require(sizes[3] <= 256, "[bench] d_k is {} (1 to 256)", sizes[3]);
  require(sizes[4] <= 1024, "[bench] d_v is {} (1 to 1024)", sizes[4]);
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

void announce_padding(const MixerShape& shape) {
  if (shape.d_k % 8 == 0 && shape.d_v % 8 == 0) return;
  std::printf("sizes that are no multiple of 8 are padded inside: d_k %d, d_v %d\n",
              static_cast<int>(shape.d_k), static_cast<int>(shape.d_v));
}

Dtype format_of(const std::string& option, const std::string& text,
                std::initializer_list<Dtype> allowed, const char* words) {
  const std::optional<Dtype> dtype = parse_dtype(text);
  if (dtype && std::find(allowed.begin(), allowed.end(), *dtype) != allowed.end()) return *dtype;
  fail(Status::invalid_argument, "[bench] {} '{}' is unknown ({})", option, text, words);
}

// An option that would do nothing is refused.
void refuse_on_cuda(const Options& options) {
  const Options plain;
  const char* given = options.precision != plain.precision       ? "--precision"
                      : options.state != plain.state             ? "--state"
                      : options.state_dtype != plain.state_dtype ? "--state-dtype"
                      : options.beside != plain.beside           ? "--beside"
                      : options.busy != plain.busy               ? "--busy"
                                                                 : nullptr;
  if (given != nullptr) {
    fail(Status::invalid_argument, "[bench] {} is for --device cpu only", given);
  }
}

bool reads_state(const Options& options, std::int64_t time) {
  return options.state == "yes" || (options.state == "auto" && time <= kFewTokens);
}

// Of `bench recurrence`: the gradients take no state.
void require_use_of_state(const Options& options) {
  const Options plain;
  const bool wanted = options.state == "yes" || options.state_dtype != plain.state_dtype;
  require(options.beside.empty() || options.direction == "forward",
          "[bench] --beside is for --direction forward");
  if (!options.beside.empty()) static_cast<void>(recurrence::preset(options.beside));
  if (wanted && (options.direction == "vjp" || !reads_state(options, shape_of(options).time))) {
    fail(Status::invalid_argument,
         "[bench] --state and --state-dtype are for a forward pass that reads a state (--direction "
         "forward or both, --state yes)");
  }
}

CudaBenchOptions cuda_options(const Options& options) {
  refuse_on_cuda(options);
  CudaBenchOptions result;
  result.format = format_of("--dtype", options.dtype, {Dtype::f32, Dtype::bf16, Dtype::f16},
                            "f32, bf16 or f16");
  result.gate_format = format_of("--gate-dtype", options.gate_dtype, {Dtype::f32, result.format},
                                 "f32 or as --dtype");
  result.mixer = recurrence::preset(options.mixer).name;
  result.shape = shape_of(options);
  result.gates = parse_gates(options.gates);
  result.forward = options.direction != "vjp";
  result.vjp = options.direction != "forward";
  result.json = options.json;
  require_device(options.device);
  announce_padding(result.shape);
  return result;
}

// --precision; without it that of --dtype.
Precision precision_of(const Options& options) {
  const std::string word = !options.precision.empty() ? options.precision
                           : options.dtype == "bf16"  ? "bf16"
                                                      : "auto";
  return *parse_precision(word);
}

// Of the result as the run's dtype holds it.
double relative_error(const Tensor& result, const Tensor& expected, bool rounded) {
  double error = 0, reference = 0;
  for (std::int64_t i = 0; i < result.count(); ++i) {
    const float stored = result.data<float>()[i];
    const double x = rounded ? to_float(to_bf16(stored)) : stored;
    const double y = expected.data<double>()[i];
    error += (x - y) * (x - y);
    reference += y * y;
  }
  return reference > 0 ? std::sqrt(error / reference) : std::sqrt(error);
}

// Threads that do nothing as fast as they can, each on one of the last processors of this process.
class BusyProcessors {
 public:
  explicit BusyProcessors(int count) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    require(sched_getaffinity(0, sizeof(allowed), &allowed) == 0 && count < CPU_COUNT(&allowed),
            "[bench] --busy {} (below the number of processors)", count);
    int processor = CPU_SETSIZE;
    for (int i = 0; i < count; ++i) {
      do --processor;
      while (!CPU_ISSET(processor, &allowed));
      threads_.emplace_back([this, processor] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processor, &one);
        sched_setaffinity(0, sizeof(one), &one);
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
    }
  }
  BusyProcessors(const BusyProcessors&) = delete;
  BusyProcessors& operator=(const BusyProcessors&) = delete;
  ~BusyProcessors() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// The checked request and what one run of the program shares.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        preset_(recurrence::preset(options.mixer)),
        rounded_(options.dtype == "bf16"),
        context_({.threads = options.threads,
                  .precision = precision_of(options),
                  .backends = {"cpu", "reference"}}) {
    require_device(options.device);
    if (options.dtype != "f32" && !rounded_) {
      fail(Status::invalid_argument, "[bench] --dtype '{}' is unknown (f32 or bf16)",
           options.dtype);
    }
    gates_ = parse_gates(options.gates);
    state_dtype_ =
        format_of("--state-dtype", options.state_dtype, {Dtype::f32, Dtype::bf16}, "f32 or bf16");
    shape_ = shape_of(options);
    peaks_ = measure_peaks(context_.threads());
    std::printf("%s\n", describe(peaks_).c_str());
    announce_padding(shape_);
  }

  void recurrence() {
    const MixerCall call(preset_, shape_, kSeed, rounded_, gates_);
    introduce(call, "forward");
    const std::int64_t heads = std::min(kErrorHeads, shape_.heads);
    const std::int64_t tokens = std::min(kErrorTokens, shape_.time);
    MixerCall carried = call;  // what forward times
    if (reads_state(options_, shape_.time)) carried.carry_state(state_dtype_);
    Context reference({.threads = options_.threads, .backends = {"reference"}});
    const double tokens_heads = static_cast<double>(shape_.batch * shape_.time * shape_.heads);
    if (options_.direction != "vjp") {
      const MixerCall part = carried.part(tokens, heads, Dtype::f32);
      const MixerCall exact = carried.part(tokens, heads, Dtype::f64);
      part.forward(context_);
      exact.forward(reference);
      std::vector<std::function<void()>> works{[&] { forward(carried); }};
      std::optional<MixerCall> other;
      if (!options_.beside.empty()) {
        other.emplace(recurrence::preset(options_.beside), shape_, kSeed, rounded_, gates_);
        if (reads_state(options_, shape_.time)) other->carry_state(state_dtype_);
        works.emplace_back([&] { forward(*other); });
      }
      const std::vector<Timing> timings = measure_in_turn(works);
      report("forward", tokens_heads, relative_error(part.output(), exact.output(), rounded_),
             heads, tokens, timings[0], {carried.forward_operations(), carried.forward_bytes()},
             carried.forward_bytes());
      if (other) report_beside(timings);
    }
    if (options_.direction != "forward") {
      const MixerCall part = call.part(tokens, heads, Dtype::f32);
      const MixerCall exact = call.part(tokens, heads, Dtype::f64);
      part.forward_kept(context_);
      exact.forward_kept(reference);
      part.vjp(context_);
      exact.vjp(reference);
      double worst = 0;
      const std::vector<Tensor> gradients = part.gradients();
      const std::vector<Tensor> expected = exact.gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        worst = std::max(worst, relative_error(gradients[i], expected[i], rounded_));
      }
      call.forward_kept(context_);
      const auto work = [&] { call.vjp(context_); };
      report("vjp", tokens_heads, worst, heads, tokens,
             measure([&] { narrowed(call, work, call.gradients()); }),
             {call.vjp_operations(), call.vjp_bytes()}, call.vjp_bytes());
    }
    write_rows(options_.json, rows_);
  }

  void decode() {
    MixerCall first(preset_, one_token(), kSeed, rounded_, gates_);
    introduce(first, "step");
    const double error = decode_error();
    first.carry_state(state_dtype_);
    for (std::int64_t read = 0; read < shape_.time; read += kPiece) {
      MixerCall piece(preset_, piece_at(read, shape_), kSeed + 100 + read, rounded_, gates_);
      piece.take_state(first);
      piece.forward(context_);
    }
    // Different tokens, one state: a step repeated on one token would settle.
    std::vector<MixerCall> steps{first};
    for (std::uint64_t i = 1; i < 16; ++i) {
      steps.emplace_back(preset_, one_token(), kSeed + i, rounded_, gates_);
      steps.back().take_state(first);
    }
    std::size_t next = 0;
    const auto work = [&] {
      const MixerCall& step = steps[next++ % steps.size()];
      narrowed(step, [&] { step.forward(context_); }, {step.output()});
    };
    const Timing timing = measure(work, 20);
    report("step", static_cast<double>(shape_.batch * shape_.heads), error,
           std::min(kErrorHeads, shape_.heads), std::min(kErrorTokens, shape_.time), timing,
           {first.forward_operations(), first.forward_bytes()},
           first.forward_bytes() - first.state_bytes());
    if (options_.busy > 0) beside_busy(work);
    write_rows(options_.json, rows_);
  }

 private:
  void forward(const MixerCall& call) {
    narrowed(call, [&] { call.forward(context_); }, {call.output()});
  }

  // The other mixer took turns with the last row's.
  void report_beside(const std::vector<Timing>& timings) {
    const double over = timings[0].median_us / timings[1].median_us;
    std::printf("beside %s, in turn: %.1f us, %+.1f %%\n", options_.beside.c_str(),
                timings[1].median_us, 100 * (over - 1));
    rows_.back()["beside"] = options_.beside;
    rows_.back()["beside_us"] = timings[1].median_us;
    rows_.back()["over_beside"] = over;
  }

  // Means, not medians: on a busy machine a few steps wait for a whole time slice.
  void beside_busy(const std::function<void()>& work) {
    const auto mean_us = [&] {
      using Clock = std::chrono::steady_clock;
      const auto start = Clock::now();
      int runs = 0;
      double spent = 0;
      for (; spent < 2; ++runs) {
        work();
        spent = std::chrono::duration<double>(Clock::now() - start).count();
      }
      return spent * 1e6 / runs;
    };
    const double quiet = mean_us();
    const BusyProcessors others(options_.busy);
    const double busy = mean_us();
    std::printf("mean %.1f us, beside %d busy thread%s %.1f us: %.2f times\n", quiet, options_.busy,
                options_.busy == 1 ? "" : "s", busy, busy / quiet);
    rows_.back()["busy"] = options_.busy;
    rows_.back()["mean_us"] = quiet;
    rows_.back()["mean_us_beside_busy"] = busy;
  }

  MixerShape one_token() const { return {shape_.batch, 1, shape_.heads, shape_.d_k, shape_.d_v}; }
  static MixerShape piece_at(std::int64_t read, const MixerShape& whole) {
    return {whole.batch, std::min(kPiece, whole.time - read), whole.heads, whole.d_k, whole.d_v};
  }

  // The step after at most kErrorTokens tokens, against the reference that read the same ones.
  double decode_error() {
    const MixerShape small{1, std::min(kErrorTokens, shape_.time),
                           std::min(kErrorHeads, shape_.heads), shape_.d_k, shape_.d_v};
    MixerCall base(preset_, {1, 1, small.heads, small.d_k, small.d_v}, kSeed, rounded_, gates_);
    base.carry_state(state_dtype_);
    const MixerCall step = base.part(1, small.heads, Dtype::f32);
    const MixerCall exact = base.part(1, small.heads, Dtype::f64);
    Context reference({.threads = options_.threads, .backends = {"reference"}});
    for (std::int64_t read = 0; read < small.time; read += kPiece) {
      const MixerCall piece(preset_, piece_at(read, small), kSeed + 100 + read, rounded_, gates_);
      MixerCall fast = piece.part(piece.shape().time, small.heads, Dtype::f32);
      MixerCall slow = piece.part(piece.shape().time, small.heads, Dtype::f64);
      fast.take_state(step);
      slow.take_state(exact);
      fast.forward(context_);
      slow.forward(reference);
    }
    step.forward(context_);
    exact.forward(reference);
    return relative_error(step.output(), exact.output(), rounded_);
  }

  // bf16 on this backend: the inputs lie in memory in 16 bits and are widened before every call,
  // the results are rounded behind it, all within the time.
  template <class Work>
  void narrowed(const MixerCall& call, Work&& work, const std::vector<Tensor>& results) {
    if (!rounded_) {
      work();
      return;
    }
    std::vector<Tensor> inputs = call.narrow_inputs();
    inputs.push_back(call.cotangent());
    std::int64_t count = 0;
    for (const Tensor& tensor : inputs) count += tensor.count();
    for (const Tensor& tensor : results) count += tensor.count();
    if (static_cast<std::int64_t>(narrow_.size()) < count) {
      narrow_.resize(static_cast<std::size_t>(count));
      bf16* to = narrow_.data();
      for (const Tensor& tensor : inputs) {
        for (const float x : tensor.span<float>()) *to++ = to_bf16(x);
      }
    }
    bf16* at = narrow_.data();
    for (const Tensor& tensor : inputs) {
      float* to = tensor.data<float>();
      for (std::int64_t i = 0; i < tensor.count(); ++i) to[i] = to_float(at[i]);
      at += tensor.count();
    }
    work();
    for (const Tensor& tensor : results) {
      const float* from = tensor.data<float>();
      for (std::int64_t i = 0; i < tensor.count(); ++i) at[i] = to_bf16(from[i]);
      at += tensor.count();
    }
  }

  std::string kernel(std::string_view direction) const {
    const std::int64_t tokens = direction == "step" ? 1 : shape_.time;
    const bool two_key = preset_.axes.solve != recurrence::Solve::cg;
    const bool channel = preset_.axes.decay == recurrence::DecayKind::channel;
    const std::string name =
        "cpu-" + recurrence::cpu_kernel(context_, two_key ? tokens : 1, channel);
    return rounded_ ? name + " (bf16 widened)" : name;
  }

  void introduce(const MixerCall& call, std::string_view direction) const {
    std::printf("%s, %s, seed %d; log decay: %s; timed: the recurrence%s, not the prologue\n",
                std::string(preset_.name).c_str(), kernel(direction).c_str(),
                static_cast<int>(kSeed), call.gates().c_str(),
                preset_.axes.preconditioner == recurrence::PreconditionerChoice::none
                    ? ""
                    : " and the scan of the preconditioner");
  }

  void report(const std::string& direction, double token_heads, double error, std::int64_t heads,
              std::int64_t tokens, const Timing& timing, const Work& work, double held_bytes) {
    const double each = timing.median_us * 1e3 / token_heads;
    BenchRow row;
    row["mixer"] = preset_.name;
    row["direction"] = direction;
    row["device"] = options_.device;
    row["kernel"] = kernel(direction);
    row["b"] = shape_.batch;
    row["t"] = shape_.time;
    row["h"] = shape_.heads;
    row["dk"] = shape_.d_k;
    row["dv"] = shape_.d_v;
    row["dtype"] = options_.dtype;
    row["state_dtype"] = options_.state_dtype;
    row["threads"] = context_.threads().size();
    add_timing(row, timing);
    row["ns_per_token_head"] = each;
    Roof roof = roof_over(context_.threads(), peaks_, held_bytes, Traffic::update);
    if (kernel(direction).find("amx") != std::string::npos && peaks_.amx_l1_gflops > 0) {
      roof.gflops = peaks_.amx_l1_gflops;
      roof.compute = "products of tiles of bf16 from L1";
    }
    const std::string rates = add_rates(row, timing, work, roof);
    row["relative_error"] = error;
    row["error_heads"] = heads;
    row["error_tokens"] = tokens;
    row["seed"] = kSeed;
    row["gates"] = gates_of();
    add_peaks(row, peaks_);
    rows_.push_back(row);
    std::printf(
        "%-8s %12.1f us (%.1f .. %.1f, %d runs) %9.1f ns per token-head, %s; relative error %.1e "
        "on %d head%s and %d token%s\n",
        direction.c_str(), timing.median_us, timing.low_us, timing.high_us, timing.runs, each,
        rates.c_str(), error, static_cast<int>(heads), heads == 1 ? "" : "s",
        static_cast<int>(tokens), tokens == 1 ? "" : "s");
  }

  std::string gates_of() const {
    return MixerCall(preset_, {1, 1, 1, 1, 1}, kSeed, false, gates_).gates();
  }

  Options options_;
  const MixerPreset& preset_;
  bool rounded_;
  Dtype state_dtype_ = Dtype::f32;
  Context context_;
  MixerShape shape_{};
  GateChoice gates_ = GateChoice::usual;
  Peaks peaks_;
  std::vector<BenchRow> rows_;
  std::vector<bf16> narrow_;
};

void add_options(CLI::App* verb, Options& options, const std::string& time) {
  verb->add_option("--mixer", options.mixer, "a name of `rankone mixers`")->required();
  verb->add_option("--shape", options.shape, "BxTxHxDKxDV; T is " + time)->required();
  verb->add_option("--dtype", options.dtype, "f32 or bf16; on cuda also f16")
      ->capture_default_str();
  verb->add_option("--precision", options.precision,
                   "of products on a CPU with AMX: auto, f32, bf16x3 or bf16 (default: as --dtype)")
      ->check(CLI::IsMember({"auto", "f32", "bf16x3", "bf16"}));
  verb->add_option("--gate-dtype", options.gate_dtype,
                   "of decay and gain on cuda: f32 or as --dtype")
      ->capture_default_str();
  verb->add_option("--gates", options.gates,
                   "the log decays: usual, typical, strong or none (zero)")
      ->capture_default_str();
  verb->add_option("--device", options.device, "cpu or cuda")->capture_default_str();
  verb->add_option("--threads", options.threads, "0: as many as the machine allows")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_option("--state-dtype", options.state_dtype, "of states on cpu: f32 or bf16")
      ->capture_default_str();
  verb->add_option("--json", options.json, "write the figures to this file");
}

const RegisterVerb kBench(50, [](CLI::App& app) {
  static Options recurrence;
  static Options decode;
  CLI::App& bench = bench_command(app);
  CLI::App* whole =
      bench.add_subcommand("recurrence", "the recurrence of a mixer, forward and backward");
  add_options(whole, recurrence, "the number of tokens");
  whole->add_option("--direction", recurrence.direction, "forward, vjp or both")
      ->check(CLI::IsMember({"forward", "vjp", "both"}))
      ->capture_default_str();
  whole->add_option("--beside", recurrence.beside,
                    "on cpu, forward: a mixer that takes turns with it, for the ratio of the two");
  whole
      ->add_option("--state", recurrence.state,
                   "read and write a state: yes, no, or auto (up to 16 tokens)")
      ->check(CLI::IsMember({"yes", "no", "auto"}))
      ->capture_default_str();
  whole->callback([] {
    if (recurrence.device == "cuda") {
      bench_recurrence_on_cuda(cuda_options(recurrence));
    } else {
      require_use_of_state(recurrence);
      Bench(recurrence).recurrence();
    }
  });
  CLI::App* step = bench.add_subcommand("decode", "one token of every sequence at a time");
  add_options(step, decode, "the number of tokens read before");
  step->add_option("--busy", decode.busy, "also beside this many threads that keep processors busy")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  step->callback([] {
    if (decode.device == "cuda") {
      bench_decode_on_cuda(cuda_options(decode));
    } else {
      Bench(decode).decode();
    }
  });
});

}  // namespace
}  // namespace rankone::apps
