#include "gpu/emu/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace tnd::gpu::emu {
namespace {

constexpr uint64_t kGuardBytes = 64;
constexpr uint64_t kRoom = 512 * 1024;  // declarations beyond kMaxShared are reported, not written past the end

thread_local Runner* current_runner __attribute__((tls_model("initial-exec"))) = nullptr;

uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

thread_local Thread* current_thread __attribute__((tls_model("initial-exec"))) = nullptr;

Runner::Runner() {
  void* p = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  shared_ = static_cast<uint8_t*>(p);
}

Runner::~Runner() {
  ASAN_UNPOISON_MEMORY_REGION(shared_, kRoom);
  munmap(shared_, kRoom);
}

uint32_t Runner::random() {  // xorshift64*
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return static_cast<uint32_t>(random_ * 0x2545F4914F6CDD1Du >> 32);
}

Runner::Lane& Runner::lane() const {
  return *static_cast<Lane*>(current_thread);
}

void Runner::fail(const Lane& at, const char* what) {
  if (!error_.empty()) return;
  char text[512];
  std::snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u): %s", block_idx_.x, block_idx_.y,
                block_idx_.z, at.thread_idx.x, at.thread_idx.y, at.thread_idx.z, what);
  error_ = text;
}

// Nobody can go on: says who waits where.
void Runner::describe_deadlock() {
  if (!error_.empty()) return;
  int at_barrier = 0, ended = 0, waiting = 0;
  const Lane* first = nullptr;
  for (size_t w = 0; w < warps_.size(); ++w) {
    at_barrier += __builtin_popcount(warps_[w].at_barrier);
    ended += __builtin_popcount(warps_[w].ended);
    waiting += __builtin_popcount(warps_[w].waiting);
    const uint32_t stuck = warps_[w].waiting != 0 ? warps_[w].waiting : warps_[w].at_barrier;
    if (stuck != 0 && (first == nullptr || (waiting != 0 && warps_[w].waiting != 0))) {
      first = lanes_[w * TND_WARP + static_cast<size_t>(__builtin_ctz(stuck))].get();
    }
  }
  char text[256];
  std::snprintf(text, sizeof text,
                "deadlock: of %d threads %d wait at __syncthreads, %d in a warp function, %d have ended", threads_,
                at_barrier, waiting, ended);
  fail(*first, text);
}

void Runner::enter(void* argument) {
  Lane& l = *static_cast<Lane*>(argument);
  Runner& r = *current_runner;
  (*r.grid_.body)();
  for (const Copy& c : l.copies) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
  Warp& w = r.warp_of(l);
  w.ended |= 1u << l.lane;
  r.leave(l);
}

// The running lane has put itself into one of its warp's other masks.
void Runner::leave(Lane& from) {
  Warp& w = warp_of(from);
  w.ready &= ~(1u << from.lane);
  if (w.ready == 0 || !error_.empty()) {
    Fiber::switch_to(&from.fiber, &scheduler_);
  } else {
    const int shift = static_cast<int>(random() % TND_WARP);
    const uint32_t turned = w.ready >> shift | w.ready << ((TND_WARP - shift) % TND_WARP);
    const int next = (__builtin_ctz(turned) + shift) % TND_WARP;
    Lane& to = *lanes_[static_cast<size_t>(from.index / TND_WARP * TND_WARP + next)];
    current_thread = &to;
    Fiber::switch_to(&from.fiber, &to.fiber);
  }
  current_thread = &from;
}

void Runner::collective(Apply apply, void* operands) {
  Lane& l = lane();
  Warp& w = warp_of(l);
  if (w.waiting == 0) {
    w.apply = apply;
  } else if (w.apply != apply) {
    fail(l, "lanes of a warp wait in different warp functions");
    w.waiting |= 1u << l.lane;
    leave(l);
    std::abort();
  }
  w.operands[l.lane] = operands;
  if ((w.waiting | 1u << l.lane) == ~0u) {  // the last one
    apply(w.operands.data());
    w.ready = ~0u;
    w.waiting = 0;
    return;
  }
  w.waiting |= 1u << l.lane;
  leave(l);
}

void Runner::barrier() {
  Lane& l = lane();
  warp_of(l).at_barrier |= 1u << l.lane;
  leave(l);
}

void Runner::lay_guard(uint64_t end) {
  std::memset(shared_ + end, kGuard, kGuardBytes);
  ASAN_POISON_MEMORY_REGION(shared_ + end, kGuardBytes);
  guards_.push_back(end);
}

bool Runner::guards_hold() {
  for (const uint64_t g : guards_) {
    ASAN_UNPOISON_MEMORY_REGION(shared_ + g, kGuardBytes);
    if (std::any_of(shared_ + g, shared_ + g + kGuardBytes, [](uint8_t b) { return b != kGuard; })) return false;
  }
  return true;
}

void* Runner::static_memory(const void* key, uint64_t bytes, uint64_t align) {
  for (const Static& s : statics_) {
    if (s.key == key) return s.memory;
  }
  const uint64_t at = round_up(shared_used_, align);
  if (at + bytes + 2 * kGuardBytes > kRoom) {
    fail(lane(), "static shared memory is beyond all bounds");
    leave(lane());
    std::abort();
  }
  std::memset(shared_ + at, kPattern, bytes);
  lay_guard(at + bytes);
  shared_used_ = round_up(at + bytes + kGuardBytes, 16);
  statics_.push_back(Static{key, shared_ + at});
  return shared_ + at;
}

void Runner::copy_async(void* shared, const void* global, int bytes) {
  Lane& l = lane();
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    fail(l, "copy_async_16 of an address that is not a multiple of 16");
  }
  std::memset(shared, kPattern, 16);
  l.copies.push_back(Copy{shared, global, bytes, l.group});
}

void Runner::copy_commit() {
  ++lane().group;
}

void Runner::copy_wait(int newest) {
  Lane& l = lane();
  size_t kept = 0;
  for (const Copy& c : l.copies) {
    if (c.group < l.group - newest) {
      std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
      if (c.bytes < 16) std::memset(static_cast<uint8_t*>(c.to) + c.bytes, 0, static_cast<size_t>(16 - c.bytes));
    } else {
      l.copies[kept++] = c;
    }
  }
  l.copies.resize(kept);
}

bool Runner::run(const Grid& grid, Dim3 block_idx, uint64_t seed, std::string* error) {
  grid_ = grid;
  block_idx_ = block_idx;
  random_ = seed | 1;
  error_.clear();
  const Dim3 dim = grid.launch->block;
  threads_ = static_cast<int>(dim.count());
  while (lanes_.size() < static_cast<size_t>(threads_)) lanes_.push_back(std::make_unique<Lane>());
  warps_.assign(static_cast<size_t>(threads_ + TND_WARP - 1) / TND_WARP, Warp());
  for (int i = 0; i < threads_; ++i) {
    Lane& l = *lanes_[static_cast<size_t>(i)];
    const unsigned n = static_cast<unsigned>(i);
    l.thread_idx = Dim3{n % dim.x, n / dim.x % dim.y, n / dim.x / dim.y};
    l.block_idx = block_idx;
    l.block_dim = dim;
    l.grid_dim = grid.launch->grid;
    l.lane = n % TND_WARP;
    l.index = i;
    l.group = 0;
    l.copies.clear();
    l.fiber.start(&Runner::enter, &l);
    Warp& w = warps_[n / TND_WARP];
    w.present |= 1u << l.lane;
    w.ready |= 1u << l.lane;
  }
  statics_.clear();
  guards_.clear();
  const uint64_t dynamic = grid.launch->shared_bytes;
  ASAN_UNPOISON_MEMORY_REGION(shared_, kRoom);
  std::memset(shared_, kPattern, dynamic);
  lay_guard(dynamic);
  shared_used_ = round_up(dynamic + kGuardBytes, 128);

  Runner* const outer = current_runner;
  current_runner = this;
  std::vector<int> order(warps_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  for (;;) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    bool ran = false;
    for (const int index : order) {
      Warp& w = warps_[static_cast<size_t>(index)];
      if (w.ready == 0) continue;
      ran = true;
      Lane& first = *lanes_[static_cast<size_t>(index * TND_WARP + __builtin_ctz(w.ready))];
      current_thread = &first;
      Fiber::switch_to(&scheduler_, &first.fiber);
      if (!error_.empty()) break;
    }
    if (!error_.empty()) break;
    if (ran) continue;
    bool all_ended = true, all_wait = true;
    for (const Warp& w : warps_) {
      all_ended = all_ended && w.ended == w.present;
      all_wait = all_wait && w.at_barrier == w.present;
    }
    if (all_ended) break;
    if (!all_wait) {
      describe_deadlock();
      break;
    }
    for (Warp& w : warps_) {
      w.ready = w.present;
      w.at_barrier = 0;
    }
  }
  current_runner = outer;
  current_thread = nullptr;
  if (!guards_hold()) fail(*lanes_[0], "a write behind shared memory");
  uint64_t shared = dynamic;
  if (!statics_.empty()) shared = shared_used_;
  if (error_.empty() && shared > kMaxShared) fail(*lanes_[0], "more shared memory than any card has");
  *error = error_;
  return error_.empty();
}

void warp_collective(Apply apply, void* operands) {
  current_runner->collective(apply, operands);
}
void sync_block() {
  current_runner->barrier();
}
void* static_memory(const void* key, uint64_t bytes, uint64_t align) {
  return current_runner->static_memory(key, bytes, align);
}
void* dynamic_shared() {
  return current_runner->dynamic_memory();
}
void copy_async(void* shared, const void* global, int bytes) {
  current_runner->copy_async(shared, global, bytes);
}
void copy_async_commit() {
  current_runner->copy_commit();
}
void copy_async_wait(int newest) {
  current_runner->copy_wait(newest);
}

namespace {
struct BallotOperands {
  bool value;
  uint32_t result;
};
void apply_ballot(void* const operands[32]) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= uint32_t{static_cast<BallotOperands*>(operands[i])->value} << i;
  for (int i = 0; i < 32; ++i) static_cast<BallotOperands*>(operands[i])->result = bits;
}
void apply_nothing(void* const[32]) {}
}  // namespace

uint32_t ballot(bool value) {
  BallotOperands o{value, 0};
  warp_collective(apply_ballot, &o);
  return o.result;
}
void sync_warp() {
  warp_collective(apply_nothing, nullptr);
}

}  // namespace tnd::gpu::emu
