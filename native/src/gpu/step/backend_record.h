// Recorder turns the operations that a model issues into one submission per step.
//
// The backend's calls do not launch: each appends its launch function and arguments to a list, writes what the kernels
// read (plans, tokens, masks) to one buffer, and reserves room for results to the host in another. flush() copies the
// first buffer to the device, runs the list, copies the second one back, waits, and hands the results out. A step thus
// has two copies and one wait, and the host reads nothing in between.
//
// A list that was seen before, byte by byte, has the same launches on the same pointers: it runs as a captured graph,
// the two copies included. Everything that differs between steps of the same kind therefore goes through the plan
// buffer, and nothing here depends on models: rows of one bucket (buckets.h) give equal lists. A list is hundreds of
// kilobytes, so it is compared, newest first (others differ early), and never hashed.
//
// Plan and results have two parts each. Addresses in the first part are arguments of launches. They follow from the
// sizes of earlier requests, which are therefore rounded up to buckets. Data to which only the plan points (masks,
// penalties, numbers of a choice) lies in the second, loose part, whose sizes change no list. A graph copies as much of
// every part as the steps that ran it have needed so far.
//
// The plan begins with the number of the step. The last launch writes it to the host after the results, and flush waits
// for it. start() does not wait: a commit runs while the host records the step after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "core/stats.h"
#include "core/status.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

class Recorder {
 public:
  Recorder(Stream* stream, int device) : stream_(stream), device_(device) {}
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Bytes of the parts of plan and results.
  struct Sizes {
    uint64_t plan = 0, results = 0, loose_plan = 0, loose_results = 0;
  };
  // set_memory passes device memory for plan and results, whose parts are consecutive, and allocates as much pinned
  // host memory.
  Status set_memory(void* plan, void* results, const Sizes& sizes);
  uint64_t plan_capacity() const { return plan_.capacity > 2 * kAlign ? plan_.capacity - 2 * kAlign : 0; }
  uint64_t result_capacity() const { return results_.capacity; }
  uint64_t loose_plan_capacity() const { return loose_plan_.capacity; }
  uint64_t loose_result_capacity() const { return loose_results_.capacity; }

  // reserve makes room for the plans and results of one operation: when they do not fit after what is recorded, it
  // flushes that first. False when they never fit; the stream then holds the reason. A number for count() is included.
  bool reserve(const Sizes& sizes);
  bool reserve(uint64_t plan_bytes, uint64_t result_bytes = 0) { return reserve({plan_bytes, result_bytes}); }

  // put copies n values to the plan and returns their device address. There is room for `most`; values beyond n are
  // unspecified. The bytes must be part of what was reserved (each piece rounded up to kAlign).
  template <typename T>
  T* put(const T* values, size_t n, size_t most = 0) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<T*>(put_bytes(&plan_, values, n * sizeof(T), std::max(n, most) * sizeof(T)));
  }
  template <typename T>
  const T* put(std::span<const T> values, size_t most = 0) {
    return put(values.data(), values.size(), most);
  }
  // put_same is put for data that the layers of a model have in common: if the key's last data was the same, it returns
  // that address. Keys are 0 .. kKeys - 1. Equal lists must agree on whether contents are the same.
  static constexpr int kKeys = 8;
  template <typename T>
  const T* put_same(int key, std::span<const T> values, size_t most = 0) {
    const uint64_t bytes = values.size_bytes(), room = std::max(values.size(), most) * sizeof(T);
    Kept& kept = kept_[key];
    if (kept.at != 0 && kept.bytes == bytes && kept.room == room &&
        (bytes == 0 || std::memcmp(plan_.host + kept.at, values.data(), bytes) == 0)) {
      return reinterpret_cast<const T*>(plan_.device + kept.at);
    }
    kept = Kept{plan_.used, bytes, room};
    return put(values.data(), values.size(), most);
  }
  // count puts the number of rows in use of an operation, before it puts anything else.
  const int32_t* count(int32_t n);
  // put_loose is put, and loose_room returns uninitialised memory, for addresses that only the plan holds.
  template <typename T>
  T* put_loose(const T* values, size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<T*>(put_bytes(&loose_plan_, values, n * sizeof(T), n * sizeof(T)));
  }
  void* loose_room(uint64_t bytes);
  static constexpr uint64_t kAlign = 64;
  static constexpr uint64_t padded(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  // result returns `most` bytes of device memory that operations write; flush copies the first `bytes` to `host`.
  void* result(void* host, uint64_t bytes, uint64_t most = 0);
  // loose_result is result for addresses that only the plan holds. After loose_result with host nullptr, scatter makes
  // flush copy a part of that memory to a host address.
  void* loose_result(void* host, uint64_t bytes);
  void scatter(void* host, const void* part, uint64_t bytes);

  // add records operation(stream, arguments) and returns the arguments, with their defaults, to be filled in before the
  // next call. They are filled in place because lists are compared as bytes: the padding of a copied local object may
  // differ from step to step.
  template <typename A>
  A& add(void (*operation)(Stream&, const A&)) {
    static_assert(std::is_trivially_copyable_v<A> && alignof(A) <= kWord);
    static constinit const A kDefault{};  // static: its padding is zero
    return *static_cast<A*>(append(Call{&invoke<A>, reinterpret_cast<void (*)()>(operation)}, &kDefault, sizeof(A)));
  }

  // last returns the arguments of the last recorded operation if that is `operation`, else nullptr: an operation may be
  // merged into the launch before it.
  template <typename A>
  A* last(void (*operation)(Stream&, const A&)) {
    return static_cast<A*>(last_of(reinterpret_cast<void (*)()>(operation)));
  }

  // drop_last removes the operation that last() returned.
  void drop_last() { used_ = last_; }

  // flush runs everything recorded and waits for it; makes the device current. Failures stay in the stream.
  Status flush();

  // start is a flush that does not wait if no results go to the host and the plan is small. The work is done when the
  // next flush returns, which also returns its failures.
  Status start();

  // Counters since open: submissions that ran as a graph, those that captured it first, and those that ran launch by
  // launch. From any thread.
  uint64_t graph_runs() const { return stats_->get(Counter::kGraphRuns); }
  uint64_t graph_captures() const { return stats_->get(Counter::kGraphCaptures); }
  uint64_t list_runs() const { return stats_->get(Counter::kListRuns); }
  int most_nodes() const { return most_nodes_; }  // most nodes of a graph that ran
  // count_in counts them in `stats` from now on.
  void count_in(Stats* stats) { stats_ = stats; }
  // use_graphs(false) runs every list launch by launch. For tests.
  void use_graphs(bool use) { uses_graphs_ = use; }

 private:
  static constexpr size_t kWord = 16;
  static constexpr size_t kMaxGraphs = 96;  // a model has several buckets of rows, groups and tiles in use at a time
  struct alignas(kWord) Word {
    unsigned char bytes[kWord];
  };
  struct Call {
    void (*invoke)(Stream&, void (*)(), const void*);
    void (*operation)();
  };
  struct Part {
    uint8_t *device = nullptr, *host = nullptr;
    uint64_t capacity = 0, used = 0;
  };
  struct Entry {
    std::vector<Word> list;
    Sizes copied;
    const uint8_t* plan_host;  // from where
    Graph graph;
  };
  struct Download {
    void* host;
    const uint8_t* from;  // pinned
    uint64_t bytes;
  };
  struct Kept {  // of the plan, by put_same
    uint64_t at = 0, bytes = 0, room = 0;
  };

  template <typename A>
  static void invoke(Stream& stream, void (*operation)(), const void* args) {
    reinterpret_cast<void (*)(Stream&, const A&)>(operation)(stream, *static_cast<const A*>(args));
  }
  void* take(Part* part, uint64_t bytes, const char* what);
  void* put_bytes(Part* part, const void* data, uint64_t bytes, uint64_t room);
  void* result_of(Part* part, void* host, uint64_t bytes, uint64_t room);
  void* append(const Call& call, const void* args, size_t bytes);
  void* last_of(void (*operation)());
  void run_list(const uint8_t* plan_host, const Sizes& copied);
  void submit(uint8_t* plan_host);            // gives the step its number
  void run_graph(Entry* entry);               // captures it first if there is none
  Entry* entry_of(const uint8_t* plan_host);  // of an equal list, moved to the front; nullptr = none
  void add_entry(const uint8_t* plan_host);   // of the list that ran
  void forget();                              // drops what was recorded
  Sizes used() const;                         // rounded up to the sizes that are copied

  Stream* stream_;
  const int device_;
  Part plan_, loose_plan_, results_, loose_results_;
  uint64_t* done_ = nullptr;  // pinned: number of the step that is done
  uint64_t number_ = 0;
  // Pinned copy of the plan that start() ran: plan_host_ is written while the device may still read this. Large enough
  // for the features of a round's tokens for a draft.
  static constexpr uint64_t kStartBytes = 512 << 10;
  uint8_t* start_host_ = nullptr;
  uint64_t started_ = 0;  // its number; 0 = none, or over

  // Of the step being recorded.
  std::vector<Word> list_;      // its first used_ words; the rest is room
  size_t used_ = 0, last_ = 0;  // where the last call begins
  std::vector<Download> downloads_;
  Kept kept_[kKeys];
  static constexpr uint64_t kCounts = kAlign / sizeof(int32_t);  // numbers of count() that share a piece
  uint64_t counts_at_ = 0, counts_ = 0;                          // that piece (0 = none) and how many numbers it holds

  std::vector<std::unique_ptr<Entry>> entries_;  // the one that ran last is the first
  Stats own_stats_, *stats_ = &own_stats_;
  bool uses_graphs_ = !plain_launches();
  int most_nodes_ = 0;
};

}  // namespace tnd::gpu
