// MesaNet: o_t = Hkv_t^T x_t with (Hkk_t + diag(lambda)) x_t = q_t, both statistics decayed sums of
// outer products. Given x, the output is the additive two-key recurrence with x as the query, and
// its way back is that recurrence's twice: once for the values, once for Hkk, whose part in the
// loss is -y_t^T dHkk_t x_t with y the solution for the right-hand side dL/dx, so y is the query
// there and -x the cotangent. So only the solve is
// computed here: conjugate gradients for all rows of a chunk at once, each iteration an additive
// pass over the chunk, with no statistic formed for a single token.

#include <algorithm>
#include <cmath>

#include "recurrence/cpu/cpu_backend.hpp"
#include "recurrence/cpu/scratch.hpp"
#include "recurrence/cpu/tasks.hpp"
#include "recurrence/cpu/two_key.hpp"
#include "recurrence/cpu/two_key_chunk.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence {
namespace cpu {
namespace {

struct Layout {
  int key_row, square_row;
  float *state, *lambda;                               // [K, K], [K]
  float *keys, *weighted, *columns;                    // [C, K], [C, K], [K, C]
  float *between, *pairs;                              // [C, C]
  float *prefix, *suffix, *gain, *keep;                // [C], [K]
  float *solution, *residual, *direction, *image;      // [C, K]
  float *squares, *stop, *step, *minus_step, *growth;  // [C]
  Index used;

  Layout(int d_k, Scratch scratch) : key_row(leading(d_k)), square_row(leading(kChunk)) {
    state = scratch.rows(d_k, d_k);
    columns = scratch.rows(d_k, kChunk);
    for (float** one : {&lambda, &keep}) *one = scratch.rows(1, d_k);
    for (float** rows : {&keys, &weighted, &solution, &residual, &direction, &image}) {
      *rows = scratch.rows(kChunk, d_k);
    }
    for (float** square : {&between, &pairs}) *square = scratch.rows(kChunk, kChunk);
    for (float** one : {&prefix, &suffix, &gain, &squares, &stop, &step, &minus_step, &growth}) {
      *one = scratch.take(kChunk);
    }
    used = scratch.used();
  }
};

// One head of one sequence.
class HeadSolve {
 public:
  HeadSolve(const MesaShape& shape, const Mesa& inputs, Layout layout, Index sequence, Index head)
      : shape_(shape),
        in_(inputs),
        at_(layout),
        head_(head),
        state_offset_((sequence * shape.heads + head) * shape.d_k * shape.d_k),
        d_k_(static_cast<int>(shape.d_k)) {
    kernels().copy_rows(at_.lambda, 0, inputs.lambda.data<float>() + head * shape.d_k, 0, nullptr,
                        1, d_k_);
  }

  void run(Index begin, Index end, const Tensor& right, const Tensor& solution,
           const Tensor& final_hkk) {
    std::fill_n(at_.state, static_cast<Index>(d_k_) * at_.key_row, 0.0F);
    if (in_.initial_hkk.defined()) {
      kernels().copy_rows(at_.state, at_.key_row, in_.initial_hkk.data<float>() + state_offset_,
                          d_k_, nullptr, d_k_, d_k_);
    }
    for (Index first = begin; first < end; first += kChunk) {
      load(first, static_cast<int>(std::min<Index>(kChunk, end - first)));
      solve(right.data<float>() + key_offset(first));
      for (int i = 0; i < n_; ++i) {
        std::copy_n(at_.solution + i * at_.key_row, d_k_,
                    solution.data<float>() + key_offset(first + i));
      }
      advance();
    }
    if (!final_hkk.defined()) return;
    for (int d = 0; d < d_k_; ++d) {
      std::copy_n(at_.state + static_cast<Index>(d) * at_.key_row, d_k_,
                  final_hkk.data<float>() + state_offset_ + d * shape_.d_k);
    }
  }

 private:
  Index key_offset(Index row) const { return (row * shape_.heads + head_) * shape_.d_k; }

  void load(Index first, int n) {
    const Kernels& k = kernels();
    n_ = n;
    const Index gate = first * shape_.heads + head_;
    k.scalar_decay({in_.g.defined() ? in_.g.data<float>() + gate : nullptr, shape_.heads, n,
                    at_.between, at_.square_row, at_.prefix, at_.suffix});
    std::fill_n(at_.keep, d_k_, at_.prefix[n - 1]);
    for (int i = 0; i < n; ++i) {
      at_.gain[i] = in_.b.defined() ? in_.b.data<float>()[gate + i * shape_.heads] : 1.0F;
    }
    k.copy_rows(at_.keys, at_.key_row, in_.k.data<float>() + key_offset(first),
                shape_.heads * shape_.d_k, nullptr, n, d_k_);
    k.copy_rows(at_.weighted, at_.key_row, at_.keys, at_.key_row, at_.gain, n, d_k_);
    k.transpose(at_.columns, at_.square_row, at_.weighted, at_.key_row, n, d_k_);
  }

  // image_i = (Hkk_i + diag(lambda)) direction_i for every row i of the chunk.
  void apply() {
    const Kernels& k = kernels();
    const int row = at_.key_row;
    const int square = at_.square_row;
    k.product({at_.direction, row, 1, at_.state, row, at_.image, row, n_, d_k_, d_k_});
    k.copy_rows(at_.image, row, at_.image, row, at_.prefix, n_, d_k_);
    k.lower_inner({at_.direction, row, 1, at_.columns, square, at_.pairs, square, n_, n_, d_k_});
    k.scale_lower({.from = at_.pairs,
                   .from_row = square,
                   .to = at_.pairs,
                   .to_row = square,
                   .n = n_,
                   .diagonal = true,
                   .between = at_.between,
                   .between_row = square});
    k.add_lower({at_.pairs, square, at_.keys, row, at_.image, row, n_, d_k_});
    k.multiply_rows(Into::add, at_.image, row, at_.direction, row, at_.lambda, 0, 1.0F, n_, d_k_);
  }

  float dot(const float* a, const float* b, int i) const {
    const Index at = static_cast<Index>(i) * at_.key_row;
    return kernels().dot(a + at, b + at, d_k_);
  }

  void solve(const float* right) {
    const Kernels& k = kernels();
    const int row = at_.key_row;
    const auto tolerance = static_cast<float>(in_.tolerance);
    std::fill_n(at_.solution, static_cast<Index>(n_) * row, 0.0F);
    k.copy_rows(at_.residual, row, right, shape_.heads * shape_.d_k, nullptr, n_, d_k_);
    k.copy_rows(at_.direction, row, at_.residual, row, nullptr, n_, d_k_);
    for (int i = 0; i < n_; ++i) {
      at_.squares[i] = dot(at_.residual, at_.residual, i);
      at_.stop[i] = tolerance * tolerance * at_.squares[i];
    }
    for (int iteration = 0; iteration < in_.max_iterations; ++iteration) {
      if (!iterate()) break;
    }
  }

  // One iteration of every row that has not stopped; false where none is left. A row stops with a
  // step and a growth of zero, which leave its solution and residual as they are.
  bool iterate() {
    const Kernels& k = kernels();
    const int row = at_.key_row;
    const auto damping = static_cast<float>(in_.damping);
    apply();
    bool running = false;
    for (int i = 0; i < n_; ++i) {
      const float curvature = dot(at_.direction, at_.image, i);
      // Not "curvature > 0" alone: NaN must go on, to show in the result.
      const bool stopped = at_.squares[i] <= at_.stop[i] || curvature == 0.0F;
      at_.step[i] = stopped ? 0.0F : at_.squares[i] / (curvature + damping);
      at_.minus_step[i] = -at_.step[i];
      running = running || !stopped;
    }
    if (!running) return false;
    k.add_rows(at_.solution, row, at_.direction, row, at_.step, n_, d_k_);
    k.add_rows(at_.residual, row, at_.image, row, at_.minus_step, n_, d_k_);
    for (int i = 0; i < n_; ++i) {
      const float squares = dot(at_.residual, at_.residual, i);
      at_.growth[i] = at_.squares[i] == 0.0F ? 0.0F : squares / (at_.squares[i] + damping);
      at_.squares[i] = squares;
    }
    // direction = residual + growth direction
    k.copy_rows(at_.direction, row, at_.direction, row, at_.growth, n_, d_k_);
    std::fill_n(at_.growth, n_, 1.0F);
    k.add_rows(at_.direction, row, at_.residual, row, at_.growth, n_, d_k_);
    return true;
  }

  void advance() {
    const Kernels& k = kernels();
    const int row = at_.key_row;
    k.copy_rows(at_.weighted, row, at_.weighted, row, at_.suffix, n_, d_k_);
    k.product(
        {at_.weighted, 1, row, at_.keys, row, at_.state, row, d_k_, d_k_, n_, Into::add, at_.keep});
  }

  const MesaShape& shape_;
  const Mesa& in_;
  Layout at_;
  Index head_;
  Index state_offset_;
  int d_k_;
  int n_ = 0;
};

// x of every row from its right-hand side, both [R, H, K]; final_hkk where defined.
void mesa_solve(Context& context, const Sequences& sequences, const Mesa& inputs,
                const Tensor& right, const Tensor& solution, const Tensor& final_hkk) {
  const MesaShape shape = shape_of(sequences, inputs);
  const int d_k = static_cast<int>(shape.d_k);
  const ArenaScope scope(context.arena());
  const WorkerScratch scratch(context.arena(), context.threads().size(),
                              Layout(d_k, Scratch()).used);
  if (context.planning()) return;
  run_tasks(context, shape.sequences * shape.heads, [&](Index task, int worker) {
    const Index sequence = task / shape.heads;
    HeadSolve(shape, inputs, Layout(d_k, scratch.of(worker)), sequence, task % shape.heads)
        .run(sequences.begin(sequence), sequences.end(sequence), right, solution, final_hkk);
  });
}

// The additive pass that reads `value` written under the keys with the solutions as queries.
TwoKey additive(const Mesa& inputs, const Tensor& solution, const Tensor& value,
                const Tensor& initial) {
  return {solution, Tensor(), inputs.k, value, inputs.g, inputs.b, initial, 1.0};
}

void add_to(const Tensor& to, const Tensor& from) {
  for (Index i = 0; i < to.count(); ++i) to.data<float>()[i] += from.data<float>()[i];
}

// dlambda = -sum over all rows of y x, in the order of the rows.
void lambda_grad(Context& context, const MesaShape& shape, const Tensor& x, const Tensor& y,
                 const Tensor& gradient) {
  run_tasks(context, shape.heads, [&](Index head, int) {
    for (Index d = 0; d < shape.d_k; ++d) {
      double sum = 0.0;
      for (Index row = 0; row < shape.rows; ++row) {
        const Index at = (row * shape.heads + head) * shape.d_k + d;
        sum += static_cast<double>(x.data<float>()[at]) * static_cast<double>(y.data<float>()[at]);
      }
      gradient.data<float>()[head * shape.d_k + d] = static_cast<float>(-sum);
    }
  });
}

// Gradients that both passes have a part in: those of the second pass, added to the first.
struct Parts {
  Tensor k, k_as_value, g, b;

  Parts(Context& context, const MesaShape& shape, const Mesa& inputs)
      : k(context.empty({shape.rows, shape.heads, shape.d_k}, Dtype::f32)),
        k_as_value(context.empty({shape.rows, shape.heads, shape.d_k}, Dtype::f32)) {
    if (inputs.g.defined()) g = context.empty({shape.rows, shape.heads}, Dtype::f32);
    if (inputs.b.defined()) b = context.empty({shape.rows, shape.heads}, Dtype::f32);
  }

  void add(const MesaGrads& grads) const {
    if (grads.k.defined()) {
      add_to(grads.k, k);
      add_to(grads.k, k_as_value);
    }
    if (grads.g.defined()) add_to(grads.g, g);
    if (grads.b.defined()) add_to(grads.b, b);
  }
};

}  // namespace
}  // namespace cpu

void CpuBackend::mesa(Context& context, const Sequences& sequences, const Mesa& inputs,
                      const MesaOut& out) const {
  const MesaShape shape = shape_of(sequences, inputs);
  const ArenaScope scope(context.arena());
  const Tensor x = context.empty({shape.rows, shape.heads, shape.d_k}, Dtype::f32);
  cpu::mesa_solve(context, sequences, inputs, inputs.q, x, out.final_hkk);
  if (!out.o.defined() && !out.final_hkv.defined()) return;
  cpu::two_key(context, sequences, cpu::additive(inputs, x, inputs.v, inputs.initial_hkv),
               {out.o, out.final_hkv});
}

void CpuBackend::mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
                          const MesaCotangents& cotangents, const MesaGrads& grads) const {
  const MesaShape shape = shape_of(sequences, inputs);
  const Shape keys{shape.rows, shape.heads, shape.d_k};
  const ArenaScope scope(context.arena());
  const Tensor x = context.empty(keys, Dtype::f32);
  const Tensor y = context.empty(keys, Dtype::f32);
  const Tensor d_x = context.empty(keys, Dtype::f32);
  const cpu::Parts parts(context, shape, inputs);

  cpu::mesa_solve(context, sequences, inputs, inputs.q, x, Tensor());
  cpu::two_key_vjp_chunked(
      context, sequences, cpu::additive(inputs, x, inputs.v, inputs.initial_hkv),
      {cotangents.o, cotangents.final_hkv},
      {d_x, Tensor(), grads.k, grads.v, grads.g, grads.b, grads.initial_hkv}, cpu::kChunk);
  cpu::mesa_solve(context, sequences, inputs, d_x, y, Tensor());
  if (!context.planning()) {
    if (grads.lambda.defined()) cpu::lambda_grad(context, shape, x, y, grads.lambda);
    if (grads.q.defined()) grads.q.reshape(keys).copy_from(y);
    for (float& element : x.span<float>()) element = -element;
  }
  cpu::two_key_vjp_chunked(
      context, sequences, cpu::additive(inputs, y, inputs.k, inputs.initial_hkk),
      {x, cotangents.final_hkk},
      {Tensor(), Tensor(), parts.k, parts.k_as_value, parts.g, parts.b, grads.initial_hkk},
      cpu::kChunk);
  if (!context.planning()) parts.add(grads);
}

}  // namespace rankone::recurrence
