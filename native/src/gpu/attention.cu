#include "gpu/attention.h"

#include <algorithm>

#include "gpu/attention_exact.h"
#include "gpu/attention_flash.cuh"

namespace tnd::gpu {
namespace {

#if defined(TND_GPU_HIP)
using Unit = WmmaUnit;
#else
using Unit = MmaUnit;
#endif

// Steps of at most this many rows cut a row's keys into segments that run side by side; wider ones have enough work.
// The bits are the same.
constexpr int kSplitRows = 64;

int partial_slots(int rows) {
  return rows <= kSplitRows ? kAttentionSegments : 2;
}

// The widest block of queries that is useful and fits.
template <int DIM>
void launch_dim(Stream& stream, const FlashArgs& f) {
  const int queries = std::max(f.a.bulk_rows, f.a.tail_rows) * (f.a.q_heads / f.a.kv.heads);
  const auto fits = [&](unsigned bytes) { return static_cast<int>(bytes) <= f.a.shared_per_block; };
  if (queries <= 16) return launch_flash<Unit, DIM, 1, 1>(stream, f);
  if constexpr (!Unit::kOneBuffer) {
    if (queries > 32 && fits(flash_shared_bytes<Unit, DIM, 2, 3>())) return launch_flash<Unit, DIM, 2, 3>(stream, f);
  }
  if (fits(flash_shared_bytes<Unit, DIM, 1, 2>())) return launch_flash<Unit, DIM, 1, 2>(stream, f);
  launch_flash<Unit, DIM, 1, 1>(stream, f);
}

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
  const bool room = flash_shared_bytes<Unit, 256, 1, 1>() <= static_cast<unsigned>(device.shared_per_block);
  return kv.k_type == half && kv.v_type == half && dim && unit && room ? AttentionMode::kFlash : AttentionMode::kExact;
}

uint64_t attention_scratch_bytes(AttentionMode mode, const KvShape& kv, int q_heads, int max_rows) {
  if (mode == AttentionMode::kExact) return 0;
  const auto need = [&](int rows) {
    return static_cast<uint64_t>(rows) * static_cast<uint64_t>(q_heads) * static_cast<uint64_t>(partial_slots(rows)) *
           (static_cast<uint64_t>(kv.dim) + 2) * sizeof(float);
  };
  return std::max(need(max_rows), need(std::min(max_rows, kSplitRows)));
}

void launch_attention(Stream& stream, const AttentionArgs& args) {
  if (args.mode == AttentionMode::kExact) {
    launch_attention_exact(stream, args);
    return;
  }
  FlashArgs f;
  f.a = args;
  f.slots = partial_slots(args.rows);
  f.bulk_parts = f.slots == 2 ? 1 : kAttentionSegments - 1;
  const uint64_t partials = static_cast<uint64_t>(args.rows) * static_cast<uint64_t>(args.q_heads * f.slots);
  if (attention_scratch_bytes(args.mode, args.kv, args.q_heads, args.rows) > args.scratch_bytes) {
    stream.fail(errorf(TND_INTERNAL, "attention of %d rows has %llu bytes of scratch", args.rows,
                       static_cast<unsigned long long>(args.scratch_bytes)));
    return;
  }
  f.o = static_cast<float*>(args.scratch);
  f.ml = reinterpret_cast<float2*>(f.o + partials * static_cast<uint64_t>(args.kv.dim));
  if (args.kv.dim == 256) {
    launch_dim<256>(stream, f);
  } else if (args.kv.dim == 128) {
    launch_dim<128>(stream, f);
  } else {
    launch_dim<64>(stream, f);
  }
  launch(stream,
         {.grid = {static_cast<unsigned>(args.q_heads), static_cast<unsigned>(args.rows)},
          .block = {static_cast<unsigned>(args.kv.dim)},
          .name = "attention_merge"},
         attention_merge_kernel, f);
}

}  // namespace tnd::gpu
