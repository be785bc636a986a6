// The GPU emulation itself: every collective against its definition, matrix instructions against products computed from
// the whole matrices, and the mistakes that it has to find.
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "core/fp.h"
#include "gpu/runtime/breakdown.h"
#include "gpu/runtime/card.h"
#include "gpu/runtime/runtime.h"
#include "gpu/runtime/runtime_cluster.h"
#include "gpu/runtime/runtime_mma.h"
#include "harness.h"

using namespace tnd;
using namespace tnd::gpu;
using namespace tnd::test;

namespace {

// Buffer is device memory of one test.
template <typename T>
struct Buffer {
  T* data = nullptr;
  explicit Buffer(size_t n) {
    void* p = nullptr;
    CHECK_OK(device_alloc(n * sizeof(T), &p));
    data = static_cast<T*>(p);
  }
  ~Buffer() { device_free(data); }
  Buffer(const Buffer&) = delete;
};

Status run(const Launch& l, void (*kernel)(int*), int* p) {
  Stream stream;
  CHECK_OK(stream.open());
  launch(stream, l, kernel, p);
  return stream.sync();
}

bool says(const Status& s, const char* text, tnd_status code = TND_INTERNAL) {
  return s.code() == code && s.message().find(text) != std::string::npos;
}

// ---- indices and collectives

__global__ void where_kernel(int* out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] += static_cast<int>(thread * 1000 + warp_id() * 100 + lane_id());
}

TEST(every_thread_runs_once) {
  const unsigned threads = 5 * 3 * 7, blocks = 4 * 3 * 2;
  Buffer<int> out(threads * blocks);
  std::fill(out.data, out.data + threads * blocks, 0);
  CHECK_OK(run({.grid = {4, 3, 2}, .block = {5, 3, 7}}, where_kernel, out.data));
  for (unsigned i = 0; i < threads * blocks; ++i) {
    const unsigned t = i % threads;
    CHECK_EQ(out.data[i], static_cast<int>(t * 1000 + t / 32 * 100 + t % 32));
  }
}

__global__ void shuffles_kernel(int* out) {
  const int me = static_cast<int>(threadIdx.x);
  int* row = out + me * 8;
  row[0] = shfl(me, 5);
  row[1] = shfl(me, (me * 7 + 3) % 32);
  row[2] = shfl_xor(me, 9);
  row[3] = shfl_down(me, 4);
  row[4] = shfl_up(me, 4);
  row[5] = static_cast<int>(ballot(me % 3 == 0));
  row[6] = (any_lane(me == 77) ? 1 : 0) + (all_lanes(me >= 32) ? 2 : 0);
  row[7] = static_cast<int>(shfl(static_cast<uint64_t>(me) << 33, 6) >> 33);
}

TEST(warp_functions) {
  constexpr int kThreads = 96;
  Buffer<int> out(kThreads * 8);
  CHECK_OK(run({.grid = {1}, .block = {kThreads}}, shuffles_kernel, out.data));
  for (int i = 0; i < kThreads; ++i) {
    const int* row = out.data + i * 8;
    const int warp = i / 32 * 32, lane = i % 32;
    CHECK_EQ(row[0], warp + 5);
    CHECK_EQ(row[1], warp + (i * 7 + 3) % 32);
    CHECK_EQ(row[2], warp + (lane ^ 9));
    CHECK_EQ(row[3], lane + 4 < 32 ? i + 4 : i);
    CHECK_EQ(row[4], lane >= 4 ? i - 4 : i);
    uint32_t bits = 0;
    for (int j = 0; j < 32; ++j) bits |= static_cast<uint32_t>((warp + j) % 3 == 0) << j;
    CHECK_EQ(static_cast<uint32_t>(row[5]), bits);
    CHECK_EQ(row[6], (warp == 64 ? 1 : 0) + (warp >= 32 ? 2 : 0));
    CHECK_EQ(row[7], warp + 6);
  }
}

// Rotates values through static and dynamic shared memory; wrong without barriers, whatever the order of warps.
__global__ void rotate_kernel(int* out) {
  TND_SHARED(int, first, [256]);
  TND_DYNAMIC_SHARED(int, second);
  const unsigned me = threadIdx.x;
  first[me] = static_cast<int>(me * me);
  __syncthreads();
  second[me] = first[(me + 100) % 256];
  __syncthreads();
  out[blockIdx.x * 256 + me] = second[(me + 1) % 256];
}

TEST(shared_memory_and_barriers) {
  constexpr int kBlocks = 33;
  Buffer<int> out(kBlocks * 256);
  CHECK_OK(run({.grid = {kBlocks}, .block = {256}, .shared_bytes = 1024}, rotate_kernel, out.data));
  for (int i = 0; i < kBlocks * 256; ++i) {
    const int at = (i % 256 + 101) % 256;
    CHECK_EQ(out.data[i], at * at);
  }
}

// Shared memory of two templates and two calls is not the same.
template <int N>
__global__ void own_shared_kernel(int* out) {
  TND_SHARED(int, a, [N]);
  TND_SHARED(int, b, [N]);
  a[threadIdx.x] = N;
  b[threadIdx.x] = N + 1;
  __syncthreads();
  out[threadIdx.x] = a[(threadIdx.x + 1) % N] * 1000 + b[(threadIdx.x + 1) % N];
}

TEST(declarations_have_memory_of_their_own) {
  Buffer<int> out(64);
  CHECK_OK(run({.grid = {1}, .block = {64}}, own_shared_kernel<64>, out.data));
  CHECK_EQ(out.data[63], 64065);
  CHECK_OK(run({.grid = {1}, .block = {32}}, own_shared_kernel<32>, out.data));
  CHECK_EQ(out.data[31], 32033);
}

__global__ void fresh_shared_kernel(int* out) {
  TND_SHARED(int, left, [32]);
  TND_DYNAMIC_SHARED(int, right);
  out[threadIdx.x] = left[threadIdx.x];
  out[32 + threadIdx.x] = right[threadIdx.x];
  left[threadIdx.x] = right[threadIdx.x] = 7;
}

TEST(fresh_memory_holds_the_pattern) {
  Buffer<int> out(64);
  CHECK_EQ(out.data[0], -1);
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(run({.grid = {2}, .block = {32}, .shared_bytes = 128}, fresh_shared_kernel, out.data));
    CHECK_EQ(std::accumulate(out.data, out.data + 64, 0), -64);
  }
}

__global__ void count_kernel(int* out) {
  TND_SHARED(int, sum, [1]);
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  atomicAdd(&sum[0], static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicAdd(&out[0], sum[0]);
  atomicMax(&out[1], static_cast<int>(blockIdx.x));
  if (atomicAdd(&out[2], 1) == static_cast<int>(gridDim.x) - 1) out[3] = out[0];  // the last block
}

TEST(atomics_and_the_last_block) {
  Buffer<int> out(4);
  std::fill(out.data, out.data + 4, 0);
  CHECK_OK(run({.grid = {1000}, .block = {64}}, count_kernel, out.data));
  CHECK_EQ(out.data[0], 1000 * 63 * 32);
  CHECK_EQ(out.data[1], 999);
  CHECK_EQ(out.data[3], out.data[0]);
}

__global__ void order_kernel(int* out) {
  const int at = atomicAdd(&out[0], 1);
  out[1 + at] = static_cast<int>(blockIdx.x);
}

TEST(order_of_blocks_depends_on_the_seed) {
  constexpr int kBlocks = 101;
  Buffer<int> out(kBlocks + 1);
  std::vector<std::vector<int>> seen;
  emu::set_threads(1);
  for (uint64_t seed : {1u, 2u}) {
    emu::set_seed(seed);
    out.data[0] = 0;
    CHECK_OK(run({.grid = {kBlocks}, .block = {1}}, order_kernel, out.data));
    seen.emplace_back(out.data + 1, out.data + kBlocks + 1);
    std::vector<int> sorted = seen.back();
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < kBlocks; ++i) CHECK_EQ(sorted[static_cast<size_t>(i)], i);
  }
  CHECK(seen[0] != seen[1]);
  emu::set_threads(0);
}

// ---- copies in the background

__global__ void early_copy_kernel(int* p) {
  TND_DYNAMIC_SHARED(int, s);
  copy_async_16(s, p);
  copy_async_16(s + 4, p + 4, 0);  // reads nothing
  wait_for_previous();
  copy_async_16(s + 4, p + 4);
}

TEST(fresh_bytes_are_copied_behind_the_wait) {
  Buffer<int> p(8);
  const Launch l{.grid = {2}, .block = {32}, .shared_bytes = 64};
  emu::set_fresh({{p.data + 4, 4 * sizeof(int)}});
  CHECK_OK(run(l, early_copy_kernel, p.data));
  emu::set_fresh({{p.data + 3, 4 * sizeof(int)}});
  CHECK(says(run(l, early_copy_kernel, p.data), "fresh bytes before wait_for_previous()"));
  emu::set_fresh({});
  CHECK_OK(run(l, early_copy_kernel, p.data));
}

__global__ void copies_kernel(int* p) {
  TND_DYNAMIC_SHARED(int, stage);
  const int lane = static_cast<int>(threadIdx.x);
  copy_async_16(stage + lane * 4, p + lane * 4);
  copy_async_commit();
  copy_async_16(stage + 128 + lane * 4, p + lane * 4, 4);
  copy_async_commit();
  int* out = p + 128 + lane * 4;
  out[0] = stage[lane * 4 + 3];  // too early
  copy_async_wait<1>();
  out[1] = stage[lane * 4 + 3];
  out[2] = stage[128 + lane * 4];  // too early
  copy_async_wait<0>();
  out[3] = stage[128 + lane * 4] + stage[128 + lane * 4 + 1];
}

TEST(background_copies_arrive_at_the_wait) {
  Buffer<int> p(256);
  std::iota(p.data, p.data + 128, 100);
  CHECK_OK(run({.grid = {1}, .block = {32}, .shared_bytes = 1024}, copies_kernel, p.data));
  for (int i = 0; i < 32; ++i) {
    const int* out = p.data + 128 + i * 4;
    CHECK_EQ(out[0], -1);
    CHECK_EQ(out[1], 100 + i * 4 + 3);
    CHECK_EQ(out[2], -1);
    CHECK_EQ(out[3], 100 + i * 4);
  }
}

// ---- clusters

// Each block fetches its part of the input in bulk, and sends quad i of it to block i.
__global__ void cluster_kernel(int* p) {
  TND_DYNAMIC_SHARED(uint8_t, smem);
  Barrier* const copied = reinterpret_cast<Barrier*>(smem);
  Barrier* const sent = copied + 1;
  int* const part = reinterpret_cast<int*>(smem + 16);
  float* const got = reinterpret_cast<float*>(smem + 16 + 64);
  const int rank = cluster_rank(), lane = static_cast<int>(lane_id());
  const int block = static_cast<int>(blockIdx.x);
  if (lane == 0) {
    barrier_init(copied, 1);
    barrier_init(sent, 1);
    barriers_made();
    barrier_expect(copied, 64);
    bulk_copy(part, p + block * 16, 64, copied);
    p[128 + block] = part[5];  // not there yet
    barrier_expect(sent, 64);
  }
  sync_warp();
  cluster_arrive();
  barrier_wait(copied, 0);
  cluster_wait();
  if (lane < 4) {
    float quad[4];
    for (int i = 0; i < 4; ++i) quad[i] = static_cast<float>(part[lane * 4 + i]);
    send_quad(of_block(got, lane), rank * 16, quad, of_block(sent, lane));
  }
  barrier_wait(sent, 0);
  if (lane < 16) p[block * 16 + lane] = static_cast<int>(got[lane]);
}

TEST(blocks_of_a_cluster_exchange_data) {
  Buffer<int> p(256);
  std::iota(p.data, p.data + 128, 0);
  CHECK_OK(run({.grid = {8}, .block = {32}, .shared_bytes = 144, .cluster = 4}, cluster_kernel, p.data));
  for (int block = 0; block < 8; ++block) {
    CHECK_EQ(p.data[128 + block], -1);
    for (int i = 0; i < 16; ++i) {
      CHECK_EQ(p.data[block * 16 + i], (block / 4 * 4 + i / 4) * 16 + block % 4 * 4 + i % 4);
    }
  }
}

// ---- matrix instructions: fragments cut out of whole matrices, results put together again

struct Matrices {
  int8_t a[16][32], b[32][16];  // bytes, or the integers of halves
  float c[16][16], d[16][16];
};

template <int K, bool A_SIGNED = true>
__global__ void mma_bytes_kernel(int* p) {
  Matrices& m = *reinterpret_cast<Matrices*>(p);
  const int lane = static_cast<int>(lane_id()), g = lane / 4, t = lane % 4;
  uint32_t a[K / 8], b[K / 16];
  for (int i = 0; i < K / 8; ++i) {
    uint32_t word = 0;
    for (int j = 0; j < 4; ++j) {
      word |= static_cast<uint32_t>(static_cast<uint8_t>(m.a[g + i % 2 * 8][i / 2 * 16 + 4 * t + j])) << (8 * j);
    }
    a[i] = word;
  }
  for (int i = 0; i < K / 16; ++i) {
    uint32_t word = 0;
    for (int j = 0; j < 4; ++j) {
      word |= static_cast<uint32_t>(static_cast<uint8_t>(m.b[i * 16 + 4 * t + j][g])) << (8 * j);
    }
    b[i] = word;
  }
  int32_t d[4];
  for (int i = 0; i < 4; ++i) d[i] = static_cast<int32_t>(m.c[g + i / 2 * 8][2 * t + i % 2]);
  if constexpr (!A_SIGNED) {
    mma_u8_k32(d, a, b);
  } else if constexpr (K == 32) {
    mma_s8_k32(d, a, b);
  } else {
    mma_s8_k16(d, a, b);
  }
  for (int i = 0; i < 4; ++i) m.d[g + i / 2 * 8][2 * t + i % 2] = static_cast<float>(d[i]);
}

TND_DEVICE uint32_t two(bool bfloat, float low, float high) {
  const uint32_t l = bfloat ? f32_to_bf16(low) : float_to_half(low);
  const uint32_t h = bfloat ? f32_to_bf16(high) : float_to_half(high);
  return l | h << 16;
}

template <bool BFLOAT>
__global__ void mma_half_kernel(int* p) {
  Matrices& m = *reinterpret_cast<Matrices*>(p);
  const int lane = static_cast<int>(lane_id()), g = lane / 4, t = lane % 4;
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    const int8_t* from = &m.a[g + i % 2 * 8][2 * t + i / 2 * 8];
    a[i] = two(BFLOAT, from[0], from[1]);
  }
  for (int i = 0; i < 2; ++i) b[i] = two(BFLOAT, m.b[2 * t + 8 * i][g], m.b[2 * t + 8 * i + 1][g]);
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = m.c[g + i / 2 * 8][2 * t + i % 2];
  if constexpr (BFLOAT) {
    mma_bf16_k16(d, a, b);
  } else {
    mma_f16_k16(d, a, b);
  }
  for (int i = 0; i < 4; ++i) m.d[g + i / 2 * 8][2 * t + i % 2] = d[i];
}

// The maps of WMMA as runtime_mma.h words them. A lane of gfx11 holds 16 elements of k, one of gfx12 eight.
template <int GFX>
int wmma_first(int lane) {
  return GFX == 11 ? 0 : 8 * (lane / 16);
}
template <int GFX>
int wmma_row(int lane, int i) {
  return GFX == 11 ? 2 * i + lane / 16 : 8 * (lane / 16) + i;
}

template <int GFX, bool A_SIGNED, bool B_SIGNED>
__global__ void wmma_iu8_kernel(int* p) {
  Matrices& m = *reinterpret_cast<Matrices*>(p);
  const int lane = static_cast<int>(lane_id()), first = wmma_first<GFX>(lane);
  constexpr int kRegs = GFX == 11 ? 4 : 2;
  uint32_t a[kRegs] = {}, b[kRegs] = {};
  for (int k = 0; k < kRegs * 4; ++k) {
    a[k / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(m.a[lane % 16][first + k])) << (k % 4 * 8);
    b[k / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(m.b[first + k][lane % 16])) << (k % 4 * 8);
  }
  int32_t d[8];
  for (int i = 0; i < 8; ++i) d[i] = static_cast<int32_t>(m.c[wmma_row<GFX>(lane, i)][lane % 16]);
  wmma_iu8<A_SIGNED, B_SIGNED>(d, a, b);
  for (int i = 0; i < 8; ++i) m.d[wmma_row<GFX>(lane, i)][lane % 16] = static_cast<float>(d[i]);
}

template <int GFX, bool BFLOAT>
__global__ void wmma_half_kernel(int* p) {
  Matrices& m = *reinterpret_cast<Matrices*>(p);
  const int lane = static_cast<int>(lane_id()), first = wmma_first<GFX>(lane);
  constexpr int kRegs = GFX == 11 ? 8 : 4;
  uint32_t a[kRegs], b[kRegs];
  for (int r = 0; r < kRegs; ++r) {
    const int k = first + 2 * r;
    a[r] = two(BFLOAT, m.a[lane % 16][k], m.a[lane % 16][k + 1]);
    b[r] = two(BFLOAT, m.b[k][lane % 16], m.b[k + 1][lane % 16]);
  }
  float d[8];
  for (int i = 0; i < 8; ++i) d[i] = m.c[wmma_row<GFX>(lane, i)][lane % 16];
  if constexpr (BFLOAT) {
    wmma_bf16(d, a, b);
  } else {
    wmma_f16(d, a, b);
  }
  for (int i = 0; i < 8; ++i) m.d[wmma_row<GFX>(lane, i)][lane % 16] = d[i];
}

// Checks D = C + A B for a kernel of shape 16 x n x k; bytes of a side may be read as unsigned.
void check_product(const std::string& name, void (*kernel)(int*), int n, int k, bool a_signed = true,
                   bool b_signed = true) {
  Rng rng(7);
  Buffer<Matrices> m(1);
  for (auto& row : m.data->a) {
    for (int8_t& v : row) v = static_cast<int8_t>(rng.below(256));
  }
  for (auto& row : m.data->b) {
    for (int8_t& v : row) v = static_cast<int8_t>(rng.below(256));
  }
  for (auto& row : m.data->c) {
    for (float& v : row) v = static_cast<float>(static_cast<int>(rng.below(2001)) - 1000);
  }
  CHECK_OK(run({.grid = {1}, .block = {32}}, kernel, reinterpret_cast<int*>(m.data)));
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < n; ++j) {
      int sum = static_cast<int>(m.data->c[i][j]);
      for (int l = 0; l < k; ++l) {
        const int8_t a = m.data->a[i][l], b = m.data->b[l][j];
        sum += (a_signed ? a : static_cast<uint8_t>(a)) * (b_signed ? b : static_cast<uint8_t>(b));
      }
      CHECK_MSG(m.data->d[i][j] == static_cast<float>(sum), name);
    }
  }
}

template <int GFX>
void check_wmma() {
  const std::string of = " of gfx" + std::to_string(GFX);
  check_product("wmma iu8" + of, wmma_iu8_kernel<GFX, true, true>, 16, 16);
  check_product("wmma iu8 u s" + of, wmma_iu8_kernel<GFX, false, true>, 16, 16, false, true);
  check_product("wmma iu8 s u" + of, wmma_iu8_kernel<GFX, true, false>, 16, 16, true, false);
  check_product("wmma f16" + of, wmma_half_kernel<GFX, false>, 16, 16);
  check_product("wmma bf16" + of, wmma_half_kernel<GFX, true>, 16, 16);
}

TEST(matrix_instructions) {
  check_product("mma s8 k32", mma_bytes_kernel<32>, 8, 32);
  check_product("mma u8 k32", mma_bytes_kernel<32, false>, 8, 32, false);
  check_product("mma s8 k16", mma_bytes_kernel<16>, 8, 16);
  check_product("mma f16", mma_half_kernel<false>, 8, 16);
  check_product("mma bf16", mma_half_kernel<true>, 8, 16);
  check_wmma<11>();
  check_wmma<12>();
}

// Lanes 16..31 must repeat lanes 0..15: the emulation shows it when they do not.
__global__ void wmma_halves_differ_kernel(int* p) {
  uint32_t a[4] = {1, lane_id() / 16, 0, 0}, b[4] = {1, 0, 0, 0};
  int32_t d[8] = {};
  wmma_iu8<true, true>(d, a, b);
  p[lane_id()] = d[0];
}

TEST(wmma_needs_both_copies) {
  Buffer<int> p(32);
  CHECK_OK(run({.grid = {1}, .block = {32}}, wmma_halves_differ_kernel, p.data));
  CHECK(p.data[0] != 1);
}

__global__ void load_matrix_kernel(int* p) {
  TND_SHARED(uint16_t, rows, [32][8]);
  const int lane = static_cast<int>(lane_id()), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 8; ++i) rows[lane][i] = static_cast<uint16_t>(lane * 8 + i);
  sync_warp();
  uint32_t r[4];
  load_matrix_x4(r, rows[lane]);
  int wrong = 0;
  for (int i = 0; i < 4; ++i) {
    wrong += (r[i] & 0xFFFFu) != static_cast<uint32_t>((8 * i + g) * 8 + 2 * t);
    wrong += r[i] >> 16 != static_cast<uint32_t>((8 * i + g) * 8 + 2 * t + 1);
  }
  load_matrix_x4_transposed(r, rows[lane]);
  for (int i = 0; i < 4; ++i) {
    wrong += (r[i] & 0xFFFFu) != static_cast<uint32_t>((8 * i + 2 * t) * 8 + g);
    wrong += r[i] >> 16 != static_cast<uint32_t>((8 * i + 2 * t + 1) * 8 + g);
  }
  p[lane] = wrong;
}

TEST(load_matrix) {
  Buffer<int> p(32);
  CHECK_OK(run({.grid = {1}, .block = {32}}, load_matrix_kernel, p.data));
  CHECK_EQ(std::accumulate(p.data, p.data + 32, 0), 0);
}

__global__ void bytes_kernel(int* p) {
  p[0] = dp4a(0x7F8001FF, 0x02038004, 5);
  p[1] = dp4a_us(0x7F8001FFu, 0x02038004, 5);
  p[2] = static_cast<int>(byte_perm(0x33221100u, 0x77665544u, 0x1640));
  p[3] = __float_as_int(half_to_float(float_to_half(0.1f)));
}

TEST(byte_functions) {
  Buffer<int> p(4);
  CHECK_OK(run({.grid = {1}, .block = {1}}, bytes_kernel, p.data));
  CHECK_EQ(p.data[0], 127 * 2 - 128 * 3 + 1 * -128 - 1 * 4 + 5);
  CHECK_EQ(p.data[1], 127 * 2 + 128 * 3 + 1 * -128 + 255 * 4 + 5);
  CHECK_EQ(p.data[2], 0x11664400);
  CHECK_EQ(p.data[3], __float_as_int(f16_to_f32(f32_to_f16(0.1f))));
}

// ---- mistakes

__global__ void divergent_barrier_kernel(int* p) {
  if (threadIdx.x < 40) __syncthreads();
  p[threadIdx.x] = 1;
}
__global__ void divergent_shuffle_kernel(int* p) {
  if (threadIdx.x != 3) p[threadIdx.x] = shfl(1, 0);
}
__global__ void two_functions_kernel(int* p) {
  p[threadIdx.x] = threadIdx.x % 2 == 0 ? shfl(1, 0) : static_cast<int>(ballot(true));
}
__global__ void half_warp_kernel(int* p) {
  p[threadIdx.x] = shfl(1, 0);
}
__global__ void overrun_kernel(int*) {
  TND_DYNAMIC_SHARED(int, s);
  volatile int* past = s;
  past[16] = 1;
}
__global__ void misaligned_copy_kernel(int* p) {
  TND_DYNAMIC_SHARED(int, s);
  copy_async_16(s, p + 1);
}

__global__ void nobody_arrives_kernel(int* p) {
  TND_DYNAMIC_SHARED(uint8_t, smem);
  Barrier* const b = reinterpret_cast<Barrier*>(smem);
  if (threadIdx.x == 0) barrier_init(b, static_cast<int>(blockDim.x) + 1);
  __syncthreads();
  barrier_expect(b, 0);
  barrier_wait(b, 0);
  p[0] = 1;
}
__global__ void nobody_waits_kernel(int* p) {
  TND_DYNAMIC_SHARED(uint8_t, smem);
  Barrier* const b = reinterpret_cast<Barrier*>(smem);
  barrier_init(b, 1);
  barrier_expect(b, 16);
  bulk_copy(smem + 16, p, 16, b);
}
__global__ void block_is_gone_kernel(int* p) {
  TND_DYNAMIC_SHARED(uint8_t, smem);
  if (cluster_rank() == 0) return;
  cluster_arrive();
  cluster_wait();
  (void)of_block(smem, 0);
  p[0] = 1;
}

TEST(mistakes_are_reported) {
  Buffer<int> p(128);
  CHECK(
      says(run({.grid = {2}, .block = {128}, .name = "half"}, divergent_barrier_kernel, p.data), "kernel half: block"));
  CHECK(says(run({.grid = {1}, .block = {128}}, divergent_barrier_kernel, p.data),
             "deadlock: of 128 threads 40 wait at __syncthreads, 0 in a warp function, 88 have ended"));
  CHECK(
      says(run({.grid = {1}, .block = {32}}, divergent_shuffle_kernel, p.data), "31 in a warp function, 1 have ended"));
  CHECK(says(run({.grid = {1}, .block = {32}}, two_functions_kernel, p.data), "different warp functions"));
  CHECK(says(run({.grid = {1}, .block = {48}}, half_warp_kernel, p.data), "16 in a warp function, 32 have ended"));
  CHECK(says(run({.grid = {1}, .block = {32}, .shared_bytes = 64}, misaligned_copy_kernel, p.data), "multiple of 16"));
  CHECK(says(run({.grid = {1}, .block = {2048}}, where_kernel, p.data), "more than 1024 threads"));
  CHECK(says(run({.grid = {2}, .block = {64}, .shared_bytes = 64, .cluster = 2}, nobody_arrives_kernel, p.data),
             "0 have ended, 128 wait for other blocks or copies"));
  CHECK(says(run({.grid = {1}, .block = {1}, .shared_bytes = 64}, nobody_waits_kernel, p.data), "nobody waited for"));
  CHECK(says(run({.grid = {2}, .block = {1}, .shared_bytes = 64, .cluster = 2}, block_is_gone_kernel, p.data),
             "a block that has ended"));
  CHECK(says(run({.grid = {3}, .block = {1}, .cluster = 2}, where_kernel, p.data), "do not fit the grid"));
#if !defined(__SANITIZE_ADDRESS__)  // there it ends the program
  CHECK(says(run({.grid = {1}, .block = {1}, .shared_bytes = 64}, overrun_kernel, p.data), "behind shared memory"));
#endif
  CHECK_OK(run({.grid = {1}, .block = {64}}, where_kernel, p.data));  // the next stream works
}

__global__ void add_kernel(int* p) {
  p[0] += 1;
}

TEST(a_failed_stream_stays_failed) {
  Buffer<int> p(48);
  p.data[0] = 0;
  Stream stream;
  CHECK_OK(stream.open());
  launch(stream, {.grid = {1}, .block = {48}, .name = "bad"}, half_warp_kernel, p.data);
  launch(stream, {.grid = {1}, .block = {1}}, add_kernel, p.data);
  CHECK(says(stream.sync(), "kernel bad"));
  launch(stream, {.grid = {1}, .block = {1}}, add_kernel, p.data);
  CHECK(says(stream.sync(), "kernel bad"));
}

// ---- cards

// Code of an older card runs on Hopper, whose host side must not rely on what that code lacks.
TEST(launches_ask_the_code_and_the_card) {
  CHECK(code_forms_clusters(9, 90));
  CHECK(!code_forms_clusters(9, 86));
  CHECK(!code_forms_clusters(9, 0));
  CHECK(!code_forms_clusters(12, 120));
  CHECK(code_starts_early(90) && code_starts_early(120));
  CHECK(!code_starts_early(86) && !code_starts_early(0));
  DeviceInfo card;
  card.name = "NVIDIA B300";
  card.major = 10;
  card.minor = 3;
  const Status refused = no_code_for(card);
  for (const char* part : {"NVIDIA B300", "10.3", "CUDA_ARCHS=103"}) CHECK(says(refused, part, TND_UNIMPLEMENTED));
}

TEST(the_environment_names_a_smaller_card) {
  DeviceInfo whole;
  CHECK_OK(device_info(0, &whole));
  CHECK_OK(check_code(whole));
  const auto with = [&](const char* name, const std::string& value, DeviceInfo* out) {
    setenv(name, value.c_str(), 1);
    const Status s = device_info(0, out);
    unsetenv(name);
    return s;
  };
  DeviceInfo info;
  CHECK_OK(with("TANDEM_GPU_SHARED", "65536", &info));
  CHECK_EQ(info.shared_per_block, 65536);
  CHECK_EQ(info.processors, whole.processors);
  CHECK_EQ(info.major, whole.major);
  CHECK_OK(with("TANDEM_GPU_PROCESSORS", "1", &info));
  CHECK_EQ(info.processors, 1);
  CHECK_EQ(info.shared_per_block, whole.shared_per_block);
  CHECK_OK(with("TANDEM_GPU_PROCESSORS", "", &info));
  for (const char* name : {"TANDEM_GPU_SHARED", "TANDEM_GPU_PROCESSORS"}) {
    const int most = std::string(name) == "TANDEM_GPU_SHARED" ? whole.shared_per_block : whole.processors;
    for (const std::string& value :
         {std::string("0"), std::string("-1"), std::string("82x"), std::to_string(most + 1)}) {
      const Status s = with(name, value, &info);
      CHECK(says(s, name, TND_INVALID_ARGUMENT) && says(s, value.c_str(), TND_INVALID_ARGUMENT));
    }
  }
}

// ---- streams

TEST(work_waits_for_sync) {
  Buffer<int> p(1);
  Stream stream;
  CHECK_OK(stream.open());
  int host = 41;
  stream.to_device(p.data, &host, sizeof host);
  launch(stream, {.grid = {1}, .block = {1}}, add_kernel, p.data);
  stream.to_host(&host, p.data, sizeof host);
  CHECK_EQ(host, 41);
  CHECK_OK(stream.sync());
  CHECK_EQ(host, 42);
}

TEST(graphs_replay) {
  Buffer<int> p(1);
  Stream stream;
  CHECK_OK(stream.open());
  stream.fill(p.data, 0, sizeof(int));
  Graph graph;
  stream.begin_capture();
  launch(stream, {.grid = {1}, .block = {1}}, add_kernel, p.data);
  launch(stream, {.grid = {1}, .block = {1}}, add_kernel, p.data);
  stream.end_capture(&graph);
  CHECK_EQ(graph.nodes(), 2);
  for (int i = 0; i < 3; ++i) stream.run(graph);
  CHECK_OK(stream.sync());
  CHECK_EQ(p.data[0], 6);
}

TEST(breakdowns_leave_out_one_kind_of_launch) {
  Buffer<int> p(2);
  Stream stream;
  CHECK_OK(stream.open());
  stream.fill(p.data, 0, 2 * sizeof(int));
  const Breakdown b = break_down(
      stream,
      [&] {
        launch(stream, {.grid = {1}, .block = {1}, .name = "twice"}, add_kernel, p.data);
        launch(stream, {.grid = {1}, .block = {1}, .bytes = 64, .name = "once"}, add_kernel, p.data + 1);
        launch(stream, {.grid = {1}, .block = {1}, .name = "twice"}, add_kernel, p.data);
      },
      2);
  CHECK_OK(stream.sync());
  CHECK_EQ(b.nodes, 3);
  CHECK_EQ(b.shares.size(), size_t{2});
  for (const LaunchShare& s : b.shares) {
    CHECK_EQ(s.launches, s.kernel == "twice" ? 2 : 1);
    CHECK_EQ(s.bytes, uint64_t{s.kernel == "twice" ? 0u : 64u});
  }
  // A graph runs once before it is timed twice; a kind runs in the whole graph and in the one without the other kind.
  CHECK_EQ(p.data[0], 2 * 3 * 2);
  CHECK_EQ(p.data[1], 1 * 3 * 2);
}

}  // namespace

TEST_MAIN()
