// The list of backends and the choice among them.

#include <algorithm>
#include <vector>

#include "core/status.hpp"
#include "recurrence/backend.hpp"

namespace rankone::recurrence {
namespace {

std::vector<const Backend*>& registered() {
  static std::vector<const Backend*> list;
  return list;
}

// The latest registration of a name wins over earlier ones and over the built-in backend.
const Backend* accepting(std::string_view name, const CallShape& call) {
  const std::vector<const Backend*>& list = registered();
  const auto fits = [&](const Backend* backend) {
    return backend->name() == name && backend->accepts(call);
  };
  const auto found = std::find_if(list.rbegin(), list.rend(), fits);
  if (found != list.rend()) return *found;
  for (const Backend* backend : {
#if defined(RANKONE_WITH_CUDA)
         &cuda_backend(),
#endif
             &cpu_backend(), &reference_backend()
       }) {
    if (fits(backend)) return backend;
  }
  return nullptr;
}

}  // namespace

void Backend::preconditioned_two_key(Context& context, const Sequences& sequences,
                                     const Precondition& precondition, const PreconditionOut& made,
                                     const TwoKey& inputs, const TwoKeyOut& out) const {
  const ArenaScope scope(context.arena());
  PreconditionOut keys = made;
  const Tensor& target = precondition.target;
  if (!keys.out.defined()) keys.out = context.empty(target.shape(), target.dtype());
  this->precondition(context, sequences, precondition, keys);
  TwoKey complete = inputs;
  (precondition.kind == PreconditionerKind::atq ? complete.q : complete.w) = keys.out;
  two_key(context, sequences, complete, out);
}

RegisteredBackend::RegisteredBackend(const Backend& backend) : backend_(&backend) {
  registered().push_back(backend_);
}

RegisteredBackend::~RegisteredBackend() {
  std::vector<const Backend*>& list = registered();
  const auto found = std::find(list.rbegin(), list.rend(), backend_);
  if (found != list.rend()) list.erase(std::next(found).base());
}

const Backend& select_backend(const Context& context, const CallShape& call) {
  for (const std::string& name : context.backends()) {
    if (const Backend* backend = accepting(name, call)) return *backend;
  }
  // The reference reads tensors on the host, so nothing on a GPU ever falls to it.
  if (call.device == Device::cuda) {
    fail(Status::unsupported,
         "[recurrence] no backend of the list runs {} on cuda (f32, bf16 or f16 and no gram)",
         call.gram ? std::string("gram") : fmt::format("{}", name(call.dtype)));
  }
  return reference_backend();
}

}  // namespace rankone::recurrence
