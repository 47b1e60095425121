// rankone convert: the weights of a model directory or of a safetensors file in another dtype.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <system_error>

#include "apps/verb.hpp"
#include "core/files.hpp"
#include "core/safetensors.hpp"
#include "core/status.hpp"
#include "core/text.hpp"

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestConfig = std::size_t{16} << 20;

struct Options {
  std::string in;
  std::string out;
  std::string dtype = "f32";
};

// float16 ends at 65,504; a weight beyond the range of the dtype would come back as infinity.
void check_range(const std::string& name, const Tensor& before, const Tensor& after) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  const Tensor flat_before = before.reshape({before.count()});
  const Tensor flat_after = after.reshape({after.count()});
  for (std::int64_t begin = 0; begin < before.count(); begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, before.count());
    const Tensor wanted = flat_before.slice(0, begin, end).to(Dtype::f64);
    const Tensor got = flat_after.slice(0, begin, end).to(Dtype::f64);
    for (std::int64_t i = 0; i < end - begin; ++i) {
      const double value = wanted.data<double>()[i];
      if (std::isfinite(value) && !std::isfinite(got.data<double>()[i])) {
        fail(Status::failed, "[convert] tensor {}: element {} is {}, beyond the range of {}",
             printable(name), begin + i, value, rankone::name(after.dtype()));
      }
    }
  }
}

// Integer tensors stay as they are.
void convert(TensorFile& file, Dtype dtype) {
  for (auto& [name, tensor] : file.tensors) {
    if (!is_floating(tensor.dtype()) || tensor.dtype() == dtype) continue;
    const Tensor converted = tensor.to(dtype);
    check_range(name, tensor, converted);
    tensor = converted;
  }
}

void report(const fs::path& out, const TensorFile& file) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors) bytes += tensor.bytes();
  std::printf("%s: %zu tensors, %.1f MB of weights\n", out.c_str(), file.tensors.size(),
              static_cast<double>(bytes) / 1e6);
}

void convert_file(const fs::path& in, const fs::path& out, Dtype dtype) {
  require(!fs::exists(fs::symlink_status(out)), "[convert] {} exists (a new name)", out.string());
  TensorFile file = read_safetensors_model(in);
  convert(file, dtype);
  write_safetensors(out, file);
  report(out, file);
}

// The folder that becomes OUT once it is complete; gone if it never is.
class PendingFolder {
 public:
  explicit PendingFolder(const fs::path& out)
      : out_(out), path_(out.parent_path() / fmt::format(".{}.tmp", out.filename().string())) {
    std::error_code error;
    fs::remove_all(path_, error);  // what a killed run left
    fs::create_directory(path_, error);
    if (error) fail(Status::io, "[convert] {}: {}", path_.string(), error.message());
  }
  ~PendingFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const fs::path& path() const { return path_; }
  void commit() {
    replace_path(path_, out_);
    path_.clear();
  }

 private:
  fs::path out_;
  fs::path path_;
};

void convert_directory(const fs::path& in, const fs::path& out, Dtype dtype) {
  const bool free =
      !fs::exists(fs::symlink_status(out)) || (fs::is_directory(out) && fs::is_empty(out));
  require(free, "[convert] {} exists and is no empty folder (a new name)", out.string());
  require(fs::exists(in / "config.json"),
          "[convert] {} holds no config.json (a model directory, or a .safetensors file)",
          in.string());
  TensorFile file = read_safetensors_model(in);
  convert(file, dtype);
  PendingFolder pending(out);
  write_safetensors(pending.path() / "model.safetensors", file);
  for (const char* name : {"config.json", "tokenizer.model"}) {
    if (fs::exists(in / name)) {
      write_file(pending.path() / name, read_file(in / name, kLargestConfig));
    }
  }
  pending.commit();
  report(out, file);
}

void run(const Options& options) {
  const std::optional<Dtype> dtype = parse_dtype(options.dtype);
  // "out/" and "out" are one folder; a name is needed to build it beside.
  fs::path out = fs::absolute(options.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();
  const fs::path in = options.in;
  if (!fs::exists(in)) fail(Status::io, "[convert] {} does not exist", in.string());
  if (fs::is_directory(in)) {
    convert_directory(in, out, *dtype);
  } else {
    convert_file(in, out, *dtype);
  }
}

void add(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "convert", "Write the weights of a model directory or .safetensors file in another dtype");
  verb->add_option("IN", options->in,
                   "A model directory, a .safetensors file or an index of shards")
      ->required();
  verb->add_option("OUT", options->out,
                   "What to write: a folder for a directory (shards are joined), else a file; must "
                   "not exist")
      ->required();
  verb->add_option("--dtype", options->dtype, "The dtype of the floating-point tensors")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  verb->callback([options] { run(*options); });
}

const RegisterVerb registered(90, add);

}  // namespace
}  // namespace rankone::apps
