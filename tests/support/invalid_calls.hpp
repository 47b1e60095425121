#pragma once

// Tables of invalid calls: a valid call, spoiled in one place, must fail with a message that names
// the function and the tensor.

#include <functional>
#include <string>
#include <vector>

#include "support/recurrence_support.hpp"

namespace rankone::test {

inline void expect_error(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "no error where '" << message << "' is expected";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument) << error.what();
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
        << "'" << error.what() << "' lacks '" << message << "'";
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

inline Tensor zeros(const Shape& shape, Dtype dtype = Dtype::f64) {
  Tensor tensor = Tensor::empty(shape, dtype);
  tensor.fill(0.0);
  return tensor;
}

// A tensor with the right shape whose rows do not follow each other.
inline Tensor strided(const Shape& shape) {
  Shape wide = shape;
  wide[-1] += 1;
  return zeros(wide).slice(-1 + wide.rank(), 0, shape[-1]);
}

inline Tensor integers(const Shape& shape) { return Tensor::zeros(shape, Dtype::i64); }

// A valid call with its outputs, to be spoiled in one place.
template <class In, class Out, class Cot, class Grads>
struct Call {
  Sequences sequences = Sequences::dense(2, 3);
  In in;
  Out out;
  Cot cot;
  Grads grads;
};

template <class C>
struct Invalid {
  std::function<void(C&)> spoil;
  std::string message;
};

template <class C>
void check_table(const C& valid, const std::vector<Invalid<C>>& table,
                 void (*run)(Context&, const C&)) {
  Context context = make_context();
  EXPECT_NO_THROW(run(context, valid));
  for (const Invalid<C>& row : table) {
    C call = valid;
    row.spoil(call);
    expect_error([&] { run(context, call); }, row.message);
  }
}

}  // namespace rankone::test
