// The pages of keys and values of an engine: one pool for all sequences and snapshots. A page is kKvPage positions in
// every layer. Who holds a page has a reference to it; pages of equal content are shared, and a page is copied before
// its only writer, a sequence, writes to it while others hold it.
//
// A page has a place in the pool, a number that attention reads, or lies in host memory alone, because only snapshots
// hold it. Its host copy stays when it comes back, until somebody writes to it: then moving it out again costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/kv_type.h"

namespace tnd {

// kv_first_page returns the first page that rows at `position` or after it read when each reads its newest `window`
// positions; 0 = all.
constexpr int32_t kv_first_page(int64_t position, int32_t window) {
  return window == 0 || position < window ? 0 : static_cast<int32_t>((position + 1 - window) / kKvPage);
}

// Stands for a page that is not held, because no later row reads it: the first ones of a table or of a snapshot.
inline constexpr int32_t kNoPage = -1;

// Pages of a sequence in order of positions.
class PageTable {
 public:
  int32_t count() const { return static_cast<int32_t>(pages_.size()); }
  int32_t first() const { return first_; }  // that is held
  std::span<const int32_t> pages() const { return pages_; }
  const int32_t* places() const { return places_.data(); }  // [count]: what AttentionGroupPlan::pages wants
  int32_t slot(int32_t position) const { return kv_slot(places_.data(), position); }

 private:
  friend class PagePool;
  std::vector<int32_t> pages_;   // of the pool, kNoPage before first_
  std::vector<int32_t> places_;  // where they lie, any place before first_
  int32_t first_ = 0;
};

class PagePool {
 public:
  // init takes the pool of every layer over; shape.capacity is the number of its slots. Nothing is held. window: newest
  // positions that a row reads in these layers, 0 = all.
  void init(Backend* backend, const KvShape& shape, std::vector<KvCache> layers, int32_t window = 0);

  const KvShape& shape() const { return shape_; }
  const KvCache* layers() const { return layers_.data(); }
  // first_page returns the first page of a sequence of `length` positions that a later row reads.
  int32_t first_page(int64_t length) const { return kv_first_page(length, window_); }
  int32_t size() const { return size_; }
  int32_t free() const { return free_.load(std::memory_order_relaxed); }
  int32_t shared() const { return shared_.load(std::memory_order_relaxed); }  // held more than once
  uint64_t host_bytes() const { return host_bytes_.load(std::memory_order_relaxed); }
  uint64_t page_bytes() const { return page_bytes_; }  // of a host copy
  int32_t refs(int32_t page) const { return pages_[static_cast<size_t>(page)].refs; }

  // ---- sequences. Callers compare what they need with free() first: running out is a broken invariant.
  // reserve takes the memory of tables of `pages` pages.
  static void reserve(PageTable* table, int32_t pages);
  // resize releases pages beyond the first n and those before page `first`, or adds new ones, whose contents are those
  // of their last owner. Pages that were released before stay so.
  void resize(PageTable* table, int32_t n, int32_t first = 0);
  // released returns how many places resize(table, n) would free.
  int32_t released(const PageTable& table, int32_t n) const;
  // own prepares page `index` of a table for writing: a page that others hold, too, is copied, its first `rows` rows.
  // The copies are in the pool when what follows start() or sync() of the backend runs. Returns whether it copied.
  bool own(PageTable* table, int32_t index, int32_t rows);
  // share makes `to` hold the first n pages of `from` as well, instead of its own.
  void share(const PageTable& from, int32_t n, PageTable* to);

  // ---- snapshots
  // keep returns the given pages, of a table or another snapshot, held once more; those before page `first` are not.
  std::vector<int32_t> keep(std::span<const int32_t> pages, int32_t first);
  void drop(std::span<const int32_t> pages);
  // held returns how many of the pages are.
  static int32_t held(std::span<const int32_t> pages) { return static_cast<int32_t>(after_gap(pages).size()); }
  // add appends n new pages to those of a snapshot, whose contents are those of their last owner. Callers compare n
  // with free() first.
  void add(int32_t n, std::vector<int32_t>* pages);
  // read copies `layers` layers of a page from `layer` on in portable form, the first `rows` rows of each, the others
  // zero. The data is there after the next sync().
  void read(int32_t page, int32_t layer, int32_t layers, int32_t rows, uint8_t* out) const;
  // write is the reverse, for a page of one snapshot alone that has a place: all rows.
  void write(int32_t page, int32_t layer, int32_t layers, const uint8_t* in);
  uint64_t layer_bytes() const { return layer_bytes_; }
  int32_t layer_count() const { return static_cast<int32_t>(layers_.size()); }
  // missing returns how many of the pages lie in host memory alone.
  int32_t missing(std::span<const int32_t> pages) const;
  // restore makes a table hold the pages of a snapshot, instead of its own; missing ones are written to the pool, with
  // the next sync().
  void restore(std::span<const int32_t> pages, PageTable* to);
  // demote moves the pages that only snapshots hold to host memory, `available` bytes of it besides what host copies
  // have already, and waits for it. RESOURCE_EXHAUSTED changed nothing.
  Status demote(std::span<const int32_t> pages, uint64_t available);
  // spare_bytes is what trim can free: host copies of pages that sequences hold in the pool, too.
  uint64_t spare_bytes() const;
  // trim frees at least `bytes` of spare host copies, or all.
  void trim(uint64_t bytes);

 private:
  struct Page {
    int32_t refs = 0;       // of all holders; 0: unused
    int32_t sequences = 0;  // of those that are sequences
    int32_t place = -1;     // -1: in host memory alone
    std::unique_ptr<uint8_t[]> host;
  };

  // after_gap returns the pages from the first one on that is held.
  static std::span<const int32_t> after_gap(std::span<const int32_t> pages) {
    size_t n = 0;
    while (n < pages.size() && pages[n] == kNoPage) ++n;
    return pages.subspan(n);
  }
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  int32_t make();  // a page of a sequence
  int32_t take_place();
  void give_place(Page* p);
  void retain(int32_t page, bool sequence);
  void release(int32_t page, bool sequence);
  void drop_host(Page* p);
  void clear(PageTable* table);

  Backend* backend_ = nullptr;
  KvShape shape_;
  int32_t window_ = 0;
  std::vector<KvCache> layers_;
  int32_t size_ = 0;
  uint64_t layer_bytes_ = 0, page_bytes_ = 0;
  std::vector<Page> pages_;
  std::vector<int32_t> unused_;  // of pages_, as many as places are free or more
  std::vector<int32_t> places_;  // free ones, the last comes next
  std::vector<int32_t> from_, to_;
  std::atomic<int32_t> free_{0}, shared_{0};
  std::atomic<uint64_t> host_bytes_{0};
};

}  // namespace tnd
