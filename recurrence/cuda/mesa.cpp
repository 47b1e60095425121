// mesa() on CUDA. As on the CPU (recurrence/cpu/mesa.cpp) only the solve has kernels of its own:
// given x, the output is the additive two-key recurrence with x as the query, and the way back is
// that of two such recurrences. All of it is float32; 16-bit tensors are widened first.

#include "recurrence/cuda/mesa.hpp"

#include "core/cuda/device_rows.hpp"
#include "recurrence/cuda/arrays.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cuda {
namespace {

void combine(Context& context, const Tensor& to, const Tensor& a, const Tensor& b = {},
             const Tensor& c = {}, float factor = 1.0F) {
  if (context.planning() || !to.defined()) return;
  launch_combine(sink_of(to), source_of(a), source_of(b), source_of(c), factor, to.count(),
                 context.stream());
}

// In float32: the tensor itself, or a copy in the arena.
Tensor widened(Context& context, const Tensor& tensor) {
  if (!tensor.defined() || tensor.dtype() == Dtype::f32) return tensor;
  const Tensor copy = context.empty(tensor.shape(), Dtype::f32);
  combine(context, copy, tensor);
  return copy;
}

// Float32 memory for a tensor; absent where it is.
Tensor scratch_like(Context& context, const Tensor& tensor) {
  return tensor.defined() ? context.empty(tensor.shape(), Dtype::f32) : Tensor();
}

struct Wide {
  Tensor k, v, g, b;

  Wide(Context& context, const Mesa& in)
      : k(widened(context, in.k)),
        v(widened(context, in.v)),
        g(widened(context, in.g)),
        b(widened(context, in.b)) {}

  // The additive pass that reads `value`, written under the keys, with the solutions as queries.
  TwoKey additive(const Tensor& solution, const Tensor& value, const Tensor& initial) const {
    return {solution, Tensor(), k, value, g, b, initial, 1.0};
  }
};

MesaSolve mesa_solve(Context& context, const Sequences& sequences, const Mesa& in) {
  const MesaShape shape = shape_of(sequences, in);
  MesaSolve solve;
  solve.rows = rankone::cuda::device_rows(context, sequences, kMesaChunk);
  solve.heads = shape.heads;
  solve.d_k = static_cast<int>(shape.d_k);
  solve.max_iterations = in.max_iterations;
  solve.tolerance = static_cast<float>(in.tolerance);
  solve.damping = static_cast<float>(in.damping);
  solve.right = source_of(in.q);
  solve.k = source_of(in.k);
  solve.g = source_of(in.g);
  solve.b = source_of(in.b);
  solve.lambda = source_of(in.lambda);
  solve.initial = pointer_of<const float>(in.initial_hkk);
  const std::int64_t chunks = solve.rows.chunks * solve.heads;
  solve.states = floats(context, chunks * shape.d_k * shape.d_k);
  solve.decays = floats(context, chunks);
  return solve;
}

}  // namespace
}  // namespace cuda

void CudaBackend::mesa(Context& context, const Sequences& sequences, const Mesa& inputs,
                       const MesaOut& out) const {
  const ArenaScope scope(context.arena());
  cuda::MesaSolve solve = cuda::mesa_solve(context, sequences, inputs);
  const cuda::Wide wide(context, inputs);
  const Tensor x = context.empty(inputs.q.shape(), Dtype::f32);
  const bool narrow = out.o.defined() && out.o.dtype() != Dtype::f32;
  const Tensor o = narrow ? context.empty(out.o.shape(), Dtype::f32) : out.o;
  solve.solution = cuda::pointer_of<float>(x);
  solve.final = cuda::pointer_of<float>(out.final_hkk);
  if (!context.planning()) {
    cuda::launch_mesa_states(solve, context.stream());
    cuda::launch_mesa_solve(solve, context.stream());
  }
  if (!out.o.defined() && !out.final_hkv.defined()) return;
  two_key(context, sequences, wide.additive(x, wide.v, inputs.initial_hkv), {o, out.final_hkv});
  if (narrow) cuda::combine(context, out.o, o);
}

void CudaBackend::mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
                           const MesaCotangents& cotangents, const MesaGrads& grads) const {
  const ArenaScope scope(context.arena());
  cuda::MesaSolve solve = cuda::mesa_solve(context, sequences, inputs);
  const cuda::Wide wide(context, inputs);
  const Tensor d_o = cuda::widened(context, cotangents.o);
  const Tensor x = context.empty(inputs.q.shape(), Dtype::f32);
  const Tensor y = context.empty(inputs.q.shape(), Dtype::f32);
  const Tensor d_x = context.empty(inputs.q.shape(), Dtype::f32);
  const auto like = [&](const Tensor& tensor) { return cuda::scratch_like(context, tensor); };
  const TwoKeyGrads first{d_x,           Tensor(),      like(grads.k),    like(grads.v),
                          like(grads.g), like(grads.b), grads.initial_hkv};
  // Keys are the values of the second pass too.
  const TwoKeyGrads second{Tensor(),      Tensor(),      like(grads.k),    like(grads.k),
                           like(grads.g), like(grads.b), grads.initial_hkk};
  float* partials = cuda::floats(context, solve.rows.chunks * solve.heads * solve.d_k);

  solve.solution = cuda::pointer_of<float>(x);
  if (!context.planning()) {
    cuda::launch_mesa_states(solve, context.stream());
    cuda::launch_mesa_solve(solve, context.stream());
  }
  two_key_vjp(context, sequences, wide.additive(x, wide.v, inputs.initial_hkv),
              {d_o, cotangents.final_hkv}, first);
  // The part of Hkk in the loss is -y_t^T dHkk_t x_t with y the solution for dL/dx: y is the query
  // there and -x the cotangent.
  if (!context.planning()) {
    solve.right = cuda::source_of(d_x);
    solve.solution = cuda::pointer_of<float>(y);
    cuda::launch_mesa_solve(solve, context.stream());
    if (grads.lambda.defined()) {
      cuda::launch_lambda_grad(solve, cuda::pointer_of<const float>(x),
                               cuda::pointer_of<const float>(y), cuda::sink_of(grads.lambda),
                               partials, context.stream());
    }
  }
  cuda::combine(context, grads.q, y);
  cuda::combine(context, x, x, {}, {}, -1.0F);
  two_key_vjp(context, sequences, wide.additive(y, wide.k, inputs.initial_hkk),
              {x, cotangents.final_hkk}, second);
  cuda::combine(context, grads.k, first.w, second.w, second.v);
  cuda::combine(context, grads.v, first.v);
  cuda::combine(context, grads.g, first.g, second.g);
  cuda::combine(context, grads.b, first.b, second.b);
}

}  // namespace rankone::recurrence
