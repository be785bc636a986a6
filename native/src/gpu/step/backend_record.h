// Recorder turns the operations that a model issues into one submission per step.
//
// The backend's calls do not launch: each appends its launch function and arguments to a list, puts what the kernels
// read (plans, tokens, masks) into one buffer and reserves room for what the host wants back in another. flush() copies
// the first buffer to the device, runs the list, copies the second one back, waits, and hands the results out. A step
// thus has two copies and one wait, and the host reads nothing in between.
//
// A list that was seen before, byte by byte, has the same launches on the same pointers: it runs as a captured graph,
// the two copies included. That is why everything that differs between steps of the same kind goes through the plan
// buffer, and why nothing here knows about models: equal rows of equal shape give equal lists. A list is hundreds of
// kilobytes, so it is compared, newest first (others differ early), and never hashed.
//
// The plan begins with the number of the step. The last launch writes it to the host behind the results, and that is
// what flush waits for. start() does not wait: a commit runs while the host records the step after it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "core/status.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

class Recorder {
 public:
  Recorder(Stream* stream, int device) : stream_(stream), device_(device) { buckets_.fill(-1); }
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // plan_bytes and result_bytes are taken on the device by the caller (set_memory) and here in pinned host memory.
  Status set_memory(void* plan, uint64_t plan_bytes, void* results, uint64_t result_bytes);
  uint64_t plan_capacity() const { return plan_bytes_ - kAlign; }
  uint64_t result_capacity() const { return result_bytes_; }

  // reserve makes room for the plans and results of one operation: when they do not fit behind what is recorded, that
  // is flushed first. False when they never fit; the stream then holds the reason.
  bool reserve(uint64_t plan_bytes, uint64_t result_bytes = 0);

  // put copies n values to the plan buffer and returns their device address; equal contents of a step share one place.
  // The bytes must be part of what was reserved (each piece rounded up to kAlign).
  template <typename T>
  const T* put(const T* values, size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<const T*>(put_bytes(values, n * sizeof(T)));
  }
  template <typename T>
  const T* put(std::span<const T> values) {
    return put(values.data(), values.size());
  }
  static constexpr uint64_t kAlign = 64;
  static constexpr uint64_t padded(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  // room returns uninitialised device memory of the step, part of what was reserved.
  void* room(uint64_t bytes);

  // result returns device memory that operations write and that reaches `host` in flush.
  void* result(void* host, uint64_t bytes);
  // scatter hands out a part of what result returned (host nullptr there) to a place of its own.
  void scatter(void* host, const void* part, uint64_t bytes);

  // add records operation(stream, arguments) and returns the arguments, with their defaults, to be filled in before the
  // next call. They are filled in place because lists are compared as bytes: a local object that is copied may bring
  // along padding that differs from step to step.
  template <typename A>
  A& add(void (*operation)(Stream&, const A&)) {
    static_assert(std::is_trivially_copyable_v<A> && alignof(A) <= kWord);
    static constinit const A kDefault{};  // static: its padding is zero
    return *static_cast<A*>(append(Call{&invoke<A>, reinterpret_cast<void (*)()>(operation)}, &kDefault, sizeof(A)));
  }

  // last returns the arguments of what was recorded last if that is `operation`, else nullptr: an operation may go into
  // the launch before it.
  template <typename A>
  A* last(void (*operation)(Stream&, const A&)) {
    return static_cast<A*>(last_of(reinterpret_cast<void (*)()>(operation)));
  }

  // drop_last takes back what last() returned.
  void drop_last() { used_ = last_; }

  // flush runs everything recorded and waits for it; makes the device current. Failures stay in the stream.
  Status flush();

  // start is a flush that does not wait if nothing comes back to the host and the plan is small: what it ran is over
  // when the next flush returns, and its failures come out there.
  Status start();

  // Counters since open.
  uint64_t graph_runs() const { return graph_runs_; }
  uint64_t list_runs() const { return list_runs_; }
  int most_nodes() const { return most_nodes_; }  // of a graph that ran

 private:
  static constexpr size_t kWord = 16;
  static constexpr size_t kMaxGraphs = 48;
  struct alignas(kWord) Word {
    unsigned char bytes[kWord];
  };
  struct Call {
    void (*invoke)(Stream&, void (*)(), const void*);
    void (*operation)();
  };
  static constexpr uint64_t kCopyStep = 16 << 10;  // plans and results that differ a little in size are one graph
  struct Entry {
    std::vector<Word> list;
    uint64_t plan_bytes, result_bytes;  // that are copied
    const uint8_t* plan_host;           // from where
    Graph graph;
  };
  struct Download {
    void* host;
    uint64_t at, bytes;
  };
  struct Piece {  // of the plan buffer
    uint64_t hash, at, bytes;
    int32_t next;  // of the same bucket
  };

  template <typename A>
  static void invoke(Stream& stream, void (*operation)(), const void* args) {
    reinterpret_cast<void (*)(Stream&, const A&)>(operation)(stream, *static_cast<const A*>(args));
  }
  const void* put_bytes(const void* data, uint64_t bytes);
  void* append(const Call& call, const void* args, size_t bytes);
  void* last_of(void (*operation)());
  void run_list(const uint8_t* plan_host);
  void submit(uint8_t* plan_host);  // gives the step its number
  void forget();                    // what was recorded
  // Bytes that are copied of a step's plan and results.
  uint64_t plan_copied() const { return std::min((plan_used_ + kCopyStep - 1) / kCopyStep * kCopyStep, plan_bytes_); }
  uint64_t result_copied() const {
    return std::min((result_used_ + kCopyStep - 1) / kCopyStep * kCopyStep, result_bytes_);
  }

  Stream* stream_;
  const int device_;
  uint8_t *plan_ = nullptr, *plan_host_ = nullptr;
  uint8_t *results_ = nullptr, *results_host_ = nullptr;
  uint64_t plan_bytes_ = kAlign, result_bytes_ = 0;
  uint64_t* done_ = nullptr;  // pinned: number of the step that is done
  uint64_t number_ = 0;
  // Plan of what start() ran, pinned: plan_host_ is written while the device may still read this. Features of a round's
  // tokens for a draft fit.
  static constexpr uint64_t kStartBytes = 32 * kCopyStep;
  uint8_t* start_host_ = nullptr;
  uint64_t started_ = 0;  // its number; 0 = none, or over

  // Of the step being recorded.
  std::vector<Word> list_;      // its first used_ words; the rest is room
  size_t used_ = 0, last_ = 0;  // where the last call begins
  uint64_t plan_used_ = kAlign, result_used_ = 0;
  std::vector<Download> downloads_;
  static constexpr size_t kBuckets = 512;
  std::vector<Piece> pieces_;
  std::array<int32_t, kBuckets> buckets_;  // newest piece with this hash, -1 = none

  std::vector<std::unique_ptr<Entry>> entries_;  // the one that ran last is the first
  uint64_t graph_runs_ = 0, list_runs_ = 0;
  int most_nodes_ = 0;
};

}  // namespace tnd::gpu
