// Arithmetic of lanes on 32 and 64 bits, and exchanges between lanes.
#include "sim/amd/operands.h"

namespace tnd::amdsim {
namespace {

template <typename T, typename R, auto F>
void v_unary(Wave& w, const Inst& i) {
  Lanes pa, out;
  const uint32_t* a = read<kWidthOf<T>>(w, i.o[1], pa);
  for (int l = 0; l < kLanes; ++l) out[l] = to_bits<R>(F(from_bits<T>(a[l])));
  finish<R>(w, i, out);
}
template <typename T, auto F>
void v_binary(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<kWidthOf<T>>(w, i.o[1], pa);
  const uint32_t* b = read<kWidthOf<T>>(w, i.o[2], pb);
  for (int l = 0; l < kLanes; ++l) out[l] = to_bits<T>(F(from_bits<T>(a[l]), from_bits<T>(b[l])));
  finish<T>(w, i, out);
}
// Sums of integers saturate where they are clamped.
template <typename T, auto F>
void v_sum(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kInt>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[2], pb);
  for (int l = 0; l < kLanes; ++l) {
    int64_t y = F(int64_t{static_cast<T>(a[l])}, int64_t{static_cast<T>(b[l])});
    if (i.clamp) {
      y = std::clamp(y, int64_t{std::numeric_limits<T>::min()}, int64_t{std::numeric_limits<T>::max()});
    }
    out[l] = static_cast<uint32_t>(y);
  }
  write(w, i.o[0], out);
}
template <typename T, auto F>
void v_ternary(Wave& w, const Inst& i) {
  Lanes pa, pb, pc, out;
  const uint32_t* a = read<kWidthOf<T>>(w, i.o[1], pa);
  const uint32_t* b = read<kWidthOf<T>>(w, i.o[2], pb);
  const uint32_t* c = read<kWidthOf<T>>(w, i.o[3], pc);
  for (int l = 0; l < kLanes; ++l) out[l] = to_bits<T>(F(from_bits<T>(a[l]), from_bits<T>(b[l]), from_bits<T>(c[l])));
  finish<T>(w, i, out);
}
// The result is the third operand, too.
void v_fmac(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kFloat>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kFloat>(w, i.o[2], pb);
  const uint32_t* c = w.v[i.o[0].index];
  for (int l = 0; l < kLanes; ++l) out[l] = as_bits(std::fma(as_float(a[l]), as_float(b[l]), as_float(c[l])));
  finish<float>(w, i, out);
}
// 16-bit integers
template <auto F>
void v_short(Wave& w, const Inst& i) {
  Lanes pa, pb, pc, out;
  if (i.op_sel != 0) w.fail("op_sel of 16-bit integers");
  const uint32_t* a = read<Width::kInt>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[2], pb);
  const uint32_t* c = i.operands > 3 ? read<Width::kInt>(w, i.o[3], pc) : pa;
  for (int l = 0; l < kLanes; ++l) {
    out[l] = F(static_cast<uint16_t>(a[l]), static_cast<uint16_t>(b[l]), static_cast<uint16_t>(c[l]));
  }
  write_low(w, i.o[0], out);
}

// 64 bits
template <auto F>
void v_double(Wave& w, const Inst& i) {
  uint64_t a[kLanes], b[kLanes] = {}, c[kLanes] = {}, out[kLanes];
  read64<true>(w, i.o[1], a);
  if (i.operands > 2) read64<true>(w, i.o[2], b);
  if (i.operands > 3) read64<true>(w, i.o[3], c);
  const auto d = [](uint64_t x) { return std::bit_cast<double>(x); };
  for (int l = 0; l < kLanes; ++l) out[l] = std::bit_cast<uint64_t>(F(d(a[l]), d(b[l]), d(c[l])));
  write64(w, i.o[0], out);
}
void v_ldexp_f64(Wave& w, const Inst& i) {
  uint64_t a[kLanes], out[kLanes];
  Lanes pb;
  read64<true>(w, i.o[1], a);
  const uint32_t* b = read<Width::kInt>(w, i.o[2], pb);
  for (int l = 0; l < kLanes; ++l) {
    out[l] = std::bit_cast<uint64_t>(std::ldexp(std::bit_cast<double>(a[l]), static_cast<int32_t>(b[l])));
  }
  write64(w, i.o[0], out);
}
template <typename T, auto F>
void v_from_double(Wave& w, const Inst& i) {
  uint64_t a[kLanes];
  Lanes out;
  read64<true>(w, i.o[1], a);
  for (int l = 0; l < kLanes; ++l) out[l] = to_bits<T>(F(std::bit_cast<double>(a[l])));
  write(w, i.o[0], out);
}
template <typename T>
void v_to_double(Wave& w, const Inst& i) {
  Lanes pa;
  uint64_t out[kLanes];
  const uint32_t* a = read<kWidthOf<T>>(w, i.o[1], pa);
  for (int l = 0; l < kLanes; ++l) out[l] = std::bit_cast<uint64_t>(static_cast<double>(from_bits<T>(a[l])));
  write64(w, i.o[0], out);
}
// Shifts have the distance first.
template <auto F>
void v_shift64(Wave& w, const Inst& i) {
  Lanes pa;
  uint64_t b[kLanes], out[kLanes];
  const uint32_t* a = read<Width::kInt>(w, i.o[1], pa);
  read64<false>(w, i.o[2], b);
  for (int l = 0; l < kLanes; ++l) out[l] = F(b[l], a[l] & 63u);
  write64(w, i.o[0], out);
}
template <bool SIGNED>
void v_mad_64(Wave& w, const Inst& i) {  // d, carry, a, b, c
  Lanes pa, pb;
  uint64_t c[kLanes], out[kLanes];
  const uint32_t* a = read<Width::kInt>(w, i.o[2], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[3], pb);
  read64<false>(w, i.o[4], c);
  uint32_t carry = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t product =
        SIGNED ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(a[l])} * static_cast<int32_t>(b[l]))
               : uint64_t{a[l]} * b[l];
    out[l] = product + c[l];
    if (w.active(l) && out[l] < product) carry |= 1u << l;
  }
  write64(w, i.o[0], out);
  set_scalar(w, i.o[1], carry);
}

// Sums with carries: d, carry out, a, b [, carry in].
enum class Sum { kAdd, kSubtract, kReversed };
template <Sum SUM, bool CARRY>
void v_carry(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kInt>(w, i.o[2], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[3], pb);
  const uint32_t in = CARRY ? scalar32(w, i.o[4]) : 0;
  uint32_t carry = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t x = SUM == Sum::kReversed ? b[l] : a[l], y = SUM == Sum::kReversed ? a[l] : b[l], c = in >> l & 1u;
    const uint64_t sum = SUM == Sum::kAdd ? uint64_t{x} + y + c : uint64_t{x} - y - c;
    out[l] = static_cast<uint32_t>(sum);
    if (w.active(l) && sum >> 32 != 0) carry |= 1u << l;
  }
  write(w, i.o[0], out);
  set_scalar(w, i.o[1], carry);
}

void v_cndmask(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kFloat>(w, i.o[1], pa);  // with neg and abs
  const uint32_t* b = read<Width::kFloat>(w, i.o[2], pb);
  const uint32_t mask = scalar32(w, i.o[3]);
  for (uint32_t l = 0; l < kLanes; ++l) out[l] = (mask >> l & 1u) != 0 ? b[l] : a[l];
  write(w, i.o[0], out);
}

// ---- between lanes

int first_active(const Wave& w) {
  return w.exec() == 0 ? 0 : std::countr_zero(w.exec());
}
void v_readfirstlane(Wave& w, const Inst& i) {
  if (i.o[1].kind != Operand::kVector) return set_scalar(w, i.o[0], scalar32(w, i.o[1]));
  set_scalar(w, i.o[0], w.v[i.o[1].index][first_active(w)]);
}
void v_readlane(Wave& w, const Inst& i) {
  set_scalar(w, i.o[0], w.v[i.o[1].index][scalar32(w, i.o[2]) % kLanes]);
}
void v_writelane(Wave& w, const Inst& i) {
  w.v[i.o[0].index][scalar32(w, i.o[2]) % kLanes] = scalar32(w, i.o[1]);
}
void v_mbcnt_lo(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kInt>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[2], pb);
  for (uint32_t l = 0; l < kLanes; ++l) out[l] = static_cast<uint32_t>(std::popcount(a[l] & ((1u << l) - 1))) + b[l];
  write(w, i.o[0], out);
}
// Waves of 32 lanes have no upper half, so this counts nothing.
void v_mbcnt_hi(Wave& w, const Inst& i) {
  Lanes pb;
  write(w, i.o[0], read<Width::kInt>(w, i.o[2], pb));
}
void ds_bpermute(Wave& w, const Inst& i) {
  const uint32_t* address = w.v[i.o[1].index];
  const uint32_t* data = w.v[i.o[2].index];
  Lanes out;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t from = (address[l] + static_cast<uint32_t>(i.offset[0])) / 4 % kLanes;
    out[l] = w.active(static_cast<int>(from)) ? data[from] : 0;
  }
  write(w, i.o[0], out);
}

// ---- divisions

int exponent(uint32_t x) {
  return static_cast<int>(x >> 23 & 0xFFu);
}
bool is_denormal(uint32_t x) {
  return exponent(x) == 0 && (x & 0x7FFFFFu) != 0;
}
void v_div_scale_f32(Wave& w, const Inst& i) {  // d, vcc, s0, s1, s2
  Lanes p0, p1, p2, out;
  const uint32_t* s0 = read<Width::kFloat>(w, i.o[2], p0);
  const uint32_t* s1 = read<Width::kFloat>(w, i.o[3], p1);
  const uint32_t* s2 = read<Width::kFloat>(w, i.o[4], p2);
  uint32_t mask = 0;
  for (int l = 0; l < kLanes; ++l) {
    const float a = as_float(s0[l]), b = as_float(s1[l]), c = as_float(s2[l]);
    const bool inverse_tiny = std::fabs(1.0 / static_cast<double>(b)) < std::numeric_limits<double>::min();
    const bool quotient_tiny = is_denormal(as_bits(c / b));
    float d = a;
    bool vcc = false;
    if (c == 0.0f || b == 0.0f) {
      d = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent(s2[l]) - exponent(s1[l]) >= 96) {
      vcc = true;
      if (a == b) d = std::ldexp(a, 64);
    } else if (is_denormal(s1[l])) {
      d = std::ldexp(a, 64);
    } else if (inverse_tiny && quotient_tiny) {
      vcc = true;
      if (a == b) d = std::ldexp(a, 64);
    } else if (inverse_tiny) {
      d = std::ldexp(a, -64);
    } else if (quotient_tiny) {
      vcc = true;
      if (a == c) d = std::ldexp(a, 64);
    } else if (exponent(s2[l]) <= 23) {
      d = std::ldexp(a, 64);
    }
    out[l] = as_bits(d);
    if (vcc && w.active(l)) mask |= 1u << l;
  }
  write(w, i.o[0], out);
  set_scalar(w, i.o[1], mask);
}
void v_div_fmas_f32(Wave& w, const Inst& i) {
  Lanes p0, p1, p2, out;
  const uint32_t* a = read<Width::kFloat>(w, i.o[1], p0);
  const uint32_t* b = read<Width::kFloat>(w, i.o[2], p1);
  const uint32_t* c = read<Width::kFloat>(w, i.o[3], p2);
  for (uint32_t l = 0; l < kLanes; ++l) {
    // Undoes what v_div_scale did, rounding once: c is the scaled quotient,
    // whose exponent shows which of the two was scaled.
    const double y = std::fma(double{as_float(a[l])}, double{as_float(b[l])}, double{as_float(c[l])});
    const bool scaled = (w.s[kVcc] >> l & 1u) != 0;
    out[l] = as_bits(static_cast<float>(scaled ? std::ldexp(y, exponent(c[l]) > 127 ? 64 : -64) : y));
  }
  write(w, i.o[0], out);
}
float div_fixup(float q, float b, float c) {
  const bool negative = std::signbit(b) != std::signbit(c);
  const float inf = std::numeric_limits<float>::infinity();
  if (std::isnan(c) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  if ((b == 0.0f && c == 0.0f) || (std::isinf(b) && std::isinf(c))) return std::numeric_limits<float>::quiet_NaN();
  if (b == 0.0f || std::isinf(c)) return negative ? -inf : inf;
  if (std::isinf(b) || c == 0.0f) return negative ? -0.0f : 0.0f;
  if (exponent(as_bits(c)) - exponent(as_bits(b)) < -150) return negative ? -0.0f : 0.0f;
  return negative ? -std::fabs(q) : std::fabs(q);
}

// ---- parts of registers (gfx10)

struct Field {
  uint32_t shift, bits;
};
Field field_of(Part part) {
  const auto n = static_cast<uint32_t>(part);
  if (part == Part::kDword) return {0, 32};
  return part <= Part::kByte3 ? Field{8 * (n - 1), 8} : Field{16 * (n - static_cast<uint32_t>(Part::kWord0)), 16};
}
uint32_t part_of(uint32_t x, Part part, bool extends) {
  const Field f = field_of(part);
  if (f.bits == 32) return x;
  return extends ? static_cast<uint32_t>(signed_field(x, f.shift, f.bits)) : field(x, f.shift, f.bits);
}
void sdwa(Wave& w, const Inst& i) {
  const Inst& inner = *i.inner;
  for (int n = 1; n < 3 && n < i.operands; ++n) {
    Lanes place;
    Operand o = i.o[n];
    o.neg = o.abs = false;  // those of the inner instruction's operand
    const uint32_t* from = read<Width::kInt>(w, o, place);
    for (int l = 0; l < kLanes; ++l) w.v[kHidden + n][l] = part_of(from[l], i.parts[n], i.extends[n]);
  }
  if (i.o[0].kind == Operand::kVector) std::memcpy(w.v[kHidden], w.v[i.o[0].index], sizeof w.v[kHidden]);
  inner.run(w, inner);
  if (i.o[0].kind != Operand::kVector) return;
  const Field f = field_of(i.parts[0]);
  const uint32_t mask = f.bits == 32 ? ~0u : ((1u << f.bits) - 1) << f.shift;
  Lanes out;
  for (int l = 0; l < kLanes; ++l) {
    out[l] = (w.v[kHidden][l] << f.shift & mask) | (i.keeps ? w.v[i.o[0].index][l] & ~mask : 0);
  }
  write(w, i.o[0], out);
}

}  // namespace

void add_vector_instructions(Table& table) {
  const auto add = [&](const std::string& name, Handler run) { table[name] = run; };
  add("v_mov_b32", v_unary<u32, u32, [](u32 a) { return a; }>);
  add("v_not_b32", v_unary<u32, u32, [](u32 a) { return ~a; }>);
  add("v_bfrev_b32", v_unary<u32, u32, [](u32 a) {
        u32 y = 0;
        for (int b = 0; b < 32; ++b) y |= (a >> b & 1u) << (31 - b);
        return y;
      }>);
  add("v_ctz_i32_b32", v_unary<u32, u32, [](u32 a) { return a == 0 ? ~0u : static_cast<u32>(std::countr_zero(a)); }>);
  add("v_clz_i32_u32", v_unary<u32, u32, [](u32 a) { return a == 0 ? ~0u : static_cast<u32>(std::countl_zero(a)); }>);
  add("v_cvt_f32_i32", v_unary<i32, float, [](i32 a) { return static_cast<float>(a); }>);
  add("v_cvt_f32_u32", v_unary<u32, float, [](u32 a) { return static_cast<float>(a); }>);
  add("v_cvt_f32_ubyte0", v_unary<u32, float, [](u32 a) { return static_cast<float>(a & 0xFFu); }>);
  add("v_cvt_f32_ubyte1", v_unary<u32, float, [](u32 a) { return static_cast<float>(a >> 8 & 0xFFu); }>);
  add("v_cvt_f32_ubyte2", v_unary<u32, float, [](u32 a) { return static_cast<float>(a >> 16 & 0xFFu); }>);
  add("v_cvt_f32_ubyte3", v_unary<u32, float, [](u32 a) { return static_cast<float>(a >> 24); }>);
  add("v_cvt_i32_f32", v_unary<float, i32, [](float a) { return saturate<i32>(a); }>);
  add("v_cvt_u32_f32", v_unary<float, u32, [](float a) { return saturate<u32>(a); }>);
  for (const char* name : {"v_rcp_f32", "v_rcp_iflag_f32"}) {
    add(name, v_unary<float, float, [](float a) { return 1.0f / a; }>);
  }
  add("v_sqrt_f32", v_unary<float, float, [](float a) { return std::sqrt(a); }>);
  add("v_rsq_f32", v_unary<float, float, [](float a) { return 1.0f / std::sqrt(a); }>);
  add("v_floor_f32", v_unary<float, float, [](float a) { return std::floor(a); }>);
  add("v_ceil_f32", v_unary<float, float, [](float a) { return std::ceil(a); }>);
  add("v_trunc_f32", v_unary<float, float, [](float a) { return std::trunc(a); }>);
  add("v_rndne_f32", v_unary<float, float, [](float a) { return std::nearbyint(a); }>);
  add("v_fract_f32", v_unary<float, float, [](float a) { return a - std::floor(a); }>);

  add("v_add_nc_u32", v_sum<u32, [](i64 a, i64 b) { return a + b; }>);
  add("v_sub_nc_u32", v_sum<u32, [](i64 a, i64 b) { return a - b; }>);
  add("v_add_nc_i32", v_sum<i32, [](i64 a, i64 b) { return a + b; }>);
  add("v_sub_nc_i32", v_sum<i32, [](i64 a, i64 b) { return a - b; }>);
  add("v_subrev_nc_u32", v_binary<u32, [](u32 a, u32 b) { return b - a; }>);
  add("v_and_b32", v_binary<u32, [](u32 a, u32 b) { return a & b; }>);
  add("v_or_b32", v_binary<u32, [](u32 a, u32 b) { return a | b; }>);
  add("v_xor_b32", v_binary<u32, [](u32 a, u32 b) { return a ^ b; }>);
  add("v_xnor_b32", v_binary<u32, [](u32 a, u32 b) { return ~(a ^ b); }>);
  add("v_lshlrev_b32", v_binary<u32, [](u32 a, u32 b) { return b << (a & 31u); }>);
  add("v_lshrrev_b32", v_binary<u32, [](u32 a, u32 b) { return b >> (a & 31u); }>);
  add("v_ashrrev_i32", v_binary<u32, [](u32 a, u32 b) { return static_cast<u32>(static_cast<i32>(b) >> (a & 31u)); }>);
  add("v_mul_lo_u32", v_binary<u32, [](u32 a, u32 b) { return a * b; }>);
  add("v_mul_hi_u32", v_binary<u32, [](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>);
  add("v_mul_hi_i32", v_binary<i32, [](i32 a, i32 b) { return static_cast<i32>(i64{a} * b >> 32); }>);
  add("v_mul_u32_u24", v_binary<u32, [](u32 a, u32 b) { return (a & 0xFFFFFFu) * (b & 0xFFFFFFu); }>);
  add("v_mul_hi_u32_u24",
      v_binary<u32, [](u32 a, u32 b) { return static_cast<u32>(u64{a & 0xFFFFFFu} * (b & 0xFFFFFFu) >> 32); }>);
  add("v_mul_i32_i24", v_binary<u32, [](u32 a, u32 b) { return static_cast<u32>(i64{signed_24(a)} * signed_24(b)); }>);
  add("v_mul_hi_i32_i24",
      v_binary<u32, [](u32 a, u32 b) { return static_cast<u32>(i64{signed_24(a)} * signed_24(b) >> 32); }>);
  add("v_max_i32", v_binary<i32, [](i32 a, i32 b) { return std::max(a, b); }>);
  add("v_min_i32", v_binary<i32, [](i32 a, i32 b) { return std::min(a, b); }>);
  add("v_max_u32", v_binary<u32, [](u32 a, u32 b) { return std::max(a, b); }>);
  add("v_min_u32", v_binary<u32, [](u32 a, u32 b) { return std::min(a, b); }>);
  add("v_bcnt_u32_b32", v_binary<u32, [](u32 a, u32 b) { return static_cast<u32>(std::popcount(a)) + b; }>);
  add("v_add_f32", v_binary<float, [](float a, float b) { return a + b; }>);
  add("v_sub_f32", v_binary<float, [](float a, float b) { return a - b; }>);
  add("v_subrev_f32", v_binary<float, [](float a, float b) { return b - a; }>);
  add("v_mul_f32", v_binary<float, [](float a, float b) { return a * b; }>);
  for (const char* name : {"v_max_f32", "v_max_num_f32"}) {
    add(name, v_binary<float, [](float a, float b) { return max_float(a, b); }>);
  }
  for (const char* name : {"v_min_f32", "v_min_num_f32"}) {
    add(name, v_binary<float, [](float a, float b) { return min_float(a, b); }>);
  }
  add("v_ldexp_f32", [](Wave& w, const Inst& i) {
    Lanes pa, pb, out;
    const u32* a = read<Width::kFloat>(w, i.o[1], pa);
    const u32* b = read<Width::kInt>(w, i.o[2], pb);
    for (int l = 0; l < kLanes; ++l) out[l] = as_bits(std::ldexp(as_float(a[l]), static_cast<i32>(b[l])));
    finish<float>(w, i, out);
  });
  add("v_fmac_f32", v_fmac);
  for (const char* name : {"v_fma_f32", "v_fmaak_f32", "v_fmamk_f32"}) {
    add(name, v_ternary<float, [](float a, float b, float c) { return std::fma(a, b, c); }>);
  }
  for (const char* name : {"v_max3_f32", "v_max3_num_f32"}) {
    add(name, v_ternary<float, [](float a, float b, float c) { return max_float(max_float(a, b), c); }>);
  }
  for (const char* name : {"v_min3_f32", "v_min3_num_f32"}) {
    add(name, v_ternary<float, [](float a, float b, float c) { return min_float(min_float(a, b), c); }>);
  }
  for (const char* name : {"v_med3_f32", "v_med3_num_f32"}) add(name, v_ternary<float, med3_float>);
  for (const char* name : {"v_maxmin_f32", "v_maxmin_num_f32"}) {
    add(name, v_ternary<float, [](float a, float b, float c) { return min_float(max_float(a, b), c); }>);
  }
  for (const char* name : {"v_minmax_f32", "v_minmax_num_f32"}) {
    add(name, v_ternary<float, [](float a, float b, float c) { return max_float(min_float(a, b), c); }>);
  }
  add("v_med3_i32", v_ternary<i32, med3_int>);
  add("v_max3_i32", v_ternary<i32, [](i32 a, i32 b, i32 c) { return std::max(std::max(a, b), c); }>);
  add("v_min3_i32", v_ternary<i32, [](i32 a, i32 b, i32 c) { return std::min(std::min(a, b), c); }>);
  add("v_max3_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return std::max(std::max(a, b), c); }>);
  add("v_min3_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return std::min(std::min(a, b), c); }>);
  add("v_maxmin_i32", v_ternary<i32, [](i32 a, i32 b, i32 c) { return std::min(std::max(a, b), c); }>);
  add("v_minmax_i32", v_ternary<i32, [](i32 a, i32 b, i32 c) { return std::max(std::min(a, b), c); }>);
  add("v_maxmin_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return std::min(std::max(a, b), c); }>);
  add("v_minmax_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return std::max(std::min(a, b), c); }>);
  add("v_add3_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return a + b + c; }>);
  add("v_or3_b32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return a | b | c; }>);
  add("v_xor3_b32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return a ^ b ^ c; }>);
  add("v_and_or_b32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return (a & b) | c; }>);
  add("v_lshl_or_b32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return a << (b & 31u) | c; }>);
  add("v_lshl_add_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return (a << (b & 31u)) + c; }>);
  add("v_add_lshl_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return (a + b) << (c & 31u); }>);
  add("v_xad_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return (a ^ b) + c; }>);
  add("v_bfi_b32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); }>);
  add("v_bfe_u32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return field(a, b, c); }>);
  add("v_bfe_i32", v_ternary<u32, [](u32 a, u32 b, u32 c) { return static_cast<u32>(signed_field(a, b, c)); }>);
  add("v_alignbit_b32",
      v_ternary<u32, [](u32 a, u32 b, u32 c) { return static_cast<u32>((u64{a} << 32 | b) >> (c & 31u)); }>);
  add("v_alignbyte_b32",
      v_ternary<u32, [](u32 a, u32 b, u32 c) { return static_cast<u32>((u64{a} << 32 | b) >> (8 * (c & 3u))); }>);
  add("v_perm_b32", v_ternary<u32, permute_bytes>);
  add("v_mad_u32_u24", v_ternary<u32, [](u32 a, u32 b, u32 c) { return (a & 0xFFFFFFu) * (b & 0xFFFFFFu) + c; }>);
  add("v_mad_i32_i24",
      v_ternary<u32, [](u32 a, u32 b, u32 c) { return static_cast<u32>(i64{signed_24(a)} * signed_24(b)) + c; }>);
  add("v_div_fixup_f32", v_ternary<float, div_fixup>);
  add("v_div_scale_f32", v_div_scale_f32);
  add("v_div_fmas_f32", v_div_fmas_f32);

  add("v_add_nc_u16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{a} + b; }>);
  add("v_sub_nc_u16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{a} - b; }>);
  add("v_mul_lo_u16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{a} * b; }>);
  add("v_mad_u16", v_short<[](uint16_t a, uint16_t b, uint16_t c) { return u32{a} * b + c; }>);
  add("v_and_b16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{a} & b; }>);
  add("v_or_b16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{a} | b; }>);
  add("v_lshlrev_b16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{b} << (a & 15u); }>);
  add("v_lshrrev_b16", v_short<[](uint16_t a, uint16_t b, uint16_t) { return u32{b} >> (a & 15u); }>);
  add("v_ashrrev_i16",
      v_short<[](uint16_t a, uint16_t b, uint16_t) { return static_cast<u32>(static_cast<int16_t>(b) >> (a & 15u)); }>);

  add("v_cndmask_b32", v_cndmask);
  add("v_add_co_u32", v_carry<Sum::kAdd, false>);
  add("v_sub_co_u32", v_carry<Sum::kSubtract, false>);
  add("v_subrev_co_u32", v_carry<Sum::kReversed, false>);
  add("v_add_co_ci_u32", v_carry<Sum::kAdd, true>);
  add("v_sub_co_ci_u32", v_carry<Sum::kSubtract, true>);
  add("v_subrev_co_ci_u32", v_carry<Sum::kReversed, true>);
  for (const char* name : {"v_mad_u64_u32", "v_mad_co_u64_u32"}) add(name, v_mad_64<false>);
  for (const char* name : {"v_mad_i64_i32", "v_mad_co_i64_i32"}) add(name, v_mad_64<true>);
  add("v_lshlrev_b64", v_shift64<[](u64 x, u32 by) { return x << by; }>);
  add("v_lshrrev_b64", v_shift64<[](u64 x, u32 by) { return x >> by; }>);
  add("v_ashrrev_i64", v_shift64<[](u64 x, u32 by) { return static_cast<u64>(static_cast<i64>(x) >> by); }>);
  add("v_add_f64", v_double<[](double a, double b, double) { return a + b; }>);
  add("v_mul_f64", v_double<[](double a, double b, double) { return a * b; }>);
  add("v_fma_f64", v_double<[](double a, double b, double c) { return std::fma(a, b, c); }>);
  for (const char* name : {"v_max_f64", "v_max_num_f64"}) {
    add(name, v_double<[](double a, double b, double) { return std::fmax(a, b); }>);
  }
  for (const char* name : {"v_min_f64", "v_min_num_f64"}) {
    add(name, v_double<[](double a, double b, double) { return std::fmin(a, b); }>);
  }
  add("v_floor_f64", v_double<[](double a, double, double) { return std::floor(a); }>);
  add("v_trunc_f64", v_double<[](double a, double, double) { return std::trunc(a); }>);
  add("v_ldexp_f64", v_ldexp_f64);
  add("v_cvt_f32_f64", v_from_double<float, [](double a) { return static_cast<float>(a); }>);
  add("v_cvt_u32_f64", v_from_double<u32, [](double a) { return saturate<u32>(a); }>);
  add("v_cvt_i32_f64", v_from_double<i32, [](double a) { return saturate<i32>(a); }>);
  add("v_cvt_f64_f32", v_to_double<float>);
  add("v_cvt_f64_u32", v_to_double<u32>);
  add("v_cvt_f64_i32", v_to_double<i32>);

  add("v_pack_b32_f16", v_binary<u32, [](u32 a, u32 b) { return (a & 0xFFFFu) | b << 16; }>);
  add("ds_bpermute_b32", ds_bpermute);
  add("sdwa", sdwa);
  add("v_readfirstlane_b32", v_readfirstlane);
  add("v_readlane_b32", v_readlane);
  add("v_writelane_b32", v_writelane);
  add("v_mbcnt_lo_u32_b32", v_mbcnt_lo);
  add("v_mbcnt_hi_u32_b32", v_mbcnt_hi);
}

}  // namespace tnd::amdsim
