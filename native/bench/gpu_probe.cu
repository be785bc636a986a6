#include <algorithm>
#include <cstdio>
#include <functional>

#include "gpu/runtime/runtime_mma.h"
#include "gpu_probe.h"

namespace tnd::bench {
namespace {

using namespace tnd::gpu;

constexpr int kThreads = 256;
constexpr int kUnroll = 8;  // 16-byte loads in flight per thread

// Reads n 16-byte words (a multiple of the grid's share) and keeps a value that no real data has, so that nothing is
// optimised away.
__global__ void read_kernel(const uint4* x, uint64_t n, uint4* sink) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  uint4 sum = make_uint4(0, 0, 0, 0);
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += step * kUnroll) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = i + u * step < n ? load_once(x + i + u * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      sum.x ^= v[u].x;
      sum.y ^= v[u].y;
      sum.z ^= v[u].z;
      sum.w ^= v[u].w;
    }
  }
  if (sum.x == 0x5EED1234u && sum.y == 0x5EED5678u) *sink = sum;
}

__global__ void copy_kernel(const uint4* x, uint64_t n, uint4* y) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += step * kUnroll) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = i + u * step < n ? load_once(x + i + u * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < n) y[i + u * step] = v[u];
    }
  }
}

__global__ void node_kernel(int32_t* x) {
  x[threadIdx.x] += 1;
}

// One instruction on the fragments of a lane. Registers of a and b that a kind does not have are ignored.
template <Mma KIND>
TND_DEVICE void multiply(int32_t (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  if constexpr (KIND == Mma::kS8K32 || KIND == Mma::kS8K16) {
    int32_t d4[4] = {d[0], d[1], d[2], d[3]};
    if constexpr (KIND == Mma::kS8K32) {
      const uint32_t a4[4] = {a[0], a[1], a[2], a[3]}, b2[2] = {b[0], b[1]};
      mma_s8_k32(d4, a4, b2);
    } else {
      const uint32_t a2[2] = {a[0], a[1]}, b1[1] = {b[0]};
      mma_s8_k16(d4, a2, b1);
    }
    for (int i = 0; i < 4; ++i) d[i] = d4[i];
  } else if constexpr (KIND == Mma::kF16 || KIND == Mma::kBF16) {
    float d4[4];
    for (int i = 0; i < 4; ++i) d4[i] = __builtin_bit_cast(float, d[i]);
    const uint32_t a4[4] = {a[0], a[1], a[2], a[3]}, b2[2] = {b[0], b[1]};
    if constexpr (KIND == Mma::kF16) {
      mma_f16_k16(d4, a4, b2);
    } else {
      mma_bf16_k16(d4, a4, b2);
    }
    for (int i = 0; i < 4; ++i) d[i] = __builtin_bit_cast(int32_t, d4[i]);
  } else if constexpr (KIND == Mma::kWmmaIu8) {
    const uint32_t a4[4] = {a[0], a[1], a[2], a[3]}, b4[4] = {b[0], b[1], b[2], b[3]};
    wmma_iu8<true, true>(d, a4, b4);
  } else if constexpr (KIND == Mma::kWmma12Iu8) {
    const uint32_t a2[2] = {a[0], a[1]}, b2[2] = {b[0], b[1]};
    wmma_iu8<true, true>(d, a2, b2);
  } else {
    float d8[8];
    for (int i = 0; i < 8; ++i) d8[i] = __builtin_bit_cast(float, d[i]);
    const uint32_t a4[4] = {a[0], a[1], a[2], a[3]}, b4[4] = {b[0], b[1], b[2], b[3]};
    if constexpr (KIND == Mma::kWmmaF16) {
      wmma_f16(d8, a, b);
    } else if constexpr (KIND == Mma::kWmmaBF16) {
      wmma_bf16(d8, a, b);
    } else if constexpr (KIND == Mma::kWmma12F16) {
      wmma_f16(d8, a4, b4);
    } else {
      wmma_bf16(d8, a4, b4);
    }
    for (int i = 0; i < 8; ++i) d[i] = __builtin_bit_cast(int32_t, d8[i]);
  }
}

constexpr int kChains = 4;  // independent accumulators hide the latency of an instruction

template <Mma KIND>
__global__ void rate_kernel(int32_t* out, int loops) {
  uint32_t a[8], b[8];
  for (int i = 0; i < 8; ++i) {
    a[i] = threadIdx.x * 0x01010101u + static_cast<uint32_t>(i);
    b[i] = threadIdx.x * 0x00010001u + static_cast<uint32_t>(i);
  }
  int32_t d[kChains][8] = {};
  for (int loop = 0; loop < loops; ++loop) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) multiply<KIND>(d[c], a, b);
  }
  int32_t sum = 0;
  for (int c = 0; c < kChains; ++c) {
    for (int i = 0; i < 8; ++i) sum ^= d[c][i];
  }
  out[blockIdx.x * TND_WARP + threadIdx.x % TND_WARP] = sum;
}

// Raw fragments in, raw accumulators out: [register][lane].
template <Mma KIND>
__global__ void map_kernel(const uint32_t* a, const uint32_t* b, int32_t* d) {
  uint32_t fa[8], fb[8];
  int32_t fd[8] = {};
  for (int i = 0; i < 8; ++i) {
    fa[i] = a[i * TND_WARP + static_cast<int>(threadIdx.x)];
    fb[i] = b[i * TND_WARP + static_cast<int>(threadIdx.x)];
  }
  multiply<KIND>(fd, fa, fb);
  for (int i = 0; i < 8; ++i) d[i * TND_WARP + static_cast<int>(threadIdx.x)] = fd[i];
}

// for_kind calls f with the kind as a constant.
template <typename F>
void for_kind(Mma kind, F&& f) {
  switch (kind) {
    case Mma::kS8K32:
      return f.template operator()<Mma::kS8K32>();
    case Mma::kS8K16:
      return f.template operator()<Mma::kS8K16>();
    case Mma::kF16:
      return f.template operator()<Mma::kF16>();
    case Mma::kBF16:
      return f.template operator()<Mma::kBF16>();
    case Mma::kWmmaIu8:
      return f.template operator()<Mma::kWmmaIu8>();
    case Mma::kWmmaF16:
      return f.template operator()<Mma::kWmmaF16>();
    case Mma::kWmmaBF16:
      return f.template operator()<Mma::kWmmaBF16>();
    case Mma::kWmma12Iu8:
      return f.template operator()<Mma::kWmma12Iu8>();
    case Mma::kWmma12F16:
      return f.template operator()<Mma::kWmma12F16>();
    case Mma::kWmma12BF16:
      return f.template operator()<Mma::kWmma12BF16>();
  }
}

// Sizes and maps of runtime_mma.h, as functions.
enum class Family { kMma, kWmma11, kWmma12 };
struct Shape {
  int rows, columns, k;  // of A, B, the inner dimension
  int a_regs, b_regs, d_regs;
  int per_reg;  // elements of a 32-bit operand register
  Family family;
};
Shape shape_of(Mma kind) {
  switch (kind) {
    case Mma::kS8K32:
      return {16, 8, 32, 4, 2, 4, 4, Family::kMma};
    case Mma::kS8K16:
      return {16, 8, 16, 2, 1, 4, 4, Family::kMma};
    case Mma::kF16:
    case Mma::kBF16:
      return {16, 8, 16, 4, 2, 4, 2, Family::kMma};
    case Mma::kWmmaIu8:
      return {16, 16, 16, 4, 4, 8, 4, Family::kWmma11};
    case Mma::kWmmaF16:
    case Mma::kWmmaBF16:
      return {16, 16, 16, 8, 8, 8, 2, Family::kWmma11};
    case Mma::kWmma12Iu8:
      return {16, 16, 16, 2, 2, 8, 4, Family::kWmma12};
    default:
      return {16, 16, 16, 4, 4, 8, 2, Family::kWmma12};
  }
}
struct Place {
  int row, column;
};
// Element `e` of register `r` of lane: A[row][column], B[row][column] (row = k), D[row][column]. Registers that a kind
// does not have lie outside.
Place a_place(const Shape& s, int lane, int r, int e) {
  if (s.family == Family::kWmma11) return {lane % 16, r * s.per_reg + e};
  if (s.family == Family::kWmma12) return {lane % 16, lane / 16 * 8 + r * s.per_reg + e};
  const int g = lane / 4, t = lane % 4;
  return {g + r % 2 * 8, r / 2 * 4 * s.per_reg + t * s.per_reg + e};
}
Place b_place(const Shape& s, int lane, int r, int e) {
  if (s.family == Family::kWmma11) return {r * s.per_reg + e, lane % 16};
  if (s.family == Family::kWmma12) return {lane / 16 * 8 + r * s.per_reg + e, lane % 16};
  return {r * 4 * s.per_reg + lane % 4 * s.per_reg + e, lane / 4};
}
Place d_place(const Shape& s, int lane, int r) {
  if (s.family == Family::kWmma11) return {2 * r + lane / 16, lane % 16};
  if (s.family == Family::kWmma12) return {lane / 16 * 8 + r, lane % 16};
  return {lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2};
}

// Elements that are whole numbers and not floats.
bool of_bytes(Mma kind) {
  return kind == Mma::kS8K32 || kind == Mma::kS8K16 || kind == Mma::kWmmaIu8 || kind == Mma::kWmma12Iu8;
}
// A small integer as an operand element.
uint32_t encode(Mma kind, int value) {
  if (of_bytes(kind)) return static_cast<uint8_t>(value);
  const bool half = kind == Mma::kF16 || kind == Mma::kWmmaF16 || kind == Mma::kWmma12F16;
  return half ? f32_to_f16(static_cast<float>(value)) : f32_to_bf16(static_cast<float>(value));
}
int decode(Mma kind, int32_t bits) {
  return of_bytes(kind) ? bits : static_cast<int>(__builtin_bit_cast(float, bits));
}

// median_ms times `launches` of `run` several times.
double median_ms(Stream& stream, int launches, const std::function<void()>& run) {
  std::vector<double> times;
  Event from, to;
  for (int i = 0; i < 7; ++i) {
    from.record(stream);
    for (int j = 0; j < launches; ++j) run();
    to.record(stream);
    if (!stream.sync().ok()) return 0;
    times.push_back(double{elapsed_ms(from, to)} / launches);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Launch grid(int blocks, const char* name) {
  Launch l;
  l.grid = {static_cast<unsigned>(blocks)};
  l.block = {kThreads};
  l.name = name;
  return l;
}

}  // namespace

const char* mma_name(Mma kind) {
  constexpr const char* kNames[] = {
      "mma s8 16x8x32",    "mma s8 16x8x16",     "mma f16 16x8x16",     "mma bf16 16x8x16",    "wmma iu8 16x16x16",
      "wmma f16 16x16x16", "wmma bf16 16x16x16", "wmma12 iu8 16x16x16", "wmma12 f16 16x16x16", "wmma12 bf16 16x16x16"};
  return kNames[static_cast<int>(kind)];
}

bool mma_present(Mma kind, [[maybe_unused]] const DeviceInfo& device) {
  const Family family = shape_of(kind).family;
#if defined(TND_GPU_HIP)
  // By the device: the host pass of clang sees no processor. Where the compiler did not know it, results are zeros,
  // which check_map reports.
  return (family == Family::kWmma11 && device.major == 11) || (family == Family::kWmma12 && device.major == 12);
#else
  return family == Family::kMma ? kHasMma : family == Family::kWmma11 ? kHasWmma11 : kHasWmma12;
#endif
}

double read_gbs(Stream& stream, const void* mem, uint64_t bytes, int blocks) {
  const auto* x = static_cast<const uint4*>(mem);
  const double ms = median_ms(
      stream, 3, [&] { launch(stream, grid(blocks, "read"), read_kernel, x, bytes / 16, const_cast<uint4*>(x)); });
  return ms > 0 ? static_cast<double>(bytes) / ms / 1e6 : 0;
}

double copy_gbs(Stream& stream, void* mem, uint64_t bytes, int blocks) {
  auto* x = static_cast<uint4*>(mem);
  const double ms =
      median_ms(stream, 3, [&] { launch(stream, grid(blocks, "copy"), copy_kernel, x, bytes / 16, x + bytes / 16); });
  return ms > 0 ? 2 * static_cast<double>(bytes) / ms / 1e6 : 0;
}

double node_us(Stream& stream, void* mem, int nodes) {
  Launch one = grid(1, "node");
  one.block = {TND_WARP};
  Graph graph;
  stream.begin_capture();
  for (int i = 0; i < nodes; ++i) launch(stream, one, node_kernel, static_cast<int32_t*>(mem));
  stream.end_capture(&graph);
  return 1e3 * median_ms(stream, 3, [&] { stream.run(graph); }) / nodes;
}

double mma_tops(Stream& stream, Mma kind, void* mem, int blocks) {
  constexpr int kLoops = 4096;
  const Shape s = shape_of(kind);
  double ms = 0;
  for_kind(kind, [&]<Mma KIND>() {
    ms = median_ms(stream, 1, [&] {
      launch(stream, grid(blocks, "mma rate"), rate_kernel<KIND>, static_cast<int32_t*>(mem), kLoops);
    });
  });
  const double operations = 2.0 * s.rows * s.columns * s.k * kChains * kLoops * (kThreads / TND_WARP) * blocks;
  return ms > 0 ? operations / ms / 1e9 : 0;
}

std::string check_map(Stream& stream, Mma kind, void* mem) {
  const Shape s = shape_of(kind);
  constexpr int kWords = 8 * TND_WARP;
  void* pinned = nullptr;
  if (!host_alloc(3 * kWords * 4, &pinned).ok()) return "no pinned memory";
  auto* words = static_cast<uint32_t*>(pinned);
  auto* a = static_cast<uint32_t*>(mem);
  std::string text;
  // First pass: D[i][j] = 16 i + j, which says where each result landed. Second: every element takes part.
  for (int pass = 0; pass < 2 && text.empty(); ++pass) {
    int left[16][32] = {}, right[32][16] = {}, expected[16][16] = {};
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < s.k; ++k) {
        left[i][k] = pass == 0 ? (k == 0 ? i : k == 1) : (i * 5 + k * 3) % 7 - 3;
        right[k][i] = pass == 0 ? (k == 0 ? 16 : k == 1 ? i : 0) : (i * 2 + k * 5) % 9 - 4;
      }
    }
    for (int i = 0; i < s.rows; ++i) {
      for (int j = 0; j < s.columns; ++j) {
        for (int k = 0; k < s.k; ++k) expected[i][j] += left[i][k] * right[k][j];
      }
    }
    for (int lane = 0; lane < TND_WARP; ++lane) {
      for (int r = 0; r < 8; ++r) {
        uint32_t wa = 0, wb = 0;
        for (int e = 0; e < s.per_reg; ++e) {
          const int shift = 32 / s.per_reg * e;
          const Place pa = a_place(s, lane, r, e), pb = b_place(s, lane, r, e);
          if (r < s.a_regs) wa |= encode(kind, left[pa.row][pa.column]) << shift;
          if (r < s.b_regs) wb |= encode(kind, right[pb.row][pb.column]) << shift;
        }
        words[r * TND_WARP + lane] = wa;
        words[kWords + r * TND_WARP + lane] = wb;
      }
    }
    stream.to_device(a, words, 2 * kWords * 4);
    Launch one = grid(1, "operand map");
    one.block = {TND_WARP};
    for_kind(kind, [&]<Mma KIND>() {
      launch(stream, one, map_kernel<KIND>, a, a + kWords, reinterpret_cast<int32_t*>(a + 2 * kWords));
    });
    stream.to_host(words + 2 * kWords, a + 2 * kWords, kWords * 4);
    if (const Status status = stream.sync(); !status.ok()) {
      text = status.message();
      break;
    }
    for (int lane = 0; lane < TND_WARP; ++lane) {
      for (int r = 0; r < s.d_regs; ++r) {
        const int got = decode(kind, static_cast<int32_t>(words[2 * kWords + r * TND_WARP + lane]));
        const Place p = d_place(s, lane, r);
        if (got == expected[p.row][p.column]) continue;
        char part[96];
        std::snprintf(part, sizeof part,
                      pass == 0 ? " lane %d register %d: (%d,%d) is at (%d,%d);"
                                : " lane %d register %d: element (%d,%d) is %d, not %d;",
                      lane, r, p.row, p.column, pass == 0 ? got / 16 : got,
                      pass == 0 ? got % 16 : expected[p.row][p.column]);
        text += part;
      }
    }
  }
  host_free(pinned);
  return text;
}

}  // namespace tnd::bench
