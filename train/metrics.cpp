#include "train/metrics.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/files.hpp"
#include "core/status.hpp"
#include "train/tensorboard.hpp"

namespace rankone::train {
namespace {

constexpr const char* kLines = "metrics.jsonl";
// The name ends in our own: TensorBoard looks for "tfevents", and a fixed name needs no clock.
constexpr const char* kEvents = "events.out.tfevents.rankone";
constexpr double kSecondsBetweenLines = 10.0;

double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

}  // namespace

// ---- LogFile -----------------------------------------------------------------------------------

LogFile::LogFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail(Status::io, "[log] can not open {}: {}", path_.string(), std::strerror(errno));
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor_);
    fail(Status::io, "[log] {} is in use: another process trains in this folder", path_.string());
  }
}

void LogFile::cut(const std::function<std::size_t(std::span<const std::byte>)>& prefix_of) {
  std::size_t keep = 0;
  {
    const MappedFile file(path_);
    keep = prefix_of(file.bytes());
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(keep)) != 0) {
    fail(Status::io, "[log] can not shorten {}: {}", path_.string(), std::strerror(errno));
  }
}

LogFile::~LogFile() { ::close(descriptor_); }

void LogFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail(Status::io, "[log] can not write {}: {}", path_.string(), std::strerror(errno));
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void LogFile::sync() {
  if (::fsync(descriptor_) != 0) {
    fail(Status::io, "[log] can not sync {}: {}", path_.string(), std::strerror(errno));
  }
}

// ---- Metrics -----------------------------------------------------------------------------------

Metrics::Metrics(const std::filesystem::path& directory, std::int64_t step)
    : lines_(directory / kLines), events_(directory / kEvents) {
  lines_.cut([&](std::span<const std::byte> bytes) {
    return metrics_prefix({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, step);
  });
  events_.cut([&](std::span<const std::byte> bytes) { return event_prefix(bytes, step); });
  if (std::filesystem::file_size(directory / kEvents) == 0) {
    events_.append(
        frame_record(encode_event({.wall_time = wall_time(), .file_version = "brain.Event:2"})));
  }
}

void Metrics::add(const StepRecord& record) {
  nlohmann::ordered_json line;
  line["step"] = record.step;
  line["tokens"] = record.tokens;
  line["loss"] = record.loss;
  line["lr"] = record.lr;
  line["grad_norm"] = record.grad_norm;
  line["tokens_per_s"] = std::round(record.tokens_per_s * 10) / 10;
  lines_.append(line.dump() + "\n");
  events_.append(frame_record(encode_event(
      {.wall_time = wall_time(),
       .step = record.step,
       .scalars = {{"train/loss", static_cast<float>(record.loss)},
                   {"train/lr", static_cast<float>(record.lr)},
                   {"train/grad_norm", static_cast<float>(record.grad_norm)},
                   {"train/tokens_per_s", static_cast<float>(record.tokens_per_s)}}})));
}

void Metrics::add(const EvalRecord& record) {
  nlohmann::ordered_json line;
  line["step"] = record.step;
  line["tokens"] = record.tokens;
  line["valid_loss"] = record.loss;
  line["valid_bits_per_byte"] = record.bits_per_byte;
  line["valid_targets"] = record.scored;
  lines_.append(line.dump() + "\n");
  events_.append(frame_record(encode_event(
      {.wall_time = wall_time(),
       .step = record.step,
       .scalars = {{"valid/loss", static_cast<float>(record.loss)},
                   {"valid/bits_per_byte", static_cast<float>(record.bits_per_byte)}}})));
}

void Metrics::sync() {
  lines_.sync();
  events_.sync();
}

std::size_t metrics_prefix(std::string_view text, std::int64_t last_step) {
  std::size_t good = 0;
  while (good < text.size()) {
    const std::size_t end = text.find('\n', good);
    if (end == std::string_view::npos) break;
    const auto line = nlohmann::json::parse(text.substr(good, end - good), nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) break;
    if (line["step"].get<std::int64_t>() > last_step) break;
    good = end + 1;
  }
  return good;
}

// ---- RunProgress
// ----------------------------------------------------------------------------------

RunProgress::RunProgress(std::int64_t first_step, std::int64_t steps, bool terminal)
    : first_step_(first_step), steps_(steps), terminal_(terminal), start_(Clock::now()) {}

RunProgress::~RunProgress() {
  if (drawn_) std::printf("\n");
  std::fflush(stdout);
}

void RunProgress::clear_line() {
  if (drawn_) std::printf("\r\033[K");
  drawn_ = false;
}

void RunProgress::step(const StepRecord& record) {
  const auto now = Clock::now();
  const bool last = record.step == steps_;
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (!terminal_ && !last && shown_ != Clock::time_point{} && since < kSecondsBetweenLines) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const auto done = static_cast<double>(std::max<std::int64_t>(1, record.step - first_step_));
  const double left = elapsed / done * static_cast<double>(steps_ - record.step);
  const std::string text =
      fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  {:.0f} tokens/s  {} left", record.step,
                  steps_, record.loss, record.lr, record.tokens_per_s, format_duration(left));
  if (terminal_) {
    clear_line();
    std::printf("%s", text.c_str());
    drawn_ = true;
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void RunProgress::evaluation(const EvalRecord& record) {
  note(fmt::format("step {}/{}  validation loss {:.4f}  bits per byte {:.4f}", record.step, steps_,
                   record.loss, record.bits_per_byte));
}

void RunProgress::note(std::string_view text) {
  clear_line();
  std::printf("%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(stdout);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
}

}  // namespace rankone::train
