#include "gpu/step/backend_record.h"

#include <algorithm>

#include "gpu/runtime/breakdown.h"
#include "gpu/runtime/memory.h"

namespace tnd::gpu {
namespace {

// Of the ends of a piece: pieces that differ only in between are told apart when they are compared.
uint64_t hash_of(const uint8_t* p, uint64_t n) {
  constexpr uint64_t kEnd = 64;
  uint64_t h = n;
  const auto mix = [&](const uint8_t* from, uint64_t bytes) {
    for (; bytes > 0; bytes -= std::min<uint64_t>(bytes, 8), from += 8) {
      uint64_t v = 0;
      std::memcpy(&v, from, std::min<uint64_t>(bytes, 8));
      h = (h ^ v) * 0x9E3779B97F4A7C15u;
      h ^= h >> 32;
    }
  };
  mix(p, std::min(n, kEnd));
  if (n > kEnd) mix(p + n - std::min(n - kEnd, kEnd), std::min(n - kEnd, kEnd));
  return h;
}

}  // namespace

Recorder::~Recorder() {
  if (started_ != 0) (void)stream_->sync();
  host_free(start_host_);
  host_free(plan_host_);
  host_free(results_host_);
  host_free(done_);
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
  if (done_ == nullptr) {
    void* p = nullptr;
    TND_TRY(host_alloc(sizeof *done_, &p));
    done_ = static_cast<uint64_t*>(p);
    *done_ = number_;
    TND_TRY(host_alloc(kStartBytes, &p));
    start_host_ = static_cast<uint8_t*>(p);
  }
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
  if (plan_bytes > plan_capacity() || result_bytes > result_bytes_) {
    stream_->fail(
        errorf(TND_INTERNAL, "an operation needs %llu bytes of plan and %llu of results, there are %llu, %llu",
               static_cast<unsigned long long>(plan_bytes), static_cast<unsigned long long>(result_bytes),
               static_cast<unsigned long long>(plan_capacity()), static_cast<unsigned long long>(result_bytes_)));
    return false;
  }
  if (plan_used_ + plan_bytes > plan_bytes_ || result_used_ + result_bytes > result_bytes_) return flush().ok();
  return true;
}

const void* Recorder::put_bytes(const void* data, uint64_t bytes) {
  const uint64_t hash = hash_of(static_cast<const uint8_t*>(data), bytes);
  int32_t& bucket = buckets_[hash % kBuckets];
  for (int32_t i = bucket; i >= 0; i = pieces_[static_cast<size_t>(i)].next) {
    const Piece& p = pieces_[static_cast<size_t>(i)];
    if (p.hash == hash && p.bytes == bytes && std::memcmp(plan_host_ + p.at, data, bytes) == 0) return plan_ + p.at;
  }
  const uint64_t at = plan_used_;
  if (at + padded(bytes) > plan_bytes_) {  // more than was reserved
    stream_->fail(errorf(TND_INTERNAL, "the plan of a step is larger than was reserved"));
    return plan_;
  }
  std::memcpy(plan_host_ + at, data, bytes);
  plan_used_ += padded(bytes);
  pieces_.push_back(Piece{hash, at, bytes, bucket});
  bucket = static_cast<int32_t>(pieces_.size()) - 1;
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
  last_ = used_;
  used_ += words;
  if (used_ > list_.size()) list_.resize(std::max<size_t>(2 * list_.size(), used_ + 4096));
  unsigned char* to = list_[last_].bytes;
  list_[last_ + 1] = list_[used_ - 1] = Word{};  // what head and arguments leave over
  const Head head{call, words};
  std::memcpy(to, &head, sizeof head);
  std::memcpy(to + 2 * kWord, args, bytes);
  return to + 2 * kWord;
}

void* Recorder::last_of(void (*operation)()) {
  if (last_ >= used_) return nullptr;
  Call call;
  std::memcpy(&call, &list_[last_], sizeof call);
  return call.operation == operation ? &list_[last_ + 2] : nullptr;
}

// The step: plans to the device, the list, results to the host. What is large goes by a copy engine.
void Recorder::run_list(const uint8_t* plan_host) {
  constexpr uint64_t kLarge = 128 << 10;
  const uint64_t plan_bytes = plan_copied(), result_bytes = result_copied();
  if (plan_bytes > kLarge) {
    stream_->to_device(plan_, plan_host, plan_bytes);
  } else {
    launch_plan(*stream_, {plan_, plan_host, plan_bytes});
    stream_->no_overlap();
  }
  for (size_t at = 0; at < used_;) {
    Call call;
    uint64_t words;
    std::memcpy(&call, &list_[at], sizeof call);
    std::memcpy(&words, reinterpret_cast<const unsigned char*>(&list_[at]) + sizeof call, sizeof words);
    call.invoke(*stream_, call.operation, &list_[at + 2]);
    at += words;
  }
  const bool large = result_bytes > kLarge;
  if (large) stream_->to_host(results_host_, results_, result_bytes);
  launch_results(*stream_,
                 {results_host_, results_, large ? 0 : result_bytes, done_, reinterpret_cast<uint64_t*>(plan_)});
}

// Runs the list as a graph from its second time on: the first may be the only one (prompts of odd lengths), and it
// warms up what a vendor's library does at the first launch of a kernel.
void Recorder::submit(uint8_t* plan_host) {
  ++number_;
  std::memcpy(plan_host, &number_, sizeof number_);
  if (plain_launches()) {
    ++list_runs_;
    return run_list(plan_host);
  }
  const auto same = [&](const std::unique_ptr<Entry>& e) {
    return e->list.size() == used_ && e->plan_bytes == plan_copied() && e->result_bytes == result_copied() &&
           e->plan_host == plan_host && std::memcmp(e->list.data(), list_.data(), used_ * kWord) == 0;
  };
  const auto found = std::find_if(entries_.begin(), entries_.end(), same);
  if (found == entries_.end()) {
    run_list(plan_host);
    ++list_runs_;
    if (entries_.size() >= kMaxGraphs) entries_.pop_back();
    auto e = std::make_unique<Entry>();
    e->list.assign(list_.begin(), list_.begin() + static_cast<std::ptrdiff_t>(used_));
    e->plan_bytes = plan_copied(), e->result_bytes = result_copied();
    e->plan_host = plan_host;
    entries_.insert(entries_.begin(), std::move(e));
    return;
  }
  std::rotate(entries_.begin(), found, found + 1);
  Entry& e = *entries_.front();
  if (!e.graph) {
    stream_->begin_capture();
    run_list(plan_host);
    stream_->end_capture(&e.graph);
    if (stream_->failed()) return;
    breakdown_of_new_graph(*stream_, [&] { run_list(plan_host); });
  }
  stream_->run(e.graph);
  most_nodes_ = std::max(most_nodes_, e.graph.nodes());
  ++graph_runs_;
}

Status Recorder::flush() {
  TND_TRY(use_device(device_));
  Status status;
  if (used_ > 0 && !stream_->failed()) {
    submit(plan_host_);
    status = stream_->wait(done_, number_);
  } else {
    status = stream_->sync();
  }
  started_ = 0;
  if (status.ok()) {
    for (const Download& d : downloads_) std::memcpy(d.host, results_host_ + d.at, d.bytes);
  }
  forget();
  return status;
}

Status Recorder::start() {
  const uint64_t bytes = plan_copied();
  if (used_ == 0 || result_used_ != 0 || bytes > kStartBytes || stream_->failed()) return flush();
  TND_TRY(use_device(device_));
  if (started_ != 0) TND_TRY(stream_->wait(done_, started_));
  std::memcpy(start_host_, plan_host_, bytes);
  submit(start_host_);
  started_ = number_;
  forget();
  return stream_->failed() ? stream_->sync() : Status();
}

void Recorder::forget() {
  used_ = last_ = 0;
  downloads_.clear();
  pieces_.clear();
  buckets_.fill(-1);
  plan_used_ = kAlign;
  result_used_ = 0;
}

}  // namespace tnd::gpu
