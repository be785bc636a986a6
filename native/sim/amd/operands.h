// Operands of instructions as values of 32 lanes, and the table that the parts of the simulator fill.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "sim/amd/wave.h"

namespace tnd::amdsim {

using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

// Handlers by names without _e32 and _e64.
using Table = std::unordered_map<std::string, Handler>;
void add_scalar_instructions(Table& table);  // branches, barriers and waits, too
void add_vector_instructions(Table& table);
void add_comparisons(Table& table);
void add_matrix_instructions(Table& table);  // 16-bit floats, too
void add_memory_instructions(Table& table);

using Lanes = uint32_t[kLanes];

inline float as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline uint32_t as_bits(float f) {
  return std::bit_cast<uint32_t>(f);
}

// ---- operands

inline uint32_t scalar32(const Wave& w, const Operand& o) {
  switch (o.kind) {
    case Operand::kScalar:
      return o.index == kNullReg ? 0 : w.s[o.index];
    case Operand::kConst:
      return o.bits32;
    case Operand::kScc:
      return w.scc ? 1 : 0;
    default:
      w.fail("not a scalar operand");
  }
}
inline uint64_t scalar64(const Wave& w, const Operand& o) {
  switch (o.kind) {
    case Operand::kScalar:
      return o.index == kNullReg ? 0 : uint64_t{w.s[o.index + 1]} << 32 | w.s[o.index];
    case Operand::kConst:
      return o.bits64;
    case Operand::kSharedBase:
      return uint64_t{kSharedAperture} << 32;
    case Operand::kPrivateBase:
      return uint64_t{kPrivateAperture} << 32;
    default:
      w.fail("not a scalar operand of 64 bits");
  }
}
inline void set_scalar(Wave& w, const Operand& o, uint32_t value) {
  if (o.kind != Operand::kScalar) w.fail("not a scalar result");
  if (o.index != kNullReg) w.s[o.index] = value;
}
inline void set_scalar64(Wave& w, const Operand& o, uint64_t value) {
  if (o.kind != Operand::kScalar) w.fail("not a scalar result");
  if (o.index == kNullReg) return;
  w.s[o.index] = static_cast<uint32_t>(value);
  w.s[o.index + 1] = static_cast<uint32_t>(value >> 32);
}

// The width of the float whose sign neg and abs change.
enum class Width { kInt, kFloat, kHalf };

template <Width WIDTH>
const uint32_t* read(const Wave& w, const Operand& o, Lanes& place) {
  const uint32_t* from = place;
  if (o.kind == Operand::kVector) {
    from = w.v[o.index];
  } else {
    const uint32_t value = o.kind == Operand::kConst && WIDTH == Width::kHalf ? o.bits16 : scalar32(w, o);
    for (uint32_t& x : place) x = value;
  }
  if constexpr (WIDTH != Width::kInt) {
    constexpr uint32_t kSign = WIDTH == Width::kFloat ? 0x80000000u : 0x8000u;
    if (o.neg || o.abs) {
      for (int l = 0; l < kLanes; ++l) {
        uint32_t x = from[l];
        if (o.abs) x &= ~kSign;
        if (o.neg) x ^= kSign;
        place[l] = x;
      }
      from = place;
    }
  }
  return from;
}

// 64 bits a lane; FLOAT says how constants are read and that neg and abs mean a double.
template <bool FLOAT>
void read64(const Wave& w, const Operand& o, uint64_t (&to)[kLanes]) {
  for (int l = 0; l < kLanes; ++l) {
    if (o.kind == Operand::kVector) {
      to[l] = uint64_t{w.v[o.index + 1][l]} << 32 | w.v[o.index][l];
    } else {
      to[l] = FLOAT && o.kind == Operand::kConst ? o.double64 : scalar64(w, o);
    }
    if constexpr (FLOAT) {
      if (o.abs) to[l] &= ~(uint64_t{1} << 63);
      if (o.neg) to[l] ^= uint64_t{1} << 63;
    }
  }
}

inline void write_lanes(Wave& w, uint16_t index, const uint32_t* values) {
  uint32_t* to = w.v[index];
  const uint32_t exec = w.exec();
  for (uint32_t l = 0; l < kLanes; ++l) to[l] = (exec >> l & 1u) != 0 ? values[l] : to[l];
}
inline void write(Wave& w, const Operand& o, const uint32_t* values) {
  if (o.kind != Operand::kVector) w.fail("not a vector result");
  if (w.holds) {
    w.held = o.index;
    std::memcpy(w.held_values, values, sizeof w.held_values);
    return;
  }
  write_lanes(w, o.index, values);
}
// Writes the lower 16 bits; the upper ones are kept.
inline void write_low(Wave& w, const Operand& o, Lanes& values) {
  const uint32_t* old = w.v[o.index];
  for (int l = 0; l < kLanes; ++l) values[l] = (values[l] & 0xFFFFu) | (old[l] & 0xFFFF0000u);
  write(w, o, values);
}
inline void write64(Wave& w, const Operand& o, const uint64_t (&values)[kLanes]) {
  Lanes low, high;
  for (int l = 0; l < kLanes; ++l) {
    low[l] = static_cast<uint32_t>(values[l]);
    high[l] = static_cast<uint32_t>(values[l] >> 32);
  }
  if (o.kind != Operand::kVector || w.holds) w.fail("not a vector result of 64 bits");
  write_lanes(w, o.index, low);
  write_lanes(w, static_cast<uint16_t>(o.index + 1), high);
}

// ---- values of one lane

template <typename T>
T from_bits(uint32_t x) {
  if constexpr (std::is_same_v<T, float>) {
    return as_float(x);
  } else {
    return static_cast<T>(x);
  }
}
template <typename T>
uint32_t to_bits(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return as_bits(x);
  } else {
    return static_cast<uint32_t>(x);
  }
}
template <typename T>
constexpr Width kWidthOf = std::is_same_v<T, float> ? Width::kFloat : Width::kInt;

template <typename T>
void finish(Wave& w, const Inst& i, Lanes& out) {
  if constexpr (std::is_same_v<T, float>) {
    if (i.clamp) {
      for (uint32_t& x : out) {
        const float f = as_float(x);
        x = as_bits(f > 1.0f ? 1.0f : f > 0.0f ? f : 0.0f);
      }
    }
  } else if (i.clamp) {
    w.fail("clamp of integers");
  }
  write(w, i.o[0], out);
}
inline float min_float(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
inline float max_float(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
inline float med3_float(float a, float b, float c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return min_float(min_float(a, b), c);
  return max_float(min_float(a, b), min_float(max_float(a, b), c));
}
inline int32_t med3_int(int32_t a, int32_t b, int32_t c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}
template <typename T, typename F>
T saturate(F x) {
  if (std::isnan(x)) return 0;
  const auto low = static_cast<double>(std::numeric_limits<T>::min());
  const auto high = static_cast<double>(std::numeric_limits<T>::max());
  const double d = std::trunc(static_cast<double>(x));
  return d <= low ? std::numeric_limits<T>::min() : d >= high ? std::numeric_limits<T>::max() : static_cast<T>(d);
}
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{a} << 32 | b;
  uint32_t y = 0;
  for (int at = 0; at < 32; at += 8) {
    const uint32_t s = selector >> at & 0xFFu;
    uint32_t byte = 0xFF;
    if (s < 8) {
      byte = static_cast<uint32_t>(both >> (8 * s)) & 0xFFu;
    } else if (s < 12) {
      byte = (both >> (16 * (s - 8) + 15) & 1u) != 0 ? 0xFFu : 0;
    } else if (s == 12) {
      byte = 0;
    }
    y |= byte << at;
  }
  return y;
}
inline int32_t signed_24(uint32_t x) {
  return static_cast<int32_t>(x << 8) >> 8;
}
inline uint32_t field(uint32_t x, uint32_t at, uint32_t bits) {
  at &= 31u, bits &= 31u;
  return bits == 0 ? 0 : x >> at & ((1u << bits) - 1);
}
inline int32_t signed_field(uint32_t x, uint32_t at, uint32_t bits) {
  at &= 31u, bits &= 31u;
  if (bits == 0) return 0;
  const uint32_t up = at + bits < 32 ? x << (32 - bits - at) : (x >> at) << (32 - bits);
  return static_cast<int32_t>(up) >> (32 - bits);
}

}  // namespace tnd::amdsim
