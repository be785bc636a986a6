// A file of its own, because the kernels take long to compile.
#include "gpu/attention_wide.cuh"

namespace tnd::gpu {

#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)
namespace {

template <int DIM>
bool launch_wide(Stream& stream, FlashArgs f) {
  const AttentionArgs& a = f.a;
  const int g = a.q_heads / a.kv.heads;
  if (wide_shared_bytes<DIM>() > static_cast<unsigned>(a.shared_per_block)) return false;
  f.block_queries = kWideQueries;
  f.spread = true;
  f.bulk_blocks = (a.bulk_rows * g + kWideQueries - 1) / kWideQueries;
  f.tail_blocks = (a.tail_rows * g + kWideQueries - 1) / kWideQueries;
  const int items = a.kv.heads * (a.n_bulk * f.bulk_parts * f.bulk_blocks + a.n_tail * f.tail_blocks);
  launch(stream,
         {.grid = {static_cast<unsigned>(items)},
          .block = {kWideThreads},
          .shared_bytes = wide_shared_bytes<DIM>(),
          .overlap = true,
          .name = "attention_wide"},
         attention_wide_kernel<DIM>, f);
  return true;
}

}  // namespace

bool launch_flash_wide(Stream& stream, const FlashArgs& f) {
  if (f.a.kv.dim == 256) return launch_wide<256>(stream, f);
  if (f.a.kv.dim == 128) return launch_wide<128>(stream, f);
  return launch_wide<64>(stream, f);
}
#else
bool launch_flash_wide(Stream&, const FlashArgs&) {
  return false;
}
#endif

}  // namespace tnd::gpu
