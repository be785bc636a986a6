// The vector form of attention, over a vector type V of W lanes:
//   V::T, V::W, V::kMaxQueries; zero, load(const float*), load(const uint16_t* halves), load(const Bf16*), store,
//   set(float), load_one(const float*) (broadcast), fma(a, b, c), add, mul, div, max, exp(T); codes8(p) are W int8 as
//   floats, half(p) one half for all lanes; of integers V::I: nibbles(p, shift) those at `shift` of W bytes,
//   fifths(p, shift) 16 where bit `shift` of W bytes is set, fifths(bits) 16 where bit i is set in lane i, join(a, b)
//   both, number(code, excess) code - excess as floats; pairs(p, shift) two bits at `shift` of W bytes, pairs(bits)
//   bits 2 i and 2 i + 1 in lane i, rotated(pairs, fifths) the values of TQ3_0 codes with these low and third bits, in
//   units of the scale.
// Included by the files of an instruction set only, inside an unnamed namespace, after their vector type.
// attention_kernel.h explains the method, attention.h the contract.

// Visible keys of one query in the segment at hand; positions relative to the segment's start.
struct Span {
  int lo, hi;            // keys in the group's pages
  int tail_lo, tail_hi;  // keys from the row's tail list
  const AttentionRow* row;
  bool any() const { return lo < hi || tail_lo < tail_hi; }
  bool tail() const { return tail_lo < tail_hi; }
};

inline int imin(int a, int b) {
  return a < b ? a : b;
}
inline int imax(int a, int b) {
  return a > b ? a : b;
}

inline Span make_span(const AttentionRow& row, int start) {
  Span s;
  const int end = start + kAttnSegment;
  s.lo = imax(start, row.first) - start;
  s.hi = imin(end, row.past) - start;
  if (s.hi < s.lo) s.hi = s.lo;
  s.tail_lo = imax(start, imax(row.first, row.past)) - start;
  s.tail_hi = imin(end, row.past + row.n_tail) - start;
  s.row = &row;
  return s;
}

// Slot of a key by the pages of its segment.
inline size_t segment_slot(const int32_t* pages, int key) {
  return static_cast<size_t>(kv_slot(pages, key));
}

// Cells of a cache: float, uint16_t (halves), blocks of 32 with a scale (values of the types that most caches have), or
// AnyCell, whose type is known at run time. Kernels read AnyCell expanded to floats: code for every pair of types would
// take minutes to compile.
template <KvType TYPE>
struct Block {
  static constexpr KvType kType = TYPE;
  static constexpr int kBytes = static_cast<int>(kv_stored_bytes(TYPE, kKvBlock));
  static constexpr int kHalves = kv_block_halves(TYPE);
  static constexpr int kFifthBytes = kv_has_fifth_bits(TYPE) ? 4 : 0;
  static constexpr int kExcess = kv_has_minimum(TYPE) ? 0 : kv_has_fifth_bits(TYPE) ? 16 : 8;  // of nibbles
};
struct AnyCell {};
template <typename Cell>
constexpr bool kAny = std::is_same_v<Cell, AnyCell>;
template <typename Cell>
constexpr bool kBlocks = false;
template <KvType TYPE>
constexpr bool kBlocks<Block<TYPE>> = true;

// Calls f with a value of the cell type of an AnyCell.
template <typename F>
inline __attribute__((always_inline)) auto with_any(KvType t, F&& f) {
  switch (t) {
    case KvType::kBF16:
      return f(Bf16());
    case KvType::kQ8_0:
      return f(Block<KvType::kQ8_0>());
    case KvType::kQ5_1:
      return f(Block<KvType::kQ5_1>());
    case KvType::kQ5_0:
      return f(Block<KvType::kQ5_0>());
    case KvType::kQ4_1:
      return f(Block<KvType::kQ4_1>());
    case KvType::kTQ3_0:
      return f(Block<KvType::kTQ3_0>());
    default:
      return f(Block<KvType::kQ4_0>());
  }
}

// Elements from codes, the scale and, where the type has one, the minimum.
template <typename Cell>
inline __attribute__((always_inline)) typename V::T block_values(typename V::T code, typename V::T scale,
                                                                 typename V::T minimum) {
  if constexpr (Cell::kHalves == 2) return V::fma(code, scale, minimum);  // the product is exact
  return V::mul(code, scale);
}

// Value rows of a head, from some dimension on.
template <typename Cell>
struct Values {
  const Cell* base;
  size_t row_bytes;
  Values from(int d) const { return {base + d, row_bytes}; }
  Values below(size_t rows) const { return {row(rows), row_bytes}; }
  typename V::T load(size_t r, int d) const { return V::load(row(r) + d); }
  const Cell* row(size_t r) const {
    return reinterpret_cast<const Cell*>(reinterpret_cast<const char*>(base) + r * row_bytes);
  }
};
template <typename Cell>
  requires kBlocks<Cell>
struct Values<Cell> {
  const Cell* base;  // a block
  size_t row_bytes;
  int first = 0;  // dimension within it
  Values from(int d) const { return {block(0, first + d), row_bytes, (first + d) % kKvBlock}; }
  Values below(size_t rows) const { return {block(rows, 0), row_bytes, first}; }
  typename V::T load(size_t r, int d) const {
    const auto* b = reinterpret_cast<const uint8_t*>(block(r, first + d));
    const int in = (first + d) % kKvBlock;
    const uint8_t* bytes = b + 2 * Cell::kHalves;
    const typename V::T scale = V::half(b), minimum = Cell::kHalves == 2 ? V::half(b + 2) : V::zero();
    if constexpr (Cell::kType == KvType::kQ8_0) {
      return block_values<Cell>(V::codes8(bytes + in), scale, minimum);
    } else if constexpr (Cell::kType == KvType::kTQ3_0) {
      return V::mul(
          V::rotated(V::pairs(load_u32(bytes + in / 16 * 4) >> in % 16 * 2), V::fifths(load_u32(bytes + 8) >> in)),
          scale);
    } else {
      typename V::I code = V::nibbles(bytes + Cell::kFifthBytes + in % 16, in / 16 * 4);
      if constexpr (Cell::kFifthBytes > 0) code = V::join(code, V::fifths(load_u32(bytes) >> in));
      return block_values<Cell>(V::number(code, Cell::kExcess), scale, minimum);
    }
  }
  const Cell* block(size_t r, int d) const {
    return reinterpret_cast<const Cell*>(reinterpret_cast<const char*>(base) + r * row_bytes +
                                         d / kKvBlock * Cell::kBytes);
  }
};

template <typename Cell>
inline Values<Cell> values_of(const void* base, size_t row_bytes, int first) {
  return Values<Cell>{static_cast<const Cell*>(base), row_bytes}.from(first);
}
// For single rows that not all queries of a group see; expand_row expands the others.
__attribute__((noinline)) typename V::T load_any(KvType t, const void* row, int d) {
  return with_any(t, [&](auto cell) { return values_of<decltype(cell)>(row, 0, d).load(0, 0); });
}
template <>
struct Values<AnyCell> {
  const char* base;
  size_t row_bytes;
  KvType type;
  int first = 0;  // dimension within the row
  Values from(int d) const { return {base, row_bytes, type, first + d}; }
  Values below(size_t rows) const { return {base + rows * row_bytes, row_bytes, type, first}; }
  typename V::T load(size_t r, int d) const { return load_any(type, base + r * row_bytes, first + d); }
};

// scores[i][key] = scale * sum_d q[d][i] * k[d][key] for NQ queries and NV vectors of keys.
//   q [dim][NQ], k tiles [dim][16] from the first key of a tile, s row stride kAttnScoreStride
template <int NQ, int NV, typename Src>
inline __attribute__((always_inline)) void score_kernel(const float* q, const Src* k, int dim, float scale, float* s) {
  typename V::T acc[NQ][NV];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) acc[i][v] = V::zero();
  }
  const Src* kp[NV];
#pragma GCC unroll 4
  for (int v = 0; v < NV; v++) kp[v] = k + size_t(v * V::W / 16) * dim * 16 + v * V::W % 16;
  for (int d = 0; d < dim; d++) {
    typename V::T key[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) key[v] = V::load(kp[v] + size_t(d) * 16);
#pragma GCC unroll 16
    for (int i = 0; i < NQ; i++) {
      const typename V::T b = V::load_one(q + size_t(d) * NQ + i);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) acc[i][v] = V::fma(b, key[v], acc[i][v]);
    }
  }
  const typename V::T f = V::set(scale);
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) V::store(s + size_t(i) * kAttnScoreStride + v * V::W, V::mul(f, acc[i][v]));
  }
}

// The weights by which a query's segment result is added to its running result.
enum Join { kSkip, kCopy, kMerge };

template <typename Cache, typename Src>
struct PvArgs {
  const float* p;               // [NQ] rows of kAttnScoreStride
  Values<Cache> cache;          // V of the kv head, first dimension of the slice, slot 0
  const int32_t* pages;         // of the segment
  int start;                    // position of the segment
  Values<Src> common;           // V of the common keys, first dimension of the slice: by pages, or
  const int32_t* common_pages;  // nullptr: row 0 = position start, the others follow
  int common_lo, common_hi;
  const Span* spans;  // [NQ]
  const Join* join;   // [NQ]
  const float* a;     // [NQ] weight of the running result
  const float* b;     // [NQ] weight of the segment
  float* const* out;  // [NQ] running result, first dimension of the slice
};

template <int NQ, int NV, typename Cache, typename Src>
inline __attribute__((always_inline)) void pv_kernel(const PvArgs<Cache, Src>& x) {
  typename V::T acc[NQ][NV];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) acc[i][v] = V::zero();
  }
  const Values<Cache> cache = x.cache;
  const int lo = x.common_lo, hi = x.common_hi;
  // Keys before the common ones (rows of a window that begin earlier).
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++) {
    const int end = imin(x.spans[i].hi, lo);
    for (int j = x.spans[i].lo; j < end; j++) {
      const typename V::T w = V::load_one(x.p + size_t(i) * kAttnScoreStride + j);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) acc[i][v] = V::fma(w, cache.load(segment_slot(x.pages, j), v * V::W), acc[i][v]);
    }
  }
  for (int page = lo / kKvPage; page * kKvPage < hi; page++) {
    const int first = page * kKvPage, from = imax(lo, first), end = imin(hi, first + kKvPage);
    const Values<Src> rows =
        x.common.below(x.common_pages != nullptr ? size_t(x.common_pages[page]) * kKvPage : size_t(first));
    for (int j = from; j < end; j++) {
      typename V::T val[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) val[v] = rows.load(size_t(j - first), v * V::W);
#pragma GCC unroll 16
      for (int i = 0; i < NQ; i++) {
        const typename V::T w = V::load_one(x.p + size_t(i) * kAttnScoreStride + j);
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[i][v] = V::fma(w, val[v], acc[i][v]);
      }
    }
  }
  // Keys after them: the causal edge, then the row's own tail by depth.
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++) {
    const Span& s = x.spans[i];
    for (int j = imax(s.lo, hi); j < s.hi; j++) {
      const typename V::T w = V::load_one(x.p + size_t(i) * kAttnScoreStride + j);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) acc[i][v] = V::fma(w, cache.load(segment_slot(x.pages, j), v * V::W), acc[i][v]);
    }
    for (int j = s.tail_lo; j < s.tail_hi; j++) {
      const int slot = s.row->tail[x.start + j - s.row->past];
      const typename V::T w = V::load_one(x.p + size_t(i) * kAttnScoreStride + j);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) acc[i][v] = V::fma(w, cache.load(size_t(slot), v * V::W), acc[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++) {
    float* out = x.out[i];
    if (x.join[i] == kCopy) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) V::store(out + v * V::W, acc[i][v]);
    } else if (x.join[i] == kMerge) {
      const typename V::T a = V::set(x.a[i]), b = V::set(x.b[i]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) {
        V::store(out + v * V::W, V::fma(V::load(out + v * V::W), a, V::mul(acc[i][v], b)));
      }
    }
  }
}

// Turns a query's scores of the segment into weights (0 where not visible); returns their maximum and sum.
inline void softmax_segment(float* s, const Span& span, float* max_out, float* sum_out) {
  constexpr int W = V::W;
  const int lo = imin(span.lo < span.hi ? span.lo : span.tail_lo, kAttnSegment);
  const int hi = span.tail() ? span.tail_hi : span.hi;
  for (int j = 0; j < lo; j++) s[j] = -__builtin_inff();
  for (int j = hi; j < ((hi + 15) & ~15); j++) s[j] = -__builtin_inff();
  for (int j = (hi + 15) & ~15; j < kAttnSegment; j += W) V::store(s + j, V::zero());
  const int first = lo & ~15, last = (hi + 15) & ~15;
  typename V::T m = V::set(-__builtin_inff());
  for (int j = first; j < last; j += W) m = V::max(m, V::load(s + j));
  const float mx = V::max_lane(m);
  const typename V::T mv = V::set(mx);
  typename V::T sum[16 / W];
  for (int v = 0; v < 16 / W; v++) sum[v] = V::zero();
  for (int j = 0; j < first; j += W) V::store(s + j, V::zero());
  for (int j = first; j < last; j += 16) {
    for (int v = 0; v < 16 / W; v++) {
      // exp_f32(-inf) is +0: hidden keys add nothing.
      const typename V::T p = V::exp(V::sub(V::load(s + j + v * W), mv));
      V::store(s + j + v * W, p);
      sum[v] = V::add(sum[v], p);
    }
  }
  float lanes[16];
  for (int v = 0; v < 16 / W; v++) V::store(lanes + v * W, sum[v]);
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; i++) lanes[i] = lanes[i] + lanes[i + n];
  }
  *max_out = mx;
  *sum_out = lanes[0];
}

// Joins a segment's maximum and sum to the running ones; a and b are the weights of the two outputs.
inline void merge_weights(float m, float l, float* run_m, float* run_l, float* a, float* b) {
  const float top = *run_m > m ? *run_m : m;
  *a = exp_f32(*run_m - top);
  *b = exp_f32(m - top);
  *run_m = top;
  *run_l = __builtin_fmaf(*run_l, *a, l * *b);
}

// dst = run / l, zeros when the query saw nothing (l < 0).
inline void finish(const float* run, float l, int dim, float* dst) {
  if (l < 0) {
    for (int d = 0; d < dim; d += V::W) V::store(dst + d, V::zero());
    return;
  }
  const typename V::T lv = V::set(l);
  for (int d = 0; d < dim; d += V::W) V::store(dst + d, V::div(V::load(run + d), lv));
}

// A slice narrower than NV vectors, one vector at a time.
template <int NQ, typename Cache, typename Src>
inline void pv_narrow(const PvArgs<Cache, Src>& x0, int width) {
  PvArgs<Cache, Src> x = x0;
  float* dst[NQ];
  for (int w = 0; w < width; w += V::W) {
    for (int i = 0; i < NQ; i++) dst[i] = x0.out[i] + w;
    x.out = dst;
    x.cache = x0.cache.from(w);
    x.common = x0.common.from(w);
    pv_kernel<NQ, 1, Cache, Src>(x);
  }
}

// Calls f.template operator()<NQ>() for a run-time query count out of the compiled sizes.
template <typename F>
inline void with_queries(int nq, F&& f) {
  switch (nq) {
    case 12:
      if constexpr (V::kMaxQueries >= 12) f.template operator()<12>();
      break;
    case 8:
      if constexpr (V::kMaxQueries >= 8) f.template operator()<8>();
      break;
    case 6:
      f.template operator()<6>();
      break;
    case 4:
      f.template operator()<4>();
      break;
    case 2:
      f.template operator()<2>();
      break;
    default:
      f.template operator()<1>();
      break;
  }
}

// Largest compiled group size not above n.
inline int group_size(int n) {
  if (V::kMaxQueries >= 12 && n >= 12) return 12;
  if (V::kMaxQueries >= 8 && n >= 8) return 8;
  return n >= 6 ? 6 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

// Vectors per query: enough independent fma chains, within the registers.
constexpr int vectors_for(int nq) {
  return nq <= V::kMaxQueries / 3 ? 4 : 2;
}

// Width values of a row, as floats.
template <typename Cell>
inline void expand_row(const Values<Cell>& from, size_t row, int width, float* dst) {
  if constexpr (kAny<Cell>) {
    with_any(from.type, [&](auto cell) {
      expand_row(values_of<decltype(cell)>(from.base, from.row_bytes, from.first), row, width, dst);
    });
  } else {
    for (int d = 0; d < width; d += V::W) V::store(dst + d, from.load(row, d));
  }
}

// Expands keys in blocks of n tiles to f32.
template <typename Cell>
inline void expand_blocks(const uint8_t* block, int n, float* dst) {
  for (int i = 0; i < n; i++, block += 16 * Cell::kBytes, dst += kKvBlock * 16) {
    for (int v = 0; v < 16; v += V::W) {
      const auto* halves = reinterpret_cast<const uint16_t*>(block) + v;
      const typename V::T scale = V::load(halves), minimum = Cell::kHalves == 2 ? V::load(halves + 16) : V::zero();
      const uint8_t* bytes = block + 32 * Cell::kHalves + v;
      for (int d = 0; d < kKvBlock; d++) {
        typename V::T code;
        if constexpr (Cell::kType == KvType::kQ8_0) {
          code = V::codes8(bytes + d * 16);
        } else if constexpr (Cell::kType == KvType::kTQ3_0) {
          code = V::rotated(V::pairs(bytes + d / 4 * 16, d % 4 * 2), V::fifths(bytes + (8 + d / 8) * 16, d % 8));
        } else {
          typename V::I c = V::nibbles(bytes + (Cell::kFifthBytes + d % 16) * 16, d / 16 * 4);
          if constexpr (Cell::kFifthBytes > 0) c = V::join(c, V::fifths(bytes + d / 8 * 16, d % 8));
          code = V::number(c, Cell::kExcess);
        }
        V::store(dst + d * 16 + v, block_values<Cell>(code, scale, minimum));
      }
    }
  }
}

// Expands keys of n positions (whole tiles) to f32 tiles.
template <typename Key>
inline void expand_keys(const KvLayout& kv, const Key* tiles, int n, float* dst) {
  const auto plain = [&](const auto* from) {
    for (int i = 0; i < n * kv.dim; i += V::W) V::store(dst + i, V::load(from + i));
  };
  if constexpr (kAny<Key>) {
    with_any(kv.k_type, [&](auto cell) {
      using Cell = decltype(cell);
      if constexpr (kBlocks<Cell>) {
        expand_blocks<Cell>(reinterpret_cast<const uint8_t*>(tiles), n / 16 * (kv.dim / kKvBlock), dst);
      } else {
        plain(reinterpret_cast<const Cell*>(tiles));
      }
    });
  } else {
    plain(tiles);
  }
}

// Elements of a tile of keys that kernels read.
template <typename Key>
using TileCell = std::conditional_t<kAny<Key>, float, Key>;

// The tile that holds a slot's key.
template <typename Key>
inline const Key* key_tile(const KvLayout& kv, const Key* k, int slot) {
  return reinterpret_cast<const Key*>(reinterpret_cast<const char*>(k) + slot / 16 * (16 * kv.k_row_bytes()));
}

// column[16 d] = element d of a slot's key.
template <typename Key>
inline void gather_key(const KvLayout& kv, const Key* k, int slot, TileCell<Key>* column) {
  const Key* tile = key_tile(kv, k, slot);
  const int lane = slot % 16;
  if constexpr (kAny<Key>) {
    with_any(kv.k_type, [&](auto cell) {
      using Cell = decltype(cell);
      if constexpr (kBlocks<Cell>) {
        const auto* block = reinterpret_cast<const uint8_t*>(tile);
        for (int d0 = 0; d0 < kv.dim; d0 += kKvBlock, block += 16 * Cell::kBytes) {
          for (int d = 0; d < kKvBlock; d++) column[size_t(d0 + d) * 16] = tile_element(Cell::kType, block, lane, d);
        }
      } else {
        const auto* cells = reinterpret_cast<const Cell*>(tile) + lane;
        for (int d = 0; d < kv.dim; d++) column[size_t(d) * 16] = bf16_to_f32(cells[size_t(d) * 16].bits);
      }
    });
  } else {
    for (int d = 0; d < kv.dim; d++) column[size_t(d) * 16] = tile[size_t(d) * 16 + lane];
  }
}

template <typename Key>
void score_range(const AttentionShape& shape, const float* q, const Key* k, int nq, int keys, float* scores) {
  // keys is a multiple of 16 and at most 64 when the data are f32 panels
  const int dim = shape.kv.dim;
  for (int q0 = 0; q0 < nq;) {
    const int n = group_size(nq - q0);
    with_queries(n, [&]<int NQ>() {
      constexpr int NV = vectors_for(NQ);
      int j = 0;
      for (; j + NV * V::W <= keys; j += NV * V::W) {
        score_kernel<NQ, NV>(q + size_t(q0) * dim, k + size_t(j) / 16 * dim * 16 + j % 16, dim, shape.scale,
                             scores + size_t(q0) * kAttnScoreStride + j);
      }
      for (; j < keys; j += V::W) {
        score_kernel<NQ, 1>(q + size_t(q0) * dim, k + size_t(j) / 16 * dim * 16 + j % 16, dim, shape.scale,
                            scores + size_t(q0) * kAttnScoreStride + j);
      }
    });
    q0 += n;
  }
}

// q_t[d][i] = q[i][d] for n queries of row-major q.
inline void transpose_queries(const float* q, int n, int dim, float* q_t) {
  for (int i = 0; i < n; i++) {
    for (int d = 0; d < dim; d++) q_t[size_t(d) * n + i] = q[size_t(i) * dim + d];
  }
}

// Scores of the tail keys in the segment: their columns are gathered into a tile [dim][16] first. Neighbouring rows
// with the same tail (a bidirectional block) share it.
template <typename Key>
void score_tails(const AttentionItem& it, const Key* k, const Span* spans, int g, int start, float* tile_f, float* q_t,
                 float* scores) {
  const AttentionShape& shape = *it.shape;
  const int dim = shape.kv.dim;
  auto* tile = reinterpret_cast<TileCell<Key>*>(tile_f);
  alignas(64) float tmp[V::kMaxQueries * kAttnScoreStride];
  const int32_t* held = nullptr;  // tail whose keys are in the tile
  int held_first = -1, held_n = 0;
  for (int r = 0; r < it.row_end - it.row_begin; r++) {
    const Span& s = spans[r * g];
    for (int j0 = s.tail_lo; j0 < s.tail_hi; j0 += 16) {
      const int n = imin(16, s.tail_hi - j0);
      const int first = start + j0 - s.row->past;
      if (held != s.row->tail || held_first != first || held_n != n) {
        for (int i = 0; i < 16; i++) {
          gather_key(shape.kv, k, s.row->tail[first + (i < n ? i : 0)], tile + i);
        }
        held = s.row->tail, held_first = first, held_n = n;
      }
      for (int h = 0; h < g;) {
        const int nq = group_size(g - h);
        transpose_queries(s.row->q + size_t(it.kv_head * g + h) * dim, nq, dim, q_t);
        with_queries(nq, [&]<int NQ>() { score_kernel<NQ, 16 / V::W>(q_t, tile, dim, shape.scale, tmp); });
        for (int i = 0; i < nq; i++) {
          float* dst = scores + size_t(r * g + h + i) * kAttnScoreStride + j0;
          for (int j = 0; j < n; j++) dst[j] = tmp[size_t(i) * kAttnScoreStride + j];
        }
        h += nq;
      }
    }
  }
}

// Weighted sums of values for all queries of the segment.
template <typename Val>
void pv_segment(const AttentionItem& it, Values<Val> v, const Span* spans, int nq, int start, const float* scores,
                const Join* join, const float* a, const float* b, float* const* out, float* panel) {
  const int dim = it.shape->kv.dim;
  const int32_t* pages = it.group->pages + start / kKvPage;
  const bool one_group = !kAny<Val> && group_size(nq) == nq;
  // Union of the shared ranges: what a panel must hold.
  int ulo = kAttnSegment, uhi = 0;
  for (int i = 0; i < nq; i++) {
    if (spans[i].lo < spans[i].hi) ulo = imin(ulo, spans[i].lo), uhi = imax(uhi, spans[i].hi);
  }
  for (int d0 = 0; d0 < dim;) {
    const int width = dim - d0 >= 64 ? 64 : dim - d0 >= 32 ? 32 : 16;
    if (!one_group) {
      const Values<Val> slice = v.from(d0);
      for (int j = ulo; j < uhi; j++) expand_row(slice, segment_slot(pages, j), width, panel + size_t(j) * width);
    }
    for (int q0 = 0; q0 < nq;) {
      const int n = group_size(nq - q0);
      const auto fill = [&](auto& x) {
        x.p = scores + size_t(q0) * kAttnScoreStride;
        x.pages = pages;
        x.start = start;
        x.spans = spans + q0;
        x.join = join + q0;
        x.a = a + q0;
        x.b = b + q0;
        // Keys that all queries of the group that see any have in common.
        int lo = 0, hi = kAttnSegment;
        for (int i = 0; i < n; i++) {
          const Span& s = spans[q0 + i];
          if (s.any()) lo = imax(lo, s.lo), hi = imin(hi, s.hi);
        }
        if (hi <= lo) lo = 0, hi = 0;
        x.common_lo = lo, x.common_hi = hi;
      };
      with_queries(n, [&]<int NQ>() {
        constexpr int NV = vectors_for(NQ);
        const auto slices = [&]<typename Src>(Values<Src> common, const int32_t* common_pages) {
          PvArgs<Val, Src> x;
          fill(x);
          x.common_pages = common_pages;
          for (int d = 0; d < width; d += NV * V::W) {
            float* dst[NQ];
            for (int i = 0; i < NQ; i++) dst[i] = out[q0 + i] + d0 + d;
            x.out = dst;
            x.cache = v.from(d0 + d);
            x.common = common.from(d);
            if (d + NV * V::W <= width) {
              pv_kernel<NQ, NV, Val, Src>(x);
            } else {
              pv_narrow<NQ, Val, Src>(x, width - d);
            }
          }
        };
        if constexpr (!kAny<Val>) {
          if (one_group) return slices(v.from(d0), pages);
        }
        slices(Values<float>{panel, size_t(width) * sizeof(float)}, nullptr);
      });
      q0 += n;
    }
    d0 += width;
  }
}

template <typename Key, typename Val>
void block_typed(const AttentionItem& it) {
  const AttentionShape& shape = *it.shape;
  const KvLayout& kv = shape.kv;
  const int dim = kv.dim, g = shape.q_heads / kv.kv_heads;
  const int n_rows = it.row_end - it.row_begin, nq = n_rows * g;
  const AttentionRow* rows = it.group->rows + it.row_begin;
  const Key* k = reinterpret_cast<const Key*>(static_cast<const char*>(it.group->k) + kv.k_head_bytes() * it.kv_head);
  const char* v_head = static_cast<const char*>(it.group->v) + kv.v_head_bytes() * it.kv_head;
  const Values<Val> v = [&] {
    if constexpr (kAny<Val>)
      return Values<Val>{v_head, kv.v_row_bytes(), kv.v_type};
    else
      return values_of<Val>(v_head, kv.v_row_bytes(), 0);
  }();
  const AttentionScratchLayout lay(dim);
  float* q_t = it.scratch + lay.q;
  float* scores = it.scratch + lay.scores;
  float* panel = it.scratch + lay.panel;
  float* tile = it.scratch + lay.tile;
  float* run_m = it.scratch + lay.ml;
  float* run_l = run_m + nq;
  float* a = run_l + nq;
  float* b = a + nq;
  Span spans[kAttnQueries];
  Join join[kAttnQueries];
  float* out[kAttnQueries];
  for (int q0 = 0; q0 < nq;) {
    const int n = group_size(nq - q0);
    for (int i = 0; i < n; i++) {
      const int r = (q0 + i) / g, h = (q0 + i) % g;
      const float* q = rows[r].q + size_t(it.kv_head * g + h) * dim;
      for (int d = 0; d < dim; d++) q_t[size_t(q0) * dim + size_t(d) * n + i] = q[d];
    }
    q0 += n;
  }
  for (int i = 0; i < nq; i++) run_l[i] = -1;

  // AnyCell is always expanded: as many vector operations as converting blocks in the kernel, and one kernel less.
  const bool direct = !kAny<Key> && (sizeof(Key) == 4 || group_size(nq) == nq);
  for (int seg = it.segment_begin; seg < it.segment_end; seg++) {
    const int start = seg * kAttnSegment;
    int lo = kAttnSegment, hi = 0;
    bool tails = false, any = false;
    for (int r = 0; r < n_rows; r++) {
      const Span s = make_span(rows[r], start);
      for (int h = 0; h < g; h++) spans[r * g + h] = s;
      if (s.lo < s.hi) lo = imin(lo, s.lo), hi = imax(hi, s.hi);
      tails |= s.tail();
      any |= s.any();
    }
    for (int i = 0; i < nq; i++) {
      float* base = it.partial != nullptr
                        ? it.partial + (size_t(i) * it.partial_segments + seg - it.segment_base) * (dim + 2)
                        : nullptr;
      out[i] = base != nullptr ? base + 2 : it.scratch + lay.out + size_t(i) * dim;
      if (base != nullptr) base[1] = -1;
    }
    if (!any) continue;
    if (lo < hi) {
      // Whole tiles; slots beyond the visible ones hold other rows' or zero keys and are masked below.
      const int32_t* pages = it.group->pages + start / kKvPage;
      const int first = lo & ~15, last = (hi + 15) & ~15;
      for (int j = first; j < last;) {
        const int n = imin(direct ? kKvPage - j % kKvPage : 32 - j % 32, last - j);
        const Key* tile = key_tile(kv, k, kv_slot(pages, j));
        if (!direct) {
          expand_keys(kv, tile, n, panel);
          score_range(shape, q_t, panel, nq, n, scores + j);
        } else if constexpr (!kAny<Key>) {
          score_range(shape, q_t, tile, nq, n, scores + j);
        }
        j += n;
      }
    }
    if (tails) score_tails(it, k, spans, g, start, tile, panel, scores);
    for (int i = 0; i < nq; i++) {
      float* s = scores + size_t(i) * kAttnScoreStride;
      if (!spans[i].any()) {
        join[i] = kSkip;
        a[i] = b[i] = 0;
        for (int j = 0; j < kAttnSegment; j += V::W) V::store(s + j, V::zero());
        continue;
      }
      float m, l;
      softmax_segment(s, spans[i], &m, &l);
      if (it.partial != nullptr) {
        join[i] = kCopy;
        out[i][-2] = m;
        out[i][-1] = l;
      } else if (run_l[i] < 0) {
        join[i] = kCopy;
        run_m[i] = m;
        run_l[i] = l;
      } else {
        join[i] = kMerge;
        merge_weights(m, l, &run_m[i], &run_l[i], &a[i], &b[i]);
      }
    }
    pv_segment(it, v, spans, nq, start, scores, join, a, b, out, panel);
  }
  if (it.partial != nullptr) return;
  for (int i = 0; i < nq; i++) {
    float* dst = rows[i / g].out + size_t(it.kv_head * g + i % g) * dim;
    finish(it.scratch + lay.out + size_t(i) * dim, run_l[i], dim, dst);
  }
}

void block(const AttentionItem& it) {
  const KvType k_type = it.shape->kv.k_type, v_type = it.shape->kv.v_type;
  const auto by_value = [&](auto key) {
    using Key = decltype(key);
    if (v_type == KvType::kF32) return block_typed<Key, float>(it);
    if (v_type == KvType::kF16) return block_typed<Key, uint16_t>(it);
    if (v_type == KvType::kQ8_0) return block_typed<Key, Block<KvType::kQ8_0>>(it);
    if (v_type == KvType::kQ4_0) return block_typed<Key, Block<KvType::kQ4_0>>(it);
    block_typed<Key, AnyCell>(it);
  };
  if (k_type == KvType::kF32) return by_value(float());
  if (k_type == KvType::kF16) return by_value(uint16_t());
  by_value(AnyCell());
}

void merge(const AttentionItem& it, int32_t query) {
  const int dim = it.shape->kv.dim, g = it.shape->q_heads / it.shape->kv.kv_heads;
  const float* part = it.partial + size_t(query) * it.partial_segments * (dim + 2);
  float* run = it.scratch;
  float m = 0, l = -1;
  for (int s = 0; s < it.partial_segments; s++, part += dim + 2) {
    if (part[1] < 0) continue;
    if (l < 0) {
      m = part[0], l = part[1];
      for (int d = 0; d < dim; d += V::W) V::store(run + d, V::load(part + 2 + d));
      continue;
    }
    float a, b;
    merge_weights(part[0], part[1], &m, &l, &a, &b);
    const typename V::T av = V::set(a), bv = V::set(b);
    for (int d = 0; d < dim; d += V::W) {
      V::store(run + d, V::fma(V::load(run + d), av, V::mul(V::load(part + 2 + d), bv)));
    }
  }
  const AttentionRow& row = it.group->rows[it.row_begin + query / g];
  finish(run, l, dim, row.out + size_t(it.kv_head * g + query % g) * dim);
}
