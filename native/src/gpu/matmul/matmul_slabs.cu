// Products for more than 64 rows on AMD's processors, by the same arithmetic as matmul_rows.cu: weights are read once
// for a slab of 128 columns (rows of the batch), so four times for a prompt's piece of 512.
//
// A block of eight warps computes 64 outputs x 128 columns, a warp 16 x 64. The activations of a super-block for all
// columns go through shared memory; each warp reads the codes of its unit straight from memory and unpacks them once
// for its four tiles. The lanes of the contract run one after the other (super-blocks 0, 4, 8, …, then 1, 5, …), and
// sums of earlier lanes stay in registers: 32 each for the lane that runs, its integers, l0 + l1, and l2. These are
// half of the 240 with which six warps fit a SIMD. Three blocks share a WGP; the others multiply while one waits for
// its activations, so there is one stage.
//
// Bound: the matrix instructions. A tile of 16 x 16 takes 712 cycles of a SIMD for 256 elements of k in Q4_K on gfx11,
// 17 x 32 of them for these (docs/speed-log/gpu-matmul.md, "128 columns a pass on AMD"). Neighbouring blocks take the
// slabs of the same outputs, so most of the four reads of weights come from the second-level cache.
#include "gpu/matmul/matmul_slabs.h"

#if !defined(TND_GPU_CUDA)
#include <algorithm>

#include "gpu/matmul/matmul_accumulate.h"
#endif

namespace tnd::gpu {

#if !defined(TND_GPU_CUDA)
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * TND_WARP;
constexpr int kUnitOuts = 16;
constexpr int kUnits = 4;  // of a block
constexpr int kCols = 128;
constexpr int kWarpCols = kCols / (kWarps / kUnits);
// Warps of a SIMD, at least. Most processors with WMMA have 1536 registers, 240 for each of six; the others have 1024.
#if defined(__gfx1102__) || defined(__gfx1103__) || defined(__gfx1150__)
constexpr int kSimdWarps = 4;
#else
constexpr int kSimdWarps = kHasWmma11 || kHasWmma12 ? 6 : 4;
#endif

// Activations of a super-block in shared memory.
template <uint32_t FORM, bool MIN>
struct SlabLayout {
  static constexpr int kScales = FORM == kFormQ256 ? 1 : 8;   // of a column
  static constexpr int kQ = 0;                                // [4][kCols][64], SlabUnit::half_place()
  static constexpr int kScale = kQ + kCols * kSuper;          // [kScales][kCols] floats, column_place()
  static constexpr int kSums = kScale + kCols * kScales * 4;  // Q256 [kCols][16] halves, Q32 as kScale
  static constexpr int kBytes = kSums + (MIN ? kCols * 32 : 0);
};

// A unit whose activations lie in shared memory as operands of its instructions. A column has the words of all four
// pieces for a half of a group beside each other, so a lane reads registers that follow each other; the columns of a
// lane's results are neighbours. Halves are permuted by the column: reads meet no bank twice.
template <class U>
struct SlabUnit : U {
  // Byte of half w (group w / 2 of the pair, its half w % 2) in a pair's [columns][64].
  TND_DEVICE int half_place(int column, int w) { return column * 64 + (w ^ column / 2 % 4) * 16; }
  // Place of a column's float in [columns].
  TND_DEVICE int column_place(int column) {
    if (U::column(0, 1) == 1) return column;
    return column / 16 * 16 + column % 2 * 8 + column % 16 / 2;
  }

  TND_DEVICE typename U::Input load_input(const int8_t* pair, int col0, int, int lane) {
    typename U::Input in;
    const int first = U::piece(lane, 0) % 4 * 4;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int8_t* from = pair + col0 * 64 + half_place(lane % 16, w) + first;
      uint32_t* to = &in.w[w / 2][w % 2 * U::kPieces];
      if constexpr (U::kPieces == 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      } else {
        const uint2 v = *reinterpret_cast<const uint2*>(from);
        to[0] = v.x, to[1] = v.y;
      }
    }
    return in;
  }
  TND_DEVICE void load_columns(const float* p, int lane, float (&v)[8]) {
    const float4* from = reinterpret_cast<const float4*>(p + lane / 16 * 8);
    const float4 a = from[0], b = from[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
};

// What a thread brings of a super-block: read before the barrier that frees the shared memory, written after it.
// Columns beyond the batch exist in the buffer (row_stride) and reach no other column.
template <class T>
struct SlabPart {
  using Layout = SlabLayout<T::kForm, T::kMin>;
  static constexpr int kQuads = Layout::kScales * kCols / 4;   // of scales
  static constexpr int kSteps = kCols * 64 / (kThreads * 16);  // of a pair of groups
  uint4 q[4][kSteps];
  uint4 scale, sum32;  // of four columns
  uint4 sum16;         // of half a column
};

// The thread, computed where it is used: registers are scarcer than instructions here. Offsets of it are 32 bits beside
// an address that is the same in all threads.
TND_DEVICE uint32_t thread_again() {
  return static_cast<uint32_t>(no_hoist(static_cast<int>(threadIdx.x))) % kThreads;
}
TND_DEVICE uint4 load_16(const void* base, uint32_t offset) {
  return *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(base) + offset);
}

template <class T>
TND_DEVICE SlabPart<T> read_part(const ActsView& acts, int col0, int s) {
  using Part = SlabPart<T>;
  const uint32_t thread = thread_again();
  const int64_t stride = acts.row_stride;
  const int8_t* q = (T::kForm == kFormQ256 ? acts.q256 : acts.q32) + (s * 4 * stride + col0) * 64;
  Part part;
#pragma unroll
  for (int p = 0; p < 4; ++p, q += stride * 64) {
#pragma unroll
    for (int i = 0; i < Part::kSteps; ++i) part.q[p][i] = load_16(q + i * kThreads * 16, thread * 16);
  }
  if (thread < Part::kQuads) {
    const int64_t first = s * Part::Layout::kScales * stride + col0;
    constexpr uint32_t kRow = kCols / 4;
    const uint32_t at = thread / kRow * static_cast<uint32_t>(acts.row_stride) * 4 + thread % kRow * 16;
    part.scale = load_16((T::kForm == kFormQ256 ? acts.scale256 : acts.scale32) + first, at);
    if constexpr (T::kMin && T::kForm == kFormQ32) part.sum32 = load_16(acts.sum32 + first, at);
  }
  if constexpr (T::kMin && T::kForm == kFormQ256) {
    part.sum16 = load_16(acts.sum16 + (s * stride + col0) * 16, thread * 16);
  }
  return part;
}

// Writes words of four columns from `column` on.
template <class U>
TND_DEVICE void write_columns(uint8_t* to, int column, const uint4& v) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(to);
  words[U::column_place(column)] = v.x;
  words[U::column_place(column + 1)] = v.y;
  words[U::column_place(column + 2)] = v.z;
  words[U::column_place(column + 3)] = v.w;
}

template <class U, class T>
TND_DEVICE void write_part(const SlabPart<T>& part, uint8_t* smem) {
  using Layout = SlabLayout<T::kForm, T::kMin>;
  const int thread = static_cast<int>(thread_again());
#pragma unroll
  for (int p = 0; p < 4; ++p) {
#pragma unroll
    for (int i = 0; i < SlabPart<T>::kSteps; ++i) {
      uint8_t* const to = smem + Layout::kQ + (p * kCols + i * kThreads / 4) * 64 + thread % 4 * 4;
      const uint4& v = part.q[p][i];
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) *reinterpret_cast<uint32_t*>(to + U::half_place(thread / 4, w)) = words[w];
    }
  }
  if (thread < SlabPart<T>::kQuads) {
    write_columns<U>(smem + Layout::kScale, thread * 4, part.scale);
    if constexpr (T::kMin && T::kForm == kFormQ32) write_columns<U>(smem + Layout::kSums, thread * 4, part.sum32);
  }
  if constexpr (T::kMin && T::kForm == kFormQ256) {
    *reinterpret_cast<uint4*>(smem + Layout::kSums + thread * 16) = part.sum16;
  }
}

// Calls f(tile, i) for the results of a lane.
template <int TILES, class F>
TND_DEVICE void each(const F& f) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) f(tile, i);
  }
}

// warp_id() in a scalar register, and with it all that derives from it.
TND_DEVICE int uniform_warp() {
  const int warp = static_cast<int>(warp_id());
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(warp);
#else
  return warp;
#endif
}

// sum += scale * d, each an instruction: clang would add two products in a third one.
TND_DEVICE void add_scaled(int32_t (&sum)[8], int scale, const int32_t (&d)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    sum[i] += mul24(scale, d[i]);
#if defined(__HIP_DEVICE_COMPILE__)
    asm("" : "+v"(sum[i]));
#endif
  }
}

// accumulate() for one unit of kFormQ256 and this target's instructions: the same float steps.
template <class U, template <class> class TYPE, int TILES>
TND_DEVICE void accumulate_slab(const uint8_t* super, const SuperInput& in, int lane, float (&acc)[1][TILES][8]) {
  using T = TYPE<U>;
  const typename T::Head head = T::head(super, lane);
  int32_t sum[TILES][8] = {};
#pragma unroll 1
  for (int p = 0; p < 4; ++p) {
    uint32_t w[2][U::kPieces][2];
    T::words(super, head, p, lane, w);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const typename U::Input x = U::load_input(in.q + p * in.stride * 64, tile * U::kCols, in.last, lane);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (T::kGroup == 32) {
          int32_t d[8] = {};
          U::dot32(d, w[h], x.w[h]);
          add_scaled(sum[tile], T::scale(head, 0, 2 * p + h), d);
        } else {
          int32_t d0[8] = {}, d1[8] = {};
          U::template dot16<0>(d0, w[h], x.w[h]);
          U::template dot16<1>(d1, w[h], x.w[h]);
          add_scaled(sum[tile], T::scale(head, 0, 4 * p + 2 * h), d0);
          add_scaled(sum[tile], T::scale(head, 0, 4 * p + 2 * h + 1), d1);
        }
      }
    }
  }
  typename U::MinOperand min{};
  if constexpr (T::kMin) min = U::min_operand(head.mn, lane);
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    float a[8], m[8] = {};
    U::load_columns(in.scale + tile * U::kCols, lane, a);
    if constexpr (T::kMin) U::add_min(m, min, in.sums + tile * U::kCols * 16, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float t = (head.d[0] * T::kUnscale) * static_cast<float>(sum[tile][i]);
      if constexpr (T::kMin) t = fmaf(-head.dmin[0], m[i], t);
      acc[0][tile][i] = fmaf(a[i], t, acc[0][tile][i]);
    }
  }
}

template <class UNIT, template <class> class TYPE>
TND_DEVICE void multiply_slab(const MatmulJobs& args, const MatmulJob& job, int unit0, int col0, int rows,
                              uint8_t* smem) {
  using U = SlabUnit<UNIT>;
  using T = TYPE<U>;
  using Layout = SlabLayout<T::kForm, T::kMin>;
  constexpr int kTiles = kWarpCols / U::kCols;
  const int lane = static_cast<int>(lane_id());
  const int warp = uniform_warp();
  const int unit = unit0 + warp % kUnits;
  const int warp_col = warp / kUnits * kWarpCols;
  const int supers = static_cast<int>(super_blocks(args.k));
  const bool live = unit < job.units && col0 + warp_col < rows;  // the others only bring activations
  const uint8_t* const weights = job.data + unit * job.unit_bytes;
  const SuperInput in = {reinterpret_cast<const int8_t*>(smem + Layout::kQ) + warp_col * 64,
                         reinterpret_cast<const uint16_t*>(smem + Layout::kSums) + warp_col * 16,
                         reinterpret_cast<const float*>(smem + Layout::kScale) + warp_col,
                         reinterpret_cast<const float*>(smem + Layout::kSums) + warp_col,
                         kCols,
                         kCols - 1};

  float first[kTiles][8], third[kTiles][8];  // l0, then l0 + l1; l2
  each<kTiles>([&](int tile, int i) { first[tile][i] = third[tile][i] = -0.0f; });
  float acc[1][kTiles][8];
  for (int k_lane = 0; k_lane < 4; ++k_lane) {
    each<kTiles>([&](int tile, int i) { acc[0][tile][i] = 0.0f; });
    for (int s = k_lane; s < supers; s += 4) {
      const SlabPart<T> part = read_part<T>(args.acts, col0, s);
      __syncthreads();  // the last super-block has been read
      write_part<U>(part, smem);
      __syncthreads();
      if (!live) continue;
      const uint8_t* const super = weights + int64_t{s} * T::kBytes;
      if constexpr (T::kForm == kFormQ256) {
        accumulate_slab<U, TYPE, kTiles>(super, in, lane, acc);
      } else {
        accumulate<U, TYPE, 1, kTiles>(super, 0, in, lane, acc);
      }
    }
    // Without a branch, for which the compiler would copy the sums: x plus -0 is x, also for -0.
    each<kTiles>([&](int tile, int i) {
      first[tile][i] += k_lane < 2 ? acc[0][tile][i] : -0.0f;
      third[tile][i] += k_lane == 2 ? acc[0][tile][i] : -0.0f;
    });
  }
  const int last_lane = no_hoist(lane);  // as thread_again()
  const int out = unit * kUnitOuts + U::out(last_lane, 0);
  if (!live || out >= job.n) return;
  const int first_column = U::column(last_lane, 0);
  const int row = col0 + warp_col + first_column;
  const int64_t at = row * job.y_stride + out;
  each<kTiles>([&](int tile, int i) {
    const int further = tile * U::kCols + (U::column(last_lane, i) - first_column);  // the same in all lanes
    if (row + further >= rows) return;
    float y = first[tile][i] + (third[tile][i] + acc[0][tile][i]);
    const int64_t to = at + further * job.y_stride;
    if (job.residual != nullptr) y = job.residual[to] + y;
    job.y[to] = y;
  });
}

// MatmulJob::blocks counts tiles of outputs here.
template <class U, KernelSet SET>
__global__ void __launch_bounds__(kThreads, kSimdWarps) matmul_slabs_kernel(MatmulJobs args) {
  TND_DYNAMIC_SHARED(uint8_t, smem);
  const int slabs = (args.rows + kCols - 1) / kCols;
  int tile = static_cast<int>(blockIdx.x) / slabs;
  const int col0 = static_cast<int>(blockIdx.x) % slabs * kCols;
  const int rows = rows_in_use(args.live, args.rows);
  if (col0 >= rows) return;
  int index = 0;
  while (tile >= args.jobs[index].blocks) tile -= args.jobs[index++].blocks;
  const MatmulJob& job = args.jobs[index];
  const int unit0 = tile * kUnits;
  if constexpr (SET == KernelSet::kCommon) {
    switch (job.type) {
      case DType::kQ4_K:
        return multiply_slab<U, TypeQ4K>(args, job, unit0, col0, rows, smem);
      case DType::kQ5_K:
        return multiply_slab<U, TypeQ5K>(args, job, unit0, col0, rows, smem);
      case DType::kQ6_K:
        return multiply_slab<U, TypeQ6K>(args, job, unit0, col0, rows, smem);
      default:
        return multiply_slab<U, TypeQ80>(args, job, unit0, col0, rows, smem);
    }
  } else {
    switch (job.type) {
      case DType::kQ4_0:
        return multiply_slab<U, TypeQ40>(args, job, unit0, col0, rows, smem);
      case DType::kQ4_1:
        return multiply_slab<U, TypeQ41>(args, job, unit0, col0, rows, smem);
      case DType::kQ5_0:
        return multiply_slab<U, TypeQ50>(args, job, unit0, col0, rows, smem);
      case DType::kQ5_1:
        return multiply_slab<U, TypeQ51>(args, job, unit0, col0, rows, smem);
      case DType::kIQ4_NL:
        return multiply_slab<U, TypeIQ4NL>(args, job, unit0, col0, rows, smem);
      default:
        return multiply_slab<U, TypeIQ4XS>(args, job, unit0, col0, rows, smem);
    }
  }
}

// Shared memory of a block that takes any of these weights.
int shared_bytes(const MatmulJobs& jobs) {
  int bytes = 0;
  for (int i = 0; i < jobs.count; ++i) {
    const bool wide = act_form(jobs.jobs[i].type) == kFormQ256;
    bytes = std::max(bytes, wide ? SlabLayout<kFormQ256, true>::kBytes : SlabLayout<kFormQ32, true>::kBytes);
  }
  return bytes;
}

template <class U>
void launch_unit(Stream& stream, const MatmulJobs& jobs, KernelSet set, int items) {
  const Launch l = {.grid = {static_cast<unsigned>(items)},
                    .block = {kThreads},
                    .shared_bytes = static_cast<unsigned>(shared_bytes(jobs)),
                    .bytes = weight_bytes_of(jobs),
                    .name = "matmul_slabs"};
  if (set == KernelSet::kCommon) {
    launch(stream, l, matmul_slabs_kernel<U, KernelSet::kCommon>, jobs);
  } else {
    launch(stream, l, matmul_slabs_kernel<U, KernelSet::kOther>, jobs);
  }
}

}  // namespace
#endif

bool has_matmul_slabs([[maybe_unused]] const MatmulGroup& group) {
#if defined(TND_GPU_HIP)
  return true;
#elif defined(TND_GPU_EMU)
  return group.unit >= 1 && group.unit <= 3;
#else
  return false;
#endif
}

void launch_matmul_slabs([[maybe_unused]] Stream& stream, [[maybe_unused]] const MatmulGroup& group,
                         [[maybe_unused]] MatmulJobs jobs, [[maybe_unused]] KernelSet set) {
#if !defined(TND_GPU_CUDA)
  int tiles = 0;
  for (int i = 0; i < jobs.count; ++i) {
    MatmulJob& job = jobs.jobs[i];
    job.blocks = (job.units + kUnits - 1) / kUnits;
    tiles += job.blocks;
  }
  const int items = tiles * ((jobs.rows + kCols - 1) / kCols);
#if defined(TND_GPU_EMU)
  if (group.unit == 1) return launch_unit<WmmaUnit<Wmma11>>(stream, jobs, set, items);
  if (group.unit == 2) return launch_unit<WmmaUnit<Wmma12>>(stream, jobs, set, items);
  launch_unit<DotUnit>(stream, jobs, set, items);
#else
  launch_unit<DeviceUnit>(stream, jobs, set, items);
#endif
#endif
}

}  // namespace tnd::gpu
