#include <algorithm>
#include <cmath>

#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {
namespace {

constexpr std::int64_t kRowsPerTask = 64;

// The rows [begin, end) of one sequence, all heads, turned by direction * position * frequency.
struct Turn {
  const float* x;
  float* y;
  std::int64_t heads, half;
  const double* frequencies;  // [half]
  double direction;

  void row(std::int64_t r, std::int64_t position, float* cosines, float* sines) const {
    for (std::int64_t i = 0; i < half; ++i) {
      // In float64: a float32 angle at position 100,000 would be off by 0.01.
      const double angle = static_cast<double>(position) * frequencies[i];
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(direction * std::sin(angle));
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* const from = x + (r * heads + h) * 2 * half;
      float* const to = y + (r * heads + h) * 2 * half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = from[i];
        const float b = from[i + half];
        to[i] = a * cosines[i] - b * sines[i];
        to[i + half] = b * cosines[i] + a * sines[i];
      }
    }
  }
};

void rotate(Context& context, const Sequences& sequences, const Rope& args, const Tensor& x,
            const Tensor& y, double direction) {
  const ArenaScope scope(context.arena());
  const std::int64_t half = args.x.dim(-1) / 2;
  const int threads = context.threads().size();
  auto* const frequencies = context.empty({half}, Dtype::f64).data<double>();
  auto* const tables = context.empty({threads, 2, half}, Dtype::f32).data<float>();
  if (context.planning()) return;
  for (std::int64_t i = 0; i < half; ++i) {
    frequencies[i] = std::pow(args.theta, -static_cast<double>(i) / static_cast<double>(half));
  }
  const Turn turn = {x.data<float>(), y.data<float>(), args.x.dim(-2), half,
                     frequencies,     direction};
  const auto* const first =
      args.positions.defined() ? args.positions.data<std::int64_t>() : nullptr;
  const std::int64_t tasks = (sequences.rows() + kRowsPerTask - 1) / kRowsPerTask;
  context.threads().run(tasks, [&](std::int64_t task, int worker) {
    float* const cosines = tables + worker * 2 * half;
    const std::int64_t begin = task * kRowsPerTask;
    const auto boundaries = sequences.boundaries();
    std::int64_t s =
        std::upper_bound(boundaries.begin(), boundaries.end(), begin) - boundaries.begin() - 1;
    for (std::int64_t r = begin; r < std::min(begin + kRowsPerTask, sequences.rows()); ++r) {
      while (r >= sequences.end(s)) ++s;
      const std::int64_t position = (first != nullptr ? first[s] : 0) + r - sequences.begin(s);
      turn.row(r, position, cosines, cosines + half);
    }
  });
}

}  // namespace

void CpuBackend::rope(Context& context, const Sequences& sequences, const Rope& args,
                      const Tensor& y) const {
  rotate(context, sequences, args, args.x, y, 1.0);
}

// The transpose of a rotation is the rotation back.
void CpuBackend::rope_vjp(Context& context, const Sequences& sequences, const Rope& args,
                          const Tensor& dy, const Tensor& dx) const {
  rotate(context, sequences, args, dy, dx, -1.0);
}

}  // namespace rankone::nn
