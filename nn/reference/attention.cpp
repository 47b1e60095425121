#include <algorithm>
#include <cmath>
#include <vector>

#include "nn/arguments.hpp"
#include "nn/reference/reference_backend.hpp"
#include "nn/reference/wide.hpp"

namespace rankone::nn {

using reference::Wide;

namespace {

std::int64_t first_position(const Tensor& positions, std::int64_t sequence) {
  return positions.defined() ? positions.data<std::int64_t>()[sequence] : 0;
}

// y_i = x_i cos a - x_{i+D/2} sin a,  y_{i+D/2} = x_{i+D/2} cos a + x_i sin a,
// a = direction * position * theta^(-2 i / D)
void rotate(const Sequences& sequences, const Rope& args, double direction, const Wide& x,
            const Wide& y) {
  const std::int64_t heads = args.x.dim(-2);
  const std::int64_t width = args.x.dim(-1);
  const std::int64_t half = width / 2;
  for (std::int64_t s = 0; s < sequences.count(); ++s) {
    for (std::int64_t r = sequences.begin(s); r < sequences.end(s); ++r) {
      const std::int64_t position = first_position(args.positions, s) + r - sequences.begin(s);
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(width);
        const double angle =
            direction * static_cast<double>(position) * std::pow(args.theta, exponent);
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t low = (r * heads + h) * width + i;
          const double a = x[low];
          const double b = x[low + half];
          y[low] = a * std::cos(angle) - b * std::sin(angle);
          y[low + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
  }
}

// The keys and values that one head of one sequence reads: those of the cache first.
struct Keys {
  const double* k;
  const double* v;
  std::int64_t stride;  // from one key to the next
  std::int64_t before;  // keys before the first row of the sequence
};

struct Sizes {
  explicit Sizes(const Attention& args)
      : heads(args.q.dim(-2)), key_heads(args.k.dim(-2)), width(args.q.dim(-1)) {}
  std::int64_t heads, key_heads, width;

  std::int64_t query(std::int64_t row, std::int64_t head) const {
    return (row * heads + head) * width;
  }
  std::int64_t key(std::int64_t row, std::int64_t head) const {
    return (row * key_heads + head / (heads / key_heads)) * width;
  }
};

double dot(const double* a, const double* b, std::int64_t width) {
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

// The keys that the query at `position` sees: [first, position].
std::int64_t first_key(std::int64_t position, std::int64_t window) {
  return window == 0 ? 0 : std::max<std::int64_t>(0, position - window + 1);
}

// p_j = softmax over the visible keys j of scale q . k_j; p starts at the first visible one.
void probabilities(const Attention& args, const double* q, const Keys& keys, std::int64_t position,
                   std::int64_t width, std::vector<double>& p) {
  p.clear();
  for (std::int64_t j = first_key(position, args.window); j <= position; ++j) {
    p.push_back(args.scale * dot(q, keys.k + j * keys.stride, width));
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - largest);
  for (double& value : p) value /= sum;
}

// o_t = sum_j p_j v_j
void attend(const Attention& args, const double* q, const Keys& keys, std::int64_t position,
            std::int64_t width, double* o) {
  std::vector<double> p;
  probabilities(args, q, keys, position, width, p);
  const std::int64_t first = first_key(position, args.window);
  std::fill_n(o, width, 0.0);
  for (std::int64_t j = first; j <= position; ++j) {
    for (std::int64_t i = 0; i < width; ++i) {
      o[i] += p[static_cast<std::size_t>(j - first)] * keys.v[j * keys.stride + i];
    }
  }
}

struct HeadGrads {
  double* q;  // of the row; null: not wanted
  double* k;  // of the first key of the sequence
  double* v;
};

// With p = softmax(s), s_j = scale q . k_j and dp_j = do . v_j:
//   ds_j = p_j (dp_j - sum_i p_i dp_i)
//   dq = scale sum_j ds_j k_j,  dk_j += scale ds_j q,  dv_j += p_j do
void attend_vjp(const Attention& args, const double* q, const Keys& keys, std::int64_t position,
                std::int64_t width, const double* do_, const HeadGrads& grads) {
  std::vector<double> p;
  probabilities(args, q, keys, position, width, p);
  const std::int64_t first = first_key(position, args.window);
  double mean = 0;
  for (std::int64_t j = first; j <= position; ++j) {
    mean += p[static_cast<std::size_t>(j - first)] * dot(do_, keys.v + j * keys.stride, width);
  }
  for (std::int64_t j = first; j <= position; ++j) {
    const double probability = p[static_cast<std::size_t>(j - first)];
    const std::int64_t key = j * keys.stride;
    const double ds = probability * (dot(do_, keys.v + key, width) - mean);
    for (std::int64_t i = 0; i < width; ++i) {
      if (grads.q != nullptr) grads.q[i] += args.scale * ds * keys.k[key + i];
      if (grads.k != nullptr) grads.k[key + i] += args.scale * ds * q[i];
      if (grads.v != nullptr) grads.v[key + i] += probability * do_[i];
    }
  }
}

// Stores the new keys or values behind those the cache holds.
void append(const Sequences& sequences, const Tensor& positions, const Sizes& sizes,
            const Wide& rows, const Wide& cache, std::int64_t capacity) {
  for (std::int64_t s = 0; s < sequences.count(); ++s) {
    for (std::int64_t r = sequences.begin(s); r < sequences.end(s); ++r) {
      const std::int64_t position = first_position(positions, s) + r - sequences.begin(s);
      Arguments("attention").index("positions and length", position, capacity);
      for (std::int64_t h = 0; h < sizes.key_heads; ++h) {
        for (std::int64_t i = 0; i < sizes.width; ++i) {
          cache[((s * sizes.key_heads + h) * capacity + position) * sizes.width + i] =
              rows[(r * sizes.key_heads + h) * sizes.width + i];
        }
      }
    }
  }
}

}  // namespace

void ReferenceBackend::rope(Context& context, const Sequences& sequences, const Rope& args,
                            const Tensor& y_) const {
  const ArenaScope scope(context.arena());
  const Wide x(context, args.x), y(context, y_, Wide::Use::write);
  if (context.planning()) return;
  rotate(sequences, args, 1.0, x, y);
  y.store();
}

void ReferenceBackend::rope_vjp(Context& context, const Sequences& sequences, const Rope& args,
                                const Tensor& dy_, const Tensor& dx_) const {
  const ArenaScope scope(context.arena());
  const Wide dy(context, dy_), dx(context, dx_, Wide::Use::write);
  if (context.planning()) return;
  rotate(sequences, args, -1.0, dy, dx);
  dx.store();
}

void ReferenceBackend::attention(Context& context, const Sequences& sequences,
                                 const Attention& args, const Tensor& o_) const {
  const ArenaScope scope(context.arena());
  const Wide q(context, args.q), k(context, args.k), v(context, args.v);
  const Wide cache_k(context, args.cache_k, Wide::Use::accumulate);
  const Wide cache_v(context, args.cache_v, Wide::Use::accumulate);
  const Wide o(context, o_, Wide::Use::write);
  if (context.planning()) return;
  const Sizes sizes(args);
  const std::int64_t capacity = cache_k ? args.cache_k.dim(2) : 0;
  if (cache_k) {
    append(sequences, args.positions, sizes, k, cache_k, capacity);
    append(sequences, args.positions, sizes, v, cache_v, capacity);
  }
  for (std::int64_t s = 0; s < sequences.count(); ++s) {
    const std::int64_t begin = sequences.begin(s);
    const std::int64_t before = cache_k ? first_position(args.positions, s) : 0;
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      const std::int64_t in_cache =
          sizes.key(s, h) * capacity;  // [N, HK, capacity, D] is [N, HK, D] of longer rows
      const Keys keys =
          cache_k ? Keys{cache_k.data() + in_cache, cache_v.data() + in_cache, sizes.width, before}
                  : Keys{k.data() + sizes.key(begin, h), v.data() + sizes.key(begin, h),
                         sizes.key_heads * sizes.width, 0};
      for (std::int64_t r = begin; r < sequences.end(s); ++r) {
        attend(args, q.data() + sizes.query(r, h), keys, before + r - begin, sizes.width,
               o.data() + sizes.query(r, h));
      }
    }
  }
  o.store();
  cache_k.store();
  cache_v.store();
}

void ReferenceBackend::attention_vjp(Context& context, const Sequences& sequences,
                                     const Attention& args, const Tensor& /*o*/, const Tensor& d_o,
                                     const AttentionGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Wide q(context, args.q), k(context, args.k), v(context, args.v), do_(context, d_o);
  const Wide dq(context, grads.q, Wide::Use::write), dk(context, grads.k, Wide::Use::write);
  const Wide dv(context, grads.v, Wide::Use::write);
  if (context.planning()) return;
  const Sizes sizes(args);
  if (dq) std::fill_n(dq.data(), args.q.count(), 0.0);
  if (dk) std::fill_n(dk.data(), args.k.count(), 0.0);
  if (dv) std::fill_n(dv.data(), args.v.count(), 0.0);
  for (std::int64_t s = 0; s < sequences.count(); ++s) {
    const std::int64_t begin = sequences.begin(s);
    for (std::int64_t r = begin; r < sequences.end(s); ++r) {
      for (std::int64_t h = 0; h < sizes.heads; ++h) {
        const std::int64_t query = sizes.query(r, h);
        const std::int64_t key = sizes.key(begin, h);
        const Keys keys = {k.data() + key, v.data() + key, sizes.key_heads * sizes.width, 0};
        attend_vjp(args, q.data() + query, keys, r - begin, sizes.width, do_.data() + query,
                   {dq ? dq.data() + query : nullptr, dk ? dk.data() + key : nullptr,
                    dv ? dv.data() + key : nullptr});
      }
    }
  }
  dq.store();
  dk.store();
  dv.store();
}

}  // namespace rankone::nn
