#pragma once

// The logs of a run: metrics.jsonl, a TensorBoard event file, and what the terminal shows. Nothing
// here reaches the weights, so wall-clock values may appear.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace rankone::train {

struct StepRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;  // trained on so far
  double loss = 0;          // nats per target
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double tokens_per_s = 0;
};

struct EvalRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0;           // nats per target on the validation text
  double bits_per_byte = 0;  // of the scored pieces
  std::int64_t scored = 0;   // targets
};

// A file that only grows, locked against a second process. A failed write is Error (io), and leaves
// at most a torn record at the end.
class LogFile {
 public:
  explicit LogFile(std::filesystem::path path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  // Shortens the file to the prefix whose length `prefix_of` finds in its bytes.
  void cut(const std::function<std::size_t(std::span<const std::byte> bytes)>& prefix_of);
  void append(std::string_view bytes);
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

class Metrics {
 public:
  // Continues the logs in `directory` after `step`: what stands there beyond it is cut off.
  Metrics(const std::filesystem::path& directory, std::int64_t step);

  void add(const StepRecord& record);  // one flushed line, one event
  void add(const EvalRecord& record);
  void sync();  // before a checkpoint, which must not be ahead of its logs

 private:
  LogFile lines_;
  LogFile events_;
};

// Length of the longest prefix of a metrics.jsonl with whole lines of steps <= last_step.
std::size_t metrics_prefix(std::string_view text, std::int64_t last_step);

// On a terminal one line that is drawn again, elsewhere plain lines, at most one in ten seconds
// apart from validations, notes and the last step.
class RunProgress {
 public:
  RunProgress(std::int64_t first_step, std::int64_t steps, bool terminal);
  ~RunProgress();
  RunProgress(const RunProgress&) = delete;
  RunProgress& operator=(const RunProgress&) = delete;
  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);
  void note(std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;
  void clear_line();

  std::int64_t first_step_;
  std::int64_t steps_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point shown_;
};

// "2m10s"
std::string format_duration(double seconds);

}  // namespace rankone::train
