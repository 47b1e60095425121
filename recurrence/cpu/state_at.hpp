#pragma once

// A state [K, V] in the caller's memory, as float32 or bf16, from some column on; or none.

#include <algorithm>

#include "core/tensor.hpp"
#include "recurrence/cpu/kernels.hpp"

namespace rankone::recurrence::cpu {

struct StateAt {
  float* wide = nullptr;
  bf16* narrow = nullptr;

  StateAt() = default;
  StateAt(const Tensor& tensor, Index offset) {
    if (!tensor.defined()) return;
    if (tensor.dtype() == Dtype::bf16) {
      narrow = tensor.data<bf16>() + offset;
    } else {
      wide = tensor.data<float>() + offset;
    }
  }
  bool defined() const { return wide != nullptr || narrow != nullptr; }
  void* data() const { return narrow != nullptr ? static_cast<void*>(narrow) : wide; }
  StateAt from(Index column) const {
    StateAt result;
    if (wide != nullptr) result.wide = wide + column;
    if (narrow != nullptr) result.narrow = narrow + column;
    return result;
  }

  // Its first `columns` columns, rows of `state_row` floats in scratch and `row` numbers here;
  // nothing where there is no state.
  void load(float* state, Index state_row, Index row, int rows, int columns) const {
    if (narrow != nullptr) {
      kernels().widen_rows(state, state_row, &narrow->bits, row, rows, columns);
    } else if (wide != nullptr) {
      kernels().copy_rows(state, state_row, wide, row, nullptr, rows, columns);
    }
  }
  void store(const float* state, Index state_row, Index row, int rows, int columns) const {
    if (narrow != nullptr) {
      kernels().narrow_rows(&narrow->bits, row, state, state_row, rows, columns);
      return;
    }
    for (int d = 0; d < rows && wide != nullptr; ++d) {
      std::copy_n(state + d * state_row, columns, wide + d * row);
    }
  }
};

}  // namespace rankone::recurrence::cpu
