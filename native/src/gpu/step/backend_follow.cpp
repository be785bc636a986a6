// Operations that become part of the launch of the product before them (gpu/follow/matmul_follow.h).
#include <cstring>

#include "gpu/matmul/matmul_layout.h"
#include "gpu/step/backend_fill.h"
#include "gpu/step/backend_gpu.h"

namespace tnd::gpu {

const MatmulGroup* GpuBackend::product_to_follow(int rows) {
  const MatmulGroup* product = recorder_.last(launch_matmul);
  const bool follows = follows_ && prompt_rows_ == 0 && product != nullptr && product->rows == rows;
  return follows && matmul_follows(*product) ? product : nullptr;
}

MatmulFollow& GpuBackend::follow_product(Follow kind, int parts) {
  MatmulGroup group;  // copied as bytes, with its padding: lists are compared that way
  std::memcpy(static_cast<void*>(&group), recorder_.last(launch_matmul), sizeof group);
  recorder_.drop_last();
  FollowedMatmul& args = recorder_.add(launch_followed_matmul);
  std::memcpy(static_cast<void*>(&args.group), &group, sizeof group);
  args.follow.kind = kind;
  args.follow.parts = parts;
  args.follow.arrivals = arrivals_;
  return args.follow;
}

bool GpuBackend::outputs_beside(const MatmulGroup& product, int rows, Acts* out, ActsView* acts) {
  GpuActs& to = *static_cast<GpuActs*>(out);
  const auto reads = [&](const ActsView& v) {
    return product.acts.q256 == v.q256 && product.acts.q32 == v.q32 && product.acts.f32 == v.f32 &&
           product.acts.pairs == v.pairs;
  };
  if (to.other.row_stride < rows) return false;
  to.in_other = reads(to.view);
  to.stale = false;
  *acts = parts(to, rows).part[0].acts;
  return true;
}

bool GpuBackend::swiglu_after_product(const float* gate, const float* up, int rows, int64_t dim, InputForms forms,
                                      Acts* out) {
  const MatmulGroup* product = product_to_follow(rows);
  const int supers = static_cast<int>(super_blocks(dim));
  if (product == nullptr || product->count != 2 || supers > kArrivals) return false;
  const MatmulProduct &g = product->products[0], &u = product->products[1];
  if (g.y != gate || u.y != up || g.w.n != dim || u.w.n != dim) return false;
  ActsView acts;
  if (!outputs_beside(*product, rows, out, &acts)) return false;
  MatmulFollow& follow = follow_product(Follow::kSwiglu, supers);
  follow.units[0] = follow.units[1] = {.part = 0, .period = 16, .counted = 16};
  SwigluArgs& args = follow.swiglu;
  fill_swiglu(args, gate, up, rows, dim);
  args.acts = acts;
  args.forms = forms;
  return true;
}

// The one row of a plain step only: the last block has four warps, where a launch has twenty a row.
bool GpuBackend::norm_after_product(const float* x, const float* w, float eps, int rows, int64_t dim, InputForms forms,
                                    Acts* out) {
  const MatmulGroup* product = product_to_follow(rows);
  if (product == nullptr || product->count != 1 || rows != 1 || dim > kFollowedNormDim || dim % 16 != 0) return false;
  const MatmulProduct& p = product->products[0];
  ActsView acts;
  if (p.y != x || p.w.n != dim || !outputs_beside(*product, rows, out, &acts)) return false;
  MatmulFollow& follow = follow_product(Follow::kNorm, 1);
  const int32_t units = static_cast<int32_t>(dim / 16);
  follow.units[0] = {.part = 0, .period = units, .counted = units};
  NormArgs& args = follow.norm;
  fill_norm(args, x, w, eps, rows, dim);
  args.acts = acts;
  args.forms = forms;
  return true;
}

DeltaArgs* GpuBackend::conv_after_product(const DeltaShape& shape, const DeltaIo& io, int rows) {
  const MatmulGroup* product = product_to_follow(rows);
  const int32_t heads = 2 * shape.nk + shape.nv, gates = (shape.nv + 15) / 16;
  if (product == nullptr || product->count != 4 || heads >= kArrivals) return nullptr;
  const MatmulProduct* p = product->products;
  if (p[0].y != io.qkv || p[1].y != io.z || p[2].y != io.alpha || p[3].y != io.beta || p[0].w.n != shape.conv_dim() ||
      p[2].w.n != shape.nv || p[3].w.n != shape.nv) {
    return nullptr;
  }
  MatmulFollow& follow = follow_product(Follow::kConv, heads + 1);
  follow.units[0] = {.part = 0, .period = kDeltaDim / 16, .counted = kDeltaDim / 16};
  follow.units[2] = follow.units[3] = {.part = heads, .period = gates, .counted = gates};
  return &follow.conv;
}

// A pair's last block computes all rows of a sequence: with four warps (columns) or two (slices), a row at a time each.
bool GpuBackend::rule_follows(DeltaRule rule, const DeltaShape& shape, int rows) const {
  constexpr int kGroups = 4;  // of a launch
  const bool columns = rule == launch_delta_columns;
  const int most = columns ? kDeltaRowsAtOnce : 8;
  if (columns && !delta_columns_follow(shape)) return false;
  return follows_ && prompt_rows_ == 0 && rows <= most && kGroups * ((shape.nv + 1) / 2) <= kArrivals;
}

HeadsArgs* GpuBackend::heads_after_product(const AttentionLayer& w, const AttentionIo& io, int rows) {
  const MatmulGroup* product = product_to_follow(rows);
  const int32_t dim = w.kv.dim, heads = w.q_heads + 2 * w.kv.heads, q_dim = w.gated ? 2 * dim : dim;
  if (product == nullptr || product->count != 3 || (dim != 128 && dim != 256) || heads > kArrivals ||
      kv_rotated(static_cast<KvType>(w.kv.k_type)) || kv_rotated(static_cast<KvType>(w.kv.v_type))) {
    return nullptr;
  }
  const MatmulProduct* p = product->products;
  if (p[0].y != io.q || p[1].y != io.k || p[2].y != io.v || p[0].w.n != w.q_heads * q_dim ||
      p[1].w.n != w.kv.heads * dim || p[2].w.n != w.kv.heads * dim) {
    return nullptr;
  }
  MatmulFollow& follow = follow_product(Follow::kHeads, heads);
  const int32_t units = dim / 16;
  follow.units[0] = {.part = 0, .period = q_dim / 16, .counted = units};  // gates follow the queries of a head
  follow.units[1] = {.part = w.q_heads, .period = units, .counted = units};
  follow.units[2] = {.part = w.q_heads + w.kv.heads, .period = units, .counted = units};
  return &follow.heads;
}

}  // namespace tnd::gpu
