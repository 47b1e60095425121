#pragma once

// For the tests of the operators around the recurrence: inputs rounded to a format, the same in
// float64 for the reference, runs on the backend under test, and the bound on their error.

#include <functional>
#include <vector>

#include "core/random.hpp"
#include "support.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {

inline Context reference_context() { return Context({.threads = 1, .backends = {"reference"}}); }

// Rounds host tensors to `dtype`, in place; absent ones stay so.
inline void round_all(Dtype dtype, std::initializer_list<Tensor*> tensors) {
  for (Tensor* tensor : tensors) {
    if (tensor->defined()) *tensor = tensor->to(dtype);
  }
}

// An output for the backend of `context`, full of NaN, shaped like `tensor`; absent where it is.
inline Tensor output_like(const Tensor& tensor, Dtype dtype, Context& context) {
  if (!tensor.defined()) return {};
  const Tensor host = Tensor::empty(tensor.shape(), dtype);
  host.fill(std::numeric_limits<double>::quiet_NaN());
  return to_device(host, context);
}
inline Tensor output_like(const Tensor& tensor, Context& context) {
  return output_like(tensor, tensor.dtype(), context);
}

// The same for the reference.
inline Tensor wide_like(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const Tensor result = Tensor::empty(tensor.shape(), Dtype::f64);
  result.fill(std::numeric_limits<double>::quiet_NaN());
  return result;
}

// What a run gives, on the host, with the threads of the emulation in two orders: the same bits.
inline std::vector<Tensor> run_in_two_orders(Context& context,
                                             const std::function<std::vector<Tensor>()>& run) {
  std::vector<Tensor> first;
  for (const std::uint64_t order : {0, 7}) {
    set_thread_order(order);
    std::vector<Tensor> results = run();
    for (Tensor& tensor : results) {
      if (tensor.defined()) tensor = to_host(tensor, context);
    }
    if (first.empty()) {
      first = results;
      continue;
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (!first[i].defined() || kEmulated == false) continue;
      EXPECT_TRUE(same_bits("result " + std::to_string(i), first[i].to(Dtype::f32),
                            results[i].to(Dtype::f32)));
    }
  }
  set_thread_order(0);
  return first;
}

// `bound` is that of float32 arithmetic, relative to the RMS of the tensor. A 16-bit result may
// have twice the error of the exact one rounded to its format beside.
inline void expect_close(const std::string& name, const Tensor& result, const Tensor& expected,
                         double bound) {
  if (!result.defined()) return;
  if (result.dtype() != Dtype::f32) {
    bound += 2 * relative_error(expected.to(result.dtype()).to(Dtype::f32), expected);
  }
  EXPECT_LE(relative_error(result.to(Dtype::f32), expected), bound) << name;
}

}  // namespace rankone::test
