// The matrix products of a linear layer with rankone's kernels, oneDNN and OpenBLAS, each on one
// thread, taking turns in one run.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#if defined(RANKONE_HAS_ONEDNN)
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif
#if defined(RANKONE_HAS_OPENBLAS)
#include <cblas.h>
#endif

#include "apps/bench.hpp"
#include "core/context.hpp"
#include "core/isa.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "nn/operators.hpp"

namespace rankone::apps {
namespace {

// Weights of one call after the other are different ones, so many bytes in all: as in a model, they
// come from memory, not from a cache that the call before filled.
constexpr std::int64_t kWeightBytes = std::int64_t{192} << 20;
// The tiles of nn/cpu/gemm.cpp on one thread.
constexpr std::int64_t kTileRows = 240, kTileColumns = 768, kTileDepth = 2048;

struct Case {
  std::string model;
  std::int64_t m, n, k;  // tokens, outputs, inputs
};

std::vector<Case> cases_of(const std::string& group) {
  std::vector<Case> cases;
  const bool small = group.starts_with("10m");
  const std::int64_t width = small ? 256 : 1024, hidden = small ? 768 : 2816;
  const auto add = [&](std::int64_t m, std::int64_t vocabulary_rows) {
    cases.push_back({group, m, width, width});
    cases.push_back({group, m, hidden, width});
    cases.push_back({group, m, width, hidden});
    cases.push_back({group, vocabulary_rows, small ? 4096 : 32000, width});
  };
  if (group.ends_with("train")) {
    add(small ? 1024 : 2048, small ? 1024 : 256);
  } else {
    for (const std::int64_t m : {1, 2, 4, 8}) add(m, m);
  }
  return cases;
}

struct Matrix {
  const float* data;
  std::int64_t stride;
  bool transposed;
};
// c [m, n] = a [m, k] b [k, n], or added to c.
struct Product {
  std::int64_t m, n, k;
  Matrix a, b;
  float* c;
  std::int64_t c_stride;
  bool add;
};
using Multiply = std::function<void(const Product&)>;

#if defined(RANKONE_HAS_OPENBLAS)
void openblas(const Product& p) {
  const auto op = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  const auto to_int = [](std::int64_t size) { return static_cast<int>(size); };
  if (p.m == 1 && p.b.transposed && !p.a.transposed) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, to_int(p.n), to_int(p.k), 1.0F, p.b.data,
                to_int(p.b.stride), p.a.data, 1, p.add ? 1.0F : 0.0F, p.c, 1);
    return;
  }
  cblas_sgemm(CblasRowMajor, op(p.a.transposed), op(p.b.transposed), to_int(p.m), to_int(p.n),
              to_int(p.k), 1.0F, p.a.data, to_int(p.a.stride), p.b.data, to_int(p.b.stride),
              p.add ? 1.0F : 0.0F, p.c, to_int(p.c_stride));
}
#endif

#if defined(RANKONE_HAS_ONEDNN)
void onednn(const Product& p) {
  const auto op = [](bool transposed) { return transposed ? 'T' : 'N'; };
  dnnl_sgemm(op(p.a.transposed), op(p.b.transposed), p.m, p.n, p.k, 1.0F, p.a.data, p.a.stride,
             p.b.data, p.b.stride, p.add ? 1.0F : 0.0F, p.c, p.c_stride);
}

// x rounded to bf16, the weight as it is, products summed in float32.
class OneDnnBf16 {
 public:
  OneDnnBf16(std::int64_t m, std::int64_t n, std::int64_t k)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        narrow_(Tensor::empty({m, k}, Dtype::bf16)) {
    using Tag = dnnl::memory::format_tag;
    using Type = dnnl::memory::data_type;
    const dnnl::memory::desc x({m, k}, Type::bf16, Tag::ab);
    const dnnl::memory::desc weight({k, n}, Type::bf16, Tag::ba);
    const dnnl::memory::desc y({m, n}, Type::f32, Tag::ab);
    product_ = dnnl::matmul({dnnl::matmul::desc(x, weight, y), engine_});
    x_ = dnnl::memory(x, engine_, narrow_.raw());
    weight_ = dnnl::memory(weight, engine_, nullptr);
    y_ = dnnl::memory(y, engine_, nullptr);
    const dnnl::memory::desc wide({m, k}, Type::f32, Tag::ab);
    wide_ = dnnl::memory(wide, engine_, nullptr);
    round_ = dnnl::reorder(wide_, x_);
  }
  void run(const Tensor& x, const Tensor& weight, const Tensor& y) {
    wide_.set_data_handle(x.raw());
    weight_.set_data_handle(weight.raw());
    y_.set_data_handle(y.raw());
    round_.execute(stream_, wide_, x_);
    product_.execute(stream_,
                     {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weight_}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  Tensor narrow_;
  dnnl::matmul product_;
  dnnl::reorder round_;
  dnnl::memory x_, wide_, weight_, y_;
};
#endif

// The product cut into rankone's tiles.
void tiled(const Product& p, const Multiply& multiply) {
  const auto element = [](const Matrix& matrix, std::int64_t row, std::int64_t column) {
    return matrix.data +
           (matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column);
  };
  for (std::int64_t j = 0; j < p.n; j += kTileColumns) {
    for (std::int64_t i = 0; i < p.m; i += kTileRows) {
      for (std::int64_t k = 0; k < p.k; k += kTileDepth) {
        Product tile = p;
        tile.m = std::min(kTileRows, p.m - i);
        tile.n = std::min(kTileColumns, p.n - j);
        tile.k = std::min(kTileDepth, p.k - k);
        tile.a.data = element(p.a, i, k);
        tile.b.data = element(p.b, k, j);
        tile.c = p.c + i * p.c_stride + j;
        tile.add = p.add || k > 0;
        multiply(tile);
      }
    }
  }
}

Product product_of(const nn::Gemm& gemm) {
  const auto matrix = [](const Tensor& tensor, bool transposed) {
    return Matrix{tensor.data<float>(), tensor.stride(0), transposed};
  };
  return {gemm.c.dim(0),
          gemm.c.dim(1),
          gemm.a.dim(gemm.transpose_a ? 0 : 1),
          matrix(gemm.a, gemm.transpose_a),
          matrix(gemm.b, gemm.transpose_b),
          gemm.c.data<float>(),
          gemm.c.stride(0),
          gemm.accumulate};
}

Tensor normals(std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
  Tensor result = Tensor::empty({rows, columns}, Dtype::f32);
  Random random(1, stream);
  for (float& value : result.span<float>()) value = static_cast<float>(random.normal());
  return result;
}

double difference(const Tensor& got, const Tensor& expected) {
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double right = expected.data<float>()[i];
    const double wrong = got.data<float>()[i] - right;
    error += wrong * wrong;
    size += right * right;
  }
  return std::sqrt(error / size);
}

struct Contestant {
  std::string name;
  std::function<void()> run;
};

class Peers {
 public:
  Peers(double seconds, std::string json)
      : seconds_(seconds),
        json_(std::move(json)),
        context_({.threads = 1, .backends = {"cpu"}}),
        peaks_(measure_peaks(context_.threads())) {
    std::printf("%s\n", describe(peaks_).c_str());
  }

  void run(const std::string& group) {
    for (const Case& sizes : cases_of(group)) {
      if (group.ends_with("train")) {
        train(sizes);
      } else {
        decode(sizes);
      }
      write_rows(json_, rows_);
    }
  }

 private:
  void train(const Case& sizes) {
    const Tensor x = normals(sizes.m, sizes.k, 1), weight = normals(sizes.n, sizes.k, 2);
    const Tensor dy = normals(sizes.m, sizes.n, 3);
    compare(sizes, "forward", {x, weight, empty(sizes.m, sizes.n), false, true});
    compare(sizes, "dx", {dy, weight, empty(sizes.m, sizes.k)});
    compare(sizes, "dweight", {dy, x, empty(sizes.n, sizes.k), true});
  }

  // Every call has the next of several weights.
  void decode(const Case& sizes) {
    const Tensor x = normals(sizes.m, sizes.k, 1);
    const std::int64_t copies = kWeightBytes / (sizes.n * sizes.k * 4) + 1;
    const Tensor one = normals(sizes.n, sizes.k, 2);
    std::vector<Tensor> wide, narrow;
    for (std::int64_t i = 0; i < 2 * copies; ++i) {
      if (i < copies) wide.push_back(one.clone());
      narrow.push_back(one.to(Dtype::bf16));
    }
    compare(sizes, "decode", {x, wide.front(), empty(sizes.m, sizes.n), false, true}, wide);
    compare_bf16(sizes, x, narrow);
  }

  static Tensor empty(std::int64_t rows, std::int64_t columns) {
    return Tensor::zeros({rows, columns}, Dtype::f32);
  }

  void compare(const Case& sizes, const std::string& direction, const nn::Gemm& product,
               const std::vector<Tensor>& weights = {}) {
    std::vector<Contestant> contestants;
    std::vector<Tensor> results;
    const auto add = [&](const std::string& name, const std::function<void(nn::Gemm&)>& multiply) {
      nn::Gemm own = product;
      own.c = empty(product.c.dim(0), product.c.dim(1));
      results.push_back(own.c);
      // One library does not find in a cache what the other has just read.
      const std::size_t first = contestants.size() * weights.size() / 3;
      contestants.push_back({name, [own, multiply, &weights, next = first]() mutable {
                               if (!weights.empty()) own.b = weights[next++ % weights.size()];
                               multiply(own);
                             }});
    };
    add("rankone", [&](nn::Gemm& own) { nn::gemm(context_, own); });
    const auto add_peer = [&](const std::string& name, const Multiply& multiply) {
      add(name, [multiply](nn::Gemm& own) { multiply(product_of(own)); });
      if (product.c.dim(0) <= kTileRows && product.c.dim(1) <= kTileColumns) return;
      if (direction == "decode") return;
      add(name + " in tiles", [multiply](nn::Gemm& own) { tiled(product_of(own), multiply); });
    };
    static_cast<void>(add_peer);
#if defined(RANKONE_HAS_ONEDNN)
    add_peer("oneDNN", onednn);
#endif
#if defined(RANKONE_HAS_OPENBLAS)
    add_peer("OpenBLAS", openblas);
#endif
    report(sizes, direction, "f32", 4, contestants, results);
  }

  void compare_bf16(const Case& sizes, const Tensor& x, const std::vector<Tensor>& weights) {
    std::vector<Contestant> contestants;
    std::vector<Tensor> results;
    const auto add = [&](const std::string& name,
                         const std::function<void(const Tensor&, const Tensor&)>& multiply) {
      const Tensor y = empty(sizes.m, sizes.n);
      results.push_back(y);
      const std::size_t first = contestants.size() * weights.size() / 3;
      contestants.push_back({name, [y, multiply, &weights, next = first]() mutable {
                               multiply(weights[next++ % weights.size()], y);
                             }});
    };
    add("rankone", [&](const Tensor& weight, const Tensor& y) {
      nn::gemm(context_, {x, weight, y, false, true});
    });
#if defined(RANKONE_HAS_ONEDNN)
    OneDnnBf16 bf16(sizes.m, sizes.n, sizes.k);
    add("oneDNN, x in bf16",
        [&](const Tensor& weight, const Tensor& y) { bf16.run(x, weight, y); });
#endif
#if defined(RANKONE_HAS_OPENBLAS)
    const Tensor wide = Tensor::empty({sizes.n, sizes.k}, Dtype::f32);
    add("OpenBLAS, weight widened", [&, wide](const Tensor& weight, const Tensor& y) {
      const auto* const from = static_cast<const std::uint16_t*>(weight.raw());
      auto* const to = reinterpret_cast<std::uint32_t*>(wide.data<float>());
      for (std::int64_t i = 0; i < weight.count(); ++i) to[i] = std::uint32_t{from[i]} << 16;
      openblas(product_of({x, wide, y, false, true}));
    });
#endif
    report(sizes, "decode", "bf16", 2, contestants, results);
  }

  void report(const Case& sizes, const std::string& direction, const std::string& dtype,
              int weight_bytes, const std::vector<Contestant>& contestants,
              const std::vector<Tensor>& results) {
    std::vector<std::function<void()>> works;
    for (const Contestant& contestant : contestants) works.push_back(contestant.run);
    for (const auto& work : works) work();
    std::vector<double> differences;
    for (const Tensor& result : results) differences.push_back(difference(result, results[0]));
    const std::vector<Timing> times = measure_in_turn(works, 5, seconds_);
    const double weight = static_cast<double>(sizes.n * sizes.k);
    const Work work = {
        2 * weight * static_cast<double>(sizes.m),
        weight * weight_bytes + 4 * static_cast<double>(sizes.m * (sizes.n + sizes.k))};
    const Roof roof = {.gflops = peaks_.gflops,
                       .gb_per_s = peaks_.memory.read_gb_per_s,
                       .traffic = "reading memory"};
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      BenchRow row;
      row["model"] = sizes.model;
      row["direction"] = direction;
      row["kernel"] = contestants[i].name;
      row["m"] = sizes.m;
      row["n"] = sizes.n;
      row["k"] = sizes.k;
      row["dtype"] = dtype;
      row["threads"] = 1;
      add_timing(row, times[i]);
      const std::string rates = add_rates(row, times[i], work, roof);
      row["difference"] = differences[i];
      row["over_rankone"] = times[i].median_us / times[0].median_us;
      add_peaks(row, peaks_);
      rows_.push_back(row);
      std::printf(
          "%-10s %-7s %4d x %5d x %4d %-4s %-24s %9.1f us (%.1f .. %.1f, %d runs) %5.2f x, %s; "
          "difference %.0e\n",
          sizes.model.c_str(), direction.c_str(), static_cast<int>(sizes.m),
          static_cast<int>(sizes.n), static_cast<int>(sizes.k), dtype.c_str(),
          contestants[i].name.c_str(), times[i].median_us, times[i].low_us, times[i].high_us,
          times[i].runs, times[i].median_us / times[0].median_us, rates.c_str(), differences[i]);
      std::fflush(stdout);
    }
  }

  double seconds_;
  std::string json_;
  Context context_;
  Peaks peaks_;
  std::vector<BenchRow> rows_;
};

void print_versions() {
  std::printf("rankone: cpu-%s", std::string(name(best_isa())).c_str());
#if defined(RANKONE_HAS_ONEDNN)
  omp_set_num_threads(1);
  const dnnl_version_t* version = dnnl_version();
  std::printf("; oneDNN %d.%d.%d", version->major, version->minor, version->patch);
#endif
#if defined(RANKONE_HAS_OPENBLAS)
  openblas_set_num_threads(1);
  std::printf("; %s", openblas_get_config());
#endif
  std::printf("; one thread each\n");
}

int main_of(int argc, char** argv) {
  CLI::App app("the matrix products of a linear layer: rankone, oneDNN and OpenBLAS on one thread");
  std::vector<std::string> groups = {"10m-train", "340m-train", "10m-decode", "340m-decode"};
  double seconds = 1;
  std::string json;
  app.add_option("--group", groups, "10m-train, 340m-train, 10m-decode or 340m-decode; all of them")
      ->check(CLI::IsMember({"10m-train", "340m-train", "10m-decode", "340m-decode"}));
  app.add_option("--seconds", seconds, "for all libraries on one product")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  app.add_option("--json", json, "write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  print_versions();
  Peers peers(seconds, json);
  for (const std::string& group : groups) peers.run(group);
  return 0;
}

}  // namespace
}  // namespace rankone::apps

int main(int argc, char** argv) { return rankone::apps::main_of(argc, argv); }
