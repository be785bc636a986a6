#include "gpu/step/backend_record.h"

#include <algorithm>

#include "gpu/runtime/breakdown.h"
#include "gpu/runtime/memory.h"

namespace tnd::gpu {

Recorder::~Recorder() {
  if (started_ != 0) (void)stream_->sync();
  host_free(start_host_);
  host_free(plan_.host);
  host_free(results_.host);
  host_free(done_);
}

Status Recorder::set_memory(void* plan, void* results, const Sizes& sizes) {
  TND_TRY(flush());
  entries_.clear();  // they point to the old buffers
  const auto give = [](void* device, uint64_t bytes, uint64_t loose, Part* part, Part* loose_part) -> Status {
    host_free(part->host);
    part->host = nullptr;
    void* host = nullptr;
    TND_TRY(host_alloc(bytes + loose, &host));
    part->host = static_cast<uint8_t*>(host);
    part->device = static_cast<uint8_t*>(device);
    part->capacity = bytes;
    *loose_part = Part{part->device + bytes, part->host + bytes, loose};
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
  TND_TRY(give(plan, padded(sizes.plan), padded(sizes.loose_plan), &plan_, &loose_plan_));
  TND_TRY(give(results, padded(sizes.results), padded(sizes.loose_results), &results_, &loose_results_));
  forget();
  return Status();
}

bool Recorder::reserve(const Sizes& sizes) {
  if (stream_->failed()) return false;
  const uint64_t plan = sizes.plan + kAlign;  // for count()
  if (sizes.plan > plan_capacity() || sizes.results > results_.capacity || sizes.loose_plan > loose_plan_.capacity ||
      sizes.loose_results > loose_results_.capacity) {
    const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    stream_->fail(errorf(TND_INTERNAL,
                         "an operation needs %llu + %llu bytes of plan and %llu + %llu of results, there are "
                         "%llu + %llu, %llu + %llu",
                         number(sizes.plan), number(sizes.loose_plan), number(sizes.results),
                         number(sizes.loose_results), number(plan_capacity()), number(loose_plan_.capacity),
                         number(results_.capacity), number(loose_results_.capacity)));
    return false;
  }
  const auto fits = [](const Part& part, uint64_t bytes) { return part.used + bytes <= part.capacity; };
  if (fits(plan_, plan) && fits(results_, sizes.results) && fits(loose_plan_, sizes.loose_plan) &&
      fits(loose_results_, sizes.loose_results)) {
    return true;
  }
  return flush().ok();
}

void* Recorder::take(Part* part, uint64_t bytes, const char* what) {
  const uint64_t at = part->used;
  if (at + padded(bytes) > part->capacity) {  // more than was reserved
    stream_->fail(errorf(TND_INTERNAL, "the %s of a step are larger than was reserved", what));
    return part->device;
  }
  part->used += padded(bytes);
  return part->device + at;
}

void* Recorder::put_bytes(Part* part, const void* data, uint64_t bytes, uint64_t room) {
  const uint64_t at = part->used;
  void* const to = take(part, room, "plans");
  if (!stream_->failed() && bytes > 0) std::memcpy(part->host + at, data, bytes);
  return to;
}

const int32_t* Recorder::count(int32_t n) {
  if (counts_at_ == 0 || counts_ == kCounts) {
    if (!reserve(0)) return nullptr;
    counts_at_ = plan_.used;
    counts_ = 0;
    take(&plan_, kAlign, "plans");
  }
  const uint64_t at = counts_at_ + counts_++ * sizeof n;
  std::memcpy(plan_.host + at, &n, sizeof n);
  return reinterpret_cast<const int32_t*>(plan_.device + at);
}

void* Recorder::loose_room(uint64_t bytes) {
  return take(&loose_plan_, bytes, "plans");
}

void* Recorder::result_of(Part* part, void* host, uint64_t bytes, uint64_t room) {
  const uint64_t at = part->used;
  void* const from = take(part, room, "results");
  if (host != nullptr) downloads_.push_back(Download{host, part->host + at, bytes});
  return from;
}

void* Recorder::result(void* host, uint64_t bytes, uint64_t most) {
  return result_of(&results_, host, bytes, std::max(bytes, most));
}

void* Recorder::loose_result(void* host, uint64_t bytes) {
  return result_of(&loose_results_, host, bytes, bytes);
}

void Recorder::scatter(void* host, const void* part, uint64_t bytes) {
  const auto at = static_cast<const uint8_t*>(part) - loose_results_.device;
  downloads_.push_back(Download{host, loose_results_.host + at, bytes});
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
  list_[last_ + 1] = list_[used_ - 1] = Word{};  // padding after head and arguments
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

// The step: plans to the device, the list, results to the host. Large parts go by a copy engine.
void Recorder::run_list(const uint8_t* plan_host, const Sizes& copied) {
  constexpr uint64_t kLarge = 128 << 10;
  const auto small = [](uint64_t bytes) { return bytes > kLarge ? 0 : bytes; };
  if (copied.plan > kLarge) stream_->to_device(plan_.device, plan_host, copied.plan);
  if (copied.loose_plan > kLarge) stream_->to_device(loose_plan_.device, loose_plan_.host, copied.loose_plan);
  const PlanArgs plan{{{plan_.device, plan_host, small(copied.plan)},
                       {loose_plan_.device, loose_plan_.host, small(copied.loose_plan)}}};
  if (plan.ranges[0].bytes + plan.ranges[1].bytes > 0) {
    launch_plan(*stream_, plan);
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
  if (copied.results > kLarge) stream_->to_host(results_.host, results_.device, copied.results);
  if (copied.loose_results > kLarge) {
    stream_->to_host(loose_results_.host, loose_results_.device, copied.loose_results);
  }
  launch_results(*stream_, {{{results_.host, results_.device, small(copied.results)},
                             {loose_results_.host, loose_results_.device, small(copied.loose_results)}},
                            done_,
                            reinterpret_cast<uint64_t*>(plan_.device)});
}

// Rounded up, so that plans and results that differ a little in size share a graph: 0, 16 KB, 32 KB, then multiples of
// 64 KB.
Recorder::Sizes Recorder::used() const {
  const auto rounded = [](const Part& part) {
    constexpr uint64_t kStep = 16 << 10;
    const uint64_t step = part.used <= 2 * kStep ? kStep : 4 * kStep;
    return std::min((part.used + step - 1) / step * step, part.capacity);
  };
  return {rounded(plan_), rounded(results_), rounded(loose_plan_), rounded(loose_results_)};
}

// A graph serves steps that need as much as it copies, or less; steps that need far less get another graph. A graph
// that copies slightly too little grows.
Recorder::Entry* Recorder::entry_of(const uint8_t* plan_host) {
  constexpr uint64_t kLittle = 64 << 10, kFar = 4;
  static constexpr uint64_t Sizes::* kParts[] = {&Sizes::plan, &Sizes::results, &Sizes::loose_plan,
                                                 &Sizes::loose_results};
  const Sizes need = used();
  const auto near = [&](const std::unique_ptr<Entry>& e) {
    for (const auto part : kParts) {
      const uint64_t have = e->copied.*part, want = need.*part;
      if (std::max(have, want) > std::max(kLittle, kFar * std::min(have, want))) return false;
    }
    return e->list.size() == used_ && e->plan_host == plan_host &&
           std::memcmp(e->list.data(), list_.data(), used_ * kWord) == 0;
  };
  const auto found = std::find_if(entries_.begin(), entries_.end(), near);
  if (found == entries_.end()) return nullptr;
  std::rotate(entries_.begin(), found, found + 1);
  Entry& e = *entries_.front();
  for (const auto part : kParts) {
    if (e.copied.*part >= need.*part) continue;
    e.copied.*part = need.*part;
    e.graph = Graph();
  }
  return &e;
}

void Recorder::add_entry(const uint8_t* plan_host) {
  if (entries_.size() >= kMaxGraphs) entries_.pop_back();
  auto e = std::make_unique<Entry>();
  e->list.assign(list_.begin(), list_.begin() + static_cast<std::ptrdiff_t>(used_));
  e->copied = used();
  e->plan_host = plan_host;
  entries_.insert(entries_.begin(), std::move(e));
}

void Recorder::run_graph(Entry* entry) {
  if (!entry->graph) {
    stream_->begin_capture();
    run_list(entry->plan_host, entry->copied);
    stream_->end_capture(&entry->graph);
    if (stream_->failed()) return;
    breakdown_of_new_graph(*stream_, [&] { run_list(entry->plan_host, entry->copied); });
    stats_->add(Counter::kGraphCaptures, 1);
  }
  stream_->run(entry->graph);
  most_nodes_ = std::max(most_nodes_, entry->graph.nodes());
  stats_->add(Counter::kGraphRuns, 1);
}

// Runs the list as a graph from its second time on. The first time may be the only one (prompts of odd lengths), and it
// takes the set-up that a vendor's library does at the first launch of a kernel.
void Recorder::submit(uint8_t* plan_host) {
  ++number_;
  std::memcpy(plan_host, &number_, sizeof number_);
  if (uses_graphs_) {
    if (Entry* const known = entry_of(plan_host)) return run_graph(known);
  }
  run_list(plan_host, used());
  stats_->add(Counter::kListRuns, 1);
  if (uses_graphs_) add_entry(plan_host);
}

Status Recorder::flush() {
  TND_TRY(use_device(device_));
  Status status;
  if (used_ > 0 && !stream_->failed()) {
    submit(plan_.host);
    status = stream_->wait(done_, number_);
  } else {
    status = stream_->sync();
  }
  started_ = 0;
  if (status.ok()) {
    for (const Download& d : downloads_) std::memcpy(d.host, d.from, d.bytes);
  }
  forget();
  return status;
}

Status Recorder::start() {
  const uint64_t bytes = used().plan;
  if (used_ == 0 || results_.used + loose_results_.used + loose_plan_.used != 0 || bytes > kStartBytes ||
      stream_->failed()) {
    return flush();
  }
  TND_TRY(use_device(device_));
  if (started_ != 0) TND_TRY(stream_->wait(done_, started_));
  std::memcpy(start_host_, plan_.host, bytes);
  submit(start_host_);
  started_ = number_;
  forget();
  return stream_->failed() ? stream_->sync() : Status();
}

void Recorder::forget() {
  used_ = last_ = 0;
  downloads_.clear();
  for (Kept& k : kept_) k = Kept();
  counts_at_ = counts_ = 0;
  plan_.used = kAlign;  // after the number of the step
  results_.used = loose_plan_.used = loose_results_.used = 0;
}

}  // namespace tnd::gpu
