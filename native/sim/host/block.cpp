#include "sim/host/block.h"

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

std::vector<Bytes> fresh_bytes;

bool is_fresh(const void* p, int bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  return std::any_of(fresh_bytes.begin(), fresh_bytes.end(), [&](const Bytes& b) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(b.begin);
    return at < begin + b.count && begin < at + static_cast<uintptr_t>(bytes);
  });
}

uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

thread_local Thread* current_thread __attribute__((tls_model("initial-exec"))) = nullptr;

Runner::Runner() {
  void* p =
      mmap(nullptr, kRoom * kMaxCluster, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  shared_ = static_cast<uint8_t*>(p);
}

Runner::~Runner() {
  ASAN_UNPOISON_MEMORY_REGION(shared_, kRoom * kMaxCluster);
  munmap(shared_, kRoom * kMaxCluster);
}

uint8_t* Runner::shared_of(int block) const {
  return shared_ + static_cast<uint64_t>(block) * kRoom;
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
  std::snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u): %s", at.block_idx.x, at.block_idx.y,
                at.block_idx.z, at.thread_idx.x, at.thread_idx.y, at.thread_idx.z, what);
  error_ = text;
}

// No lane can continue: reports which lanes wait where.
void Runner::describe_deadlock() {
  if (!error_.empty()) return;
  int at_barrier = 0, ended = 0, waiting = 0, polling = 0;
  const Lane* first = nullptr;
  for (size_t w = 0; w < warps_.size(); ++w) {
    at_barrier += __builtin_popcount(warps_[w].at_barrier);
    ended += __builtin_popcount(warps_[w].ended);
    waiting += __builtin_popcount(warps_[w].waiting);
    polling += __builtin_popcount(warps_[w].polling);
    const uint32_t stuck = warps_[w].waiting != 0      ? warps_[w].waiting
                           : warps_[w].at_barrier != 0 ? warps_[w].at_barrier
                                                       : warps_[w].polling;
    if (stuck != 0 && (first == nullptr || (waiting != 0 && warps_[w].waiting != 0))) {
      first = lanes_[w * TND_WARP + static_cast<size_t>(__builtin_ctz(stuck))].get();
    }
  }
  char text[256];
  std::snprintf(text, sizeof text,
                "deadlock: of %d threads %d wait at __syncthreads, %d in a warp function, %d have ended, %d wait for "
                "other blocks or copies",
                threads_ * blocks_, at_barrier, waiting, ended, polling);
  fail(*first, text);
}

void Runner::enter(void* argument) {
  Lane& l = *static_cast<Lane*>(argument);
  Runner& r = *current_runner;
  (*r.grid_.body)();
  for (const Copy& c : l.copies) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
  Warp& w = r.warp_of(l);
  w.ended |= 1u << l.lane;
  r.happened();
  r.leave(l);
}

// The running lane has moved itself to one of its warp's other masks.
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

void Runner::poll() {
  Lane& l = lane();
  warp_of(l).polling |= 1u << l.lane;
  leave(l);
}

void Runner::happened() {
  for (Warp& w : warps_) {
    w.ready |= w.polling;
    w.polling = 0;
  }
}

// A barrier in shared memory: 16 bits of arrivals that are missing, 16 of arrivals of a phase, 31 of bytes that are
// missing, counted from 2^30 on (they may come before they are announced), the phase.
namespace {
struct BarrierState {
  uint32_t missing, count;
  int64_t bytes;
  uint32_t phase;
};
BarrierState unpack(uint64_t v) {
  return {static_cast<uint32_t>(v & 0xFFFF), static_cast<uint32_t>(v >> 16 & 0xFFFF),
          static_cast<int64_t>(v >> 32 & 0x7FFFFFFF) - (1 << 30), static_cast<uint32_t>(v >> 63)};
}
uint64_t pack(const BarrierState& b) {
  return b.missing | uint64_t{b.count} << 16 | static_cast<uint64_t>(b.bytes + (1 << 30)) << 32 |
         uint64_t{b.phase} << 63;
}
}  // namespace

void Runner::settle(uint64_t* barrier) {
  BarrierState b = unpack(*barrier);
  if (b.missing != 0 || b.bytes != 0) return;
  b.missing = b.count;
  b.phase ^= 1;
  *barrier = pack(b);
  happened();
}

void Runner::barrier_init(uint64_t* barrier, int count) {
  *barrier = pack({static_cast<uint32_t>(count), static_cast<uint32_t>(count), 0, 0});
}

void Runner::barrier_arrive(uint64_t* barrier, int bytes) {
  BarrierState b = unpack(*barrier);
  if (b.missing == 0 || b.count == 0) fail(lane(), "one arrival too many at a barrier, or none was made there");
  --b.missing;
  b.bytes += bytes;
  *barrier = pack(b);
  settle(barrier);
}

void Runner::barrier_wait(const uint64_t* barrier, uint32_t parity) {
  while (unpack(*barrier).phase == parity && error_.empty()) {
    bool delivered = false;
    size_t kept = 0;
    for (size_t i = 0; i < bulk_.size(); ++i) {
      const BulkCopy c = bulk_[i];
      if (c.barrier != barrier) {
        bulk_[kept++] = c;
        continue;
      }
      std::memcpy(c.to, c.from, c.bytes);
      BarrierState b = unpack(*c.barrier);
      b.bytes -= c.bytes;
      *c.barrier = pack(b);
      delivered = true;
    }
    bulk_.resize(kept);
    if (delivered) {
      settle(const_cast<uint64_t*>(barrier));
    } else {
      poll();
    }
  }
}

void Runner::send(void* shared, const void* from, uint32_t bytes, uint64_t* barrier) {
  std::memcpy(shared, from, bytes);
  BarrierState b = unpack(*barrier);
  b.bytes -= bytes;
  *barrier = pack(b);
  settle(barrier);
}

void Runner::bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0 ||
      bytes % 16 != 0) {
    fail(lane(), "bulk_copy of an address or length that is not a multiple of 16");
  }
  std::memset(shared, kPattern, bytes);
  bulk_.push_back(BulkCopy{shared, global, bytes, barrier});
}

void Runner::cluster_arrive() {
  ++lane().arrivals;
  happened();
}

void Runner::cluster_wait() {
  const int wanted = lane().arrivals;
  const auto complete = [&] {
    for (size_t w = 0; w < warps_.size(); ++w) {
      for (uint32_t there = warps_[w].present & ~warps_[w].ended; there != 0; there &= there - 1) {
        if (lanes_[w * TND_WARP + static_cast<size_t>(__builtin_ctz(there))]->arrivals < wanted) return false;
      }
    }
    return true;
  };
  while (!complete() && error_.empty()) poll();
}

void* Runner::of_block(void* shared, int rank) {
  bool ended = true;
  for (int w = rank * block_warps_; w < (rank + 1) * block_warps_; ++w) {
    ended = ended && warps_[static_cast<size_t>(w)].ended == warps_[static_cast<size_t>(w)].present;
  }
  if (ended) fail(lane(), "shared memory of a block that has ended");
  return static_cast<uint8_t*>(shared) + (rank - lane().block) * static_cast<int64_t>(kRoom);
}

void Runner::lay_guard(uint8_t* end) {
  std::memset(end, kGuard, kGuardBytes);
  ASAN_POISON_MEMORY_REGION(end, kGuardBytes);
  guards_.push_back(end);
}

bool Runner::guards_hold() {
  for (uint8_t* const g : guards_) {
    ASAN_UNPOISON_MEMORY_REGION(g, kGuardBytes);
    if (std::any_of(g, g + kGuardBytes, [](uint8_t b) { return b != kGuard; })) return false;
  }
  return true;
}

void* Runner::static_memory(const void* key, uint64_t bytes, uint64_t align) {
  const int block = lane().block;
  for (const Static& s : statics_) {
    if (s.key == key && s.block == block) return s.memory;
  }
  uint64_t& used = shared_used_[static_cast<size_t>(block)];
  uint8_t* const room = shared_of(block);
  const uint64_t at = round_up(used, align);
  if (at + bytes + 2 * kGuardBytes > kRoom) {
    fail(lane(), "static shared memory is beyond all bounds");
    leave(lane());
    std::abort();
  }
  std::memset(room + at, kPattern, bytes);
  lay_guard(room + at + bytes);
  used = round_up(at + bytes + kGuardBytes, 16);
  statics_.push_back(Static{key, block, room + at});
  return room + at;
}

void Runner::copy_async(void* shared, const void* global, int bytes) {
  Lane& l = lane();
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    fail(l, "copy_async_16 of an address that is not a multiple of 16");
  }
  if (!l.waited && is_fresh(global, bytes)) fail(l, "copy_async_16 of fresh bytes before wait_for_previous()");
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
  random_ = seed | 1;
  error_.clear();
  const Dim3 dim = grid.launch->block;
  threads_ = static_cast<int>(dim.count());
  blocks_ = static_cast<int>(grid.launch->cluster);
  block_warps_ = (threads_ + TND_WARP - 1) / TND_WARP;
  while (lanes_.size() < static_cast<size_t>(blocks_ * block_warps_ * TND_WARP)) {
    lanes_.push_back(std::make_unique<Lane>());
  }
  warps_.assign(static_cast<size_t>(blocks_ * block_warps_), Warp());
  statics_.clear();
  guards_.clear();
  bulk_.clear();
  ASAN_UNPOISON_MEMORY_REGION(shared_, kRoom * kMaxCluster);
  const uint64_t dynamic = grid.launch->shared_bytes;
  for (int block = 0; block < blocks_; ++block) {
    for (int i = 0; i < threads_; ++i) {
      const int index = block * block_warps_ * TND_WARP + i;
      Lane& l = lane_at(index);
      const unsigned n = static_cast<unsigned>(i);
      l.thread_idx = Dim3{n % dim.x, n / dim.x % dim.y, n / dim.x / dim.y};
      l.block_idx = block_idx;
      l.block_idx.x += static_cast<unsigned>(block);
      l.block_dim = dim;
      l.grid_dim = grid.launch->grid;
      l.lane = n % TND_WARP;
      l.index = index;
      l.block = block;
      l.waited = false;
      l.group = 0;
      l.arrivals = 0;
      l.copies.clear();
      l.fiber.start(&Runner::enter, &l);
      Warp& w = warp_of(l);
      w.present |= 1u << l.lane;
      w.ready |= 1u << l.lane;
    }
    std::memset(shared_of(block), kPattern, dynamic);
    lay_guard(shared_of(block) + dynamic);
    shared_used_[static_cast<size_t>(block)] = round_up(dynamic + kGuardBytes, 128);
  }

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
    bool all_ended = true, released = false;
    for (int block = 0; block < blocks_; ++block) {
      const auto first = warps_.begin() + block * block_warps_;
      bool all_wait = true;
      for (auto w = first; w != first + block_warps_; ++w) {
        all_ended = all_ended && w->ended == w->present;
        all_wait = all_wait && w->at_barrier == w->present;
      }
      if (!all_wait) continue;
      for (auto w = first; w != first + block_warps_; ++w) {
        w->ready = w->present;
        w->at_barrier = 0;
      }
      released = true;
    }
    if (all_ended) break;
    if (!released) {
      describe_deadlock();
      break;
    }
  }
  current_runner = outer;
  current_thread = nullptr;
  if (!guards_hold()) fail(*lanes_[0], "a write behind shared memory");
  if (!bulk_.empty()) fail(*lanes_[0], "the block ended before a bulk copy that nobody waited for");
  const uint64_t shared =
      statics_.empty() ? dynamic : *std::max_element(shared_used_.begin(), shared_used_.begin() + blocks_);
  constexpr uint64_t kGuards = 1024;  // most guards of a kernel's arrays
  const uint64_t limit = shared_per_block();
  if (error_.empty() && (dynamic > limit || shared > limit + kGuards)) {
    fail(*lanes_[0], "more shared memory than the device has");
  }
  if (error_.empty() && dynamic > 0 && shared > kSharedUnasked + kGuards &&
      dynamic + grid.launch->static_bytes <= kSharedUnasked) {
    fail(*lanes_[0], "static shared memory that the launch does not count (Launch::static_bytes)");
  }
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
void set_fresh(std::vector<Bytes> fresh) {
  fresh_bytes = std::move(fresh);
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
void barrier_init(uint64_t* barrier, int count) {
  current_runner->barrier_init(barrier, count);
}
void barrier_arrive(uint64_t* barrier, int bytes) {
  current_runner->barrier_arrive(barrier, bytes);
}
void barrier_wait(const uint64_t* barrier, uint32_t parity) {
  current_runner->barrier_wait(barrier, parity);
}
void send(void* shared, const void* from, uint32_t bytes, uint64_t* barrier) {
  current_runner->send(shared, from, bytes, barrier);
}
void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  current_runner->bulk_copy(shared, global, bytes, barrier);
}
void cluster_arrive() {
  current_runner->cluster_arrive();
}
void cluster_wait() {
  current_runner->cluster_wait();
}
int cluster_rank() {
  return current_runner->rank();
}
void* of_block(void* shared, int rank) {
  return current_runner->of_block(shared, rank);
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
