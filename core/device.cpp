// A build without CUDA: everything that needs a GPU says so.

#if !defined(RANKONE_WITH_CUDA)

#include "core/device.hpp"

#include <cstring>

#include "core/status.hpp"

namespace rankone {
namespace {

[[noreturn]] void no_cuda() { fail(Status::unsupported, "[cuda] {}", gpu_problem()); }

}  // namespace

std::string gpu_problem(int) {
  return "this build has no CUDA backend (configure with -DRANKONE_CUDA=ON, or use the CPU)";
}
void require_gpu(int) { no_cuda(); }
GpuProperties gpu_properties(int) { no_cuda(); }
Capability current_gpu_capability() { no_cuda(); }
int current_gpu_multiprocessors() { no_cuda(); }
int current_gpu_shared_bytes() { no_cuda(); }
DeviceScope::DeviceScope(const Context&) {}
DeviceScope::~DeviceScope() = default;
MemorySource gpu_memory() { no_cuda(); }

// A context of this build is one of the CPU.
Tensor empty_on(Context&, const Shape& shape, Dtype dtype) { return Tensor::empty(shape, dtype); }
Tensor to_device(const Tensor& host, Context&) { return host.defined() ? host.clone() : host; }
Tensor to_host(const Tensor& tensor, Context&) {
  return tensor.defined() ? tensor.clone() : tensor;
}
void copy_bytes(Context&, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void fill_bytes(Context&, void* memory, int byte, std::size_t bytes) {
  if (bytes > 0) std::memset(memory, byte, bytes);
}

bool on_gpu(const void*) { return false; }
void synchronize(Context&) {}
GpuStream::GpuStream() { no_cuda(); }
GpuGraph::GpuGraph(Context&, const std::function<void()>&) { no_cuda(); }
void GpuGraph::launch(Context&) const { no_cuda(); }
GpuTimer::GpuTimer() { no_cuda(); }
void GpuTimer::start(Context&) const { no_cuda(); }
void GpuTimer::stop(Context&) const { no_cuda(); }
double GpuTimer::microseconds() const { no_cuda(); }

}  // namespace rankone

#endif
