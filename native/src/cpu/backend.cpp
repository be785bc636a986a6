// CPU backend: memory, weights, norms and the small operations. DeltaNet is in deltanet.cpp, attention in
// attention_op.cpp, the head in head.cpp.
#include "cpu/backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "core/fp.h"
#include "cpu/cpu_features.h"
#include "cpu/each_row.h"
#include "gguf/gguf.h"

namespace tnd::cpu {
namespace {

uint64_t meminfo_available() {
  std::FILE* f = std::fopen("/proc/meminfo", "re");
  if (f == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof line, f) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
  }
  std::fclose(f);
  return static_cast<uint64_t>(kib) * 1024;
}

// Releases a region; clears the marks that arenas of sanitised builds left in it (arena.h).
void unmap(void* base, uint64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(base, bytes);
#endif
  munmap(base, bytes);
}

std::string cpu_model() {
  std::FILE* f = std::fopen("/proc/cpuinfo", "re");
  std::string name = "CPU";
  if (f == nullptr) return name;
  char line[512];
  while (std::fgets(line, sizeof line, f) != nullptr) {
    const char* colon = std::strchr(line, ':');
    if (std::strncmp(line, "model name", 10) != 0 || colon == nullptr) continue;
    name = colon + 1;
    while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
    while (!name.empty() && name.front() == ' ') name.erase(name.begin());
    break;
  }
  std::fclose(f);
  return name;
}

}  // namespace

CpuBackend::CpuBackend(int threads) : pool_(threads) {}

CpuBackend::~CpuBackend() {
  for (const Region& r : regions_) unmap(r.base, r.bytes);
}

std::string CpuBackend::device() const {
  return cpu_model() + " (" + isa_name(isa()) + ", " + std::to_string(pool_.threads()) + " threads)";
}

uint64_t CpuBackend::free_bytes() const {
  return meminfo_available();
}

Status CpuBackend::allocate(uint64_t bytes, void** base) {
  bytes = (std::max<uint64_t>(bytes, 1) + 4095) / 4096 * 4096;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return errorf(TND_RESOURCE_EXHAUSTED, "the system refuses a region of %llu bytes",
                  static_cast<unsigned long long>(bytes));
  }
  madvise(p, bytes, MADV_HUGEPAGE);  // a hint: weights are streamed once a step
  regions_.push_back(Region{p, bytes});
  *base = p;
  return Status();
}

void CpuBackend::release(void* base) {
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].base != base) continue;
    unmap(base, regions_[i].bytes);
    regions_.erase(regions_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

Status CpuBackend::matrix(const TensorView& t, Arena& arena, std::unique_ptr<Matrix>* out) {
  const int name_len = static_cast<int>(t.name.size());
  if (!dtype_known(static_cast<int32_t>(t.type)) || !dtype_matmul(static_cast<DType>(t.type))) {
    return errorf(TND_UNIMPLEMENTED, "tensor %.*s: the CPU backend has no matmul for type %s", name_len, t.name.data(),
                  gguf::type_label(t.type).c_str());
  }
  const DType type = static_cast<DType>(t.type);
  auto m = std::make_unique<CpuMatrix>();
  m->type = type;
  m->k = static_cast<int64_t>(t.ne[0]);
  m->n = static_cast<int64_t>(t.ne[1]);
  void* dst = arena.take(Purpose::kWeights, packed_bytes(type, t.ne[0], t.ne[1]));
  if (!arena.measuring()) {
    Status s = pack_weight(type, t.data, t.ne[0], t.ne[1], dst, &m->packed, &pool_);
    if (!s.ok()) return errorf(s.code(), "tensor %.*s: %s", name_len, t.name.data(), s.message().c_str());
  }
  *out = std::move(m);
  return Status();
}

void CpuBackend::upload(float* dst, const float* src, int64_t n) {
  std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void CpuBackend::upload_bf16(float* dst, const void* src, int64_t n) {
  const uint8_t* from = static_cast<const uint8_t*>(src);
  for (int64_t i = 0; i < n; ++i) dst[i] = bf16_to_f32(load_u16(from + 2 * i));
}

void CpuBackend::zero(float* dst, int64_t n) {
  std::memset(dst, 0, static_cast<size_t>(n) * sizeof(float));
}

void CpuBackend::download_bf16(uint16_t* host, const float* src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) host[i] = f32_to_bf16(src[i]);
}

void CpuBackend::download(float* host, const float* src, int64_t n) {
  std::memcpy(host, src, static_cast<size_t>(n) * sizeof(float));
}

std::unique_ptr<Acts> CpuBackend::acts(Arena& arena, int64_t max_k, int max_rows, InputForms forms) {
  auto a = std::make_unique<CpuActs>();
  void* mem = arena.take(Purpose::kScratch, act_bytes(static_cast<uint64_t>(max_k), max_rows, forms));
  if (!arena.measuring()) act_init(&a->buffer, mem, static_cast<uint64_t>(max_k), max_rows, forms);
  return a;
}

void CpuBackend::plan_scratch(Arena& arena, const ScratchLimits& limits) {
  limits_ = limits;
  const auto floats = [&](int64_t n) { return arena.take_array<float>(Purpose::kScratch, static_cast<uint64_t>(n)); };
  const int64_t rows = limits.rows;
  normed_ = floats(rows * limits.max_k);
  if (limits.delta.nv > 0) {
    conv_ = floats(rows * limits.delta.conv_dim());
    gates_ = floats(rows * 2 * limits.delta.nv);
    mixed_ = floats(rows * limits.delta.value_dim());
    states_ = floats(int64_t{pool_.threads()} * limits.state_slots * kDeltaDim * kDeltaSlice);
  }
  const AttentionLayer& a = limits.attention;
  if (a.q_heads > 0) {
    query_ = floats(rows * a.q_heads * a.kv.dim);
    attention_rows_ = arena.take_array<AttentionRow>(Purpose::kScratch, static_cast<uint64_t>(rows));
    attention_groups_ = arena.take_array<AttentionGroup>(Purpose::kScratch, static_cast<uint64_t>(rows));
    const AttentionShape shape{kv_layout(a.kv), a.q_heads, a.scale};
    attention_scratch_.threads = arena.take(
        Purpose::kScratch, static_cast<uint64_t>(pool_.threads()) * (attention_scratch_bytes(shape) + 63) / 64 * 64);
    attention_scratch_.partial_bytes = attention_partial_bytes(shape, limits.max_context);
    attention_scratch_.partial = arena.take(Purpose::kScratch, attention_scratch_.partial_bytes);
  }
  if (limits.score.q_heads > 0) plan_score(arena, limits);
  if (limits.vocab > 0) {
    logits_ = floats(int64_t{limits.head_rows} * ((limits.vocab + 15) / 16 * 16));
    head_acts_ = acts(arena, limits.max_k, limits.head_rows, limits.forms);
    sample_scratch_ = arena.take_array<SampleScratch>(Purpose::kScratch, static_cast<uint64_t>(pool_.threads()));
    for (int t = 0; t < pool_.threads(); ++t) {
      void* mem = arena.take(Purpose::kScratch, SampleScratch::bytes(limits.vocab));
      if (!arena.measuring()) sample_scratch_[t].init(mem, limits.vocab);
    }
  }
}

void CpuBackend::embed(const Matrix& table, std::span<const int32_t> tokens, float* x) {
  const PackedWeight& w = static_cast<const CpuMatrix&>(table).packed;
  for (size_t r = 0; r < tokens.size(); ++r) {
    embed_row(w, static_cast<uint64_t>(tokens[r]), x + static_cast<int64_t>(r) * table.k);
  }
}

void CpuBackend::norm(const float* x, const float* w, float eps, int rows, int64_t dim, InputForms forms, Acts* out) {
  norm_rows(x, w, eps, rows, dim, normed_);
  prepare(normed_, dim, rows, dim, forms, out);
}

void CpuBackend::prepare(const float* x, int64_t stride, int rows, int64_t dim, InputForms forms, Acts* out) {
  quantise_act(pool_, x, stride, rows, static_cast<uint64_t>(dim), forms, &static_cast<CpuActs*>(out)->buffer);
}

void CpuBackend::norm_rows(const float* x, const float* w, float eps, int rows, int64_t dim, float* y) {
  const RowKernels& kernels = row_kernels();
  each_row(pool_, rows, static_cast<int>(dim / 16),
           [&](int r) { kernels.rms_norm(x + r * dim, w, eps, dim, y + r * dim); });
}

void CpuBackend::matmul(std::span<const Product> products, const Acts& in, int rows) {
  constexpr size_t kMaxJobs = 8;
  MatmulJob jobs[kMaxJobs];
  for (size_t first = 0; first < products.size(); first += kMaxJobs) {
    const size_t n = std::min(kMaxJobs, products.size() - first);
    for (size_t i = 0; i < n; ++i) {
      const Product& p = products[first + i];
      jobs[i] = MatmulJob{};
      jobs[i].weight = &static_cast<const CpuMatrix*>(p.w)->packed;
      jobs[i].y = p.y;
      jobs[i].y_stride = p.y_stride;
      jobs[i].residual = p.residual;
      jobs[i].residual_stride = p.y_stride;
    }
    cpu::matmul(pool_, std::span<const MatmulJob>(jobs, n), static_cast<const CpuActs&>(in).buffer, rows);
  }
}

void CpuBackend::swiglu(const float* gate, const float* up, int rows, int64_t dim, InputForms forms, Acts* out) {
  const RowKernels& kernels = row_kernels();
  each_row(pool_, rows, static_cast<int>(dim),
           [&](int r) { kernels.swiglu(gate + r * dim, up + r * dim, dim, normed_ + r * dim); });
  prepare(normed_, dim, rows, dim, forms, out);
}

void CpuBackend::copy_rows(const float* x, int64_t dim, std::span<const int32_t> rows, std::span<const int32_t> to,
                           float* dst, int64_t dst_stride) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(dst + (to.empty() ? static_cast<int64_t>(i) : to[i]) * dst_stride, x + rows[i] * dim,
                static_cast<size_t>(dim) * sizeof(float));
  }
}

}  // namespace tnd::cpu
