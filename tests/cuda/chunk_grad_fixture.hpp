#pragma once

// A call of the gradient kernel whose inputs (states, U, dV) come from the recurrence itself, step
// by step in float64, and the gradients that it must give.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "recurrence/cuda/chunk_grad.hpp"

namespace rankone::test {

namespace kernels = recurrence::cuda;
using kernels::GateKind;

struct GradCase {
  std::string name;
  GateKind gate = GateKind::scalar;
  bool delta = true, same_key = false, sum_keys = false;
  std::int64_t heads = 1, group = 1;
  int d_k = 64, d_v = 64;
  std::vector<std::int64_t> lengths = {64};  // of the sequences; several: packed
  Dtype format = Dtype::bf16, gate_dtype = Dtype::f32;
  // 0 typical, 1 weak, 2 strong (-5), 3 mixed -30 and -0.01, 4 lost (-1e30), 5 zero, 6 strong in
  // every second run of 64 rows, 7 growing in some rows
  int gates = 0;
  bool zero_gains = false;
};

using Doubles = std::vector<double>;

struct GradProblem {
  GradCase c;
  std::int64_t rows = 0, value_heads = 0, chunks = 0;
  std::vector<std::int64_t> boundaries{0}, chunk_boundaries{0};
  Doubles q, e, w, v, g, b, d_o;    // rounded to their dtypes
  Doubles states, d_states;         // [C, HV, K, V], S_0 and dS_C
  Doubles z, d_v;                   // U / b and dV
  Doubles d_q, d_e, d_w, d_g, d_b;  // expected
  Doubles gain;                     // b

  int gates_of_row() const {
    return c.gate == GateKind::none ? 0 : c.gate == GateKind::scalar ? 1 : c.d_k;
  }
};

inline double rounded(double x, Dtype dtype) {
  const auto f = static_cast<float>(x);
  if (dtype == Dtype::bf16) return to_float(to_bf16(f));
  if (dtype == Dtype::f16) return to_float(to_f16(f));
  return f;
}

// One value head of one sequence, forward and back, step by step.
inline void step_by_step(GradProblem& p, std::int64_t sequence, std::int64_t head, double scale) {
  const GradCase& c = p.c;
  const int K = c.d_k, V = c.d_v;
  const auto size = static_cast<std::size_t>(K * V);
  const std::int64_t first = p.boundaries[static_cast<std::size_t>(sequence)];
  const std::int64_t end = p.boundaries[static_cast<std::size_t>(sequence) + 1];
  const std::int64_t key_head = head / c.group;
  std::mt19937_64 random(static_cast<std::uint64_t>(1000 * sequence + head + 7));
  std::normal_distribution<double> normal;
  Doubles state(size), back(size);
  for (double& x : state) x = 0.3 * normal(random);
  for (double& x : back) x = 0.3 * normal(random);
  const auto key = [&](Doubles& t, std::int64_t row) {
    return t.data() + (row * c.heads + key_head) * K;
  };
  const auto value = [&](Doubles& t, std::int64_t row) {
    return t.data() + (row * p.value_heads + head) * V;
  };
  const auto gate = [&](std::int64_t row, int k) {
    if (c.gate == GateKind::none) return 0.0;
    const std::int64_t at = row * p.value_heads + head;
    return c.gate == GateKind::scalar ? p.g[static_cast<std::size_t>(at)]
                                      : p.g[static_cast<std::size_t>(at * K + k)];
  };
  const auto chunk_of = [&](std::int64_t row) {
    return p.chunk_boundaries[static_cast<std::size_t>(sequence)] + (row - first) / 64;
  };
  const auto state_of = [&](Doubles& t, std::int64_t chunk) {
    return t.data() + static_cast<std::size_t>(chunk * p.value_heads + head) * size;
  };
  std::vector<Doubles> decayed;  // S~ of every step
  for (std::int64_t row = first; row < end; ++row) {
    if ((row - first) % 64 == 0)
      std::copy(state.begin(), state.end(), state_of(p.states, chunk_of(row)));
    for (int k = 0; k < K; ++k) {
      const double keep = std::exp(gate(row, k));
      for (int j = 0; j < V; ++j) state[static_cast<std::size_t>(k * V + j)] *= keep;
    }
    decayed.push_back(state);
    const double gain = p.gain[static_cast<std::size_t>(row * p.value_heads + head)];
    for (int j = 0; j < V; ++j) {
      double error = value(p.v, row)[j];
      if (c.delta) {
        for (int k = 0; k < K; ++k)
          error -= state[static_cast<std::size_t>(k * V + j)] * key(p.e, row)[k];
      }
      value(p.z, row)[j] = error;
    }
    for (int k = 0; k < K; ++k) {
      for (int j = 0; j < V; ++j) {
        state[static_cast<std::size_t>(k * V + j)] += gain * key(p.w, row)[k] * value(p.z, row)[j];
      }
    }
  }
  for (std::int64_t row = end - 1; row >= first; --row) {
    if (row == end - 1 || (row + 1 - first) % 64 == 0) {
      std::copy(back.begin(), back.end(), state_of(p.d_states, chunk_of(row)));
    }
    const double gain = p.gain[static_cast<std::size_t>(row * p.value_heads + head)];
    const Doubles& before = decayed[static_cast<std::size_t>(row - first)];
    const double *q = key(p.q, row), *e = key(p.e, row), *w = key(p.w, row);
    const double *z = value(p.z, row), *d_o = value(p.d_o, row);
    double* d_v = value(p.d_v, row);
    double d_b = 0.0;
    for (int k = 0; k < K; ++k) {
      for (int j = 0; j < V; ++j) {
        const auto at = static_cast<std::size_t>(k * V + j);
        key(p.d_q, row)[k] += scale * (before[at] + gain * w[k] * z[j]) * d_o[j];
        back[at] += scale * q[k] * d_o[j];
        key(p.d_w, row)[k] += back[at] * gain * z[j];
      }
    }
    for (int j = 0; j < V; ++j) {
      double d_u = 0.0;
      for (int k = 0; k < K; ++k) d_u += back[static_cast<std::size_t>(k * V + j)] * w[k];
      d_v[j] = gain * d_u;
      d_b += d_u * z[j];
    }
    p.d_b[static_cast<std::size_t>(row * p.value_heads + head)] = d_b;
    for (int k = 0; k < K; ++k) {
      double d_g = 0.0;
      const double keep = std::exp(gate(row, k));
      for (int j = 0; j < V; ++j) {
        const auto at = static_cast<std::size_t>(k * V + j);
        if (c.delta) {
          key(p.d_e, row)[k] -= before[at] * d_v[j];
          back[at] -= e[k] * d_v[j];
        }
        d_g += back[at] * before[at];
        back[at] *= keep;
      }
      const std::int64_t at = row * p.value_heads + head;
      if (c.gate == GateKind::scalar) p.d_g[static_cast<std::size_t>(at)] += d_g;
      if (c.gate == GateKind::channel) p.d_g[static_cast<std::size_t>(at * K + k)] = d_g;
    }
  }
}

inline GradProblem make_problem(const GradCase& c) {
  GradProblem p;
  p.c = c;
  p.value_heads = c.heads * c.group;
  for (const std::int64_t length : c.lengths) {
    p.boundaries.push_back(p.boundaries.back() + length);
    p.chunk_boundaries.push_back(p.chunk_boundaries.back() + (length + 63) / 64);
  }
  p.rows = p.boundaries.back();
  p.chunks = p.chunk_boundaries.back();
  std::mt19937_64 random(static_cast<std::uint64_t>(11 + c.d_k + c.d_v + p.rows));
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto count = [](std::int64_t a, std::int64_t b, std::int64_t n) {
    return static_cast<std::size_t>(a * b * n);
  };
  const auto unit = [&](Doubles& t) {
    t.resize(count(p.rows, c.heads, c.d_k));
    for (std::size_t i = 0; i < t.size(); i += static_cast<std::size_t>(c.d_k)) {
      double sum = 0.0;
      for (int k = 0; k < c.d_k; ++k) {
        t[i + static_cast<std::size_t>(k)] = normal(random) + 0.3;
        sum += t[i + static_cast<std::size_t>(k)] * t[i + static_cast<std::size_t>(k)];
      }
      for (int k = 0; k < c.d_k; ++k) {
        double& x = t[i + static_cast<std::size_t>(k)];
        x = rounded(x / std::sqrt(sum), c.format);
      }
    }
  };
  unit(p.q);
  unit(p.e);
  if (c.same_key) {
    p.w = p.e;
  } else {
    unit(p.w);
  }
  for (Doubles* t : {&p.v, &p.d_o}) {
    t->resize(count(p.rows, p.value_heads, c.d_v));
    for (double& x : *t) x = rounded(normal(random), c.format);
  }
  p.g.resize(count(p.rows, p.value_heads, p.gates_of_row()));
  const std::size_t per_row = p.rows > 0 ? p.g.size() / static_cast<std::size_t>(p.rows) : 1;
  for (std::size_t i = 0; i < p.g.size(); ++i) {
    double& x = p.g[i];
    const double typical = -std::log1p(std::exp(-normal(random)));
    const double even = uniform(random);
    x = c.gates == 0   ? typical
        : c.gates == 1 ? typical / 16
        : c.gates == 2 ? -5.0
        : c.gates == 3 ? (even < 0.5 ? -30.0 : -0.01)
        : c.gates == 4 ? (even < 0.1 ? -1e30 : typical / 16)
        : c.gates == 5 ? 0.0
        : c.gates == 6 ? (i / per_row / 64 % 2 == 0 ? typical : -5.0)
                       : (even < 0.2 ? 0.1 : typical);
    x = rounded(x, c.gate_dtype);
  }
  p.b.resize(count(p.rows, p.value_heads, 1));
  for (double& x : p.b) {
    x = rounded(uniform(random), c.gate_dtype);
    if (c.zero_gains && uniform(random) < 0.2) x = 0.0;
  }
  p.gain = p.b;
  p.states.resize(count(p.chunks, p.value_heads, std::int64_t{c.d_k} * c.d_v));
  p.d_states.resize(p.states.size());
  p.z.resize(p.v.size());
  p.d_v.resize(p.v.size());
  p.d_q.resize(p.q.size());
  p.d_e.resize(p.q.size());
  p.d_w.resize(p.q.size());
  p.d_g.resize(p.g.size());
  p.d_b.resize(p.b.size());
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.d_k));
  for (std::size_t s = 0; s < c.lengths.size(); ++s) {
    for (std::int64_t head = 0; head < p.value_heads; ++head) {
      step_by_step(p, static_cast<std::int64_t>(s), head, scale);
    }
  }
  if (c.sum_keys) {
    for (std::size_t i = 0; i < p.d_w.size(); ++i) p.d_w[i] += p.d_e[i];
  }
  return p;
}

// Bytes of a tensor in its dtype.
inline std::vector<unsigned char> bytes_of(const Doubles& t, Dtype dtype) {
  const std::size_t size = dtype == Dtype::f32 ? 4 : 2;
  std::vector<unsigned char> bytes(t.size() * size);
  for (std::size_t i = 0; i < t.size(); ++i) {
    const auto f = static_cast<float>(t[i]);
    if (dtype == Dtype::f32) std::memcpy(bytes.data() + 4 * i, &f, 4);
    const std::uint16_t bits = dtype == Dtype::bf16 ? to_bf16(f).bits : to_f16(f).bits;
    if (dtype != Dtype::f32) std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}
inline double element_of(const unsigned char* bytes, std::size_t i, Dtype dtype) {
  float f;
  std::uint16_t bits;
  std::memcpy(&bits, bytes + 2 * i, 2);
  if (dtype == Dtype::bf16) return to_float(bf16{bits});
  if (dtype == Dtype::f16) return to_float(f16{bits});
  std::memcpy(&f, bytes + 4 * i, 4);
  return f;
}

// Transposed tiles of the workspace from states [C, HV, K, V].
inline std::vector<unsigned char> state_tiles(const GradProblem& p, const Doubles& states) {
  const int columns = kernels::key_columns(p.c.d_k), tiles = kernels::value_tiles(p.c.d_v);
  Doubles result(static_cast<std::size_t>(p.chunks * p.value_heads * tiles * 64 * columns));
  for (std::int64_t state = 0; state < p.chunks * p.value_heads; ++state) {
    for (int k = 0; k < p.c.d_k; ++k) {
      for (int v = 0; v < p.c.d_v; ++v) {
        const std::int64_t tile = state * tiles + v / 64;
        const std::int64_t at = tile * 64 * columns + k / 8 * 512 + v % 64 * 8 + k % 8;
        result[static_cast<std::size_t>(at)] =
            states[static_cast<std::size_t>((state * p.c.d_k + k) * p.c.d_v + v)];
      }
    }
  }
  return bytes_of(result, p.c.format);
}

// The tensors of a problem, where the kernels read and write them.
template <class Memory>
class GradTensors {
 public:
  explicit GradTensors(const GradProblem& p) : problem_(p) {
    const GradCase& c = p.c;
    kernels::TwoKeyCall& call = chunk.call;
    call.rows.sequences = static_cast<std::int64_t>(c.lengths.size());
    call.rows.count = p.rows;
    call.rows.chunks = p.chunks;
    if (c.lengths.size() == 1) {
      call.rows.time = c.lengths[0];
    } else {
      call.rows.boundaries = static_cast<const std::int64_t*>(copy(p.boundaries));
      call.rows.chunk_boundaries = static_cast<const std::int64_t*>(copy(p.chunk_boundaries));
    }
    call.heads = c.heads;
    call.value_heads = p.value_heads;
    call.d_k = c.d_k;
    call.d_v = c.d_v;
    call.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.d_k)));
    call.format = c.format;
    call.gate = c.gate;
    call.delta = c.delta;
    call.same_key = c.same_key;
    call.q = copy(bytes_of(p.q, c.format));
    call.w = copy(bytes_of(p.w, c.format));
    call.e = c.same_key ? call.w : copy(bytes_of(p.e, c.format));
    call.v = copy(bytes_of(p.v, c.format));
    if (c.gate != GateKind::none) call.g = {copy(bytes_of(p.g, c.gate_dtype)), c.gate_dtype};
    call.b = {copy(bytes_of(p.b, c.gate_dtype)), c.gate_dtype};
    chunk.layout = kernels::RecordLayout(c.d_k, c.gate, c.delta);
    std::vector<unsigned char> records(
        static_cast<std::size_t>(p.chunks * p.value_heads * chunk.layout.bytes), 0xff);
    fill_records(records.data());
    chunk.records = static_cast<unsigned char*>(copy(records));
    chunk.states = copy(state_tiles(p, p.states));
    chunk.d_states = copy(state_tiles(p, p.d_states));
    chunk.z = copy(bytes_of(p.z, c.format));
    chunk.d_value = copy(bytes_of(p.d_v, c.format));
    const std::int64_t sums = kernels::chunk_grad_floats(chunk);
    if (sums > 0) {
      chunk.gate_sums = static_cast<float*>(
          copy(std::vector<float>(static_cast<std::size_t>(sums), std::nanf(""))));
    }
    back.d_o = copy(bytes_of(p.d_o, c.format));
    const auto out = [&](const Doubles& like, Dtype dtype) {
      return copy(bytes_of(Doubles(like.size(), std::nan("")), dtype));
    };
    back.d_q = out(p.d_q, c.format);
    back.d_w = out(p.d_w, c.format);
    if (c.delta) back.d_e = c.sum_keys ? back.d_w : out(p.d_e, c.format);
    if (c.gate != GateKind::none) back.d_g = out(p.d_g, c.gate_dtype);
    back.d_b = out(p.d_b, c.gate_dtype);
  }

  // The error of a gradient: its RMS relative to that of the expected one.
  double error(const Doubles& expected, const void* actual, Dtype dtype) const {
    const std::vector<unsigned char> bytes =
        memory_.read(actual, expected.size() * (dtype == Dtype::f32 ? 4 : 2));
    double sum = 0.0, whole = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double difference = element_of(bytes.data(), i, dtype) - expected[i];
      sum += difference * difference;
      whole += expected[i] * expected[i];
    }
    return std::sqrt(sum / (whole > 0.0 ? whole : 1.0));
  }

  kernels::ChunkCall chunk;
  kernels::TwoKeyBack back;

 private:
  template <class T>
  void* copy(const std::vector<T>& data) {
    return memory_.copy(data.data(), data.size() * sizeof(T));
  }

  void fill_records(unsigned char* records) const;

  const GradProblem& problem_;
  Memory memory_;
};

// What chunk_prep leaves, as far as the gradients read it.
template <class Memory>
void GradTensors<Memory>::fill_records(unsigned char* records) const {
  const GradProblem& p = problem_;
  for (std::size_t s = 0; s < p.c.lengths.size(); ++s) {
    for (std::int64_t c = p.chunk_boundaries[s]; c < p.chunk_boundaries[s + 1]; ++c) {
      const std::int64_t first = p.boundaries[s] + (c - p.chunk_boundaries[s]) * 64;
      const std::int64_t left = p.boundaries[s + 1] - first;
      for (std::int64_t head = 0; head < p.value_heads; ++head) {
        unsigned char* record = records + (c * p.value_heads + head) * chunk.layout.bytes;
        float gain[64];
        for (int i = 0; i < 64; ++i) {
          gain[i] = i < left
                        ? static_cast<float>(
                              p.gain[static_cast<std::size_t>((first + i) * p.value_heads + head)])
                        : 0.0F;
        }
        std::memcpy(record + chunk.layout.gain, gain, sizeof gain);
      }
    }
  }
}

}  // namespace rankone::test
