#pragma once

// The kernels of one instruction set, defined in the sources of this folder; table.cpp collects
// them.

#include "core/simd.hpp"
#include "recurrence/cpu/kernels.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

using namespace ::rankone::RANKONE_ISA;

// matrix.cpp
void product(const Product& p);
void lower_inner(const Product& p);
// triangle.cpp
void add_lower(const Triangle& t);
void add_lower_transposed(const Triangle& t);
void solve_lower(const Triangle& t);
void solve_lower_transposed(const Triangle& t);
void scale_lower(const LowerScale& l);
// decay.cpp
void scalar_decay(const ScalarDecay& d);
void channel_decay(const ChannelDecay& d);
void block_interaction(const BlockInteraction& b);
void block_interaction_grad(const BlockInteractionGrad& b);
// panel.cpp
void block_keys(const BlockKeys& b);
void block_dots(const BlockDots& b);
void panel_block(const PanelBlock& p);
// decay_grad.cpp
void channel_decay_grad(const DecayGrad& d);
void scalar_decay_grad(const DecayGrad& d);
// precondition.cpp
void precondition(const PreconditionScan& s);
void precondition_back(const PreconditionScanBack& b);
// longhorn.cpp
void longhorn(const LonghornScan& s);
void longhorn_back(const LonghornScanBack& b);
// rows.cpp
void step(const Step& s);
void copy_rows(float* to, Index to_row, const float* from, Index from_row, const float* factor,
               int rows, int columns);
void multiply_rows(Into into, float* to, Index to_row, const float* a, Index a_row, const float* b,
                   Index b_row, float factor, int rows, int columns);
void add_rows(float* to, Index to_row, const float* from, Index from_row, const float* factor,
              int rows, int columns);
void transpose(float* to, Index to_row, const float* from, Index from_row, int rows, int columns);
float dot(const float* a, const float* b, int n);
void widen_rows(float* to, Index to_row, const std::uint16_t* from, Index from_row, int rows,
                int columns);
void narrow_rows(std::uint16_t* to, Index to_row, const float* from, Index from_row, int rows,
                 int columns);

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
