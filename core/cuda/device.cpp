#include "core/device.hpp"

#include <cuda_runtime_api.h>

#include <cstring>

#include "core/cuda/check.hpp"
#include "core/status.hpp"

namespace rankone {
namespace {

using cuda::check;

constexpr int kOldestMajor = 8;  // Ampere: bf16 products, asynchronous copies

cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream());
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

std::string gpu_problem(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("there is no GPU to use here ({})", cudaGetErrorString(error));
  }
  if (index < 0 || index >= count) {
    return fmt::format("there is no GPU {} (this machine has {}, counted from 0)", index, count);
  }
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  if (major >= kOldestMajor) return {};
  return fmt::format("GPU {} has compute capability {}.{} (8.0 or above)", index, major,
                     attribute(cudaDevAttrComputeCapabilityMinor, index));
}

void require_gpu(int index) {
  const std::string problem = gpu_problem(index);
  if (!problem.empty()) fail(Status::unsupported, "[cuda] {}", problem);
}

GpuProperties gpu_properties(int index) {
  require_gpu(index);
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, index), "cudaGetDeviceProperties");
  return {device.name,
          device.major,
          device.minor,
          device.multiProcessorCount,
          static_cast<std::size_t>(device.l2CacheSize),
          device.totalGlobalMem};
}

namespace {

// What kernels are chosen by, of the current GPU: asked once for each thread and GPU.
struct GpuFacts {
  int index = -1;
  Capability capability{};
  int multiprocessors = 0, shared_bytes = 0;
};

const GpuFacts& current_gpu() {
  thread_local GpuFacts facts;
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  if (index != facts.index) {
    facts = {index,
             {attribute(cudaDevAttrComputeCapabilityMajor, index),
              attribute(cudaDevAttrComputeCapabilityMinor, index)},
             attribute(cudaDevAttrMultiProcessorCount, index),
             attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index)};
  }
  return facts;
}

}  // namespace

Capability current_gpu_capability() { return current_gpu().capability; }
int current_gpu_multiprocessors() { return current_gpu().multiprocessors; }
int current_gpu_shared_bytes() { return current_gpu().shared_bytes; }

DeviceScope::DeviceScope(const Context& context) {
  if (context.device() != Device::cuda) return;
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == context.device_index()) return;
  check(cudaSetDevice(context.device_index()), "cudaSetDevice");
  before_ = current;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
}

MemorySource gpu_memory() {
  return {[](std::size_t bytes) {
            void* memory = nullptr;
            check(cudaMalloc(&memory, bytes), "cudaMalloc");
            return static_cast<std::byte*>(memory);
          },
          // At the end of the process the driver may be gone already: nothing to report then.
          [](std::byte* memory) { static_cast<void>(cudaFree(memory)); }};
}

Tensor empty_on(Context& context, const Shape& shape, Dtype dtype) {
  if (context.device() == Device::cpu) return Tensor::empty(shape, dtype);
  const DeviceScope scope(context);
  const std::size_t bytes = checked_multiply(static_cast<std::size_t>(shape.count()),
                                             size_of(dtype), Status::invalid_argument);
  const MemorySource source = gpu_memory();
  std::shared_ptr<void> owner(source.allocate(std::max<std::size_t>(bytes, 1)), [=](void* memory) {
    source.release(static_cast<std::byte*>(memory));
  });
  return Tensor::owned(std::move(owner), shape, dtype);
}

Tensor to_device(const Tensor& host, Context& context) {
  if (!host.defined()) return host;
  if (context.device() == Device::cpu) return host.clone();
  const Tensor packed = host.contiguous() ? host : host.clone();
  Tensor result = empty_on(context, host.shape(), host.dtype());
  copy_bytes(context, result.raw(), packed.raw(), packed.bytes());
  return result;
}

Tensor to_host(const Tensor& tensor, Context& context) {
  if (!tensor.defined()) return tensor;
  if (context.device() == Device::cpu) return tensor.clone();
  require(tensor.contiguous(), "[to_host] tensor of shape {} is not contiguous",
          tensor.shape().str());
  Tensor result = Tensor::empty(tensor.shape(), tensor.dtype());
  copy_bytes(context, result.raw(), tensor.raw(), tensor.bytes());
  return result;
}

void copy_bytes(Context& context, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (context.device() == Device::cpu) {
    std::memcpy(to, from, bytes);
    return;
  }
  const DeviceScope scope(context);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(context)), "cudaMemcpyAsync");
  synchronize(context);
}

void fill_bytes(Context& context, void* memory, int byte, std::size_t bytes) {
  if (bytes == 0) return;
  if (context.device() == Device::cpu) {
    std::memset(memory, byte, bytes);
    return;
  }
  const DeviceScope scope(context);
  check(cudaMemsetAsync(memory, byte, bytes, stream_of(context)), "cudaMemsetAsync");
}

bool on_gpu(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return attributes.type != cudaMemoryTypeUnregistered && attributes.devicePointer != nullptr;
}

void synchronize(Context& context) {
  if (context.device() == Device::cpu) return;
  check(cudaStreamSynchronize(stream_of(context)), "cudaStreamSynchronize");
}

GpuStream::GpuStream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = std::shared_ptr<void>(stream, [](void* owned) {
    static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(owned)));
  });
}

GpuGraph::GpuGraph(Context& context, const std::function<void()>& work) {
  require(context.stream() != nullptr, "[graph] the default stream can not be captured");
  check(cudaStreamBeginCapture(stream_of(context), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream_of(context), &graph));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
    throw;
  }
  check(cudaStreamEndCapture(stream_of(context), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check(error, "cudaGraphInstantiate");
  executable_ = std::shared_ptr<void>(executable, [](void* owned) {
    static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(owned)));
  });
}

void GpuGraph::launch(Context& context) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_.get()), stream_of(context)),
        "cudaGraphLaunch");
}

namespace {

std::shared_ptr<void> make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return {event, [](void* owned) {
            static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(owned)));
          }};
}

}  // namespace

GpuTimer::GpuTimer() : start_(make_event()), stop_(make_event()) {}

void GpuTimer::start(Context& context) const {
  check(cudaEventRecord(static_cast<cudaEvent_t>(start_.get()), stream_of(context)),
        "cudaEventRecord");
}

void GpuTimer::stop(Context& context) const {
  check(cudaEventRecord(static_cast<cudaEvent_t>(stop_.get()), stream_of(context)),
        "cudaEventRecord");
}

double GpuTimer::microseconds() const {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(stop_.get())), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start_.get()),
                             static_cast<cudaEvent_t>(stop_.get())),
        "cudaEventElapsedTime");
  return 1e3 * static_cast<double>(milliseconds);
}

}  // namespace rankone
