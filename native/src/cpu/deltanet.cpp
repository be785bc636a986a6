// Gated DeltaNet of the CPU backend: causal convolution by parents, gates, the delta rule over a chain or a tree, gated
// norm, and the replay of accepted rows.
//
// Work split: convolution by row and head (128 channels), recurrence by (value head, slice of 32 columns): a slice is
// 16 KiB and stays in the first-level cache over all rows; the state is read once a step. A step that does not commit
// never writes the committed state: rows start from it or from a saved state of their thread's scratch (the schedule in
// DeltaRow). Bits: a row's result depends on its ancestors only, whatever the order, since every row does the same
// arithmetic on the same parent state.
#include <algorithm>
#include <cstring>

#include "cpu/backend.h"
#include "cpu/each_row.h"
#include "cpu/math.h"

namespace tnd::cpu {
namespace {

constexpr float kQueryScale = 0.08838834764831845f;  // 1 / sqrt(128)
constexpr float kL2Eps = 1e-6f;
constexpr int64_t kSliceElems = int64_t{kDeltaDim} * kDeltaSlice;
constexpr int kSlices = kDeltaDim / kDeltaSlice;

// Input row `index` of a group: a row of the step or a saved tap (-1 newest).
const float* conv_input(const float* qkv, const float* taps, int32_t index, int64_t conv_dim) {
  return index >= 0 ? qkv + index * conv_dim : taps + (kConvTaps - 1 + index) * conv_dim;
}

}  // namespace

void CpuBackend::convolve(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups, int rows,
                          const DeltaIo& io) {
  const RowKernels& kernels = row_kernels();
  const DeltaShape& shape = w.shape;
  const int64_t conv_dim = shape.conv_dim();
  const int heads = 2 * shape.nk + shape.nv;

  const auto run_heads = [&](const DeltaGroup& g, int i, int first, int last) {
    const float* qkv = io.qkv + int64_t{g.first} * conv_dim;
    const float* taps = g.states[layer].taps;
    const int32_t* t = g.rows[i].taps;
    const float* m1 = conv_input(qkv, taps, t[0], conv_dim);
    const float* m2 = conv_input(qkv, taps, t[1], conv_dim);
    const float* m3 = conv_input(qkv, taps, t[2], conv_dim);
    const float* m0 = qkv + i * conv_dim;
    float* y = conv_ + (g.first + i) * conv_dim;
    const int64_t begin = int64_t{first} * kDeltaDim, n = int64_t{last - first} * kDeltaDim;
    kernels.conv_silu(m3 + begin, m2 + begin, m1 + begin, m0 + begin, w.conv + begin, conv_dim, n, y + begin);
    for (int h = first; h < last && h < 2 * shape.nk; ++h) {
      float* head = y + int64_t{h} * kDeltaDim;
      kernels.l2_norm(head, h < shape.nk ? kQueryScale : 1.0f, kL2Eps, kDeltaDim, head);
    }
    if (!g.commit) {
      const DeltaReplay& r = g.replay[layer];
      std::memcpy(r.conv_in + i * conv_dim + begin, m0 + begin, static_cast<size_t>(n) * sizeof(float));
      const int k_first = std::max(first, shape.nk), k_last = std::min(last, 2 * shape.nk);
      if (k_first < k_last) {
        std::memcpy(r.k + int64_t{i} * shape.key_dim() + int64_t{k_first - shape.nk} * kDeltaDim,
                    y + int64_t{k_first} * kDeltaDim,
                    static_cast<size_t>(k_last - k_first) * kDeltaDim * sizeof(float));
      }
    }
  };
  const auto run_gates = [&](const DeltaGroup& g, int i) {
    const int64_t row = g.first + i;
    float* alpha = gates_ + row * 2 * shape.nv;
    float* beta = alpha + shape.nv;
    for (int h = 0; h < shape.nv; ++h) {
      alpha[h] = exp_f32(w.a[h] * softplus_f32(io.alpha[row * shape.nv + h] + w.dt[h]));
      beta[h] = sigmoid_f32(io.beta[row * shape.nv + h]);
    }
    if (!g.commit) {
      std::memcpy(g.replay[layer].alpha + int64_t{i} * shape.nv, alpha, static_cast<size_t>(shape.nv) * sizeof(float));
    }
  };

  if (rows == 1) {  // split one row by heads
    const int parts = std::min(heads, pool_.threads());
    pool_.run(parts, [&](int part, int) {
      run_heads(groups[0], 0, heads * part / parts, heads * (part + 1) / parts);
      if (part == 0) run_gates(groups[0], 0);
    });
    return;
  }
  for (const DeltaGroup& g : groups) {
    each_row(pool_, g.count, static_cast<int>(conv_dim), [&](int i) {
      run_heads(g, i, 0, heads);
      run_gates(g, i);
    });
  }
}

void CpuBackend::recur(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups) {
  const RowKernels& kernels = row_kernels();
  const DeltaShape& shape = w.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  // Groups alternate: consecutive tasks go to one thread, which must not get only a prompt's piece while others
  // get rows.
  const int n_groups = static_cast<int>(groups.size());
  pool_.run(shape.nv * kSlices * n_groups, [&](int task, int worker) {
    const DeltaGroup& g = groups[static_cast<size_t>(task % n_groups)];
    const int head = task / n_groups / kSlices, slice = task / n_groups % kSlices;
    float* committed = g.states[layer].s + (int64_t{head} * kSlices + slice) * kSliceElems;
    float* saved = states_ + int64_t{worker} * limits_.state_slots * kSliceElems;
    const int64_t key = int64_t{head % shape.nk} * kDeltaDim;
    const int64_t column = int64_t{head} * kDeltaDim + slice * kDeltaSlice;
    for (int i = 0; i < g.count; ++i) {
      const DeltaRow& r = g.rows[i];
      const int64_t row = g.first + i;
      const float* in = r.state_in == kStateCommitted ? committed : saved + r.state_in * kSliceElems;
      float* out = r.state_out == kStateNone        ? nullptr
                   : r.state_out == kStateCommitted ? committed
                                                    : saved + r.state_out * kSliceElems;
      const float* q = conv_ + row * conv_dim + key;
      const float* v = conv_ + row * conv_dim + 2 * key_dim + column;
      const float* gates = gates_ + row * 2 * shape.nv;
      float* d = g.commit ? nullptr : g.replay[layer].d + i * value_dim + column;
      kernels.delta_row(in, out, q + key_dim, q, v, gates[head], gates[shape.nv + head], 1, d,
                        mixed_ + row * value_dim + column);
    }
  });
}

void CpuBackend::delta_mixer(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups, int rows,
                             const DeltaIo& io, InputForms forms, Acts* out) {
  const RowKernels& kernels = row_kernels();
  const DeltaShape& shape = w.shape;
  const int64_t conv_dim = shape.conv_dim(), value_dim = shape.value_dim();
  convolve(w, layer, groups, rows, io);
  recur(w, layer, groups);
  for (const DeltaGroup& g : groups) {  // a committing chain saves its last three inputs
    if (!g.commit) continue;
    float* taps = g.states[layer].taps;
    constexpr int kSaved = kConvTaps - 1;
    const int keep = std::max(0, kSaved - g.count);  // old taps that stay
    std::memmove(taps, taps + (kSaved - keep) * conv_dim, static_cast<size_t>(keep * conv_dim) * sizeof(float));
    const int fresh = kSaved - keep;
    std::memcpy(taps + keep * conv_dim, io.qkv + (g.first + g.count - fresh) * conv_dim,
                static_cast<size_t>(fresh * conv_dim) * sizeof(float));
  }
  each_row(pool_, rows, static_cast<int>(value_dim), [&](int r) {
    for (int h = 0; h < shape.nv; ++h) {
      float* o = mixed_ + r * value_dim + int64_t{h} * kDeltaDim;
      kernels.gated_norm(o, w.norm, io.z + r * value_dim + int64_t{h} * kDeltaDim, w.eps, kDeltaDim, o);
    }
  });
  prepare(mixed_, value_dim, rows, value_dim, forms, out);
}

void CpuBackend::delta_commit(const DeltaShape& shape, std::span<const DeltaState> states,
                              std::span<const DeltaReplay> replay, std::span<const int32_t> path) {
  if (path.empty()) return;
  const RowKernels& kernels = row_kernels();
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const int slices = shape.nv * kSlices;
  const int n = static_cast<int>(path.size());
  pool_.run(static_cast<int>(states.size()) * (slices + 1), [&](int task, int) {
    const size_t layer = static_cast<size_t>(task / (slices + 1));
    const int part = task % (slices + 1);
    const DeltaReplay& r = replay[layer];
    if (part == slices) {
      float* taps = states[layer].taps;
      constexpr int kSaved = kConvTaps - 1;
      const int keep = std::max(0, kSaved - n);
      std::memmove(taps, taps + (kSaved - keep) * conv_dim, static_cast<size_t>(keep * conv_dim) * sizeof(float));
      for (int j = keep; j < kSaved; ++j) {
        std::memcpy(taps + j * conv_dim, r.conv_in + path[static_cast<size_t>(n - kSaved + j)] * conv_dim,
                    static_cast<size_t>(conv_dim) * sizeof(float));
      }
      return;
    }
    const int head = part / kSlices;
    kernels.delta_apply(
        states[layer].s + part * kSliceElems, path.data(), n, r.k + int64_t{head % shape.nk} * kDeltaDim, key_dim,
        r.d + int64_t{head} * kDeltaDim + int64_t{part % kSlices} * kDeltaSlice, value_dim, r.alpha + head, shape.nv);
  });
}

}  // namespace tnd::cpu
