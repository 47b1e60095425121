#include "recurrence/cuda/convert.hpp"

#include "core/cuda/device_rows.hpp"
#include "core/status.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr std::size_t kPiece = 16;  // bytes of the widest access

template <class T = void>
T* pointer(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.raw()) : nullptr;
}

}  // namespace

void require_aligned(std::string_view operation, std::string_view name, const Tensor& tensor) {
  if (!tensor.defined() || tensor.count() == 0) return;
  const std::size_t row = static_cast<std::size_t>(tensor.dim(-1)) * size_of(tensor.dtype());
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.raw());
  if (row % kPiece != 0 || address % kPiece == 0) return;
  fail(Status::invalid_argument,
       "[{}] {} starts {} bytes off a multiple of 16 (on cuda a tensor whose rows are a multiple "
       "of 16 bytes starts at one)",
       operation, name, address % kPiece);
}

Gate gate_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.raw(), tensor.dtype()};
}

TwoKeyCall two_key_inputs(const Sequences& sequences, const TwoKey& inputs) {
  const TwoKeyShape shape = shape_of(sequences, inputs);
  TwoKeyCall call;
  call.rows.sequences = sequences.count();
  call.rows.count = sequences.rows();
  call.heads = shape.heads;
  call.value_heads = shape.value_heads;
  call.d_k = static_cast<int>(shape.d_k);
  call.d_v = static_cast<int>(shape.d_v);
  call.scale = static_cast<float>(inputs.scale);
  call.format = inputs.q.dtype();
  call.gate = !inputs.g.defined()   ? GateKind::none
              : shape.channel_decay ? GateKind::channel
                                    : GateKind::scalar;
  call.delta = inputs.e.defined();
  call.same_key = call.delta && inputs.e.raw() == inputs.w.raw() && inputs.e.raw() != nullptr;
  call.q = pointer(inputs.q);
  call.e = pointer(inputs.e);
  call.w = pointer(inputs.w);
  call.v = pointer(inputs.v);
  call.g = gate_of(inputs.g);
  call.b = gate_of(inputs.b);
  if (inputs.initial_state.defined()) call.state_dtype = inputs.initial_state.dtype();
  call.initial_state = static_cast<const float*>(pointer(inputs.initial_state));
  return call;
}

TwoKeyCall two_key_call(Context& context, const Sequences& sequences, const TwoKey& inputs,
                        const TwoKeyOut& out, int chunk) {
  for (const auto& [name, tensor] :
       {std::pair{"q", inputs.q}, std::pair{"e", inputs.e}, std::pair{"w", inputs.w},
        std::pair{"v", inputs.v}, std::pair{"initial_state", inputs.initial_state},
        std::pair{"o", out.o}, std::pair{"final_state", out.final_state},
        std::pair{"saved", out.saved}}) {
    require_aligned("two_key", name, tensor);
  }
  TwoKeyCall call = two_key_inputs(sequences, inputs);
  call.rows = rankone::cuda::device_rows(context, sequences, chunk);
  if (!inputs.initial_state.defined() && out.final_state.defined()) {
    call.state_dtype = out.final_state.dtype();
  }
  call.o = pointer(out.o);
  call.final_state = static_cast<float*>(pointer(out.final_state));
  return call;
}

TwoKeyBack two_key_back(const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) {
  for (const auto& [name, tensor] :
       {std::pair{"the cotangent of o", cotangents.o},
        std::pair{"the cotangent of final_state", cotangents.final_state},
        std::pair{"saved", cotangents.saved}, std::pair{"the gradient of q", grads.q},
        std::pair{"the gradient of e", grads.e}, std::pair{"the gradient of w", grads.w},
        std::pair{"the gradient of v", grads.v},
        std::pair{"the gradient of initial_state", grads.initial_state}}) {
    require_aligned("two_key_vjp", name, tensor);
  }
  return {.d_o = pointer(cotangents.o),
          .d_final = pointer<float>(cotangents.final_state),
          .d_q = pointer(grads.q),
          .d_e = pointer(grads.e),
          .d_w = pointer(grads.w),
          .d_v = pointer(grads.v),
          .d_g = pointer(grads.g),
          .d_b = pointer(grads.b),
          .d_initial = pointer<float>(grads.initial_state)};
}

}  // namespace rankone::recurrence::cuda
