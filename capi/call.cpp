#include "capi/call.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace rankone::capi {
namespace {

constexpr std::array<Dtype, 5> kDtypes = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16,
                                          Dtype::i64};
constexpr std::uintptr_t kWorkspaceAlignment = 64;

// False where the addresses of the elements do not fit into the address space.
bool fits(const rankone_tensor& tensor, std::int64_t element) {
  std::int64_t count = element;
  std::int64_t reach = element;
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t extent = tensor.shape[i];
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return false;
    std::int64_t step = 0;
    const std::int64_t stride = tensor.strides[i];
    if (stride == std::numeric_limits<std::int64_t>::min()) return false;
    if (extent > 1 && (__builtin_mul_overflow(extent - 1, std::abs(stride), &step) ||
                       __builtin_mul_overflow(step, element, &step) ||
                       __builtin_add_overflow(reach, step, &reach))) {
      return false;
    }
  }
  return true;
}

// Whether no two elements share memory: each axis steps over all that the shorter ones reach.
// Layouts that interleave otherwise are taken for overlapping.
bool distinct(const Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, extent
  for (int i = 0; i < tensor.rank(); ++i) {
    if (tensor.dim(i) > 1) axes.emplace_back(std::abs(tensor.stride(i)), tensor.dim(i));
  }
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (stride <= reach) return false;
    reach += stride * (extent - 1);
  }
  return true;
}

}  // namespace

Tensor Call::view(const char* name, const rankone_tensor& tensor) const {
  that(tensor.rank >= 1 && tensor.rank <= RANKONE_MAX_RANK,
       "{} has rank {} (0 for absent, 1 to {})", name, tensor.rank, RANKONE_MAX_RANK);
  const Dtype dtype =
      kDtypes[choice<std::size_t>(name, tensor.dtype, static_cast<int>(kDtypes.size()))];
  const auto rank = static_cast<std::size_t>(tensor.rank);
  that(fits(tensor, static_cast<std::int64_t>(size_of(dtype))),
       "{} has an extent below 0 or reaches beyond the address space", name);
  const Shape shape{std::span<const std::int64_t>(tensor.shape, rank)};
  if (!context_.planning() && shape.count() > 0) {
    that(tensor.data != nullptr, "{} has no memory (data may be null in a query only)", name);
    that(reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(dtype) == 0,
         "the address of {} is no multiple of its element size, {}", name, size_of(dtype));
    that(context_.device() == Device::cpu || on_gpu(tensor.data),
         "{} is no memory that the GPU can read (the context is one of CUDA)", name);
  }
  return Tensor::view(tensor.data, shape, dtype, std::span(tensor.strides, rank));
}

void Call::row_major_on_cuda(const char* name) const {
  if (context_.device() == Device::cpu) return;
  fail(Status::unsupported, "[{}] {} is not row-major (on CUDA every tensor is)", function_, name);
}

Tensor Call::in(const char* name, const rankone_tensor& tensor) {
  if (tensor.rank == 0) return {};
  const Tensor given = view(name, tensor);
  if (given.contiguous()) return given;
  row_major_on_cuda(name);
  Tensor packed = context_.empty(given.shape(), given.dtype());
  if (!context_.planning()) packed.copy_from(given);
  return packed;
}

Tensor Call::out(const char* name, const rankone_tensor& tensor) {
  if (tensor.rank == 0) return {};
  const Tensor given = view(name, tensor);
  if (given.contiguous()) return given;
  row_major_on_cuda(name);
  that(distinct(given),
       "{} is an output whose elements share memory (its strides must keep them apart)", name);
  const Tensor packed = context_.empty(given.shape(), given.dtype());
  copies_.emplace_back(given, packed);
  return packed;
}

void Call::copy_back() const {
  for (const auto& [given, packed] : copies_) given.copy_from(packed);
}

Workspace::Workspace(rankone_context& context, const Call& call, const rankone_call& how)
    : context_(context), turn_(context.pool->busy), device_(context.context) {
  call.that(reinterpret_cast<std::uintptr_t>(how.workspace) % kWorkspaceAlignment == 0,
            "the address of the workspace is no multiple of {}", kWorkspaceAlignment);
  call.that(how.workspace != nullptr || how.workspace_bytes == 0,
            "the workspace of {} bytes is null", how.workspace_bytes);
  call.that(
      context.context.device() == Device::cpu || how.workspace == nullptr || on_gpu(how.workspace),
      "the workspace is no memory of the GPU (the context is one of CUDA)");
  context.context.set_stream(how.stream);
  context.context.arena().adopt(how.workspace, how.workspace_bytes);
  context.context.arena().set_planning(how.query != nullptr);
}

Workspace::~Workspace() { context_.context.arena().set_planning(false); }

rankone_status to_c(Status status) {
  switch (status) {
    case Status::ok:
      return RANKONE_OK;
    case Status::invalid_argument:
      return RANKONE_INVALID_ARGUMENT;
    case Status::unsupported:
      return RANKONE_UNSUPPORTED;
    case Status::out_of_memory:
      return RANKONE_OUT_OF_MEMORY;
    case Status::corrupt:
    case Status::io:
    case Status::failed:
      return RANKONE_FAILED;
  }
  return RANKONE_FAILED;
}

void note(rankone_context& context, const char* message) noexcept {
  try {
    context.message = message;
  } catch (...) {
    context.message.clear();
  }
}

}  // namespace rankone::capi
