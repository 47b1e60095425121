#pragma once

// GPUs as the rest of the project sees them: what there is, memory, copies, streams and graphs. The
// one place outside the kernels that calls the CUDA runtime (core/cuda/device.cpp). In a build
// without CUDA every function but gpu_problem() fails with Status::unsupported.

#include <functional>
#include <memory>
#include <string>

#include "core/arena.hpp"
#include "core/context.hpp"
#include "core/tensor.hpp"

namespace rankone {

// Why the GPU of this number can not be used, in one sentence; empty where it can: this build has
// CUDA, the driver runs, and the GPU is of compute capability 8.0 or above.
std::string gpu_problem(int index = 0);
void require_gpu(int index = 0);  // fails with Status::unsupported and that sentence

struct GpuProperties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t cache_bytes = 0;   // L2
  std::size_t memory_bytes = 0;  // all of it
};
GpuProperties gpu_properties(int index = 0);

// Of the current GPU; cheap.
struct Capability {
  int major = 0, minor = 0;
};
Capability current_gpu_capability();
int current_gpu_multiprocessors();
int current_gpu_shared_bytes();  // that a block may have

// Makes a context's GPU the current one of this thread, until the end of the scope. Nothing on the
// CPU.
class DeviceScope {
 public:
  explicit DeviceScope(const Context& context);
  ~DeviceScope();  // NOLINT(performance-trivially-destructible): not so in a build with CUDA
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  [[maybe_unused]] int before_ = -1;  // the GPU that was current; a build without CUDA has none
};

// Memory of the current GPU, not initialised. Allocating and releasing may wait for the GPU.
MemorySource gpu_memory();

// Owners on the context's device (on the CPU: ordinary tensors).
Tensor empty_on(Context& context, const Shape& shape, Dtype dtype);
// A contiguous copy on the context's device, ordered with its stream; undefined stays undefined.
Tensor to_device(const Tensor& host, Context& context);
// A contiguous copy in host memory, complete on return.
Tensor to_host(const Tensor& tensor, Context& context);
// Bytes, either way round or within the device; `to` complete on return.
void copy_bytes(Context& context, void* to, const void* from, std::size_t bytes);
void fill_bytes(Context& context, void* memory, int byte, std::size_t bytes);

// Whether the memory that a pointer names can be read by kernels of the current GPU.
bool on_gpu(const void* pointer);

// Waits for everything on the context's stream, and fails if any of it did.
void synchronize(Context& context);

// A stream of its own, which graphs can be captured from.
class GpuStream {
 public:
  GpuStream();
  void* get() const { return stream_.get(); }

 private:
  std::shared_ptr<void> stream_;
};

// What `work` puts on the context's stream (not the default one), as a graph; `work` must not wait.
class GpuGraph {
 public:
  GpuGraph(Context& context, const std::function<void()>& work);
  void launch(Context& context) const;

 private:
  std::shared_ptr<void> executable_;
};

// Time on the GPU between two points of the stream.
class GpuTimer {
 public:
  GpuTimer();
  void start(Context& context) const;
  void stop(Context& context) const;
  double microseconds() const;  // waits for stop()

 private:
  std::shared_ptr<void> start_, stop_;
};

}  // namespace rankone
