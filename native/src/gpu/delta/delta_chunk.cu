// Picks the family of matrix instructions for the chunked delta rule.
#include "gpu/delta/delta_chunk.cuh"
#include "gpu/runtime/half_units.h"

namespace tnd::gpu {
namespace {

#if defined(TND_GPU_HIP)
using Unit = DeltaWmma<DeviceWmma>;
#else
using Unit = DeltaMma;
#endif

}  // namespace

bool delta_chunked(const DeviceInfo& device) {
  return has_half_units(device) && device.shared_per_block >= 3 * kPlaceBytes;
}

uint64_t delta_chunk_scratch_bytes(const DeltaShape& shape, int chunks) {
  return static_cast<uint64_t>(chunks * ChunkScratch::chunk_bytes(shape));
}

void launch_delta_prepare(Stream& stream, const DeltaChunkArgs& args) {
  launch_delta_prepare_on<Unit>(stream, args);
}

void launch_delta_states(Stream& stream, const DeltaChunkArgs& args) {
  launch_delta_states_on<Unit>(stream, args);
}

}  // namespace tnd::gpu
