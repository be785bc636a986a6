// Device memory, random data and plans for tests of GPU operations. Works on the emulation and on cards.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/kv_type.h"
#include "gpu/runtime/runtime.h"
#include "harness.h"

namespace tnd::gpu_test {

struct Device {
  gpu::Stream stream;
  Device() { CHECK_OK(stream.open()); }
};

// A piece of device memory; uploaded copies stay alive on the host until the stream has read them.
template <typename T>
struct Buffer {
  T* data = nullptr;
  size_t n = 0;
  std::vector<T> host;

  Buffer(Device&, size_t count) : n(count) { take(); }
  Buffer(Device& d, const std::vector<T>& values) : n(values.size()), host(values) {
    take();
    d.stream.to_device(data, host.data(), n * sizeof(T));
    CHECK_OK(d.stream.sync());
  }
  ~Buffer() { gpu::device_free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::vector<T> down(Device& d) const {
    std::vector<T> out(n);
    d.stream.to_host(out.data(), data, n * sizeof(T));
    CHECK_OK(d.stream.sync());
    return out;
  }

 private:
  void take() {
    void* p = nullptr;
    CHECK_OK(gpu::device_alloc(n * sizeof(T), &p));
    data = static_cast<T*>(p);
  }
};

inline std::vector<float> download(Device& d, const float* from, size_t n) {
  std::vector<float> out(n);
  d.stream.to_host(out.data(), from, n * sizeof(float));
  CHECK_OK(d.stream.sync());
  return out;
}

inline std::vector<float> random_floats(test::Rng* rng, int64_t n, float scale) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& f : x) f = scale * rng->uniform(-1.7f, 1.7f);
  return x;
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<int32_t> chain_of(int n) {
  std::vector<int32_t> p;
  for (int i = 0; i < n; ++i) p.push_back(i - 1);
  return p;
}

// Parents before children; one of: any parent, deep, several roots.
inline std::vector<int32_t> random_tree(test::Rng* rng, int n) {
  std::vector<int32_t> p;
  const uint64_t shape = rng->below(3);
  for (int i = 0; i < n; ++i) {
    const uint64_t at = static_cast<uint64_t>(i);
    int32_t parent = static_cast<int32_t>(rng->below(at + 1)) - 1;
    if (shape == 0 && i > 0) parent = static_cast<int32_t>(rng->below(at));
    if (shape == 1 && i > 0) parent = i - 1 - static_cast<int32_t>(rng->below(std::min<uint64_t>(3, at)));
    p.push_back(parent);
  }
  return p;
}

// Pages [0, n) in a random order, cut to the tables of `sequences` sequences.
inline std::vector<std::vector<int32_t>> random_tables(test::Rng* rng, int n, int sequences) {
  std::vector<int32_t> pages;
  for (int i = 0; i < n; ++i) {
    pages.push_back(i);
    std::swap(pages.back(), pages[rng->below(static_cast<uint64_t>(i) + 1)]);
  }
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(sequences));
  for (int i = 0; i < n / sequences * sequences; ++i) {
    tables[static_cast<size_t>(i % sequences)].push_back(pages[static_cast<size_t>(i)]);
  }
  return tables;
}

// PlanBuilder makes attention plans, one group (sequence) per call. Slots are counted by position; scattered() says
// where they are.
struct PlanBuilder {
  static constexpr int32_t kPages = 80;  // of a table in order
  std::vector<AttentionRowPlan> rows;
  std::vector<int> firsts, counts, olds;
  std::vector<std::unique_ptr<std::vector<int32_t>>> tails;
  std::vector<std::vector<int32_t>> tables;  // of the groups; none: pages in order

  int count() const { return static_cast<int>(rows.size()); }
  void open(int n, int old = 0) {
    firsts.push_back(count());
    counts.push_back(n);
    olds.push_back(old);
  }
  std::vector<AttentionGroupPlan> groups() {
    if (tables.empty()) {
      tables.resize(firsts.size());
      for (std::vector<int32_t>& t : tables) {
        for (int32_t page = 0; page < kPages; ++page) t.push_back(page);
      }
    }
    std::vector<AttentionGroupPlan> out;
    for (size_t g = 0; g < firsts.size(); ++g) {
      out.push_back({firsts[g], counts[g], tables[g].data(), static_cast<int32_t>(tables[g].size()), olds[g]});
    }
    return out;
  }
  // The same rows over sequences with these pages.
  PlanBuilder scattered(const std::vector<std::vector<int32_t>>& by_group) const {
    PlanBuilder b;
    b.rows = rows, b.firsts = firsts, b.counts = counts, b.olds = olds, b.tables = by_group;
    for (size_t g = 0; g < firsts.size(); ++g) {
      const int32_t* pages = by_group[g].data();
      for (int r = firsts[g]; r < firsts[g] + counts[g]; ++r) {
        AttentionRowPlan& row = b.rows[static_cast<size_t>(r)];
        row.slot = kv_slot(pages, row.slot);
        auto tail = std::make_unique<std::vector<int32_t>>(row.tail, row.tail + row.n_tail);
        for (int32_t& slot : *tail) slot = kv_slot(pages, slot);
        row.tail = tail->data();
        b.tails.push_back(std::move(tail));
      }
    }
    return b;
  }
  // Rows at positions [first, first + n) of a committing chain.
  void append(int first, int n) {
    open(n, first);
    for (int i = 0; i < n; ++i) rows.push_back({first + i, 0, first + i + 1, 0, nullptr});
  }
  // A tree on `past` positions; parents are indices of the group.
  void tree(int past, const std::vector<int32_t>& parents) {
    open(static_cast<int>(parents.size()), past);
    for (size_t i = 0; i < parents.size(); ++i) {
      auto path = std::make_unique<std::vector<int32_t>>();
      for (int32_t at = static_cast<int32_t>(i); at >= 0; at = parents[static_cast<size_t>(at)]) {
        path->insert(path->begin(), past + at);
      }
      rows.push_back({past + static_cast<int32_t>(i), 0, past, static_cast<int32_t>(path->size()), path->data()});
      tails.push_back(std::move(path));
    }
  }
  // A block whose rows see each other and the last `window` positions.
  void block(int past, int n, int window) {
    open(n, past);
    auto slots = std::make_unique<std::vector<int32_t>>();
    for (int i = 0; i < n; ++i) slots->push_back(past + i);
    for (int i = 0; i < n; ++i) {
      rows.push_back({past + i, std::max(0, past + i - window), past, n, slots->data()});
    }
    tails.push_back(std::move(slots));
  }
};

}  // namespace tnd::gpu_test
