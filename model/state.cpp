#include "model/state.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/safetensors.hpp"
#include "core/status.hpp"

namespace rankone::model {
namespace {

constexpr std::string_view kPositions = "positions";
constexpr std::int64_t kLargestPosition = std::int64_t{1} << 48;

Shape with_axis(const Shape& shape, int axis, std::int64_t extent) {
  Shape result = shape;
  result[axis] = extent;
  return result;
}

// The first `tokens` of a cache [N, H, capacity, D], in a new one that has room for `capacity`.
Tensor with_capacity(const Tensor& cache, std::int64_t tokens, std::int64_t capacity) {
  const Tensor result = Tensor::zeros(with_axis(cache.shape(), 2, capacity), cache.dtype());
  result.slice(2, 0, tokens).copy_from(cache.slice(2, 0, tokens));
  return result;
}

}  // namespace

State::State(std::int64_t sequences, std::vector<Entry> entries)
    : entries_(std::move(entries)), positions_(Tensor::zeros({sequences}, Dtype::i64)) {
  for (const Entry& entry : entries_) {
    require(entry.value.rank() >= 1 && entry.value.dim(0) == sequences,
            "[state] {} has shape {} (the first axis must be {} sequences)", entry.name,
            entry.value.shape().str(), sequences);
  }
  reset();
}

const Tensor& State::get(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  require(found != entries_.end(), "[state] there is no entry {}", name);
  return found->value;
}

std::size_t State::bytes() const {
  std::size_t total = positions_.defined() ? positions_.bytes() : 0;
  for (const Entry& entry : entries_) total += entry.value.bytes();
  return total;
}

std::int64_t State::longest() const {
  const auto positions = positions_.span<std::int64_t>();
  return positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
}

void State::reset() {
  if (!positions_.defined()) return;
  std::memset(positions_.raw(), 0, positions_.bytes());
  for (const Entry& entry : entries_) {
    std::memset(entry.value.raw(), 0, entry.value.bytes());
    if (!entry.fresh.defined()) continue;
    for (std::int64_t i = 0; i < sequences(); ++i) {
      entry.value.slice(0, i, i + 1).reshape(entry.fresh.shape()).copy_from(entry.fresh);
    }
  }
}

State State::clone() const {
  State copy;
  copy.entries_ = entries_;
  for (Entry& entry : copy.entries_) entry.value = entry.value.clone();
  if (positions_.defined()) copy.positions_ = positions_.clone();
  return copy;
}

State State::select(std::int64_t sequence) const {
  require(sequence >= 0 && sequence < sequences(), "[state] sequence {} is not one of {}", sequence,
          sequences());
  State copy;
  copy.entries_ = entries_;
  for (Entry& entry : copy.entries_) {
    entry.value = entry.value.slice(0, sequence, sequence + 1).clone();
  }
  copy.positions_ = positions_.slice(0, sequence, sequence + 1).clone();
  return copy;
}

std::int64_t State::room() const {
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  for (const Entry& entry : entries_) {
    if (entry.grows) room = std::min(room, entry.value.dim(2) - longest());
  }
  return room;
}

void State::reserve(std::int64_t tokens) {
  require(tokens >= 0, "[state] can not reserve {} tokens (must not be negative)", tokens);
  if (room() >= tokens) return;
  const std::int64_t held = longest();
  for (Entry& entry : entries_) {
    if (entry.grows) entry.value = with_capacity(entry.value, held, held + tokens);
  }
}

void State::advance(std::int64_t tokens) {
  for (std::int64_t& position : positions_.span<std::int64_t>()) position += tokens;
}

void State::advance(std::int64_t sequence, std::int64_t tokens) {
  require(sequence >= 0 && sequence < sequences(), "[state] sequence {} is not one of {}", sequence,
          sequences());
  positions_.data<std::int64_t>()[sequence] += tokens;
}

void State::advance(const Sequences& step) {
  require(step.count() == sequences(), "[state] the step has {} sequences (the state has {})",
          step.count(), sequences());
  for (std::int64_t i = 0; i < step.count(); ++i) advance(i, step.length(i));
}

std::vector<std::byte> State::export_bytes() const {
  TensorFile file;
  for (const Entry& entry : entries_) {
    // Of a cache only what was written: its capacity is no part of the state.
    file.add(entry.name, entry.grows ? entry.value.slice(2, 0, longest()).clone() : entry.value);
  }
  file.add(std::string(kPositions), positions_);
  const std::string bytes = format_safetensors(file);
  std::vector<std::byte> result(bytes.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

void State::import_bytes(std::span<const std::byte> bytes) {
  const TensorFile file = parse_safetensors(bytes, "state");
  const auto corrupt = [](bool right, std::string_view name, const Tensor& tensor,
                          const Shape& shape, Dtype dtype) {
    if (right) return;
    fail(Status::corrupt, "[state] {} is {} {} (this state holds {} {})", name,
         rankone::name(tensor.dtype()), tensor.shape().str(), rankone::name(dtype), shape.str());
  };
  const Tensor& positions = file.at(kPositions);
  corrupt(positions.dtype() == Dtype::i64 && positions.shape() == positions_.shape(), kPositions,
          positions, positions_.shape(), Dtype::i64);
  std::int64_t held = 0;
  for (const std::int64_t position : positions.span<std::int64_t>()) {
    if (position < 0 || position > kLargestPosition) {
      fail(Status::corrupt, "[state] position {} is not in [0, 2^48]", position);
    }
    held = std::max(held, position);
  }
  if (file.tensors.size() != entries_.size() + 1) {
    fail(Status::corrupt, "[state] there are {} tensors (this state holds {})", file.tensors.size(),
         entries_.size() + 1);
  }
  std::vector<Entry> entries = entries_;
  for (Entry& entry : entries) {
    const Tensor& tensor = file.at(entry.name);
    const Shape shape = entry.grows ? with_axis(entry.value.shape(), 2, held) : entry.value.shape();
    corrupt(tensor.dtype() == entry.value.dtype() && tensor.shape() == shape, entry.name, tensor,
            shape, entry.value.dtype());
    entry.value = entry.grows ? with_capacity(tensor, held, std::max(held, entry.value.dim(2)))
                              : tensor.clone();
  }
  entries_ = std::move(entries);
  positions_ = positions.clone();
}

}  // namespace rankone::model
