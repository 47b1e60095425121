#include "recurrence/cpu/isa/declarations.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

const Kernels kKernels = {
    .product = product,
    .lower_inner = lower_inner,
    .add_lower = add_lower,
    .add_lower_transposed = add_lower_transposed,
    .solve_lower = solve_lower,
    .solve_lower_transposed = solve_lower_transposed,
    .scale_lower = scale_lower,
    .scalar_decay = scalar_decay,
    .channel_decay = channel_decay,
    .block_interaction = block_interaction,
    .block_interaction_grad = block_interaction_grad,
    .channel_decay_grad = channel_decay_grad,
    .scalar_decay_grad = scalar_decay_grad,
    .block_keys = block_keys,
    .block_dots = block_dots,
    .panel_block = panel_block,
    .step = step,
    .precondition = precondition,
    .precondition_back = precondition_back,
    .longhorn = longhorn,
    .longhorn_back = longhorn_back,
    .copy_rows = copy_rows,
    .add_rows = add_rows,
    .multiply_rows = multiply_rows,
    .transpose = transpose,
    .dot = dot,
    .widen_rows = widen_rows,
    .narrow_rows = narrow_rows,
};

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
