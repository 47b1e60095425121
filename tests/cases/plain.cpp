#include "tests/cases/plain.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "recurrence/shapes.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKey;
using recurrence::TwoKeyShape;
using std::int64_t;

constexpr int64_t kPlainChunk = 64;

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> data;

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
  float& operator()(int64_t r, int64_t c) {
    return data[static_cast<std::size_t>(r * columns + c)];
  }
  float operator()(int64_t r, int64_t c) const {
    return data[static_cast<std::size_t>(r * columns + c)];
  }
};

class Format {
 public:
  explicit Format(Dtype dtype) : dtype_(dtype) {}
  float operator()(float x) const {
    if (dtype_ == Dtype::bf16) return to_float(to_bf16(x));
    if (dtype_ == Dtype::f16) return to_float(to_f16(x));
    return x;
  }
  // sum_k a(i, k) b(k, j), either transposed.
  Matrix product(const Matrix& a, const Matrix& b, bool ta = false, bool tb = false) const {
    const int64_t inner = ta ? a.rows : a.columns;
    Matrix c(ta ? a.columns : a.rows, tb ? b.rows : b.columns);
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.columns; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          sum += (*this)(ta ? a(k, i) : a(i, k)) * (*this)(tb ? b(j, k) : b(k, j));
        }
        c(i, j) = sum;
      }
    }
    return c;
  }

 private:
  Dtype dtype_;
};

// One value head of one sequence, chunk by chunk.
class PlainHead {
 public:
  PlainHead(Format format, const Inputs& inputs, int64_t sequence, int64_t head)
      : round_(format),
        in_(inputs.two_key),
        head_(head),
        sequence_(sequence),
        shape_(shape_of(inputs.sequences, inputs.two_key)),
        begin_(inputs.sequences.begin(sequence)),
        end_(inputs.sequences.end(sequence)) {
    state_ = Matrix(shape_.d_k, shape_.d_v);
    if (in_.initial_state.defined()) load(state_.data, in_.initial_state);
  }

  void load(std::vector<float>& to, const Tensor& state) const {
    std::copy_n(state_at(state), to.size(), to.begin());
  }
  float* state_at(const Tensor& state) const {
    return state.data<float>() + (sequence_ * shape_.value_heads + head_) * shape_.d_k * shape_.d_v;
  }

  // Rows [first, first + n) of this head (or of its key head), rounded.
  Matrix rows(const Tensor& tensor, int64_t heads, int64_t columns) const {
    Matrix m(n_, columns);
    const int64_t head = head_ / (shape_.value_heads / heads);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        m(i, c) = round_(tensor.data<float>()[((first_ + i) * heads + head) * columns + c]);
      }
    }
    return m;
  }

  void start(int64_t first) {
    first_ = first;
    n_ = std::min(kPlainChunk, end_ - first);
    q = rows(in_.q, shape_.heads, shape_.d_k);
    w = rows(in_.w, shape_.heads, shape_.d_k);
    e = in_.e.defined() ? rows(in_.e, shape_.heads, shape_.d_k) : Matrix(n_, shape_.d_k);
    v = rows(in_.v, shape_.value_heads, shape_.d_v);
    b = Matrix(n_, 1);
    G = Matrix(n_, shape_.d_k);
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t at = (first_ + i) * shape_.value_heads + head_;
      b(i, 0) = in_.b.defined() ? in_.b.data<float>()[at] : 1.0F;
      for (int64_t d = 0; d < shape_.d_k; ++d) {
        float g = 0;
        if (in_.g.defined()) {
          g = in_.g.data<float>()[shape_.channel_decay ? at * shape_.d_k + d : at];
        }
        G(i, d) = g + (i > 0 ? G(i - 1, d) : 0.0F);
      }
    }
  }

  float between(int64_t i, int64_t j, int64_t d) const { return std::exp(G(i, d) - G(j, d)); }

  // left_i . right_j with the decay between, for j < i (and j = i with `diagonal`).
  Matrix interaction(const Matrix& left, bool diagonal) const {
    Matrix m(n_, n_);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < i + (diagonal ? 1 : 0); ++j) {
        float sum = 0;
        for (int64_t d = 0; d < shape_.d_k; ++d) {
          sum += round_(left(i, d) * between(i, j, d)) * round_(w(j, d));
        }
        m(i, j) = sum;
      }
    }
    return m;
  }

  // A, P, X, U of the chunk form from the state at its start.
  void forward() {
    const int64_t last = n_ - 1;
    e_start = q_start = Matrix(n_, shape_.d_k);
    w_end = Matrix(n_, shape_.d_k);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t d = 0; d < shape_.d_k; ++d) {
        e_start(i, d) = e(i, d) * std::exp(G(i, d));
        q_start(i, d) = q(i, d) * std::exp(G(i, d));
        w_end(i, d) = w(i, d) * between(last, i, d);
      }
    }
    a = interaction(e, false);
    p = interaction(q, true);
    const Matrix read = round_.product(e_start, state_);
    residual = Matrix(n_, shape_.d_v);
    u = Matrix(n_, shape_.d_v);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t c = 0; c < shape_.d_v; ++c) {
        residual(i, c) = v(i, c) - read(i, c);
        float sum = b(i, 0) * residual(i, c);
        for (int64_t j = 0; j < i; ++j) sum -= b(i, 0) * a(i, j) * u(j, c);
        u(i, c) = sum;
      }
    }
  }

  void advance() {
    const Matrix update = round_.product(w_end, u, true);
    for (int64_t d = 0; d < shape_.d_k; ++d) {
      const float keep = std::exp(G(n_ - 1, d));
      for (int64_t c = 0; c < shape_.d_v; ++c) state_(d, c) = keep * state_(d, c) + update(d, c);
    }
  }

  void run(const recurrence::TwoKeyOut& out) {
    for (int64_t first = begin_; first < end_; first += kPlainChunk) {
      start(first);
      forward();
      const Matrix old = round_.product(q_start, state_);
      const Matrix own = round_.product(p, u);
      for (int64_t i = 0; i < n_; ++i) {
        for (int64_t c = 0; c < shape_.d_v; ++c) {
          out.o.data<float>()[((first + i) * shape_.value_heads + head_) * shape_.d_v + c] =
              round_(static_cast<float>(in_.scale) * (old(i, c) + own(i, c)));
        }
      }
      advance();
    }
    std::copy(state_.data.begin(), state_.data.end(), state_at(out.final_state));
  }

  void run_back(const recurrence::TwoKeyCotangents& cotangents,
                const recurrence::TwoKeyGrads& grads) {
    std::vector<Matrix> starts;
    for (int64_t first = begin_; first < end_; first += kPlainChunk) {
      starts.push_back(state_);
      start(first);
      forward();
      advance();
    }
    Matrix d_state(shape_.d_k, shape_.d_v);
    load(d_state.data, cotangents.final_state);
    for (; !starts.empty(); starts.pop_back()) {
      state_ = starts.back();
      start(begin_ + static_cast<int64_t>(starts.size() - 1) * kPlainChunk);
      forward();
      d_state = back(rows(cotangents.o, shape_.value_heads, shape_.d_v), d_state, grads);
    }
    if (!grads.initial_state.defined()) return;
    std::copy(d_state.data.begin(), d_state.data.end(), state_at(grads.initial_state));
  }

 private:
  // gpu-kernels section "chunk backward": returns the gradient of the state at the start.
  Matrix back(const Matrix& d_o, const Matrix& d_end, const recurrence::TwoKeyGrads& grads) {
    const float scale = static_cast<float>(in_.scale);
    const int64_t K = shape_.d_k, V = shape_.d_v;
    Matrix d_u = round_.product(w_end, d_end);
    const Matrix through_p = round_.product(p, d_o, true);
    for (std::size_t i = 0; i < d_u.data.size(); ++i) d_u.data[i] += scale * through_p.data[i];
    Matrix d_r = d_u;
    for (int64_t i = n_ - 1; i >= 0; --i) {
      for (int64_t j = i + 1; j < n_; ++j) {
        for (int64_t c = 0; c < V; ++c) d_r(i, c) -= b(j, 0) * a(j, i) * d_r(j, c);
      }
    }
    const Matrix d_p = round_.product(d_o, u, false, true);
    const Matrix d_a = round_.product(d_r, u, false, true);  // negative
    Matrix d_v = d_r;
    Matrix d_b(n_, 1);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t c = 0; c < V; ++c) {
        d_b(i, 0) += round_(d_r(i, c)) * round_(residual(i, c));
        d_v(i, c) = b(i, 0) * d_r(i, c);
      }
      for (int64_t j = 0; j < i; ++j) d_b(i, 0) -= round_(d_a(i, j)) * round_(a(i, j));
    }
    const Matrix e_back = round_.product(d_v, state_, false, true);
    const Matrix q_back = round_.product(d_o, state_, false, true);
    const Matrix w_back = round_.product(u, d_end, false, true);
    Matrix d_q(n_, K), d_e(n_, K), d_w(n_, K), d_g(n_, K);
    for (int64_t d = 0; d < K; ++d) {
      std::vector<float> inner(static_cast<std::size_t>(n_));  // q dq' + e de' - w dw'
      for (int64_t i = 0; i < n_; ++i) {
        float sum_q = 0, sum_e = 0, sum_w = 0;
        for (int64_t j = 0; j < i; ++j) {
          const float weight = round_(w(j, d) * between(i, j, d));
          sum_q += round_(scale * d_p(i, j)) * weight;
          sum_e -= round_(b(i, 0) * d_a(i, j)) * weight;
        }
        for (int64_t m = i + 1; m < n_; ++m) {
          sum_w += round_(scale * d_p(m, i)) * round_(q(m, d) * between(m, i, d));
          sum_w -= round_(b(m, 0) * d_a(m, i)) * round_(e(m, d) * between(m, i, d));
        }
        inner[static_cast<std::size_t>(i)] = q(i, d) * sum_q + e(i, d) * sum_e - w(i, d) * sum_w;
        d_q(i, d) = scale * q_back(i, d) * std::exp(G(i, d)) + sum_q + scale * d_p(i, i) * w(i, d);
        d_e(i, d) = sum_e - e_back(i, d) * std::exp(G(i, d));
        d_w(i, d) = w_back(i, d) * between(n_ - 1, i, d) + sum_w + scale * d_p(i, i) * q(i, d);
      }
      float whole = 0;
      for (int64_t c = 0; c < V; ++c) whole += round_(state_(d, c)) * round_(d_end(d, c));
      whole *= std::exp(G(n_ - 1, d));
      float behind = 0;
      for (int64_t i = n_ - 1; i >= 0; --i) {
        behind += scale * q_start(i, d) * q_back(i, d) - e_start(i, d) * e_back(i, d) +
                  inner[static_cast<std::size_t>(i)];
        d_g(i, d) = whole + behind;
      }
      float before = 0;
      for (int64_t i = 0; i < n_; ++i) {
        d_g(i, d) += before;
        before += w_end(i, d) * w_back(i, d);
      }
    }
    put(grads.q, d_q, shape_.heads);
    put(grads.e, d_e, shape_.heads);
    put(grads.w, d_w, shape_.heads);
    put(grads.v, d_v, shape_.value_heads);
    put(grads.b, d_b, shape_.value_heads);
    if (shape_.channel_decay) {
      put(grads.g, d_g, shape_.value_heads);
    } else {
      Matrix total(n_, 1);
      for (int64_t i = 0; i < n_; ++i) {
        for (int64_t d = 0; d < K; ++d) total(i, 0) += d_g(i, d);
      }
      put(grads.g, total, shape_.value_heads);
    }
    Matrix d_start = round_.product(q_start, d_o, true);
    const Matrix erased = round_.product(e_start, d_v, true);
    for (int64_t d = 0; d < K; ++d) {
      const float keep = std::exp(G(n_ - 1, d));
      for (int64_t c = 0; c < V; ++c) {
        d_start(d, c) = keep * d_end(d, c) + scale * d_start(d, c) - erased(d, c);
      }
    }
    return d_start;
  }

  // Writes, or adds where an earlier value head of the group has written.
  void put(const Tensor& tensor, const Matrix& m, int64_t heads) const {
    if (!tensor.defined()) return;
    const int64_t group = shape_.value_heads / heads;
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t c = 0; c < m.columns; ++c) {
        float& to = tensor.data<float>()[((first_ + i) * heads + head_ / group) * m.columns + c];
        to = round_(m(i, c) + (head_ % group == 0 ? 0.0F : to));
      }
    }
  }

  Format round_;
  const TwoKey& in_;
  int64_t head_, sequence_;
  TwoKeyShape shape_;
  int64_t begin_, end_, first_ = 0, n_ = 0;
  Matrix state_, q, e, w, v, b, G, e_start, q_start, w_end, a, p, residual, u;
};

template <class Work>
void each_head(Dtype format, const Inputs& inputs, Work&& work) {
  const TwoKeyShape shape = shape_of(inputs.sequences, inputs.two_key);
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      PlainHead plain(Format(format), inputs, sequence, head);
      work(plain);
    }
  }
}

}  // namespace

void plain_two_key(Dtype format, const Inputs& inputs, const recurrence::TwoKeyOut& out) {
  each_head(format, inputs, [&](PlainHead& head) { head.run(out); });
}

void plain_two_key_vjp(Dtype format, const Inputs& inputs, const recurrence::TwoKeyGrads& grads) {
  each_head(format, inputs, [&](PlainHead& head) { head.run_back(inputs.cotangents, grads); });
}

}  // namespace rankone::test
