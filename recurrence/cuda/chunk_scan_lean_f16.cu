#include "recurrence/cuda/chunk_scan_beside.hpp"

namespace rankone::recurrence::cuda {

void start_scan_lean_f16(const ScanForward& scan, bool output, void* stream) {
  start_scan<f16, WgmmaEngine<f16>, true>(scan, output, stream);
}
void start_scan_lead_lean_f16(const ScanForward& lead, const ScanForward& maps, void* stream) {
  start_scan_lead<f16, WgmmaEngine<f16>, true>(lead, maps, stream);
}
void start_scan_beside_f16(const ScanForward& scan, const PrepBeside& beside, void* stream) {
  start_scan_beside<f16, WgmmaEngine<f16>>(scan, beside, stream);
}

}  // namespace rankone::recurrence::cuda
