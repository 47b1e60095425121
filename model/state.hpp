#pragma once

// The recurrent state of N sequences: per layer whichever of S [HV, d_k, d_v], convolution history
// [channels, W-1], preconditioner A, MesaNet's Hkk and the KV cache the layer has; and one int64
// position per sequence. Size, export, import and clone act on the whole state, never on parts.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sequences.hpp"
#include "core/tensor.hpp"

namespace rankone::model {

class State {
 public:
  struct Entry {
    std::string name;    // "layers.3.S", "layers.3.conv_q", "layers.3.A", "layers.3.cache_k", ...
    Tensor value;        // first axis: the sequence
    bool grows = false;  // KV cache: axis 2 is its capacity
    Tensor fresh;        // of one sequence when new; undefined: zero
  };

  State() = default;
  State(std::int64_t sequences, std::vector<Entry> entries);

  std::int64_t sequences() const { return positions_.defined() ? positions_.count() : 0; }
  const Tensor& positions() const { return positions_; }  // [N] i64, on the host
  std::int64_t position(std::int64_t sequence) const {
    return positions_.data<std::int64_t>()[sequence];
  }
  const std::vector<Entry>& entries() const { return entries_; }
  const Tensor& get(std::string_view name) const;  // fails if there is none
  std::size_t bytes() const;  // of one whole state, capacity of caches included

  void reset();                               // as new
  State clone() const;                        // fork: an independent copy
  State select(std::int64_t sequence) const;  // a copy of one sequence
  // Makes room in the KV caches for `tokens` more tokens of each sequence (outside of a step).
  void reserve(std::int64_t tokens);
  // Tokens that fit in the KV caches beside those of the longest sequence; without caches the
  // largest int64.
  std::int64_t room() const;
  void advance(std::int64_t tokens);  // after a step: position += tokens, all sequences
  void advance(std::int64_t sequence, std::int64_t tokens);
  void advance(const Sequences& step);  // by the length of each sequence of the step

  // safetensors bytes, positions included; import checks names, shapes, dtypes and positions
  // against this state (Status::corrupt) and changes nothing where it fails.
  std::vector<std::byte> export_bytes() const;
  void import_bytes(std::span<const std::byte> bytes);

 private:
  std::int64_t longest() const;  // largest position

  std::vector<Entry> entries_;
  Tensor positions_;
};

}  // namespace rankone::model
