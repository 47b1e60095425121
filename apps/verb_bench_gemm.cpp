// rankone bench gemm: the three matrix products of a linear layer.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/bench.hpp"
#include "apps/verb.hpp"
#include "core/isa.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "nn/operators.hpp"

namespace rankone::apps {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::int64_t kErrorSize = 64;  // rows and columns of the result the error is taken on

struct Options {
  std::string shape, json;
  std::string dtype = "f32";
  std::string device = "cpu";
  int threads = 0;
};

Tensor normals(std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
  Tensor result = Tensor::empty({rows, columns}, Dtype::f32);
  Random random(kSeed, stream);
  for (float& value : result.span<float>()) value = static_cast<float>(random.normal());
  return result;
}

// The first rows and columns of a product, against float64.
double relative_error(const nn::Gemm& product) {
  const std::int64_t rows = std::min(kErrorSize, product.c.dim(0));
  const std::int64_t columns = std::min(kErrorSize, product.c.dim(1));
  const Tensor exact = Tensor::empty({rows, columns}, Dtype::f64);
  Context reference({.threads = 1, .backends = {"reference"}});
  nn::Gemm part = product;
  part.a = product.a.slice(product.transpose_a ? 1 : 0, 0, rows).to(Dtype::f64);
  part.b = product.b.slice(product.transpose_b ? 0 : 1, 0, columns).to(Dtype::f64);
  part.c = exact;
  nn::gemm(reference, part);
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const double right = exact.data<double>()[i * columns + j];
      const double got = product.c.data<float>()[i * product.c.stride(0) + j];
      error += (got - right) * (got - right);
      size += right * right;
    }
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

class GemmBench {
 public:
  explicit GemmBench(const Options& options)
      : options_(options), context_({.threads = options.threads, .backends = {"cpu"}}) {
    require_device(options.device);
    const auto dtype = parse_dtype(options.dtype);
    require(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16,
            "[bench] --dtype '{}' is unknown (f32, bf16 or f16: of the weight)", options.dtype);
    const auto sizes = parse_shape(options.shape, 3,
                                   "MxNxK: tokens, outputs and inputs, for example 2048x768x256");
    m_ = sizes[0];
    n_ = sizes[1];
    k_ = sizes[2];
    x_ = normals(m_, k_, 1);
    weight_ = normals(n_, k_, 2);
    if (*dtype != Dtype::f32) weight_ = weight_.to(*dtype);
    peaks_ = measure_peaks(context_.threads());
    std::printf("%s\n", describe(peaks_).c_str());
  }

  void run() {
    const Tensor y = Tensor::zeros({m_, n_}, Dtype::f32);
    time("forward", {x_, weight_, y, false, true});
    const Tensor dx = Tensor::zeros({m_, k_}, Dtype::f32);
    time("dx", {y, weight_, dx});
    const Tensor dweight = Tensor::zeros({n_, k_}, Dtype::f32);
    time("dweight", {y, x_, dweight, true});
    write_rows(options_.json, rows_);
  }

 private:
  void time(const std::string& direction, const nn::Gemm& product) {
    const Timing timing = measure([&] { nn::gemm(context_, product); });
    const double error = relative_error(product);
    const double flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_ * k_);
    const double bytes =
        static_cast<double>(product.a.bytes() + product.b.bytes() + product.c.bytes());
    BenchRow row;
    row["direction"] = direction;
    row["device"] = options_.device;
    row["kernel"] = fmt::format("cpu-{}-f32", rankone::name(best_isa()));
    row["m"] = m_;
    row["n"] = n_;
    row["k"] = k_;
    row["dtype"] = options_.dtype;
    row["threads"] = context_.threads().size();
    add_timing(row, timing);
    const std::string rates = add_rates(
        row, timing, {flops, bytes}, roof_over(context_.threads(), peaks_, bytes, Traffic::read));
    row["relative_error"] = error;
    row["seed"] = kSeed;
    add_peaks(row, peaks_);
    rows_.push_back(row);
    std::printf("%-8s %12.1f us (%.1f .. %.1f, %d runs) %s; relative error %.1e\n",
                direction.c_str(), timing.median_us, timing.low_us, timing.high_us, timing.runs,
                rates.c_str(), error);
  }

  Options options_;
  Context context_;
  std::int64_t m_ = 0, n_ = 0, k_ = 0;
  Tensor x_, weight_;
  Peaks peaks_;
  std::vector<BenchRow> rows_;
};

const RegisterVerb kBenchGemm(51, [](CLI::App& app) {
  static Options options;
  CLI::App* verb =
      bench_command(app).add_subcommand("gemm", "the three matrix products of a linear layer");
  verb->add_option("--shape", options.shape, "MxNxK: tokens, outputs, inputs")->required();
  verb->add_option("--dtype", options.dtype, "of the weight: f32, bf16 or f16")
      ->capture_default_str();
  verb->add_option("--device", options.device, "cpu or cuda")->capture_default_str();
  verb->add_option("--threads", options.threads, "0: as many as the machine allows")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_option("--json", options.json, "write the figures to this file");
  verb->callback([] { GemmBench(options).run(); });
});

}  // namespace
}  // namespace rankone::apps
