// Loads, stores and atomics, and the list of allocated memory.
#include <map>
#include <mutex>
#include <shared_mutex>

#include "sim/amd/operands.h"

namespace tnd::amdsim {
namespace {

void touch(const Wave& w, Touch& t, Access access, uint32_t address, int lane) {
  const uint32_t mine = 1u << w.number;
  const bool both_atomic = access == Access::kAtomic && t.atomic;
  if (t.write_epoch == w.epoch && t.writer != w.number && !both_atomic) {
    w.fail("shared memory that another wave has written since the last barrier", address, lane);
  }
  if (access == Access::kRead) {
    if (t.read_epoch != w.epoch) t.readers = 0;
    t.read_epoch = w.epoch;
    t.readers |= mine;
    return;
  }
  if (t.read_epoch == w.epoch && (t.readers & ~mine) != 0) {
    w.fail("shared memory that another wave has read since the last barrier", address, lane);
  }
  t.write_epoch = w.epoch;
  t.writer = w.number;
  t.atomic = access == Access::kAtomic;
}
uint8_t* shared_at(Wave& w, Access access, uint32_t address, uint32_t bytes, int lane) {
  if (uint64_t{address} + bytes > w.group->shared.size()) w.fail("access outside of shared memory", address, lane);
  for (uint32_t at = address / 2; at <= (address + bytes - 1) / 2; ++at) {
    touch(w, w.group->touches[at], access, address, lane);
  }
  return w.group->shared.data() + address;
}
uint8_t* scratch_at(Wave& w, uint32_t address, uint32_t bytes, int lane) {
  const uint32_t size = w.group->kernel->private_bytes;
  if (uint64_t{address} + bytes > size) w.fail("access outside of private memory", address, lane);
  return w.scratch.data() + static_cast<uint64_t>(lane) * size + address;
}
uint8_t* global_at(Wave& w, uint64_t address, uint32_t bytes, int lane) {
  if (!w.recent.holds(address, bytes)) {
    w.recent = Memory::of_device().find(address);
    if (!w.recent.holds(address, bytes)) w.fail("access outside of memory", address, lane);
  }
  return reinterpret_cast<uint8_t*>(address);
}

enum class Space { kGlobal, kFlat, kScratch };

// The address operands begin at o[at]: global: vector and scalar or off, flat: vector, scratch: vector and scalar, each
// may be off.
template <Space SPACE, Access ACCESS>
uint8_t* address_of(Wave& w, const Inst& i, int at, int lane, uint32_t bytes) {
  const Operand& vector = i.o[at];
  const auto offset = static_cast<uint64_t>(int64_t{i.offset[0]});
  if constexpr (SPACE == Space::kScratch) {
    uint64_t address = offset;
    if (vector.kind == Operand::kVector) address += w.v[vector.index][lane];
    if (i.o[at + 1].kind == Operand::kScalar) address += scalar32(w, i.o[at + 1]);
    return scratch_at(w, static_cast<uint32_t>(address), bytes, lane);
  }
  uint64_t address;
  if (SPACE == Space::kGlobal && i.o[at + 1].kind == Operand::kScalar) {
    address = scalar64(w, i.o[at + 1]) + w.v[vector.index][lane] + offset;
  } else {
    address = (uint64_t{w.v[vector.index + 1][lane]} << 32 | w.v[vector.index][lane]) + offset;
  }
  if constexpr (SPACE == Space::kFlat) {
    const auto aperture = static_cast<uint32_t>(address >> 32);
    if (aperture == kSharedAperture) return shared_at(w, ACCESS, static_cast<uint32_t>(address), bytes, lane);
    if (aperture == kPrivateAperture) return scratch_at(w, static_cast<uint32_t>(address), bytes, lane);
  }
  return global_at(w, address, bytes, lane);
}

template <typename AT>
void each_active(const Wave& w, const AT& at) {
  for (uint32_t mask = w.exec(); mask != 0; mask &= mask - 1) at(std::countr_zero(mask));
}

template <Space SPACE, int WORDS>
void load_words(Wave& w, const Inst& i) {
  // Addresses may be among the results.
  uint32_t out[WORDS][kLanes];
  each_active(w, [&](int l) {
    const uint8_t* p = address_of<SPACE, Access::kRead>(w, i, 1, l, WORDS * 4);
    for (int n = 0; n < WORDS; ++n) std::memcpy(&out[n][l], p + 4 * n, 4);
  });
  each_active(w, [&](int l) {
    for (int n = 0; n < WORDS; ++n) w.v[i.o[0].index + n][l] = out[n][l];
  });
}
// Operands of stores: address, data[, scalar]: the scalar comes after the data. address_operands moves it to
// the address.
Inst address_operands(const Inst& i) {
  Inst view;
  view.o[0] = i.o[0];
  view.o[1] = i.o[2];
  view.offset[0] = i.offset[0];
  return view;
}
template <int WORDS, Space SPACE>
void store_behind(Wave& w, const Inst& i) {
  const Inst view = address_operands(i);
  each_active(w, [&](int l) {
    uint8_t* p = address_of<SPACE, Access::kWrite>(w, view, 0, l, WORDS * 4);
    for (int n = 0; n < WORDS; ++n) std::memcpy(p + 4 * n, &w.v[i.o[1].index + n][l], 4);
  });
}

// A value of less than 32 bits. PLACE: whole register, its lower or its upper half.
enum class Place { kWhole, kLow, kHigh };
template <Place PLACE, typename T>
uint32_t placed(uint32_t old, T value) {
  const auto bits = static_cast<uint32_t>(static_cast<int32_t>(value));
  if constexpr (PLACE == Place::kLow) return (old & 0xFFFF0000u) | (bits & 0xFFFFu);
  if constexpr (PLACE == Place::kHigh) return (old & 0xFFFFu) | bits << 16;
  return bits;
}
template <Space SPACE, typename T, Place PLACE>
void load_small(Wave& w, const Inst& i) {
  Lanes out;
  each_active(w, [&](int l) {
    T value;
    std::memcpy(&value, address_of<SPACE, Access::kRead>(w, i, 1, l, sizeof value), sizeof value);
    out[l] = placed<PLACE>(w.v[i.o[0].index][l], value);
  });
  each_active(w, [&](int l) { w.v[i.o[0].index][l] = out[l]; });
}
template <Space SPACE, typename T, bool HIGH>
void store_small(Wave& w, const Inst& i) {
  const Inst view = address_operands(i);
  each_active(w, [&](int l) {
    const auto value = static_cast<T>(w.v[i.o[1].index][l] >> (HIGH ? 16 : 0));
    std::memcpy(address_of<SPACE, Access::kWrite>(w, view, 0, l, sizeof value), &value, sizeof value);
  });
}

// Shared memory: address, data. Two places for the 2addr forms, in units of UNIT bytes.
template <int WORDS>
void ds_load(Wave& w, const Inst& i) {
  uint32_t out[WORDS][kLanes];
  const uint32_t* address = w.v[i.o[1].index];
  each_active(w, [&](int l) {
    const uint8_t* p = shared_at(w, Access::kRead, address[l] + static_cast<uint32_t>(i.offset[0]), WORDS * 4, l);
    for (int n = 0; n < WORDS; ++n) std::memcpy(&out[n][l], p + 4 * n, 4);
  });
  each_active(w, [&](int l) {
    for (int n = 0; n < WORDS; ++n) w.v[i.o[0].index + n][l] = out[n][l];
  });
}
template <int WORDS>
void ds_store(Wave& w, const Inst& i) {
  const uint32_t* address = w.v[i.o[0].index];
  each_active(w, [&](int l) {
    uint8_t* p = shared_at(w, Access::kWrite, address[l] + static_cast<uint32_t>(i.offset[0]), WORDS * 4, l);
    for (int n = 0; n < WORDS; ++n) std::memcpy(p + 4 * n, &w.v[i.o[1].index + n][l], 4);
  });
}
template <int WORDS, int UNIT>
void ds_load_two(Wave& w, const Inst& i) {
  uint32_t out[2 * WORDS][kLanes];
  const uint32_t* address = w.v[i.o[1].index];
  each_active(w, [&](int l) {
    for (int place = 0; place < 2; ++place) {
      const uint8_t* p =
          shared_at(w, Access::kRead, address[l] + static_cast<uint32_t>(i.offset[place] * UNIT), WORDS * 4, l);
      for (int n = 0; n < WORDS; ++n) std::memcpy(&out[place * WORDS + n][l], p + 4 * n, 4);
    }
  });
  each_active(w, [&](int l) {
    for (int n = 0; n < 2 * WORDS; ++n) w.v[i.o[0].index + n][l] = out[n][l];
  });
}
template <int WORDS, int UNIT>
void ds_store_two(Wave& w, const Inst& i) {
  const uint32_t* address = w.v[i.o[0].index];
  each_active(w, [&](int l) {
    for (int place = 0; place < 2; ++place) {
      uint8_t* p =
          shared_at(w, Access::kWrite, address[l] + static_cast<uint32_t>(i.offset[place] * UNIT), WORDS * 4, l);
      for (int n = 0; n < WORDS; ++n) std::memcpy(p + 4 * n, &w.v[i.o[1 + place].index + n][l], 4);
    }
  });
}
template <typename T, Place PLACE>
void ds_load_small(Wave& w, const Inst& i) {
  Lanes out;
  each_active(w, [&](int l) {
    T value;
    const uint32_t address = w.v[i.o[1].index][l] + static_cast<uint32_t>(i.offset[0]);
    std::memcpy(&value, shared_at(w, Access::kRead, address, sizeof value, l), sizeof value);
    out[l] = placed<PLACE>(w.v[i.o[0].index][l], value);
  });
  each_active(w, [&](int l) { w.v[i.o[0].index][l] = out[l]; });
}
template <typename T, bool HIGH>
void ds_store_small(Wave& w, const Inst& i) {
  each_active(w, [&](int l) {
    const auto value = static_cast<T>(w.v[i.o[1].index][l] >> (HIGH ? 16 : 0));
    const uint32_t address = w.v[i.o[0].index][l] + static_cast<uint32_t>(i.offset[0]);
    std::memcpy(shared_at(w, Access::kWrite, address, sizeof value, l), &value, sizeof value);
  });
}
// Lanes in ascending order; any order is allowed.
template <bool RETURNS, auto F>
void ds_atomic(Wave& w, const Inst& i) {
  const Operand& address = i.o[RETURNS ? 1 : 0];
  const Operand& data = i.o[RETURNS ? 2 : 1];
  Lanes out;
  each_active(w, [&](int l) {
    uint8_t* p = shared_at(w, Access::kAtomic, w.v[address.index][l] + static_cast<uint32_t>(i.offset[0]), 4, l);
    uint32_t old;
    std::memcpy(&old, p, 4);
    const uint32_t value = F(old, w.v[data.index][l]);
    std::memcpy(p, &value, 4);
    out[l] = old;
  });
  if constexpr (RETURNS) each_active(w, [&](int l) { w.v[i.o[0].index][l] = out[l]; });
}

// [old value,] address, data, scalar. Blocks run on several threads of the host.
template <auto F>
void global_atomic(Wave& w, const Inst& i) {
  const bool returns = i.operands == 4;
  const int at = returns ? 1 : 0;
  Inst view;
  view.o[0] = i.o[at];
  view.o[1] = i.o[at + 2];
  view.offset[0] = i.offset[0];
  Lanes out;
  each_active(w, [&](int l) {
    auto* p = reinterpret_cast<uint32_t*>(address_of<Space::kGlobal, Access::kAtomic>(w, view, 0, l, 4));
    out[l] = F(p, w.v[i.o[at + 1].index][l]);
  });
  if (returns) each_active(w, [&](int l) { w.v[i.o[0].index][l] = out[l]; });
}

template <Space SPACE>
void memory(Table& table, const std::string& prefix) {
  table[prefix + "_load_b32"] = load_words<SPACE, 1>;
  table[prefix + "_load_b64"] = load_words<SPACE, 2>;
  table[prefix + "_load_b96"] = load_words<SPACE, 3>;
  table[prefix + "_load_b128"] = load_words<SPACE, 4>;
  table[prefix + "_load_u8"] = load_small<SPACE, uint8_t, Place::kWhole>;
  table[prefix + "_load_i8"] = load_small<SPACE, int8_t, Place::kWhole>;
  table[prefix + "_load_u16"] = load_small<SPACE, uint16_t, Place::kWhole>;
  table[prefix + "_load_i16"] = load_small<SPACE, int16_t, Place::kWhole>;
  table[prefix + "_load_d16_b16"] = load_small<SPACE, uint16_t, Place::kLow>;
  table[prefix + "_load_d16_hi_b16"] = load_small<SPACE, uint16_t, Place::kHigh>;
  table[prefix + "_load_d16_u8"] = load_small<SPACE, uint8_t, Place::kLow>;
  table[prefix + "_load_d16_hi_u8"] = load_small<SPACE, uint8_t, Place::kHigh>;
  table[prefix + "_load_d16_i8"] = load_small<SPACE, int8_t, Place::kLow>;
  table[prefix + "_load_d16_hi_i8"] = load_small<SPACE, int8_t, Place::kHigh>;
  table[prefix + "_store_b8"] = store_small<SPACE, uint8_t, false>;
  table[prefix + "_store_b16"] = store_small<SPACE, uint16_t, false>;
  table[prefix + "_store_d16_hi_b8"] = store_small<SPACE, uint8_t, true>;
  table[prefix + "_store_d16_hi_b16"] = store_small<SPACE, uint16_t, true>;
  table[prefix + "_store_b32"] = store_behind<1, SPACE>;
  table[prefix + "_store_b64"] = store_behind<2, SPACE>;
  table[prefix + "_store_b96"] = store_behind<3, SPACE>;
  table[prefix + "_store_b128"] = store_behind<4, SPACE>;
}

struct Ranges {
  mutable std::shared_mutex lock;
  std::map<uint64_t, uint64_t> ends;  // by begin
};
Ranges& ranges() {
  static Ranges* all = new Ranges();
  return *all;
}

// gfx10 reaches private memory through a buffer: data, off, resource, scalar offset.
template <bool STORES>
void private_buffer(Wave& w, const Inst& i) {
  if (i.o[1].kind != Operand::kOff) w.fail("a buffer that is no private memory");
  each_active(w, [&](int l) {
    const uint32_t address = scalar32(w, i.o[3]) + static_cast<uint32_t>(i.offset[0]);
    uint8_t* p = scratch_at(w, address, 4, l);
    uint32_t* value = &w.v[i.o[0].index][l];
    STORES ? std::memcpy(p, value, 4) : std::memcpy(value, p, 4);
  });
}

}  // namespace

void add_memory_instructions(Table& table) {
  const auto add = [&](const std::string& name, Handler run) { table[name] = run; };
  memory<Space::kGlobal>(table, "global");
  memory<Space::kFlat>(table, "flat");
  memory<Space::kScratch>(table, "scratch");
  add("buffer_load_b32", private_buffer<false>);
  add("buffer_store_b32", private_buffer<true>);
  add("global_atomic_add_u32", global_atomic<[](u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }>);
  add("ds_load_b32", ds_load<1>);
  add("ds_load_b64", ds_load<2>);
  add("ds_load_b96", ds_load<3>);
  add("ds_load_b128", ds_load<4>);
  add("ds_store_b32", ds_store<1>);
  add("ds_store_b64", ds_store<2>);
  add("ds_store_b96", ds_store<3>);
  add("ds_store_b128", ds_store<4>);
  add("ds_load_2addr_b32", ds_load_two<1, 4>);
  add("ds_load_2addr_b64", ds_load_two<2, 8>);
  add("ds_load_2addr_stride64_b32", ds_load_two<1, 256>);
  add("ds_load_2addr_stride64_b64", ds_load_two<2, 512>);
  add("ds_store_2addr_b32", ds_store_two<1, 4>);
  add("ds_store_2addr_b64", ds_store_two<2, 8>);
  add("ds_store_2addr_stride64_b32", ds_store_two<1, 256>);
  add("ds_store_2addr_stride64_b64", ds_store_two<2, 512>);
  add("ds_load_u8", ds_load_small<uint8_t, Place::kWhole>);
  add("ds_load_i8", ds_load_small<int8_t, Place::kWhole>);
  add("ds_load_u16", ds_load_small<uint16_t, Place::kWhole>);
  add("ds_load_i16", ds_load_small<int16_t, Place::kWhole>);
  add("ds_load_u16_d16", ds_load_small<uint16_t, Place::kLow>);
  add("ds_load_u16_d16_hi", ds_load_small<uint16_t, Place::kHigh>);
  add("ds_store_b8", ds_store_small<uint8_t, false>);
  add("ds_store_b16", ds_store_small<uint16_t, false>);
  add("ds_store_b8_d16_hi", ds_store_small<uint8_t, true>);
  add("ds_store_b16_d16_hi", ds_store_small<uint16_t, true>);
  add("ds_add_u32", ds_atomic<false, [](u32 a, u32 b) { return a + b; }>);
  add("ds_add_rtn_u32", ds_atomic<true, [](u32 a, u32 b) { return a + b; }>);
  add("ds_max_i32", ds_atomic<false, [](u32 a, u32 b) { return static_cast<i32>(a) > static_cast<i32>(b) ? a : b; }>);
  add("ds_min_i32", ds_atomic<false, [](u32 a, u32 b) { return static_cast<i32>(a) < static_cast<i32>(b) ? a : b; }>);
  add("ds_max_u32", ds_atomic<false, [](u32 a, u32 b) { return std::max(a, b); }>);
  add("ds_min_u32", ds_atomic<false, [](u32 a, u32 b) { return std::min(a, b); }>);
}

void Memory::add(const void* p, uint64_t bytes) {
  const std::unique_lock guard(ranges().lock);
  ranges().ends[reinterpret_cast<uint64_t>(p)] = reinterpret_cast<uint64_t>(p) + bytes;
}
uint64_t Memory::remove(const void* p) {
  const std::unique_lock guard(ranges().lock);
  const auto found = ranges().ends.find(reinterpret_cast<uint64_t>(p));
  if (found == ranges().ends.end()) return 0;
  const uint64_t bytes = found->second - found->first;
  ranges().ends.erase(found);
  return bytes;
}
Memory::Range Memory::find(uint64_t address) const {
  const std::shared_lock guard(ranges().lock);
  auto found = ranges().ends.upper_bound(address);
  if (found == ranges().ends.begin()) return {};
  --found;
  return address < found->second ? Range{found->first, found->second} : Range{};
}
Memory& Memory::of_device() {
  static Memory memory;
  return memory;
}

}  // namespace tnd::amdsim
