#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_scan_wgmma_f16(const ScanForward& scan, bool output, void* stream) {
  start_scan<f16, WgmmaEngine<f16>, false>(scan, output, stream);
}
void start_scan_lead_wgmma_f16(const ScanForward& lead, const ScanForward& maps, void* stream) {
  start_scan_lead<f16, WgmmaEngine<f16>, false>(lead, maps, stream);
}
void start_scan_back_wgmma_f16(const ScanBackward& back, const ScanForward& forward, void* stream) {
  start_scan_back<f16, WgmmaEngine<f16>>(back, forward, stream);
}

}  // namespace rankone::recurrence::cuda
