// Host side of the emulation: one device, which is this computer, its memory, its streams, and the host threads that
// run blocks.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "gpu/runtime/card.h"
#include "sim/host/block.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace tnd::gpu {
namespace {

using Op = std::function<void(Stream&)>;

struct Queue {
  std::vector<Op> ops;       // until sync
  std::vector<Op> captured;  // between begin_capture and end_capture
  bool capturing = false;

  void add(Op op) { (capturing ? captured : ops).push_back(std::move(op)); }
};
Queue& queue(void* native) {
  return *static_cast<Queue*>(native);
}

uint64_t env_number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && text[0] != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

// ---- blocks on host threads

class Pool {
 public:
  static Pool& get() {
    static Pool pool;
    return pool;
  }
  ~Pool() { stop(); }

  void set_threads(int n) {
    const std::lock_guard<std::mutex> lock(launch_mutex_);
    stop();
    wanted_ = n;
  }
  void set_seed(uint64_t seed) {
    const std::lock_guard<std::mutex> lock(launch_mutex_);
    seed_ = seed;
  }

  // run executes all blocks of a grid; empty = success. One grid at a time in the process.
  std::string run(const Launch& l, const std::function<void()>& body) {
    const std::lock_guard<std::mutex> launch_lock(launch_mutex_);
    if (l.block.count() > kMaxBlock) return "a block has more than 1024 threads";
    start();
    grid_ = emu::Grid{&l, &body};
    if (l.cluster == 0 || l.cluster > emu::kMaxCluster || l.grid.x % l.cluster != 0) {
      return "clusters do not fit the grid";
    }
    blocks_ = l.grid.count() / l.cluster;
    // Blocks, or clusters, in the order a * i + b mod n.
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    offset_ = (seed_ >> 33) % blocks_;
    factor_ = (seed_ >> 17) % blocks_;
    while (std::gcd(factor_, blocks_) != 1) factor_ = (factor_ + 1) % std::max<uint64_t>(blocks_, 2);
    next_.store(0);
    error_.clear();
    const int helpers = static_cast<int>(std::min<uint64_t>(blocks_ - 1, threads_.size()));
    if (helpers > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      busy_ = static_cast<int>(threads_.size());
      ++round_;
      wake_.notify_all();
    }
    work(0);
    if (helpers > 0) {
      std::unique_lock<std::mutex> lock(mutex_);
      done_.wait(lock, [&] { return busy_ == 0; });
    }
    return error_;
  }

 private:
  static constexpr uint64_t kMaxBlock = 1024;

  void start() {
    if (!runners_.empty()) return;
    int n = wanted_ != 0 ? wanted_ : static_cast<int>(env_number("TND_EMU_THREADS", 0));
    if (n <= 0) n = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int i = 0; i < n; ++i) runners_.push_back(std::make_unique<emu::Runner>());
    stopping_ = false;
    for (int i = 1; i < n; ++i) threads_.emplace_back([this, i, round = round_] { loop(i, round); });
  }
  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
    }
    for (std::thread& t : threads_) t.join();
    threads_.clear();
    runners_.clear();
  }
  void loop(int index, uint64_t seen) {
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
        if (stopping_) return;
        seen = round_;
      }
      work(index);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }
  void work(int index) {
    const unsigned cluster = grid_.launch->cluster;
    Dim3 dim = grid_.launch->grid;
    dim.x /= cluster;
    for (;;) {
      const uint64_t i = next_.fetch_add(1);
      if (i >= blocks_) return;
      const uint64_t block = (i * factor_ + offset_) % blocks_;
      const Dim3 at{static_cast<unsigned>(block % dim.x) * cluster, static_cast<unsigned>(block / dim.x % dim.y),
                    static_cast<unsigned>(block / dim.x / dim.y)};
      std::string error;
      if (runners_[static_cast<size_t>(index)]->run(grid_, at, seed_ ^ (block + 1) * 0x9E3779B97F4A7C15u, &error)) {
        continue;
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      if (error_.empty()) error_ = error;
      next_.store(blocks_);
    }
  }

  std::mutex launch_mutex_;  // one grid at a time
  int wanted_ = 0;
  uint64_t seed_ = env_number("TND_EMU_SEED", 1);
  std::vector<std::unique_ptr<emu::Runner>> runners_;
  std::vector<std::thread> threads_;

  // Of the grid that runs.
  emu::Grid grid_;
  uint64_t blocks_ = 0, factor_ = 1, offset_ = 0;
  std::atomic<uint64_t> next_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  uint64_t round_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
  std::string error_;
};

// ---- device memory

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAlign = 256;
constexpr uint64_t kFilled = uint64_t{16} << 20;  // first bytes that get the pattern

// Allocations end at a page without access; the bytes up to it, which alignment leaves over, hold the guard value.
class Memory {
 public:
  static Memory& get() {
    static Memory memory;
    return memory;
  }
  Status allocate(uint64_t bytes, void** out) {
    const uint64_t size = (std::max<uint64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
    const uint64_t mapped = (size + kPage - 1) / kPage * kPage + kPage;
    void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(static_cast<uint8_t*>(p) + mapped - kPage, kPage, PROT_NONE) != 0) {
      return errorf(TND_RESOURCE_EXHAUSTED, "the system refuses a region of %llu bytes",
                    static_cast<unsigned long long>(bytes));
    }
    uint8_t* const base = static_cast<uint8_t*>(p) + (mapped - kPage - size);
    std::memset(base, emu::kPattern, std::min(bytes, kFilled));
    std::memset(base + bytes, emu::kGuard, size - bytes);
    ASAN_POISON_MEMORY_REGION(base + bytes, size - bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[base] = Block{p, mapped, bytes, size};
    *out = base;
    return Status();
  }
  void release(void* base) {
    if (base == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = blocks_.find(base);
    if (it == blocks_.end()) std::abort();  // never allocated, or released twice
    const Block b = it->second;
    blocks_.erase(it);
    ASAN_UNPOISON_MEMORY_REGION(base, b.size);
    const auto* p = static_cast<uint8_t*>(base);
    if (std::any_of(p + b.bytes, p + b.size, [](uint8_t v) { return v != emu::kGuard; })) {
      std::fprintf(stderr, "gpu emulation: something wrote behind a region of %llu bytes\n",
                   static_cast<unsigned long long>(b.bytes));
      std::abort();
    }
    munmap(b.mapping, b.mapped);
  }

 private:
  struct Block {
    void* mapping;
    uint64_t mapped, bytes, size;
  };
  std::mutex mutex_;
  std::map<void*, Block> blocks_;
};

uint64_t meminfo_available() {
  std::FILE* f = std::fopen("/proc/meminfo", "re");
  if (f == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof line, f) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
  }
  std::fclose(f);
  return static_cast<uint64_t>(kib) * 1024;
}

}  // namespace

namespace emu {

void set_threads(int threads) {
  Pool::get().set_threads(threads);
}
void set_seed(uint64_t seed) {
  Pool::get().set_seed(seed);
}

void launch(Stream& stream, const Launch& l, std::function<void()> body) {
  queue(stream.native()).add([l, body = std::move(body)](Stream& s) {
    const std::string error = Pool::get().run(l, body);
    if (!error.empty()) s.fail(errorf(TND_INTERNAL, "kernel %s: %s", l.name, error.c_str()));
  });
}

unsigned shared_per_block() {
  static const auto bytes = static_cast<unsigned>(env_number("TND_EMU_SHARED", kMaxShared));
  return bytes;
}

}  // namespace emu

// ---- devices

const char* api_name() {
  return "emu";
}
int device_count() {
  return static_cast<int>(env_number("TND_EMU_DEVICES", 1));
}
Status device_info(int device, DeviceInfo* out) {
  (void)device;
  *out = DeviceInfo();
  out->name = "GPU emulation";
  out->processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  out->shared_per_block = static_cast<int>(emu::shared_per_block());
  out->major = out->shared_per_block > 64 * 1024 ? 8 : 7;  // with less it counts as sm_75
  out->l2_bytes = 1 << 20;
  out->total_bytes = meminfo_available();
  return impersonate(out);
}
Status check_code(const DeviceInfo&) {
  return Status();
}
Status use_device(int) {
  return Status();
}
bool device_overlaps() {
  return false;
}
int clusters_at_once(int, int, const void*) {
  return 3;
}
Status memory_free(uint64_t* free_bytes) {
  *free_bytes = meminfo_available();
  return Status();
}
Status device_alloc(uint64_t bytes, void** out) {
  return Memory::get().allocate(bytes, out);
}
void device_free(void* p) {
  Memory::get().release(p);
}
Status host_alloc(uint64_t bytes, void** out) {
  return Memory::get().allocate(bytes, out);
}
void host_free(void* p) {
  Memory::get().release(p);
}

// ---- streams

Stream::~Stream() {
  delete static_cast<Queue*>(native_);
}
Status Stream::open() {
  native_ = new Queue;
  return Status();
}
void Stream::to_device(void* dst, const void* host, uint64_t bytes) {
  copy(dst, host, bytes);
}
void Stream::to_host(void* host, const void* src, uint64_t bytes) {
  copy(host, src, bytes);
}
void Stream::copy(void* dst, const void* src, uint64_t bytes) {
  if (failed()) return;
  queue(native_).add([=](Stream&) { std::memcpy(dst, src, bytes); });
}
void Stream::fill(void* dst, uint8_t value, uint64_t bytes) {
  if (failed()) return;
  queue(native_).add([=](Stream&) { std::memset(dst, value, bytes); });
}
Status Stream::sync() {
  std::vector<Op> ops;
  ops.swap(queue(native_).ops);
  for (const Op& op : ops) {
    if (failed()) break;
    op(*this);
  }
  return fault_;
}
Status Stream::wait(const uint64_t*, uint64_t) {
  return sync();
}
void Stream::begin_capture() {
  queue(native_).capturing = true;
  queue(native_).captured.clear();
}
void Stream::end_capture(Graph* out) {
  Queue& q = queue(native_);
  q.capturing = false;
  Graph graph;
  graph.nodes_ = static_cast<int>(q.captured.size());
  graph.native_ = new std::vector<Op>(std::move(q.captured));
  *out = std::move(graph);
}
void Stream::run(const Graph& graph) {
  if (failed()) return;
  for (const Op& op : *static_cast<const std::vector<Op>*>(graph.native_)) queue(native_).add(op);
}
void Stream::check(int code, const char* what) {
  if (code != 0) fail(errorf(TND_INTERNAL, "%s: error %d", what, code));
}
void Stream::fail(Status status) {
  if (fault_.ok()) fault_ = std::move(status);
}

Graph::~Graph() {
  delete static_cast<std::vector<Op>*>(native_);
}

Event::Event() = default;
Event::~Event() = default;
void Event::record(Stream&) {}
float elapsed_ms(const Event&, const Event&) {
  return 0;
}

}  // namespace tnd::gpu
