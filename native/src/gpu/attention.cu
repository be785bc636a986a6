#include <algorithm>

#include "gpu/attention.h"
#include "gpu/attention_exact.h"
#include "gpu/attention_flash.cuh"

namespace tnd::gpu {
namespace {

#if defined(TND_GPU_HIP)
using Unit = WmmaUnit;
#else
using Unit = MmaUnit;
#endif

}  // namespace

AttentionMode attention_mode(const KvShape& kv, const DeviceInfo& device) {
  const int32_t half = static_cast<int32_t>(KvType::kF16);
  const bool dim = kv.dim == 64 || kv.dim == 128 || kv.dim == 256;
#if defined(TND_GPU_HIP)
  const bool unit = device.major == 11;
#elif defined(TND_GPU_EMU)
  const bool unit = true;
#else
  const bool unit = device.major >= 8;
#endif
  const bool room = flash_shared_bytes<Unit, 256, 1, 1, 1>() <= static_cast<unsigned>(device.shared_per_block);
  return kv.k_type == half && kv.v_type == half && dim && unit && room ? AttentionMode::kFlash : AttentionMode::kExact;
}

uint64_t attention_scratch_bytes(AttentionMode mode, const KvShape& kv, int q_heads, int max_rows) {
  if (mode == AttentionMode::kExact) return 0;
  const auto need = [&](int rows) { return flash_scratch_bytes(kv, q_heads, rows); };
  return std::max(need(max_rows), need(std::min(max_rows, kFlashSplitRows)));
}

void launch_attention(Stream& stream, const AttentionArgs& args) {
  if (args.mode == AttentionMode::kExact) {
    launch_attention_exact(stream, args);
    if (args.forms == 0) return;
    const int64_t width = int64_t{args.q_heads} * args.kv.dim;
    launch_prepare(stream, {args.out, width, args.rows, static_cast<int32_t>(width), args.forms, args.acts});
    return;
  }
  launch_attention_flash<Unit>(stream, args);
}

}  // namespace tnd::gpu
