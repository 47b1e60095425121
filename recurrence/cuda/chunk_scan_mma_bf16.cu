#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_scan_mma_bf16(const ScanForward& scan, bool output, void* stream) {
  start_scan<bf16, MmaEngine<bf16>, false>(scan, output, stream);
}
void start_scan_lead_mma_bf16(const ScanForward& lead, const ScanForward& maps, void* stream) {
  start_scan_lead<bf16, MmaEngine<bf16>, false>(lead, maps, stream);
}
void start_scan_back_mma_bf16(const ScanBackward& back, const ScanForward& forward, void* stream) {
  start_scan_back<bf16, MmaEngine<bf16>>(back, forward, stream);
}

}  // namespace rankone::recurrence::cuda
