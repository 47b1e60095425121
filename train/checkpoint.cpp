#include "train/checkpoint.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "core/files.hpp"
#include "core/status.hpp"

namespace rankone::train {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied as they lie in memory");

constexpr std::string_view kMagic = "RANKCKPT";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kHead = 24;  // magic, version, length of the payload
constexpr std::size_t kTail = 4;   // CRC-32C of everything before it
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".ckpt";
constexpr std::size_t kKept = 2;
constexpr std::int64_t kLargestStep = 1'000'000'000;

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <class T>
T get(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

std::optional<std::int64_t> parse_number(std::string_view text, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (value < 0 || value > high) return std::nullopt;
  return value;
}

std::string_view metadata(const TensorFile& file, std::string_view key, std::string_view where) {
  const auto found = std::find_if(file.metadata.begin(), file.metadata.end(),
                                  [&](const auto& entry) { return entry.first == key; });
  if (found == file.metadata.end()) {
    fail(Status::corrupt, "[checkpoint] {}: no metadata '{}'", where, key);
  }
  return found->second;
}

std::int64_t number(const TensorFile& file, std::string_view key, std::int64_t high,
                    std::string_view where) {
  const std::string_view text = metadata(file, key, where);
  const auto value = parse_number(text, high);
  if (!value) {
    fail(Status::corrupt, "[checkpoint] {}: {} is no integer in [0, {}]", where, key, high);
  }
  return *value;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string file_name(std::int64_t step) { return fmt::format("{}{}{}", kPrefix, step, kSuffix); }

// The N of "step-N.ckpt".
std::optional<std::int64_t> step_of(const std::string& name) {
  if (name.size() <= kPrefix.size() + kSuffix.size() || !name.starts_with(kPrefix) ||
      !name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  return parse_number(
      std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()),
      kLargestStep);
}

Checkpoint read_checkpoint(const std::filesystem::path& file, std::int64_t step) {
  const MappedFile map(file);
  Checkpoint checkpoint = parse_checkpoint(map.bytes(), file.string());
  if (checkpoint.step != step) {
    fail(Status::corrupt, "[checkpoint] {} holds step {}", file.string(), checkpoint.step);
  }
  return checkpoint;
}

// A killed process leaves its temporary file behind; in this folder nobody else writes.
void remove_leftovers(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!step_of(name) && !name.ends_with(".corrupt")) std::filesystem::remove(entry.path());
  }
}

}  // namespace

std::string format_checkpoint(const Checkpoint& checkpoint) {
  TensorFile file = checkpoint.state;
  file.metadata = {{"format", "rankone checkpoint"},
                   {"step", std::to_string(checkpoint.step)},
                   {"tokens", std::to_string(checkpoint.tokens)},
                   {"config", checkpoint.config},
                   {"data", checkpoint.data},
                   {"valid", checkpoint.valid},
                   {"tokenizer", checkpoint.tokenizer}};
  const std::string payload = format_safetensors(file);
  std::string bytes;
  bytes.reserve(kHead + payload.size() + kTail);
  bytes += kMagic;
  bytes += raw(kVersion);
  bytes += raw(static_cast<std::uint64_t>(payload.size()));
  bytes += payload;
  bytes += raw(crc32c(bytes_of(bytes)));
  return bytes;
}

Checkpoint parse_checkpoint(std::span<const std::byte> bytes, std::string_view where) {
  if (bytes.size() < kHead + kTail ||
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(Status::corrupt, "[checkpoint] {} is no checkpoint of rankone", where);
  }
  if (crc32c(bytes.first(bytes.size() - kTail)) !=
      get<std::uint32_t>(bytes.subspan(bytes.size() - kTail))) {
    fail(Status::corrupt, "[checkpoint] {}: the checksum does not hold (damaged or cut short)",
         where);
  }
  const auto version = get<std::uint64_t>(bytes.subspan(8));
  if (version != kVersion) {
    fail(Status::corrupt, "[checkpoint] {} has format version {} (must be {})", where, version,
         kVersion);
  }
  const auto length = get<std::uint64_t>(bytes.subspan(16));
  if (length != bytes.size() - kHead - kTail) {
    fail(Status::corrupt, "[checkpoint] {} says it holds {} bytes, but holds {}", where, length,
         bytes.size() - kHead - kTail);
  }
  Checkpoint checkpoint;
  checkpoint.state = parse_safetensors(bytes.subspan(kHead, length), where);
  const TensorFile& file = checkpoint.state;
  checkpoint.step = number(file, "step", kLargestStep, where);
  checkpoint.tokens = number(file, "tokens", std::int64_t{1} << 60, where);
  checkpoint.config = metadata(file, "config", where);
  checkpoint.data = metadata(file, "data", where);
  checkpoint.valid = metadata(file, "valid", where);
  checkpoint.tokenizer = metadata(file, "tokenizer", where);
  return checkpoint;
}

void write_checkpoint(const std::filesystem::path& directory, const Checkpoint& checkpoint) {
  std::filesystem::create_directories(directory);
  write_file(directory / file_name(checkpoint.step), format_checkpoint(checkpoint));
  const std::vector<std::int64_t> steps = checkpoint_steps(directory);
  for (std::size_t i = 0; i + kKept < steps.size(); ++i) {
    std::filesystem::remove(directory / file_name(steps[i]));
  }
}

std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory) {
  std::vector<std::int64_t> steps;
  if (!std::filesystem::is_directory(directory)) return steps;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<Checkpoint> newest_checkpoint(
    const std::filesystem::path& directory,
    const std::function<void(const std::string& message)>& warn) {
  std::vector<std::int64_t> steps = checkpoint_steps(directory);
  if (std::filesystem::is_directory(directory)) remove_leftovers(directory);
  std::string last_problem;
  std::vector<std::filesystem::path> damaged;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::filesystem::path file = directory / file_name(*step);
    try {
      Checkpoint checkpoint = read_checkpoint(file, *step);
      for (const auto& bad : damaged) std::filesystem::rename(bad, bad.string() + ".corrupt");
      return checkpoint;
    } catch (const Error& error) {
      if (error.status() != Status::corrupt) throw;
      last_problem = error.what();
      damaged.push_back(file);
      if (step + 1 != steps.rend()) warn(last_problem + "; trying the one before");
    }
  }
  if (damaged.empty()) return std::nullopt;
  fail(Status::corrupt, "{}; no checkpoint in {} is left to resume from", last_problem,
       directory.string());
}

}  // namespace rankone::train
