// The gated delta rule of rankone beside ggml's GATED_DELTA_NET, on the same numbers in one run.

#include <ggml-cpu.h>
#include <ggml.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.hpp"
#include "core/context.hpp"
#include "core/isa.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::apps {
namespace {

using recurrence::TwoKey;
using recurrence::TwoKeyOut;

constexpr int kTurns = 8;

struct Shape {
  std::int64_t tokens, heads, size;
  bool channel;  // a decay for every key channel (KDA)
};

// q, k, v, b [T, H, .], g [T, H] or [T, H, K], the state [H, K, V].
struct Inputs {
  Tensor q, k, v, g, b, state;
};

Tensor uniform(const rankone::Shape& shape, double low, double high, Random& random) {
  Tensor tensor = Tensor::empty(shape, Dtype::f32);
  for (float& x : tensor.span<float>()) x = static_cast<float>(random.uniform(low, high));
  return tensor;
}

void normalise_rows(const Tensor& tensor) {
  const std::int64_t size = tensor.dim(-1);
  for (float* row = tensor.data<float>(); row < tensor.data<float>() + tensor.count();
       row += size) {
    double squares = 0;
    for (std::int64_t i = 0; i < size; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double factor = 1 / std::sqrt(squares);
    for (std::int64_t i = 0; i < size; ++i) row[i] = static_cast<float>(row[i] * factor);
  }
}

Inputs inputs_of(const Shape& shape) {
  Random random(1);
  const auto [tokens, heads, size, channel] = shape;
  Inputs inputs;
  inputs.q = uniform({tokens, heads, size}, -1, 1, random);
  inputs.k = uniform({tokens, heads, size}, -1, 1, random);
  normalise_rows(inputs.q);
  normalise_rows(inputs.k);
  inputs.v = uniform({tokens, heads, size}, -1, 1, random);
  inputs.g = channel ? uniform({tokens, heads, size}, -0.3, -0.001, random)
                     : uniform({tokens, heads}, -0.3, -0.001, random);
  inputs.b = uniform({tokens, heads}, 0, 1, random);
  inputs.state = uniform({heads, size, size}, -0.1, 0.1, random);
  return inputs;
}

// One graph of one operation, with a pool of its own.
class Ggml {
 public:
  Ggml(const Shape& shape, const Inputs& inputs, int threads) : shape_(shape) {
    const std::int64_t numbers =
        shape.tokens * shape.heads * shape.size * 6 + 2 * shape.heads * shape.size * shape.size;
    context_.reset(ggml_init(
        {static_cast<std::size_t>(numbers) * 4 + (std::size_t{16} << 20), nullptr, false}));
    require(context_ != nullptr, "[ggml] no memory");
    const auto [tokens, heads, size, channel] = shape;
    const auto tensor = [&](std::int64_t width, std::int64_t rows, std::int64_t columns,
                            const Tensor& from) {
      ggml_tensor* result =
          ggml_new_tensor_4d(context_.get(), GGML_TYPE_F32, width, rows, columns, 1);
      std::memcpy(result->data, from.raw(), from.bytes());
      return result;
    };
    ggml_tensor* q = tensor(size, heads, tokens, inputs.q);
    ggml_tensor* k = tensor(size, heads, tokens, inputs.k);
    ggml_tensor* v = tensor(size, heads, tokens, inputs.v);
    ggml_tensor* g = tensor(channel ? size : 1, heads, tokens, inputs.g);
    ggml_tensor* b = tensor(1, heads, tokens, inputs.b);
    ggml_tensor* state = tensor(size, size, heads, inputs.state);
    transpose(inputs.state.data<float>(), static_cast<float*>(state->data));
    result_ = ggml_gated_delta_net(context_.get(), q, k, v, g, b, state, 1);
    graph_ = ggml_new_graph(context_.get());
    ggml_build_forward_expand(graph_, result_);
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_ = ggml_threadpool_new(&params);
    plan_ = ggml_graph_plan(graph_, threads, pool_);
    work_.resize(plan_.work_size + 64);
    plan_.work_data = work_.data();
  }
  ~Ggml() { ggml_threadpool_free(pool_); }
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;

  void run() { ggml_graph_compute(graph_, &plan_); }
  // Its threads poll for some time after a graph: while others run they are to sleep.
  void pause() { ggml_threadpool_pause(pool_); }
  void resume() { ggml_threadpool_resume(pool_); }

  const float* output() const { return static_cast<const float*>(result_->data); }
  Tensor state() const {  // [H, K, V]
    Tensor state = Tensor::empty({shape_.heads, shape_.size, shape_.size}, Dtype::f32);
    transpose(output() + shape_.tokens * shape_.heads * shape_.size, state.data<float>());
    return state;
  }

 private:
  void transpose(const float* from, float* to) const {
    for (std::int64_t h = 0; h < shape_.heads; ++h) {
      for (std::int64_t i = 0; i < shape_.size; ++i) {
        for (std::int64_t j = 0; j < shape_.size; ++j) {
          to[(h * shape_.size + j) * shape_.size + i] =
              from[(h * shape_.size + i) * shape_.size + j];
        }
      }
    }
  }

  struct Free {
    void operator()(ggml_context* context) const { ggml_free(context); }
  };
  Shape shape_;
  std::unique_ptr<ggml_context, Free> context_;
  ggml_tensor* result_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_threadpool* pool_ = nullptr;
  ggml_cplan plan_{};
  std::vector<std::uint8_t> work_;
};

// As a model calls it: the state is updated in place.
class Own {
 public:
  Own(const Shape& shape, const Inputs& inputs, int threads)
      : context_({.threads = threads, .backends = {"cpu"}}),
        sequences_(Sequences::dense(1, shape.tokens)) {
    call_.q = inputs.q;
    call_.e = call_.w = inputs.k;
    call_.v = inputs.v;
    call_.g = inputs.g;
    call_.b = inputs.b;
    call_.initial_state = inputs.state.clone().reshape({1, shape.heads, shape.size, shape.size});
    call_.scale = 1 / std::sqrt(static_cast<double>(shape.size));
    out_.o = Tensor::empty(inputs.v.shape(), Dtype::f32);
    out_.final_state = call_.initial_state;
  }
  void run() { recurrence::two_key(context_, sequences_, call_, out_); }
  const float* output() const { return out_.o.data<float>(); }
  const Tensor& state() const { return out_.final_state; }
  ThreadPool& threads() { return context_.threads(); }

 private:
  Context context_;
  Sequences sequences_;
  TwoKey call_;
  TwoKeyOut out_;
};

double largest_difference(const float* a, const float* b, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

Timing timing_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), at(0.2), at(0.8), static_cast<int>(times.size())};
}

// Another process that never rests, on the last processor this one may use.
class BusyProcessor {
 public:
  BusyProcessor() {
    cpu_set_t allowed;
    ::sched_getaffinity(0, sizeof allowed, &allowed);
    int last = 0;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed)) last = i;
    }
    child_ = ::fork();
    require(child_ >= 0, "[bench] can not start a process");
    if (child_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    for (volatile bool rest = false; !rest;) {
    }
  }
  ~BusyProcessor() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  BusyProcessor(const BusyProcessor&) = delete;
  BusyProcessor& operator=(const BusyProcessor&) = delete;

 private:
  pid_t child_ = -1;
};

struct Options {
  std::vector<std::int64_t> tokens = {1, 4, 64, 512, 2048};
  std::int64_t heads = 32, size = 128;
  std::string gate = "scalar";
  int threads = 1;
  bool busy = false;
  double seconds = 1;
  std::string json;
};

class Comparison {
 public:
  explicit Comparison(const Options& options) : options_(options), pool_(options.threads) {
    peaks_ = measure_peaks(pool_);
    std::printf("%s\nggml %s (%s); %s gate, %d heads of %d, %d thread%s%s\n",
                describe(peaks_).c_str(), ggml_version(), ggml_commit(), options.gate.c_str(),
                static_cast<int>(options.heads), static_cast<int>(options.size), options.threads,
                options.threads == 1 ? "" : "s",
                options.busy ? ", one processor busy with another process" : "");
    if (options.busy) busy_ = std::make_unique<BusyProcessor>();
  }

  void run(std::int64_t tokens) {
    const Shape shape{tokens, options_.heads, options_.size, options_.gate == "channel"};
    const Inputs inputs = inputs_of(shape);
    Ggml ggml(shape, inputs, options_.threads);
    Own own(shape, inputs, options_.threads);
    ggml.run();
    own.run();
    const double difference =
        std::max(largest_difference(own.output(), ggml.output(), inputs.v.count()),
                 largest_difference(own.state().data<float>(), ggml.state().data<float>(),
                                    inputs.state.count()));
    std::vector<double> own_times, ggml_times;
    const double turn = options_.seconds / (2 * kTurns);
    for (int i = 0; i < kTurns; ++i) {
      ggml.pause();
      repeat(
          turn, [&] { own.run(); }, own_times);
      ggml.resume();
      repeat(
          turn, [&] { ggml.run(); }, ggml_times);
    }
    const Timing own_timing = timing_of(own_times), ggml_timing = timing_of(ggml_times);
    const double held = static_cast<double>(inputs.state.bytes() + 4 * inputs.v.bytes());
    const Roof roof = roof_over(pool_, peaks_, held, Traffic::update);
    report("cpu-" + std::string(name(best_isa())), shape, own_timing, own_timing, difference, roof);
    report("ggml", shape, ggml_timing, own_timing, difference, roof);
    write_rows(options_.json, rows_);
  }

 private:
  // One call unmeasured, then until the time is spent.
  template <class Work>
  static void repeat(double seconds, Work&& work, std::vector<double>& times) {
    using Clock = std::chrono::steady_clock;
    work();
    const auto start = Clock::now();
    do {
      const auto begin = Clock::now();
      work();
      times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() * 1e6);
    } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  }

  void report(const std::string& kernel, const Shape& shape, const Timing& timing,
              const Timing& own, double difference, const Roof& roof) {
    const double token_heads = static_cast<double>(shape.tokens * shape.heads);
    const double each = timing.median_us * 1e3 / token_heads;
    const double state = static_cast<double>(shape.size * shape.size);
    // Three products of the state a token; the state and the rows moved once.
    const Work work = {token_heads * 6 * state,
                       static_cast<double>(shape.heads) * state * 8 +
                           token_heads * static_cast<double>(shape.size) * 16};
    BenchRow row;
    row["kernel"] = kernel;
    row["mixer"] = shape.channel ? "kda" : "gdn";
    row["direction"] = "forward";
    row["device"] = "cpu";
    row["b"] = 1;
    row["t"] = shape.tokens;
    row["h"] = shape.heads;
    row["dk"] = shape.size;
    row["dv"] = shape.size;
    row["dtype"] = "f32";
    row["threads"] = options_.threads;
    row["busy"] = options_.busy;
    add_timing(row, timing);
    row["ns_per_token_head"] = each;
    const std::string rates = add_rates(row, timing, work, roof);
    row["over_rankone"] = timing.median_us / own.median_us;
    row["largest_difference"] = difference;
    if (kernel == "ggml") row["version"] = std::string(ggml_version()) + " " + ggml_commit();
    add_peaks(row, peaks_);
    rows_.push_back(row);
    std::printf(
        "%-3s T %4d %-10s %11.1f us (%.1f .. %.1f, %d runs) %8.0f ns per token-head, %5.2f "
        "x, %s; largest difference %.0e\n",
        shape.channel ? "kda" : "gdn", static_cast<int>(shape.tokens), kernel.c_str(),
        timing.median_us, timing.low_us, timing.high_us, timing.runs, each,
        timing.median_us / own.median_us, rates.c_str(), difference);
    std::fflush(stdout);
  }

  Options options_;
  ThreadPool pool_;
  Peaks peaks_;
  std::unique_ptr<BusyProcessor> busy_;
  std::vector<BenchRow> rows_;
};

int main_of(int argc, char** argv) {
  CLI::App app("the gated delta rule: rankone beside ggml");
  Options options;
  app.add_option("--tokens", options.tokens, "lengths of the sequence")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--heads", options.heads, "of keys and of values")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--size", options.size, "d_k and d_v")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--gate", options.gate, "scalar, or channel (KDA)")
      ->check(CLI::IsMember({"scalar", "channel"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "of both")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--busy", options.busy, "another process keeps one of the processors busy");
  app.add_option("--seconds", options.seconds, "for both on one length")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  app.add_option("--json", options.json, "write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Comparison comparison(options);
  for (const std::int64_t tokens : options.tokens) comparison.run(tokens);
  return 0;
}

}  // namespace
}  // namespace rankone::apps

int main(int argc, char** argv) { return rankone::apps::main_of(argc, argv); }
