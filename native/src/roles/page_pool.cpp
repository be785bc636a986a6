#include "roles/page_pool.h"

#include <algorithm>
#include <cstring>

namespace tnd {

void PagePool::init(Backend* backend, const KvShape& shape, std::vector<KvCache> layers, int32_t window) {
  backend_ = backend;
  shape_ = shape;
  window_ = window;
  layers_ = std::move(layers);
  size_ = shape.capacity / kKvPage;
  layer_bytes_ = static_cast<uint64_t>(kKvPage) * backend->kv_row_bytes(shape);
  page_bytes_ = layer_bytes_ * layers_.size();
  pages_.clear();
  pages_.resize(static_cast<size_t>(size_));
  unused_.clear();
  places_.clear();
  for (int32_t i = size_; i-- > 0;) {
    unused_.push_back(i);
    places_.push_back(i);
  }
  from_.resize(kKvPage);
  to_.resize(kKvPage);
  free_.store(size_);
}

int32_t PagePool::take_place() {
  const int32_t place = places_.back();
  places_.pop_back();
  free_.fetch_sub(1, std::memory_order_relaxed);
  return place;
}

void PagePool::give_place(Page* p) {
  if (p->place < 0) return;
  places_.push_back(p->place);
  p->place = -1;
  free_.fetch_add(1, std::memory_order_relaxed);
}

int32_t PagePool::make() {
  const int32_t page = unused_.back();
  unused_.pop_back();
  Page& p = at(page);
  p.refs = p.sequences = 1;
  p.place = take_place();
  return page;
}

void PagePool::retain(int32_t page, bool sequence) {
  Page& p = at(page);
  if (++p.refs == 2) shared_.fetch_add(1, std::memory_order_relaxed);
  if (sequence) ++p.sequences;
}

void PagePool::release(int32_t page, bool sequence) {
  Page& p = at(page);
  if (sequence) --p.sequences;
  if (--p.refs == 1) shared_.fetch_sub(1, std::memory_order_relaxed);
  if (p.refs > 0) return;
  give_place(&p);
  drop_host(&p);
  unused_.push_back(page);
}

void PagePool::drop_host(Page* p) {
  if (p->host == nullptr) return;
  p->host.reset();
  host_bytes_.fetch_sub(page_bytes_, std::memory_order_relaxed);
}

void PagePool::reserve(PageTable* table, int32_t pages) {
  table->pages_.reserve(static_cast<size_t>(pages));
  table->places_.reserve(static_cast<size_t>(pages));
}

void PagePool::resize(PageTable* table, int32_t n, int32_t first) {
  while (table->count() > n) {
    if (table->pages_.back() != kNoPage) release(table->pages_.back(), true);
    table->pages_.pop_back();
    table->places_.pop_back();
  }
  for (int32_t i = table->first_; i < std::min(first, table->count()); ++i) {
    release(table->pages_[static_cast<size_t>(i)], true);
    table->pages_[static_cast<size_t>(i)] = kNoPage;
    table->places_[static_cast<size_t>(i)] = 0;
  }
  while (table->count() < n) {
    const int32_t page = table->count() < first ? kNoPage : make();
    table->pages_.push_back(page);
    table->places_.push_back(page == kNoPage ? 0 : at(page).place);
  }
  table->first_ = std::min(std::max(table->first_, first), table->count());
}

void PagePool::clear(PageTable* table) {
  resize(table, 0);
}

int32_t PagePool::released(const PageTable& table, int32_t n) const {
  int32_t places = 0;
  for (int32_t i = std::max(n, table.first_); i < table.count(); ++i) {
    if (refs(table.pages_[static_cast<size_t>(i)]) == 1) ++places;
  }
  return places;
}

bool PagePool::own(PageTable* table, int32_t index, int32_t rows) {
  int32_t& page = table->pages_[static_cast<size_t>(index)];
  if (refs(page) == 1) {
    drop_host(&at(page));
    return false;
  }
  const int32_t copy = make();
  const int32_t from = at(page).place * kKvPage, to = at(copy).place * kKvPage;
  for (int32_t i = 0; i < rows; ++i) {
    from_[static_cast<size_t>(i)] = from + i;
    to_[static_cast<size_t>(i)] = to + i;
  }
  const size_t n = static_cast<size_t>(rows);
  backend_->kv_move(shape_, layers_, std::span<const int32_t>(from_).first(n), std::span<const int32_t>(to_).first(n));
  release(page, true);
  page = copy;
  table->places_[static_cast<size_t>(index)] = at(copy).place;
  return true;
}

void PagePool::share(const PageTable& from, int32_t n, PageTable* to) {
  clear(to);
  to->pages_.assign(from.pages_.begin(), from.pages_.begin() + n);
  to->places_.assign(from.places_.begin(), from.places_.begin() + n);
  to->first_ = std::min(from.first_, n);
  for (const int32_t page : after_gap(to->pages_)) retain(page, true);
}

std::vector<int32_t> PagePool::keep(std::span<const int32_t> pages, int32_t first) {
  std::vector<int32_t> kept(pages.begin(), pages.end());
  std::fill_n(kept.begin(), std::min(static_cast<size_t>(first), kept.size()), kNoPage);
  for (const int32_t page : after_gap(kept)) retain(page, false);
  return kept;
}

void PagePool::add(int32_t n, std::vector<int32_t>* pages) {
  for (int32_t i = 0; i < n; ++i) {
    pages->push_back(make());
    at(pages->back()).sequences = 0;
  }
}

void PagePool::read(int32_t page, int32_t layer, int32_t layers, int32_t rows, uint8_t* out) const {
  const Page& p = at(page);
  const uint64_t bytes = layer_bytes_ / kKvPage * static_cast<uint64_t>(rows);
  for (int32_t i = layer; i < layer + layers; ++i, out += layer_bytes_) {
    if (p.place >= 0) {
      backend_->kv_export(shape_, layers_[static_cast<size_t>(i)], &p.place, rows, out);
    } else {
      std::memcpy(out, p.host.get() + static_cast<uint64_t>(i) * layer_bytes_, bytes);
    }
    std::memset(out + bytes, 0, layer_bytes_ - bytes);
  }
}

void PagePool::write(int32_t page, int32_t layer, int32_t layers, const uint8_t* in) {
  for (int32_t i = layer; i < layer + layers; ++i, in += layer_bytes_) {
    backend_->kv_import(shape_, layers_[static_cast<size_t>(i)], &at(page).place, kKvPage, in);
  }
}

void PagePool::drop(std::span<const int32_t> pages) {
  for (const int32_t page : after_gap(pages)) release(page, false);
}

int32_t PagePool::missing(std::span<const int32_t> pages) const {
  const std::span<const int32_t> kept = after_gap(pages);
  return static_cast<int32_t>(
      std::count_if(kept.begin(), kept.end(), [&](int32_t page) { return at(page).place < 0; }));
}

void PagePool::restore(std::span<const int32_t> pages, PageTable* to) {
  const std::span<const int32_t> kept = after_gap(pages);
  for (const int32_t page : kept) retain(page, true);  // before its own go: they may be the same
  clear(to);
  const int32_t gap = static_cast<int32_t>(pages.size() - kept.size());
  resize(to, gap, gap);
  for (const int32_t page : kept) {
    Page& p = at(page);
    if (p.place < 0) {
      p.place = take_place();
      for (size_t layer = 0; layer < layers_.size(); ++layer) {
        backend_->kv_import(shape_, layers_[layer], &p.place, kKvPage, p.host.get() + layer * layer_bytes_);
      }
    }
    to->pages_.push_back(page);
    to->places_.push_back(p.place);
  }
}

Status PagePool::demote(std::span<const int32_t> all, uint64_t available) {
  const std::span<const int32_t> pages = after_gap(all);
  const auto moves = [](const Page& p) { return p.sequences == 0 && p.place >= 0; };
  uint64_t copies = 0;
  for (const int32_t page : pages) copies += moves(at(page)) && at(page).host == nullptr ? 1 : 0;
  const uint64_t bytes = copies * page_bytes_;
  if (bytes > available) {
    const uint64_t spare = spare_bytes();
    if (bytes - available > spare) {
      return errorf(TND_RESOURCE_EXHAUSTED,
                    "%llu pages of the snapshot need %llu bytes of host memory, %llu are left (host_cap_bytes)",
                    static_cast<unsigned long long>(copies), static_cast<unsigned long long>(bytes),
                    static_cast<unsigned long long>(available + spare));
    }
    trim(bytes - available);
  }
  for (const int32_t page : pages) {
    Page& p = at(page);
    if (!moves(p) || p.host != nullptr) continue;
    p.host = std::make_unique_for_overwrite<uint8_t[]>(page_bytes_);
    host_bytes_.fetch_add(page_bytes_, std::memory_order_relaxed);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      backend_->kv_export(shape_, layers_[layer], &p.place, kKvPage, p.host.get() + layer * layer_bytes_);
    }
  }
  TND_TRY(backend_->sync());
  for (const int32_t page : pages) {
    if (moves(at(page))) give_place(&at(page));
  }
  while (unused_.size() < places_.size()) {  // those in host memory are beyond the pool's
    unused_.push_back(static_cast<int32_t>(pages_.size()));
    pages_.emplace_back();
  }
  unused_.reserve(pages_.size());
  return Status();
}

uint64_t PagePool::spare_bytes() const {
  uint64_t bytes = 0;
  for (const Page& p : pages_) bytes += p.host != nullptr && p.sequences > 0 ? page_bytes_ : 0;
  return bytes;
}

void PagePool::trim(uint64_t bytes) {
  uint64_t freed = 0;
  for (Page& p : pages_) {
    if (freed >= bytes) break;
    if (p.host == nullptr || p.sequences == 0) continue;
    drop_host(&p);
    freed += page_bytes_;
  }
}

}  // namespace tnd
