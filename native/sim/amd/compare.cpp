// Comparisons: v_cmp writes a mask, v_cmpx the exec mask.
#include "sim/amd/operands.h"

namespace tnd::amdsim {
namespace {

template <bool EXEC>
void write_mask(Wave& w, const Inst& i, uint32_t mask) {
  mask &= w.exec();
  if constexpr (EXEC) {
    w.s[kExec] = mask;
  } else {
    set_scalar(w, i.o[0], mask);
  }
}
template <typename T, bool EXEC, auto F>
void v_compare(Wave& w, const Inst& i) {
  constexpr int kFirst = EXEC ? 0 : 1;
  uint32_t mask = 0;
  if constexpr (sizeof(T) == 8) {
    constexpr bool kDouble = std::is_same_v<T, double>;
    uint64_t a[kLanes], b[kLanes];
    read64<kDouble>(w, i.o[kFirst], a);
    read64<kDouble>(w, i.o[kFirst + 1], b);
    for (uint32_t l = 0; l < kLanes; ++l) {
      if (F(std::bit_cast<T>(a[l]), std::bit_cast<T>(b[l]))) mask |= 1u << l;
    }
  } else {
    Lanes pa, pb;
    const uint32_t* a = read<kWidthOf<T>>(w, i.o[kFirst], pa);
    const uint32_t* b = read<kWidthOf<T>>(w, i.o[kFirst + 1], pb);
    for (uint32_t l = 0; l < kLanes; ++l) mask |= uint32_t{F(from_bits<T>(a[l]), from_bits<T>(b[l]))} << l;
  }
  write_mask<EXEC>(w, i, mask);
}
template <bool EXEC>
void v_cmp_class(Wave& w, const Inst& i) {
  constexpr int kFirst = EXEC ? 0 : 1;
  Lanes pa, pb;
  const uint32_t* a = read<Width::kFloat>(w, i.o[kFirst], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[kFirst + 1], pb);
  uint32_t mask = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t x = a[l], magnitude = x & 0x7FFFFFFFu;
    const bool negative = x >> 31 != 0;
    const uint32_t kind = magnitude > 0x7F800000u    ? ((x & 0x00400000u) != 0 ? 1u : 0u)
                          : magnitude == 0x7F800000u ? (negative ? 2u : 9u)
                          : magnitude >= 0x00800000u ? (negative ? 3u : 8u)
                          : magnitude > 0            ? (negative ? 4u : 7u)
                                                     : (negative ? 5u : 6u);
    mask |= (b[l] >> kind & 1u) << l;
  }
  write_mask<EXEC>(w, i, mask);
}

template <typename T, auto F>
void compare(Table& table, const std::string& name) {
  table["v_cmp_" + name] = v_compare<T, false, F>;
  table["v_cmpx_" + name] = v_compare<T, true, F>;
}
template <typename T>
void compare_integers(Table& table, const std::string& type) {
  compare<T, [](T a, T b) { return a < b; }>(table, "lt_" + type);
  compare<T, [](T a, T b) { return a == b; }>(table, "eq_" + type);
  compare<T, [](T a, T b) { return a <= b; }>(table, "le_" + type);
  compare<T, [](T a, T b) { return a > b; }>(table, "gt_" + type);
  compare<T, [](T a, T b) { return a != b; }>(table, "ne_" + type);
  compare<T, [](T a, T b) { return a >= b; }>(table, "ge_" + type);
}
template <typename T>
void compare_floats(Table& table, const std::string& type) {
  compare<T, [](T a, T b) { return a < b; }>(table, "lt_" + type);
  compare<T, [](T a, T b) { return a == b; }>(table, "eq_" + type);
  compare<T, [](T a, T b) { return a <= b; }>(table, "le_" + type);
  compare<T, [](T a, T b) { return a > b; }>(table, "gt_" + type);
  compare<T, [](T a, T b) { return a < b || a > b; }>(table, "lg_" + type);
  compare<T, [](T a, T b) { return a >= b; }>(table, "ge_" + type);
  compare<T, [](T a, T b) { return !std::isnan(a) && !std::isnan(b); }>(table, "o_" + type);
  compare<T, [](T a, T b) { return std::isnan(a) || std::isnan(b); }>(table, "u_" + type);
  compare<T, [](T a, T b) { return !(a >= b); }>(table, "nge_" + type);
  compare<T, [](T a, T b) { return !(a < b || a > b); }>(table, "nlg_" + type);
  compare<T, [](T a, T b) { return !(a > b); }>(table, "ngt_" + type);
  compare<T, [](T a, T b) { return !(a <= b); }>(table, "nle_" + type);
  compare<T, [](T a, T b) { return !(a == b); }>(table, "neq_" + type);
  compare<T, [](T a, T b) { return !(a < b); }>(table, "nlt_" + type);
}

}  // namespace

void add_comparisons(Table& table) {
  const auto add = [&](const std::string& name, Handler run) { table[name] = run; };
  compare_integers<i32>(table, "i32");
  compare_integers<u32>(table, "u32");
  compare_integers<i64>(table, "i64");
  compare_integers<u64>(table, "u64");
  compare_floats<float>(table, "f32");
  compare_floats<double>(table, "f64");
  compare<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) < (b & 0xFFFFu); }>(table, "lt_u16");
  compare<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) == (b & 0xFFFFu); }>(table, "eq_u16");
  compare<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) != (b & 0xFFFFu); }>(table, "ne_u16");
  compare<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) > (b & 0xFFFFu); }>(table, "gt_u16");
  compare<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) <= (b & 0xFFFFu); }>(table, "le_u16");
  compare<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) >= (b & 0xFFFFu); }>(table, "ge_u16");
  add("v_cmp_class_f32", v_cmp_class<false>);
  add("v_cmpx_class_f32", v_cmp_class<true>);
}

}  // namespace tnd::amdsim
