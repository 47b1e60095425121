#pragma once

// The recurrent state of N sequences: per layer whichever of S [HV, d_k, d_v], convolution history
// [channels, W-1], preconditioner A, MesaNet's Hkk and the KV cache the layer has; and one int64
// position per sequence. Size, export, import and clone act on the whole state, never on parts.

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"

namespace rankone::model {

class State {
 public:
  struct Entry {
    std::string name;   // "layers.3.S", "layers.3.conv_q", "layers.3.A", "layers.3.cache_k", ...
    Tensor value;       // first axis: the sequence
    bool grows = false; // KV cache: axis 2 is its capacity
  };

  State() = default;
  State(std::int64_t sequences, std::vector<Entry> entries);

  std::int64_t sequences() const { return positions_.defined() ? positions_.count() : 0; }
  const Tensor& positions() const { return positions_; }  // [N] i64
  const Tensor& get(const std::string& name) const;       // fails if there is none
  std::size_t bytes() const;                              // of one whole state

  void reset();                                 // as new
  State clone() const;                          // fork: an independent copy
  State select(std::int64_t sequence) const;    // a copy of one sequence
  // Makes room in the KV caches for `tokens` more tokens of each sequence (outside of a step).
  void reserve(std::int64_t tokens);
  void advance(std::int64_t tokens);            // after a step: position += tokens, all sequences
  void advance(std::int64_t sequence, std::int64_t tokens);

  // safetensors bytes, positions included; import checks names, shapes and dtypes against this state.
  std::vector<std::byte> export_bytes() const;
  void import_bytes(std::span<const std::byte> bytes);

 private:
  std::vector<Entry> entries_;
  Tensor positions_;
};

}  // namespace rankone::model
