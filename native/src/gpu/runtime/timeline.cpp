#include "gpu/runtime/timeline.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {
namespace {

struct File {
  std::string name;
  int (*set)(const TimelinePlace&);
};
std::vector<File>& known_files() {
  static std::vector<File> files;
  return files;
}

// A block whose wait ended.
struct Went {
  double us;      // since the newest record, negative
  double waited;  // before that, us
  uint32_t place;
  size_t processor;
};

// Parts of TimelineRecord::place. shape_of returns the bits that all blocks of a launch have in common.
constexpr uint32_t kMostFiles = 63;
int block_of(uint32_t place) {
  return static_cast<int>(place & 1023);
}
uint32_t shape_of(uint32_t place) {
  return place >> 10;
}
int file_of(uint32_t shape) {
  return static_cast<int>(shape >> 16) - 1;
}
int warps_of(uint32_t shape) {
  return static_cast<int>(shape >> 10 & 63);
}
int blocks_of(uint32_t shape) {
  return static_cast<int>(shape & 1023);
}

template <typename T>
T median(std::vector<T> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Cycles a nanosecond, from the processor with the longest time between two records; times are relative to `newest`.
double cycles_per_ns(std::span<const TimelineRecord> records, uint32_t newest, double ns) {
  double rate = 1;
  int64_t longest = 0;
  for (size_t first = 0; first < records.size(); first += kTimelineSlots) {
    const TimelineRecord *oldest = nullptr, *youngest = nullptr;
    for (const TimelineRecord& r : records.subspan(first, kTimelineSlots)) {
      if (r.place == 0 || static_cast<double>(newest - r.time) > ns) continue;
      if (oldest == nullptr || newest - r.time > newest - oldest->time) oldest = &r;
      if (youngest == nullptr || newest - r.time < newest - youngest->time) youngest = &r;
    }
    if (oldest == nullptr || youngest->time - oldest->time <= longest) continue;
    longest = youngest->time - oldest->time;
    rate = static_cast<double>(youngest->went - oldest->went) / static_cast<double>(longest);
  }
  return rate;
}

TimelineRecord* device_records = nullptr;
uint64_t device_bytes = 0;

Status set_places(TimelineRecord* records) {
  uint32_t number = 0;
  for (const File& file : known_files()) {
    if (file.set({records, number++}) != 0) return errorf(TND_INTERNAL, "timeline: %s", file.name.c_str());
  }
  return Status();
}

}  // namespace

bool timeline_add(const char* file, int (*set)(const TimelinePlace&)) {
  const char* slash = std::strrchr(file, '/');
  std::string name = slash != nullptr ? slash + 1 : file;
  known_files().push_back({name.substr(0, name.rfind('.')), set});
  return true;
}

std::vector<TimelineShare> timeline_shares(std::span<const TimelineRecord> records, std::span<const std::string> files,
                                           double us) {
  // Times wrap every four seconds: the newest is the one that no other follows within two seconds.
  uint32_t newest = 0;
  bool any = false;
  for (const TimelineRecord& r : records) {
    if (r.place == 0) continue;
    if (!any || static_cast<int32_t>(r.time - newest) > 0) newest = r.time;
    any = true;
  }
  const double rate = cycles_per_ns(records, newest, us * 1e3);
  std::vector<Went> blocks;
  for (size_t i = 0; i < records.size(); ++i) {
    const TimelineRecord& r = records[i];
    const double age = static_cast<double>(newest - r.time) / 1e3;
    if (r.place == 0 || age > us) continue;
    blocks.push_back({-age, static_cast<double>(r.went - r.came) / rate / 1e3, r.place, i / kTimelineSlots});
  }
  std::sort(blocks.begin(), blocks.end(), [](const Went& x, const Went& y) { return x.us < y.us; });

  // The waits of all blocks of a launch end before those of the next one. A block that was seen already begins
  // another launch.
  struct Seen {
    Went first;
    std::set<int> blocks;
    std::set<size_t> processors;
    std::vector<double> waited;
  };
  std::vector<Seen> launches;
  for (const Went& w : blocks) {
    const bool same = !launches.empty() && shape_of(launches.back().first.place) == shape_of(w.place) &&
                      launches.back().blocks.count(block_of(w.place)) == 0;
    if (!same) launches.push_back({w, {}, {}, {}});
    Seen& launch = launches.back();
    launch.blocks.insert(block_of(w.place));
    launch.processors.insert(w.processor);
    launch.waited.push_back(launch.first.us - (w.us - w.waited));
  }

  struct Times {
    std::vector<double> us, waited;
    std::vector<int> processors;
  };
  std::map<std::pair<uint32_t, int>, Times> kinds;  // by shape and the file before
  for (size_t i = 1; i + 1 < launches.size(); ++i) {
    Times& t = kinds[{shape_of(launches[i].first.place), file_of(shape_of(launches[i - 1].first.place))}];
    t.us.push_back(launches[i + 1].first.us - launches[i].first.us);
    t.waited.push_back(median(launches[i].waited));
    t.processors.push_back(static_cast<int>(launches[i].processors.size()));
  }
  const auto name = [&](int file) {
    const size_t at = static_cast<size_t>(file);
    return at < files.size() ? files[at] : std::string("?");
  };
  std::vector<TimelineShare> shares;
  for (const auto& [kind, times] : kinds) {
    const auto& [shape, before] = kind;
    shares.push_back({name(file_of(shape)), name(before), blocks_of(shape), warps_of(shape),
                      static_cast<int>(times.us.size()), median(times.us), median(times.waited),
                      median(times.processors)});
  }
  std::stable_sort(shares.begin(), shares.end(), [](const TimelineShare& x, const TimelineShare& y) {
    return x.us * x.launches > y.us * y.launches;
  });
  return shares;
}

Status timeline_start(int device) {
  if (known_files().empty()) return errorf(TND_UNIMPLEMENTED, "timeline: built without TND_TIMELINE");
  if (known_files().size() > kMostFiles) {
    return errorf(TND_INTERNAL, "timeline: %zu files of kernels, records tell %u apart", known_files().size(),
                  kMostFiles);
  }
  if (device_records == nullptr) {
    DeviceInfo info;
    if (Status s = device_info(device, &info); !s.ok()) return s;
    device_bytes = sizeof(TimelineRecord) * kTimelineSlots * static_cast<uint64_t>(info.processors);
    void* mem = nullptr;
    if (Status s = device_alloc(device_bytes, &mem); !s.ok()) return s;
    device_records = static_cast<TimelineRecord*>(mem);
  }
  Stream stream;
  if (Status s = stream.open(); !s.ok()) return s;
  stream.fill(device_records, 0, device_bytes);
  if (Status s = stream.sync(); !s.ok()) return s;
  return set_places(device_records);
}

Status timeline_stop(double us, std::vector<TimelineShare>* out) {
  if (Status s = set_places(nullptr); !s.ok()) return s;
  Stream stream;
  void* host = nullptr;
  if (Status s = stream.open(); !s.ok()) return s;
  if (Status s = host_alloc(device_bytes, &host); !s.ok()) return s;
  stream.to_host(host, device_records, device_bytes);
  const Status copied = stream.sync();
  if (copied.ok()) {
    std::vector<std::string> files;
    for (const File& file : known_files()) files.push_back(file.name);
    *out = timeline_shares({static_cast<TimelineRecord*>(host), device_bytes / sizeof(TimelineRecord)}, files, us);
  }
  host_free(host);
  return copied;
}

}  // namespace tnd::gpu
