// rankone golden: compares this build with published recurrences and models.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/golden_ops.hpp"
#include "apps/verb.hpp"
#include "core/device.hpp"
#include "core/status.hpp"
#include "recurrence/backend.hpp"
#if defined(RANKONE_WITH_CUDA)
#include "recurrence/cuda/host_calls.hpp"
#endif

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOnGpu = "cuda";

struct Options {
  std::string path;
  std::vector<std::string> backends;
  std::string dtype = "f32";
  std::string precision = "auto";
};

bool is_op_file(const fs::path& path) {
  return fs::is_regular_file(path) && path.extension() == ".safetensors";
}
bool is_model(const fs::path& path) {
  return fs::is_directory(path) && fs::exists(path / "config.json");
}

// What PATH names: itself, or what lies in the folder, in the order of the names.
std::vector<fs::path> items_of(const fs::path& path) {
  if (is_op_file(path) || is_model(path)) return {path};
  if (!fs::exists(path)) fail(Status::io, "[golden] {} does not exist", path.string());
  if (!fs::is_directory(path)) {
    fail(Status::invalid_argument,
         "[golden] {} is no .safetensors file, model directory or folder of either", path.string());
  }
  std::vector<fs::path> items;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (is_op_file(entry.path()) || is_model(entry.path())) items.push_back(entry.path());
  }
  if (items.empty()) {
    fail(Status::invalid_argument, "[golden] {} holds no .safetensors file and no model directory",
         path.string());
  }
  std::sort(items.begin(), items.end());
  return items;
}

// On a GPU the recurrence runs through copies of the files' tensors, and nothing else runs instead.
Context make_context(const std::string& backend, Precision precision) {
  ContextOptions options;
  options.precision = precision;
  options.backends = {backend, "reference"};
  if (backend == "cuda") options.backends = {kOnGpu};
  return Context(options);
}

// The GPU's backend for tensors in host memory, while it lives.
class GpuBackend {
 public:
  GpuBackend() {
    require_gpu();
#if defined(RANKONE_WITH_CUDA)
    calls_ = std::make_unique<recurrence::HostCalls>(
        kOnGpu, recurrence::cuda_backend(), ContextOptions{.device = Device::cuda, .threads = 1});
    registration_ = std::make_unique<recurrence::RegisteredBackend>(*calls_);
#endif
  }

 private:
  std::unique_ptr<recurrence::Backend> calls_;
  std::unique_ptr<recurrence::RegisteredBackend> registration_;
};

std::vector<TensorCheck> check_item(const fs::path& item, Context& context, Dtype dtype) {
  const GoldenChecks& upper = golden_checks();
  if (is_model(item)) {
    if (upper.model_directory) return upper.model_directory(item, context, dtype);
    fail(Status::unsupported, "[golden] a model: this build has only the recurrence");
  }
  const TensorFile file = read_safetensors(item);
  const std::string op = golden_op(file);
  if (op != "kla_layer") return check_op_file(file, context, dtype);
  if (upper.layer_file) return upper.layer_file(file, context, dtype);
  fail(Status::unsupported, "[golden] a whole layer: this build has only the recurrence");
}

// One line for one file or model on one backend.
bool report(const std::string& name, const std::string& backend,
            const std::vector<TensorCheck>& checks) {
  const auto worst = std::max_element(
      checks.begin(), checks.end(),
      [](const TensorCheck& a, const TensorCheck& b) { return a.error < b.error; });
  if (all_passed(checks)) {
    std::printf("%s %s: passed, %zu tensors, worst %s at %.2g of its bound\n", name.c_str(),
                backend.c_str(), checks.size(), worst->name.c_str(), worst->error);
    return true;
  }
  std::printf("%s %s: FAILED", name.c_str(), backend.c_str());
  if (checks.empty()) std::printf(", nothing to compare");
  for (const TensorCheck& check : checks) {
    if (check.passed) continue;
    std::printf("; %s at %.3g of its bound (%s)", check.name.c_str(), check.error,
                check.detail.c_str());
  }
  std::printf("\n");
  return false;
}

void run(const Options& options) {
  const fs::path path(options.path);
  const std::vector<fs::path> items = items_of(path);
  const bool single = items.size() == 1 && items.front() == path;
  int passed = 0, failed = 0;
  for (const std::string& backend : options.backends) {
    const Dtype dtype = backend == "reference" ? Dtype::f64 : *parse_dtype(options.dtype);
    golden_bounds(dtype);  // refuses a dtype before any work
    std::optional<GpuBackend> gpu;
    if (backend == "cuda") gpu.emplace();
    Context context = make_context(backend, *parse_precision(options.precision));
    for (const fs::path& item : items) {
      bool good = false;
      try {
        good = report(item.filename().string(), backend, check_item(item, context, dtype));
      } catch (const Error& error) {
        // In a folder a bad file is one failure; alone it is bad input.
        if (single && error.status() != Status::failed && error.status() != Status::unsupported) {
          throw;
        }
        std::printf("%s %s: FAILED, %s\n", item.filename().c_str(), backend.c_str(), error.what());
      }
      ++(good ? passed : failed);
      std::fflush(stdout);
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  std::fflush(stdout);
  if (failed > 0) fail(Status::failed, "[golden] {} of {} failed", failed, passed + failed);
}

const RegisterVerb kGolden(110, [](CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("golden", "compare with published recurrences and models");
  verb->add_option("PATH", options->path,
                   "an op file, a model directory, or a folder of either, one level deep")
      ->required();
  verb->add_option("--backend", options->backends,
                   "reference, cpu or cuda; may repeat (default cpu)")
      ->check(CLI::IsMember({"reference", "cpu", "cuda"}))
      ->take_all();
  verb->add_option("--dtype", options->dtype, "of the cpu and cuda backends (default f32)")
      ->check(CLI::IsMember({"f32", "bf16"}));
  verb->add_option("--precision", options->precision,
                   "of products on a CPU with AMX: auto (default), f32 or bf16x3")
      ->check(CLI::IsMember({"auto", "f32", "bf16x3"}));
  verb->callback([options] {
    if (options->backends.empty()) options->backends = {"cpu"};
    run(*options);
  });
});

}  // namespace
}  // namespace rankone::apps
