#include "recurrence/cuda/chunk_scan_beside.hpp"

namespace rankone::recurrence::cuda {

void start_scan_lean_bf16(const ScanForward& scan, bool output, void* stream) {
  start_scan<bf16, WgmmaEngine<bf16>, true>(scan, output, stream);
}
void start_scan_lead_lean_bf16(const ScanForward& lead, const ScanForward& maps, void* stream) {
  start_scan_lead<bf16, WgmmaEngine<bf16>, true>(lead, maps, stream);
}
void start_scan_beside_bf16(const ScanForward& scan, const PrepBeside& beside, void* stream) {
  start_scan_beside<bf16, WgmmaEngine<bf16>>(scan, beside, stream);
}

}  // namespace rankone::recurrence::cuda
