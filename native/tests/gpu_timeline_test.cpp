// The launches that timeline.h finds among what blocks noted. Noting itself needs a card.
#include <cmath>

#include "gpu/runtime/timeline.h"
#include "harness.h"

using namespace tnd;
using namespace tnd::gpu;

namespace {

constexpr int kProcessors = 2;
constexpr double kCyclesPerNs = 1.75;

// Blocks of launches as kernels note them; clocks of the processors differ.
struct Notes {
  std::vector<TimelineRecord> records = std::vector<TimelineRecord>(size_t{kProcessors} * kTimelineSlots);

  void add(int processor, int file, int blocks, int warps, int block, uint32_t ns, double waited_us) {
    TimelineRecord r;
    r.went = static_cast<uint32_t>(static_cast<uint64_t>(kCyclesPerNs * (ns - 0xFFF00000u) + 1e9 * processor));
    r.came = r.went - static_cast<uint32_t>(std::lround(waited_us * 1e3 * kCyclesPerNs));
    r.time = ns;
    r.place = static_cast<uint32_t>(block % 1024 | blocks % 1024 << 10 | warps << 20 | (file + 1) << 26);
    records[static_cast<size_t>(processor) * kTimelineSlots + (r.went >> kTimelineTick) % kTimelineSlots] = r;
  }
};

const std::vector<std::string> kFiles = {"norm", "matmul_lanes"};

}  // namespace

TEST(launches_are_told_apart_and_added_up) {
  Notes notes;
  uint32_t ns = 0xFFFFF000u;  // wraps on the way
  for (int layer = 0; layer < 10; ++layer) {
    notes.add(0, 0, 1, 20, 0, ns, 3.0);
    ns += 4000;
    for (int i = 0; i < 4; ++i) notes.add(i % 2, 1, 1200, 16, 1020 + i, ns + 300u * static_cast<uint32_t>(i), 5.0);
    ns += 25000;
    for (int i = 0; i < 4; ++i) notes.add(i % 2, 1, 1200, 16, 1020 + i, ns + 300u * static_cast<uint32_t>(i), -0.5 + i);
    ns += 15000;
  }
  const std::vector<TimelineShare> shares = timeline_shares(notes.records, kFiles, 1000);
  CHECK_EQ(shares.size(), size_t{3});
  CHECK_EQ(shares[0].kernel, std::string("matmul_lanes"));
  CHECK_EQ(shares[0].before, std::string("norm"));
  CHECK_EQ(shares[0].blocks, 1200 % 1024);
  CHECK_EQ(shares[0].warps, 16);
  CHECK_EQ(shares[0].launches, 10);
  CHECK(std::fabs(shares[0].us - 25.0) < 0.01);
  CHECK(std::fabs(shares[0].waited - 4.7) < 0.01);  // of 5.0, 4.7, 4.4 and 4.1 before the first block went
  CHECK_EQ(shares[0].processors, 2);
  CHECK_EQ(shares[1].before, std::string("matmul_lanes"));
  CHECK_EQ(shares[1].launches, 9);  // the last launch has no next one
  CHECK(std::fabs(shares[1].us - 15.0) < 0.01);
  CHECK_EQ(shares[2].kernel, std::string("norm"));
  CHECK_EQ(shares[2].launches, 9);  // the first has none before
  CHECK_EQ(shares[2].processors, 1);
  CHECK(std::fabs(shares[2].us - 4.0) < 0.01);
  CHECK(std::fabs(shares[2].waited - 3.0) < 0.02);
}

TEST(older_records_do_not_count) {
  Notes notes;
  for (uint32_t i = 0; i < 100; ++i) notes.add(0, static_cast<int>(i % 2), 1, 1, 0, 0xFFFFF000u + i * 2000, 0);
  int launches = 0;
  for (const TimelineShare& s : timeline_shares(notes.records, kFiles, 41)) launches += s.launches;
  CHECK_EQ(launches, 19);  // of 21 the first and the last have no neighbour
}

TEST(nothing_noted_is_no_launch) {
  CHECK(timeline_shares(Notes().records, kFiles, 100).empty());
  CHECK(timeline_shares({}, kFiles, 100).empty());
}

TEST(builds_without_it_say_so) {
  const Status s = timeline_start(0);
  CHECK_EQ(s.code(), TND_UNIMPLEMENTED);
  CHECK(s.message().find("TND_TIMELINE") != std::string::npos);
}

TEST_MAIN()
