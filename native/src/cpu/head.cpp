// Head of the CPU backend: final norm of the requested rows, product with the vocabulary, choice of tokens.
#include <algorithm>
#include <cstring>

#include "cpu/backend.h"
#include "cpu/each_row.h"

namespace tnd::cpu {

void CpuBackend::head(const HeadArgs& args) {
  const RowKernels& kernels = row_kernels();
  const int64_t hidden = args.w->k, vocab = args.w->n;
  const int64_t stride = (vocab + 15) / 16 * 16;
  for (size_t first = 0; first < args.rows.size(); first += static_cast<size_t>(limits_.head_rows)) {
    const int n = static_cast<int>(std::min(args.rows.size() - first, static_cast<size_t>(limits_.head_rows)));
    const HeadRow* rows = args.rows.data() + first;
    for (int i = 0; i < n; ++i) {
      const float* x = args.x + rows[i].row * hidden;
      if (args.norm != nullptr) {
        kernels.rms_norm(x, args.norm, args.eps, hidden, normed_ + i * hidden);
      } else {
        std::memcpy(normed_ + i * hidden, x, static_cast<size_t>(hidden) * sizeof(float));
      }
    }
    prepare(normed_, hidden, n, hidden, forms(*args.w), head_acts_.get());
    const Product product{args.w, logits_, stride, nullptr};
    matmul(std::span<const Product>(&product, 1), *head_acts_, n);
    pool_.run(n, [&](int i, int worker) {
      finish_row(logits_ + i * stride, vocab, rows[i], args.never, &sample_scratch_[worker]);
    });
  }
}

}  // namespace tnd::cpu
