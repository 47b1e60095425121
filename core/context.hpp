#pragma once

// What an operator needs beside its tensors: where it runs, the memory it may use, the threads, and
// which backends it prefers. One Context serves one thread of control.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/arena.hpp"
#include "core/tensor.hpp"
#include "core/threads.hpp"

namespace rankone {

enum class Device { cpu, cuda };

// What the CPU may round the operands of products inside a recurrence to, where it has a unit for
// products of bf16 (AMX, core/isa.hpp); elsewhere everything is float32. State, triangular solve
// and sums are float32 in any case.
enum class Precision {
  automatic,  // the fastest of float32-class accuracy: f32 under per-channel decay, else bf16x3
  f32,
  bf16x3,  // a high and a low part, three products: 2^-16; a third part where errors would grow
  bf16,    // 2^-8
};

std::optional<Precision> parse_precision(std::string_view text);  // "bf16x3"; "auto"

struct ContextOptions {
  Device device = Device::cpu;
  int device_index = 0;    // which GPU on CUDA; ignored on the CPU
  void* stream = nullptr;  // a cudaStream_t on CUDA; ignored on the CPU
  int threads = 0;         // 0: as many as the machine allows
  Precision precision = Precision::automatic;
  // Names in order of preference. The first backend that accepts a call runs it; "reference"
  // accepts everything and comes last.
  std::vector<std::string> backends = {"cuda", "cpu", "reference"};
};

class Context {
 public:
  // On CUDA the arena is memory of the GPU. Fails with Status::unsupported where this build or this
  // machine has no CUDA (core/device.hpp).
  explicit Context(const ContextOptions& options = {});
  // Shares the pool of another context.
  Context(ContextOptions options, std::shared_ptr<ThreadPool> pool);

  Device device() const { return options_.device; }
  int device_index() const { return options_.device_index; }
  void* stream() const { return options_.stream; }
  void set_stream(void* stream) { options_.stream = stream; }
  Precision precision() const { return options_.precision; }
  const std::vector<std::string>& backends() const { return options_.backends; }
  Arena& arena() { return arena_; }
  ThreadPool& threads() { return *threads_; }
  const std::shared_ptr<ThreadPool>& pool() const { return threads_; }

  // A planning pass: operators allocate from the arena as always and compute nothing.
  bool planning() const { return arena_.planning(); }

  // Tensors in the arena: valid until the arena is released past them.
  Tensor empty(const Shape& shape, Dtype dtype) {
    const std::size_t bytes = checked_bytes(shape, dtype);
    return Tensor::view(arena_.allocate(bytes), shape, dtype);
  }

 private:
  static std::size_t checked_bytes(const Shape& shape, Dtype dtype);

  ContextOptions options_;
  std::shared_ptr<ThreadPool> threads_;
  Arena arena_;
};

}  // namespace rankone
