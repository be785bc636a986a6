#include "gpu/attention/kv_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 128;

constexpr int kUnit = 16;  // bytes a thread copies at a time

TND_HOST_DEVICE constexpr KvType type_of(const KvShape& shape, bool keys) {
  return static_cast<KvType>(keys ? shape.k_type : shape.v_type);
}

// Moves rows of `row` bytes in units of T; a thread owns a unit of the row in every move, so order among moves is a
// thread's program order. Eight moves are read before they are written, so that they wait for memory once (a source is
// never an earlier destination).
template <typename T>
TND_DEVICE void move_rows(uint8_t* base, int64_t row, const KvMoveArgs& a) {
  constexpr int kBatch = 8;
  const int n = *a.count;
  for (int64_t at = int64_t{threadIdx.x} * sizeof(T); at < row; at += kThreads * sizeof(T)) {
    for (int i = 0; i < n; i += kBatch) {
      T held[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j < n) held[j] = *reinterpret_cast<const T*>(base + a.from[i + j] * row + at);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j < n) *reinterpret_cast<T*>(base + a.to[i + j] * row + at) = held[j];
      }
    }
  }
}

// A block moves one head of one cache (K or V).
__global__ void __launch_bounds__(kThreads) kv_move_kernel(KvMoveArgs a) {
  const KvCache cache = load_cache(&a.caches[blockIdx.y]);
  const bool keys = blockIdx.x < static_cast<unsigned>(a.shape.heads);
  const int head = static_cast<int>(blockIdx.x) - (keys ? 0 : a.shape.heads);
  const KvType type = type_of(a.shape, keys);
  const KvRow first = kv_row(type, a.shape, keys ? cache.k : cache.v, head, 0);
  move_rows<uint4>(first.codes, kv_code_bytes(type, a.shape.dim), a);
  if (kv_quantised(type)) {
    move_rows<uint16_t>(reinterpret_cast<uint8_t*>(first.heads), a.shape.dim / kKvBlock * 2 * kv_head_words(type), a);
  }
}

// A block copies one position of one cache, both of plain types.
template <bool TO_ROWS>
__global__ void __launch_bounds__(kThreads) kv_rows_kernel(KvRowsArgs a) {
  const int64_t k_row = kv_stored_bytes(type_of(a.shape, true), a.shape.dim);
  const int64_t v_row = kv_stored_bytes(type_of(a.shape, false), a.shape.dim);
  const int64_t all = (k_row + v_row) * a.shape.heads;
  uint8_t* rows = static_cast<uint8_t*>(a.rows) + blockIdx.x * all;
  const int64_t slot = kv_slot(a.pages, a.first + static_cast<int32_t>(blockIdx.x));
  for (int64_t at = int64_t{threadIdx.x} * kUnit; at < all; at += kThreads * kUnit) {
    const bool keys = at < k_row * a.shape.heads;
    const int64_t in = keys ? at : at - k_row * a.shape.heads;
    const int64_t row = keys ? k_row : v_row;
    const int64_t head = in / row;
    uint8_t* cell =
        static_cast<uint8_t*>(keys ? a.cache.k : a.cache.v) + (head * a.shape.capacity + slot) * row + in % row;
    if constexpr (TO_ROWS) {
      *reinterpret_cast<uint4*>(rows + at) = *reinterpret_cast<const uint4*>(cell);
    } else {
      *reinterpret_cast<uint4*>(cell) = *reinterpret_cast<const uint4*>(rows + at);
    }
  }
}

// The same with blocks on either side. It copies two bytes at a time: a portable block is a multiple of two bytes, so
// the data after it has no larger alignment.
template <bool TO_ROWS>
__global__ void __launch_bounds__(kThreads) kv_block_rows_kernel(KvRowsArgs a) {
  const int64_t slot = kv_slot(a.pages, a.first + static_cast<int32_t>(blockIdx.x));
  const int64_t k_all = kv_stored_bytes(type_of(a.shape, true), a.shape.dim) * a.shape.heads;
  const int64_t v_all = kv_stored_bytes(type_of(a.shape, false), a.shape.dim) * a.shape.heads;
  for (int part = 0; part < 2; ++part) {
    const bool keys = part == 0;
    const KvType type = type_of(a.shape, keys);
    uint16_t* rows =
        reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(a.rows) + blockIdx.x * (k_all + v_all) + (keys ? 0 : k_all));
    const int head_words = static_cast<int>(kv_stored_bytes(type, a.shape.dim) / 2);
    const int block_words = static_cast<int>(kv_stored_bytes(type, kKvBlock) / 2);
    const int head = kv_head_words(type), code_words = block_words - head;
    for (int i = static_cast<int>(threadIdx.x); i < head_words * a.shape.heads; i += kThreads) {
      const KvRow row = kv_row(type, a.shape, keys ? a.cache.k : a.cache.v, i / head_words, slot);
      const int in = i % head_words, block = in / block_words, word = in % block_words;
      uint16_t* codes = reinterpret_cast<uint16_t*>(row.codes);
      uint16_t* cell = codes + in;
      if (kv_rotated(type)) {  // norm, codes, third bits
        const bool in_codes = word > 0 && word <= code_words;
        cell = in_codes ? codes + block * code_words + word - 1
                        : row.heads + block * head + (word == 0 ? 0 : word - code_words);
      } else if (kv_quantised(type)) {
        cell = word < head ? row.heads + block * head + word : codes + block * code_words + word - head;
      }
      if constexpr (TO_ROWS) {
        rows[i] = *cell;
      } else {
        *cell = rows[i];
      }
    }
  }
}

bool blocks(const KvShape& shape) {
  return kv_quantised(type_of(shape, true)) || kv_quantised(type_of(shape, false));
}

}  // namespace

uint64_t kv_cache_bytes(const KvShape& shape, bool keys) {
  return static_cast<uint64_t>(kv_stored_bytes(type_of(shape, keys), shape.dim)) * static_cast<uint64_t>(shape.heads) *
         static_cast<uint64_t>(shape.capacity);
}

uint64_t kv_row_size(const KvShape& shape) {
  return static_cast<uint64_t>(kv_stored_bytes(type_of(shape, true), shape.dim) +
                               kv_stored_bytes(type_of(shape, false), shape.dim)) *
         static_cast<uint64_t>(shape.heads);
}

void launch_kv_move(Stream& stream, const KvMoveArgs& args) {
  const Dim3 grid{2 * static_cast<unsigned>(args.shape.heads), static_cast<unsigned>(args.n_caches)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "kv_move"}, kv_move_kernel, args);
}

void launch_kv_export(Stream& stream, const KvRowsArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.n)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "kv_export"},
         blocks(args.shape) ? kv_block_rows_kernel<true> : kv_rows_kernel<true>, args);
}

void launch_kv_import(Stream& stream, const KvRowsArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.n)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "kv_import"},
         blocks(args.shape) ? kv_block_rows_kernel<false> : kv_rows_kernel<false>, args);
}

}  // namespace tnd::gpu
