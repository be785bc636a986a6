// Prints the launches of a step of the 27B on a card, for native/GPU_OCCUPANCY.tsv: which kernel, how many threads a
// block and how many bytes of shared memory the host gives it. Nothing runs and no card is needed: the launch functions
// get the card's numbers, and the linker puts note() in the place of what they launch with (--wrap, gpu_bench.cmake).
// gpu_launches_emu stands for sm_86, gpu_launches_hip for gfx1100.
//
// A line: operation, rows, kernel, threads, bytes of dynamic shared memory, tabs between. The kernel is its address, in
// bytes from tandem_launches_anchor; tools/gpures finds it among the program's symbols.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/delta/delta.h"
#include "gpu/delta/delta_chunk.h"
#include "gpu/delta/delta_follow.h"
#include "gpu/follow/matmul_follow.h"
#include "gpu/matmul/matmul.h"
#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"
#include "gpu/sample/sample.h"
#include "gpu/step/buckets.h"

using namespace tnd::gpu;  // NOLINT
using tnd::DType;

extern "C" void tandem_launches_anchor();
extern "C" void tandem_launches_anchor() {}

namespace {

const char* operation = "";
int rows_of_step = 0;

void note(const void* kernel, uint64_t threads, uint64_t shared) {
  std::printf(
      "%s\t%d\t%lld\t%llu\t%llu\n", operation, rows_of_step,
      static_cast<long long>(reinterpret_cast<intptr_t>(kernel) - reinterpret_cast<intptr_t>(&tandem_launches_anchor)),
      static_cast<unsigned long long>(threads), static_cast<unsigned long long>(shared));
}

}  // namespace

#if defined(TND_LAUNCHES_HIP)
struct HipDim3 {
  uint32_t x, y, z;
};
extern "C" int __wrap_hipLaunchKernel(const void* kernel, HipDim3, HipDim3 block, void**, size_t shared, void*);
extern "C" int __wrap_hipLaunchKernel(const void* kernel, HipDim3, HipDim3 block, void**, size_t shared, void*) {
  note(kernel, uint64_t{block.x} * block.y * block.z, shared);
  return 0;
}
extern "C" int __wrap_hipFuncSetAttribute(const void*, int, int);
extern "C" int __wrap_hipFuncSetAttribute(const void*, int, int) {
  return 0;
}
#else
// emu::launch. The closure of the launch begins with the kernel (runtime.h); libstdc++ keeps it behind a pointer that
// is the first word of the function. A word that is something else is no kernel's address, and gpures refuses it.
void noted_launch(Stream&, const Launch& l, std::function<void()> body) asm(
    "__wrap__ZN3tnd3gpu3emu6launchERNS0_6StreamERKNS0_6LaunchESt8functionIFvvEE");
void noted_launch(Stream&, const Launch& l, std::function<void()> body) {
  const void* const* closure = nullptr;
  static_assert(sizeof body >= sizeof closure);
  std::memcpy(&closure, static_cast<const void*>(&body), sizeof closure);
  note(*closure, l.block.count(), l.shared_bytes);
}
#endif

namespace {

// Memory that launch functions do arithmetic with and nobody reads.
template <typename T>
T* somewhere() {
  alignas(256) static uint8_t bytes[4096];
  return reinterpret_cast<T*>(bytes);
}

DeviceInfo card() {
  DeviceInfo info;
#if defined(TND_LAUNCHES_HIP)
  info.major = 11;
  info.processors = 48;
  info.shared_per_block = 64 << 10;
#else
  info.major = 8;
  info.minor = 6;
  info.processors = 82;
  info.shared_per_block = 99 << 10;
#endif
  return info;
}

// The emulation multiplies every kind of inputs; the card that it stands for has no wgmma.
Prompt prompt_of(const DeviceInfo& info) {
#if defined(TND_LAUNCHES_HIP)
  return prompt_inputs(info);
#else
  return has_matmul_pairs(info) ? Prompt::kPairs : Prompt::kNone;
#endif
}

// ---- operations at the shapes of the 27B (docs/gpu-notes.md 1.1)

struct Weight {
  DType type;
  int n;
};

// Whether launches of the card also run what follows them.
bool follows(int rows, bool prompt, int most) {
#if defined(TND_LAUNCHES_HIP)
  return !prompt && rows <= most;
#else
  (void)rows, (void)prompt, (void)most;
  return false;
#endif
}

// follow: what a step runs after the products, for up to `most` rows.
void products(const char* name, int k, const std::vector<Weight>& weights, int rows, bool prompt,
              Follow follow = Follow::kNorm, int most = 1) {
  operation = name;
  const DeviceInfo info = card();
  MatmulGroup group;
  for (const Weight& w : weights) {
    group.products[group.count++] = {
        .w = {w.type, k, w.n, somewhere<uint8_t>()}, .y = somewhere<float>(), .y_stride = w.n};
  }
  group.rows = rows;
  group.acts.paired = has_matmul_pairs(info) ? 1 : 0;
  if (prompt) group.acts.prompt = prompt_of(info);
  group.scratch = somewhere<void>();
  group.processors = info.processors;
  group.shared_per_block = info.shared_per_block;
  Stream stream;
  if (!follows(rows, prompt, most)) return launch_matmul(stream, group);
  FollowedMatmul followed{group, {}};
  followed.follow.kind = follow;
  followed.follow.heads.kv.dim = 256;
  launch_followed_matmul(stream, followed);
}

void attention(const char* name, tnd::KvType type, int rows) {
  operation = name;
  const DeviceInfo info = card();
  AttentionArgs a;
  a.kv = {static_cast<int32_t>(type), static_cast<int32_t>(type), 4, 256, 4096};
  a.mode = attention_mode(a.kv, info);
  a.q_heads = 24;
  a.rows = rows;
  a.n_bulk = a.n_tail = 1;
  a.bulk_rows = a.tail_rows = share_bucket(rows);
  a.q = somewhere<float>();
  a.out = somewhere<float>();
  a.scratch = somewhere<void>();
  a.scratch_bytes = attention_scratch_bytes(a.mode, a.kv, a.q_heads, rows);
  a.shared_per_block = info.shared_per_block;
  a.processors = info.processors;
  Stream stream;
  launch_attention(stream, a);
}

void delta(int rows, bool prompt) {
  operation = "delta rule";
  const DeviceInfo info = card();
  const tnd::DeltaShape shape{16, 48};
  Stream stream;
  std::vector<tnd::DeltaGroup> host(1);
  host[0].count = rows;
  host[0].commit = host[0].prompt = prompt;
  if (delta_chunked(info) && DeltaChunks::takes(host[0])) {
    DeltaChunks chunks;
    chunks.plan(host, 0, delta_chunk_capacity(rows));
    DeltaChunkArgs args;
    args.w.shape = shape;
    args.n_chunks = static_cast<int>(chunks.chunks.size());
    args.n_chains = static_cast<int>(chunks.chains.size());
    args.shared_per_block = info.shared_per_block;
    launch_delta_prepare(stream, args);
    launch_delta_states(stream, args);
    return;
  }
  std::vector<DeltaStepGroup> groups(1);
  groups[0].count = rows;
  DeltaArgs args;
  args.w.shape = shape;
  args.rows = rows;
  args.groups = 1;
  args.shared_per_block = info.shared_per_block;
  args.processors = info.processors;
  const DeltaRule rule = delta_rule(groups);
  if (!follows(rows, prompt, kDeltaRowsAtOnce)) return rule(stream, args);
  const FollowedDelta followed{args, {}, nullptr};
  (rule == launch_delta_columns ? launch_followed_columns : launch_followed_slices)(stream, followed);
}

void row_kernels(int rows) {
  Stream stream;
  operation = "norm";
  NormArgs norm;
  norm.rows = rows;
  norm.dim = 5120;
  norm.forms = kFormQ256;
  launch_norm(stream, norm);
  operation = "gated norm";
  GatedNormArgs gated;
  gated.rows = rows;
  gated.heads = 48;
  gated.forms = kFormQ256;
  if (!follows(rows, false, kDeltaRowsAtOnce)) launch_gated_norm(stream, gated);
  operation = "swiglu";
  SwigluArgs swiglu;
  swiglu.rows = rows;
  swiglu.dim = 17408;
  swiglu.forms = kFormQ256;
  if (!follows(rows, false, kFollowedRows)) launch_swiglu(stream, swiglu);
}

void choice(int rows) {
  operation = "choice of tokens";
  ChooseArgs args;
  args.vocab = 248320;
  args.rows = rows;
  Stream stream;
  launch_choose(stream, args);
}

void step(int rows, bool prompt) {
  rows_of_step = rows;
  const int recorded = prompt ? rows : row_bucket(rows);
  products("delta in", 5120, {{DType::kQ5_K, 10240}, {DType::kQ5_K, 6144}, {DType::kQ8_0, 48}, {DType::kQ8_0, 48}},
           recorded, prompt, Follow::kConv, kFollowedRows);
  products("attention in", 5120, {{DType::kQ4_K, 12288}, {DType::kQ4_K, 1024}, {DType::kQ6_K, 1024}}, recorded, prompt,
           Follow::kHeads, kFollowedRows);
  products("out", 6144, {{DType::kQ4_K, 5120}}, recorded, prompt);
  products("gate and up", 5120, {{DType::kQ4_K, 17408}, {DType::kQ4_K, 17408}}, recorded, prompt, Follow::kSwiglu,
           kFollowedRows);
  products("down Q4_K", 17408, {{DType::kQ4_K, 5120}}, recorded, prompt);
  products("down Q6_K", 17408, {{DType::kQ6_K, 5120}}, recorded, prompt);
  attention("attention F16", tnd::KvType::kF16, recorded);
  attention("attention Q8_0", tnd::KvType::kQ8_0, recorded);
  delta(recorded, prompt);
  row_kernels(recorded);
  if (prompt) return;  // only its last row has a head
  products("head", 5120, {{DType::kQ6_K, 248320}}, recorded, false, Follow::kNorm, 0);
  choice(recorded);
}

}  // namespace

int main() {
  for (const int rows : {1, 8, 16, 23}) step(rows, false);
  step(512, true);
  return 0;
}
