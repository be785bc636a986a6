#include "gpu/backend_record.h"

#include <algorithm>

#include "gpu/breakdown.h"

namespace tnd::gpu {
namespace {

uint64_t hash_bytes(const void* data, uint64_t n) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint64_t h = n * 0x9E3779B97F4A7C15u;
  const auto mix = [&](uint64_t v) {
    h = (h ^ v) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  };
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    mix(v);
  }
  uint64_t v = 0;
  std::memcpy(&v, p, n);
  mix(v);
  return h;
}

}  // namespace

Recorder::~Recorder() {
  host_free(plan_host_);
  host_free(results_host_);
}

Status Recorder::set_memory(void* plan, uint64_t plan_bytes, void* results, uint64_t result_bytes) {
  TND_TRY(flush());
  entries_.clear();  // their pointers lead to the old buffers
  const auto grow = [](uint8_t** host, uint64_t bytes) -> Status {
    host_free(*host);
    *host = nullptr;
    void* p = nullptr;
    TND_TRY(host_alloc(bytes, &p));
    *host = static_cast<uint8_t*>(p);
    return Status();
  };
  TND_TRY(grow(&plan_host_, plan_bytes));
  TND_TRY(grow(&results_host_, result_bytes));
  plan_ = static_cast<uint8_t*>(plan);
  results_ = static_cast<uint8_t*>(results);
  plan_bytes_ = plan_bytes;
  result_bytes_ = result_bytes;
  return Status();
}

bool Recorder::reserve(uint64_t plan_bytes, uint64_t result_bytes) {
  if (stream_->failed()) return false;
  if (plan_bytes > plan_bytes_ || result_bytes > result_bytes_) {
    stream_->fail(errorf(TND_INTERNAL,
                         "an operation needs %llu bytes of plan and %llu of results, there are %llu, %llu",
                         static_cast<unsigned long long>(plan_bytes), static_cast<unsigned long long>(result_bytes),
                         static_cast<unsigned long long>(plan_bytes_), static_cast<unsigned long long>(result_bytes_)));
    return false;
  }
  if (plan_used_ + plan_bytes > plan_bytes_ || result_used_ + result_bytes > result_bytes_) return flush().ok();
  return true;
}

const void* Recorder::put_bytes(const void* data, uint64_t bytes) {
  const uint64_t hash = hash_bytes(data, bytes);
  const auto [first, last] = pieces_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Piece& p = it->second;
    if (p.bytes == bytes && std::memcmp(plan_host_ + p.at, data, bytes) == 0) return plan_ + p.at;
  }
  const uint64_t at = plan_used_;
  if (at + padded(bytes) > plan_bytes_) {  // more than was reserved
    stream_->fail(errorf(TND_INTERNAL, "the plan of a step is larger than was reserved"));
    return plan_;
  }
  std::memcpy(plan_host_ + at, data, bytes);
  plan_used_ += padded(bytes);
  pieces_.emplace(hash, Piece{at, bytes});
  return plan_ + at;
}

void* Recorder::room(uint64_t bytes) {
  const uint64_t at = plan_used_;
  if (at + padded(bytes) > plan_bytes_) {
    stream_->fail(errorf(TND_INTERNAL, "the plan of a step is larger than was reserved"));
    return plan_;
  }
  plan_used_ += padded(bytes);
  return plan_ + at;
}

void* Recorder::result(void* host, uint64_t bytes) {
  const uint64_t at = result_used_;
  if (at + padded(bytes) > result_bytes_) {
    stream_->fail(errorf(TND_INTERNAL, "the results of a step are larger than was reserved"));
    return results_;
  }
  result_used_ += padded(bytes);
  if (host != nullptr) downloads_.push_back(Download{host, at, bytes});
  return results_ + at;
}

void Recorder::scatter(void* host, const void* part, uint64_t bytes) {
  downloads_.push_back(Download{host, static_cast<uint64_t>(static_cast<const uint8_t*>(part) - results_), bytes});
}

void* Recorder::append(const Call& call, const void* args, size_t bytes) {
  struct Head {
    Call call;
    uint64_t words;
  };
  static_assert(sizeof(Head) <= 2 * kWord);
  const size_t words = 2 + (bytes + kWord - 1) / kWord;
  const size_t at = last_ = list_.size();
  list_.resize(at + words, Word{});
  const Head head{call, words};
  std::memcpy(&list_[at], &head, sizeof head);
  std::memcpy(&list_[at + 2], args, bytes);
  return &list_[at + 2];
}

void* Recorder::last_of(void (*operation)()) {
  if (last_ >= list_.size()) return nullptr;
  Call call;
  std::memcpy(&call, &list_[last_], sizeof call);
  return call.operation == operation ? &list_[last_ + 2] : nullptr;
}

void Recorder::run_list(const std::vector<Word>& list) {
  for (size_t at = 0; at < list.size();) {
    Call call;
    uint64_t words;
    std::memcpy(&call, &list[at], sizeof call);
    std::memcpy(&words, reinterpret_cast<const unsigned char*>(&list[at]) + sizeof call, sizeof words);
    call.invoke(*stream_, call.operation, &list[at + 2]);
    at += words;
  }
}

// Runs the list as a graph from its second time on: the first may be the only one (prompts of odd lengths), and it
// warms up what a vendor's library does at the first launch of a kernel.
void Recorder::submit() {
  const uint64_t hash = hash_bytes(list_.data(), list_.size() * kWord);
  const auto [first, last] = entries_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    Entry& e = *it->second;
    if (e.list.size() != list_.size() || std::memcmp(e.list.data(), list_.data(), list_.size() * kWord) != 0) continue;
    e.used = flushes_;
    if (!e.graph) {
      stream_->begin_capture();
      run_list(list_);
      stream_->end_capture(&e.graph);
      if (stream_->failed()) return;
      breakdown_of_new_graph(*stream_, [&] { run_list(list_); });
    }
    stream_->run(e.graph);
    most_nodes_ = std::max(most_nodes_, e.graph.nodes());
    ++graph_runs_;
    return;
  }
  run_list(list_);
  ++list_runs_;
  if (entries_.size() >= kMaxGraphs) {
    entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                    [](const auto& a, const auto& b) { return a.second->used < b.second->used; }));
  }
  auto e = std::make_unique<Entry>();
  e->list = list_;
  e->used = flushes_;
  entries_.emplace(hash, std::move(e));
}

Status Recorder::flush() {
  ++flushes_;
  TND_TRY(use_device(device_));
  if (!list_.empty() && !stream_->failed()) {
    if (plan_used_ > 0) stream_->to_device(plan_, plan_host_, plan_used_);
    submit();
    if (result_used_ > 0) stream_->to_host(results_host_, results_, result_used_);
  }
  const Status status = stream_->sync();
  if (status.ok()) {
    for (const Download& d : downloads_) std::memcpy(d.host, results_host_ + d.at, d.bytes);
  }
  list_.clear();
  downloads_.clear();
  pieces_.clear();
  plan_used_ = result_used_ = 0;
  return status;
}

}  // namespace tnd::gpu
