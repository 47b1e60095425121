#pragma once

// The diagonal preconditioner (recurrence.hpp) as its kernels get it.

#include "core/cuda/rows.hpp"
#include "recurrence/choices.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kPreconditionChunk = 64;  // rows
inline constexpr int kScanWindow = 16;         // chunks from one published state to the next

// A scan over chunks of rows: precondition_scan.hpp.
struct ChunkScan {
  float* sums = nullptr;     // [chunks, H, K]: what a chunk adds
  float* windows = nullptr;  // [chunks / kScanWindow rounded up, H, K]: states behind windows
  float* decays = nullptr;   // [chunks, H]: how far a chunk lets an earlier state decay
};

struct PreconditionCall {
  rankone::cuda::Rows rows;  // in chunks of kPreconditionChunk
  std::int64_t heads = 0;    // H
  int d_k = 0;
  PreconditionerKind kind = PreconditionerKind::atk;
  bool normalize = false;
  float log_x = 0.0F, eps = 0.0F;
  Source k, target;
  Source g, b;                     // [R, H]
  Source parameter;                // center [H] or ridge [H, K]
  const float* initial = nullptr;  // [N, H, K]
  Sink out;
  float* final = nullptr;   // may be initial
  float* states = nullptr;  // [chunks, H, K]: A before each chunk
  ChunkScan scan;
};

struct PreconditionBack {
  Source d_out;
  const float* d_final = nullptr;
  Source other;         // added to d_k, may be its memory; not there where d_k is not
  bool joined = false;  // d_k and d_target are one memory: it receives the sum
  Sink d_k, d_target, d_g, d_b, d_parameter;
  float* d_initial = nullptr;
  ChunkScan scan;             // of dL/dA, from the last chunk to the first
  float* partials = nullptr;  // [chunks, H] or [chunks, H, K]; null: the parameter has no gradient
};

// Fills call.scan.decays and clears the rest of call.scan and of `other` (where they are there).
// Where `final` is wanted it is written for sequences without rows: `initial`, or zero.
void launch_precondition_start(const PreconditionCall& call, const ChunkScan& other,
                               const float* initial, float* final, void* stream);
// After launch_precondition_start(). Leaves in call.scan what gives the state before each chunk;
// rows, final and states where they are there.
void launch_precondition(const PreconditionCall& call, void* stream);
// After launch_precondition_start() for back.scan, whose decays are those of call.scan. Reads
// call.states, or, where they are null, what launch_precondition() left.
void launch_precondition_back(const PreconditionCall& call, const PreconditionBack& back,
                              void* stream);

}  // namespace rankone::recurrence::cuda
