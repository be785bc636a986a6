// Sixteen lanes a head, as the sums of the norm need them; a lane reads elements lane, lane + 16, … of its head from
// its own part of shared memory. Heads of a row: queries, keys, values. DIM: elements of a head, 0 = any up to 512; a
// step fetches the kernel's code from memory. ROTATED: keys or values are TQ3_0.
#include "gpu/attention/heads_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kHeadsPerBlock = 8;

template <int DIM, bool ROTATED>
__global__ void __launch_bounds__(16 * kHeadsPerBlock) heads_kernel(HeadsArgs a) {
  TND_DYNAMIC_SHARED(float, shared);  // [heads of the block][dim]
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  float* x = shared + threadIdx.x / 16 * static_cast<unsigned>(DIM > 0 ? DIM : a.kv.dim);
  heads_head<DIM, ROTATED>(a, blockIdx.y, static_cast<int>(blockIdx.x * kHeadsPerBlock + threadIdx.x / 16), x);
}

}  // namespace

void launch_heads(Stream& stream, const HeadsArgs& args) {
  const int per_kv = args.k == nullptr ? 0 : args.cache.k == nullptr ? 1 : 2;
  const int heads = (args.q != nullptr ? args.q_heads : 0) + per_kv * args.kv.heads;
  const Dim3 grid{static_cast<unsigned>((heads + kHeadsPerBlock - 1) / kHeadsPerBlock),
                  static_cast<unsigned>(args.rows)};
  const bool rotated =
      kv_rotated(static_cast<KvType>(args.kv.k_type)) || kv_rotated(static_cast<KvType>(args.kv.v_type));
  const auto of_dim = [&]<bool ROTATED>() {
    return args.kv.dim == 256   ? heads_kernel<256, ROTATED>
           : args.kv.dim == 128 ? heads_kernel<128, ROTATED>
                                : heads_kernel<0, ROTATED>;
  };
  const auto kernel = rotated ? of_dim.template operator()<true>() : of_dim.template operator()<false>();
  const unsigned bytes = kHeadsPerBlock * static_cast<unsigned>(args.kv.dim) * sizeof(float);
  launch(stream,
         {.grid = grid, .block = {16 * kHeadsPerBlock}, .shared_bytes = bytes, .overlap = true, .name = "heads"},
         kernel, args);
}

}  // namespace tnd::gpu
