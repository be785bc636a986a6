// Scalar instructions, branches and barriers.
#include "core/fp.h"
#include "sim/amd/operands.h"

namespace tnd::amdsim {
namespace {

template <auto F>
void s_unary(Wave& w, const Inst& i) {
  set_scalar(w, i.o[0], F(scalar32(w, i.o[1])));
}
template <auto F>
void s_binary(Wave& w, const Inst& i) {
  set_scalar(w, i.o[0], F(scalar32(w, i.o[1]), scalar32(w, i.o[2])));
}
// F(a, b, &scc)
template <auto F>
void s_flagged(Wave& w, const Inst& i) {
  const uint32_t a = scalar32(w, i.o[1]), b = i.operands > 2 ? scalar32(w, i.o[2]) : 0;
  set_scalar(w, i.o[0], F(a, b, w.scc));
}
template <auto F>
void s_flagged64(Wave& w, const Inst& i) {
  const uint64_t a = scalar64(w, i.o[1]), b = i.operands > 2 ? scalar64(w, i.o[2]) : 0;
  set_scalar64(w, i.o[0], F(a, b, w.scc));
}
// 64 bits shifted by 32
template <auto F>
void s_shift64(Wave& w, const Inst& i) {
  const uint64_t y = F(scalar64(w, i.o[1]), scalar32(w, i.o[2]));
  set_scalar64(w, i.o[0], y);
  w.scc = y != 0;
}
template <auto F>
void s_compare(Wave& w, const Inst& i) {
  w.scc = F(scalar32(w, i.o[0]), scalar32(w, i.o[1]));
}
template <auto F>
void s_compare64(Wave& w, const Inst& i) {
  w.scc = F(scalar64(w, i.o[0]), scalar64(w, i.o[1]));
}
template <auto F>
void s_compare_float(Wave& w, const Inst& i) {
  w.scc = F(as_float(scalar32(w, i.o[0])), as_float(scalar32(w, i.o[1])));
}
template <auto F>
void s_float(Wave& w, const Inst& i) {
  const auto value = [&](int n) {
    float x = n < i.operands ? as_float(scalar32(w, i.o[n])) : 0.0f;
    if (n < i.operands && i.o[n].abs) x = std::fabs(x);
    return n < i.operands && i.o[n].neg ? -x : x;
  };
  set_scalar(w, i.o[0], as_bits(F(value(1), value(2), value(3))));
}
// exec = F(source, exec), and the old exec is the result.
template <auto F>
void s_saveexec(Wave& w, const Inst& i) {
  const uint32_t source = scalar32(w, i.o[1]), old = w.exec();
  set_scalar(w, i.o[0], old);
  w.s[kExec] = F(source, old);
  w.scc = w.s[kExec] != 0;
}
// The second operand is part of the instruction.
template <auto F>
void s_immediate(Wave& w, const Inst& i) {
  set_scalar(w, i.o[0], F(scalar32(w, i.o[0]), static_cast<uint32_t>(static_cast<int16_t>(i.o[1].bits32)), w.scc));
}

// Where a scalar load of so many bytes reads.
const void* scalar_memory(Wave& w, const Inst& i, uint64_t bytes) {
  uint64_t address = scalar64(w, i.o[1]);
  if (i.operands > 2 && i.o[2].kind != Operand::kNone) {
    address += i.o[2].kind == Operand::kConst ? i.o[2].bits64 : uint64_t{scalar32(w, i.o[2])};
  }
  address += static_cast<uint64_t>(int64_t{i.offset[0]});
  if (bytes >= 4) address &= ~uint64_t{3};
  if (!w.recent.holds(address, bytes)) {
    w.recent = Memory::of_device().find(address);
    if (!w.recent.holds(address, bytes)) w.fail("scalar load outside of memory", address);
  }
  return reinterpret_cast<const void*>(address);
}
template <int WORDS>
void s_load_words(Wave& w, const Inst& i) {
  const void* from = scalar_memory(w, i, WORDS * 4);
  if (i.o[0].index != kNullReg) std::memcpy(&w.s[i.o[0].index], from, WORDS * 4);
}
void s_load_u16(Wave& w, const Inst& i) {
  uint16_t value;
  std::memcpy(&value, scalar_memory(w, i, sizeof value), sizeof value);
  set_scalar(w, i.o[0], value);
}

template <auto TAKEN>
void branch(Wave& w, const Inst& i) {
  if (!TAKEN(w)) return;
  if (i.target < 0) w.fail("branch to where no instruction begins");
  w.next = i.target;
}

void nothing(Wave&, const Inst&) {}

template <auto F>
void scalar_compare(Table& table, const std::string& name) {
  table["s_cmp_" + name] = s_compare<F>;
  table["s_cmpk_" + name] = s_compare<F>;
}
template <typename T>
void scalar_compares(Table& table, const std::string& type) {
  scalar_compare<[](u32 a, u32 b) { return static_cast<T>(a) == static_cast<T>(b); }>(table, "eq_" + type);
  scalar_compare<[](u32 a, u32 b) { return static_cast<T>(a) != static_cast<T>(b); }>(table, "lg_" + type);
  scalar_compare<[](u32 a, u32 b) { return static_cast<T>(a) > static_cast<T>(b); }>(table, "gt_" + type);
  scalar_compare<[](u32 a, u32 b) { return static_cast<T>(a) >= static_cast<T>(b); }>(table, "ge_" + type);
  scalar_compare<[](u32 a, u32 b) { return static_cast<T>(a) < static_cast<T>(b); }>(table, "lt_" + type);
  scalar_compare<[](u32 a, u32 b) { return static_cast<T>(a) <= static_cast<T>(b); }>(table, "le_" + type);
}

}  // namespace

void add_scalar_instructions(Table& table) {
  const auto add = [&](const std::string& name, Handler run) { table[name] = run; };
  // Scheduling hints, waits, caches and ends of programs, which do nothing here: the compiler's waits are not checked.
  for (const char* name : {"s_nop",
                           "s_setreg_b32",
                           "v_nop",
                           "s_clause",
                           "s_delay_alu",
                           "s_waitcnt",
                           "s_waitcnt_vscnt",
                           "s_sendmsg",
                           "s_waitcnt_depctr",
                           "s_waitcnt_lgkmcnt",
                           "s_waitcnt_vmcnt",
                           "s_set_inst_prefetch_distance",
                           "s_inst_prefetch",
                           "buffer_gl0_inv",
                           "buffer_gl1_inv",
                           "global_inv",
                           "global_wb",
                           "s_wait_alu",
                           "s_wait_loadcnt",
                           "s_wait_storecnt",
                           "s_wait_dscnt",
                           "s_wait_kmcnt",
                           "s_wait_samplecnt",
                           "s_wait_bvhcnt",
                           "s_wait_expcnt",
                           "s_wait_loadcnt_dscnt",
                           "s_wait_storecnt_dscnt",
                           "s_wait_idle",
                           "s_sleep",
                           "s_setprio",
                           "s_round_mode",
                           "s_denorm_mode",
                           "s_barrier_signal",
                           "s_sethalt",
                           "s_prefetch_inst",
                           "s_prefetch_data",
                           "s_icache_inv"}) {
    add(name, nothing);
  }
  add("s_endpgm", [](Wave& w, const Inst&) { w.ended = true; });
  const Handler barrier = [](Wave& w, const Inst&) { w.waits = true; };
  add("s_barrier", barrier);
  add("s_barrier_wait", barrier);
  add("s_branch", branch<[](const Wave&) { return true; }>);
  add("s_cbranch_scc0", branch<[](const Wave& w) { return !w.scc; }>);
  add("s_cbranch_scc1", branch<[](const Wave& w) { return w.scc; }>);
  add("s_cbranch_vccz", branch<[](const Wave& w) { return w.s[kVcc] == 0; }>);
  add("s_cbranch_vccnz", branch<[](const Wave& w) { return w.s[kVcc] != 0; }>);
  add("s_cbranch_execz", branch<[](const Wave& w) { return w.exec() == 0; }>);
  add("s_cbranch_execnz", branch<[](const Wave& w) { return w.exec() != 0; }>);

  add("s_mov_b32", s_unary<[](u32 a) { return a; }>);
  add("s_movk_i32", [](Wave& w, const Inst& i) {
    set_scalar(w, i.o[0], static_cast<u32>(int32_t{static_cast<int16_t>(i.o[1].bits32)}));
  });
  add("s_mov_b64", [](Wave& w, const Inst& i) { set_scalar64(w, i.o[0], scalar64(w, i.o[1])); });
  add("s_cmov_b32", [](Wave& w, const Inst& i) {
    if (w.scc) set_scalar(w, i.o[0], scalar32(w, i.o[1]));
  });
  add("s_bitset0_b32",
      [](Wave& w, const Inst& i) { set_scalar(w, i.o[0], scalar32(w, i.o[0]) & ~(1u << (scalar32(w, i.o[1]) & 31))); });
  add("s_bitset1_b32",
      [](Wave& w, const Inst& i) { set_scalar(w, i.o[0], scalar32(w, i.o[0]) | 1u << (scalar32(w, i.o[1]) & 31)); });
  add("s_brev_b32", s_unary<[](u32 a) {
        u32 y = 0;
        for (int b = 0; b < 32; ++b) y |= (a >> b & 1u) << (31 - b);
        return y;
      }>);
  add("s_ctz_i32_b32", s_unary<[](u32 a) { return a == 0 ? ~0u : static_cast<u32>(std::countr_zero(a)); }>);
  add("s_clz_i32_u32", s_unary<[](u32 a) { return a == 0 ? ~0u : static_cast<u32>(std::countl_zero(a)); }>);
  add("s_sext_i32_i8", s_unary<[](u32 a) { return static_cast<u32>(i32{static_cast<int8_t>(a)}); }>);
  add("s_sext_i32_i16", s_unary<[](u32 a) { return static_cast<u32>(i32{static_cast<int16_t>(a)}); }>);
  add("s_mul_i32", s_binary<[](u32 a, u32 b) { return a * b; }>);
  add("s_mul_hi_u32", s_binary<[](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>);
  add("s_mul_hi_i32", s_binary<[](u32 a, u32 b) {
        return static_cast<u32>(static_cast<u64>(i64{static_cast<i32>(a)} * static_cast<i32>(b)) >> 32);
      }>);
  add("s_mul_u64", [](Wave& w, const Inst& i) { set_scalar64(w, i.o[0], scalar64(w, i.o[1]) * scalar64(w, i.o[2])); });
  const auto add_u32 = s_flagged<[](u32 a, u32 b, bool& scc) {
    const u32 y = a + b;
    scc = y < a;
    return y;
  }>;
  const auto sub_u32 = s_flagged<[](u32 a, u32 b, bool& scc) {
    scc = b > a;
    return a - b;
  }>;
  const auto add_i32 = s_flagged<[](u32 a, u32 b, bool& scc) {
    const u32 y = a + b;
    scc = (~(a ^ b) & (a ^ y)) >> 31 != 0;
    return y;
  }>;
  const auto sub_i32 = s_flagged<[](u32 a, u32 b, bool& scc) {
    const u32 y = a - b;
    scc = ((a ^ b) & (a ^ y)) >> 31 != 0;
    return y;
  }>;
  const auto addc = s_flagged<[](u32 a, u32 b, bool& scc) {
    const u64 y = u64{a} + b + (scc ? 1 : 0);
    scc = y >> 32 != 0;
    return static_cast<u32>(y);
  }>;
  const auto subb = s_flagged<[](u32 a, u32 b, bool& scc) {
    const u64 y = u64{a} - b - (scc ? 1 : 0);
    scc = y >> 32 != 0;
    return static_cast<u32>(y);
  }>;
  for (const char* name : {"s_add_u32", "s_add_co_u32"}) add(name, add_u32);
  for (const char* name : {"s_sub_u32", "s_sub_co_u32"}) add(name, sub_u32);
  for (const char* name : {"s_add_i32", "s_add_co_i32"}) add(name, add_i32);
  for (const char* name : {"s_sub_i32", "s_sub_co_i32"}) add(name, sub_i32);
  for (const char* name : {"s_addc_u32", "s_add_co_ci_u32"}) add(name, addc);
  for (const char* name : {"s_subb_u32", "s_sub_co_ci_u32"}) add(name, subb);
  const auto addk = s_immediate<[](u32 a, u32 b, bool& scc) {
    const u32 y = a + b;
    scc = (~(a ^ b) & (a ^ y)) >> 31 != 0;
    return y;
  }>;
  for (const char* name : {"s_addk_i32", "s_addk_co_i32"}) add(name, addk);
  add("s_mulk_i32", s_immediate<[](u32 a, u32 b, bool&) { return a * b; }>);
  add("s_add_nc_u64",
      [](Wave& w, const Inst& i) { set_scalar64(w, i.o[0], scalar64(w, i.o[1]) + scalar64(w, i.o[2])); });
  add("s_sub_nc_u64",
      [](Wave& w, const Inst& i) { set_scalar64(w, i.o[0], scalar64(w, i.o[1]) - scalar64(w, i.o[2])); });
#define FLAGGED(name, expression)                                 \
  add("s_" name "_b32", s_flagged<[](u32 a, u32 b, bool& scc) {   \
        const u32 y = expression;                                 \
        (void)b;                                                  \
        scc = y != 0;                                             \
        return y;                                                 \
      }>);                                                        \
  add("s_" name "_b64", s_flagged64<[](u64 a, u64 b, bool& scc) { \
        const u64 y = expression;                                 \
        (void)b;                                                  \
        scc = y != 0;                                             \
        return y;                                                 \
      }>)
  FLAGGED("and", a & b);
  FLAGGED("or", a | b);
  FLAGGED("xor", a ^ b);
  FLAGGED("and_not1", a & ~b);
  FLAGGED("or_not1", a | ~b);
  FLAGGED("nand", ~(a & b));
  FLAGGED("nor", ~(a | b));
  FLAGGED("xnor", ~(a ^ b));
  FLAGGED("not", ~a);
#undef FLAGGED
  add("s_lshl_b32", s_flagged<[](u32 a, u32 b, bool& scc) {
        const u32 y = a << (b & 31u);
        scc = y != 0;
        return y;
      }>);
  add("s_lshr_b32", s_flagged<[](u32 a, u32 b, bool& scc) {
        const u32 y = a >> (b & 31u);
        scc = y != 0;
        return y;
      }>);
  add("s_ashr_i32", s_flagged<[](u32 a, u32 b, bool& scc) {
        const u32 y = static_cast<u32>(static_cast<i32>(a) >> (b & 31u));
        scc = y != 0;
        return y;
      }>);
  add("s_lshl_b64", s_shift64<[](u64 a, u32 b) { return a << (b & 63u); }>);
  add("s_lshr_b64", s_shift64<[](u64 a, u32 b) { return a >> (b & 63u); }>);
  add("s_ashr_i64", s_shift64<[](u64 a, u32 b) { return static_cast<u64>(static_cast<i64>(a) >> (b & 63u)); }>);
  add("s_bfe_u32", s_flagged<[](u32 a, u32 b, bool& scc) {
        const u32 y = field(a, b & 31u, b >> 16 & 127u);
        scc = y != 0;
        return y;
      }>);
  add("s_bfe_i32", s_flagged<[](u32 a, u32 b, bool& scc) {
        const u32 y = static_cast<u32>(signed_field(a, b & 31u, b >> 16 & 127u));
        scc = y != 0;
        return y;
      }>);
  add("s_bfe_i64", s_shift64<[](u64 a, u32 b) {
        const u32 at = b & 63u, bits = b >> 16 & 127u;
        if (bits == 0) return u64{0};
        return bits >= 64 ? a >> at : static_cast<u64>(static_cast<i64>(a >> at << (64 - bits)) >> (64 - bits));
      }>);
  add("s_bfe_u64", s_shift64<[](u64 a, u32 b) {
        const u32 at = b & 63u, bits = b >> 16 & 127u;
        return bits >= 64 ? a >> at : a >> at & ((u64{1} << bits) - 1);
      }>);
  add("s_bcnt1_i32_b32", s_flagged<[](u32 a, u32, bool& scc) {
        const u32 y = static_cast<u32>(std::popcount(a));
        scc = y != 0;
        return y;
      }>);
  add("s_abs_i32", s_flagged<[](u32 a, u32, bool& scc) {
        const u32 y = static_cast<i32>(a) < 0 ? 0 - a : a;
        scc = y != 0;
        return y;
      }>);
  add("s_min_i32", s_flagged<[](u32 a, u32 b, bool& scc) {
        scc = static_cast<i32>(a) < static_cast<i32>(b);
        return scc ? a : b;
      }>);
  add("s_max_i32", s_flagged<[](u32 a, u32 b, bool& scc) {
        scc = static_cast<i32>(a) >= static_cast<i32>(b);
        return scc ? a : b;
      }>);
  add("s_min_u32", s_flagged<[](u32 a, u32 b, bool& scc) {
        scc = a < b;
        return scc ? a : b;
      }>);
  add("s_max_u32", s_flagged<[](u32 a, u32 b, bool& scc) {
        scc = a >= b;
        return scc ? a : b;
      }>);
  add("s_cselect_b32", [](Wave& w, const Inst& i) { set_scalar(w, i.o[0], scalar32(w, i.o[w.scc ? 1 : 2])); });
  add("s_cselect_b64", [](Wave& w, const Inst& i) { set_scalar64(w, i.o[0], scalar64(w, i.o[w.scc ? 1 : 2])); });
  add("s_pack_ll_b32_b16", s_binary<[](u32 a, u32 b) { return (a & 0xFFFFu) | b << 16; }>);
  add("s_pack_hh_b32_b16", s_binary<[](u32 a, u32 b) { return a >> 16 | (b & 0xFFFF0000u); }>);
  add("s_pack_lh_b32_b16", s_binary<[](u32 a, u32 b) { return (a & 0xFFFFu) | (b & 0xFFFF0000u); }>);
  add("s_bitcmp0_b32", s_compare<[](u32 a, u32 b) { return (a >> (b & 31u) & 1u) == 0; }>);
  add("s_bitcmp1_b32", s_compare<[](u32 a, u32 b) { return (a >> (b & 31u) & 1u) != 0; }>);
  scalar_compares<i32>(table, "i32");
  scalar_compares<u32>(table, "u32");
  add("s_cmp_eq_u64", s_compare64<[](u64 a, u64 b) { return a == b; }>);
  add("s_cmp_lg_u64", s_compare64<[](u64 a, u64 b) { return a != b; }>);
  add("s_and_saveexec_b32", s_saveexec<[](u32 a, u32 exec) { return a & exec; }>);
  add("s_or_saveexec_b32", s_saveexec<[](u32 a, u32 exec) { return a | exec; }>);
  add("s_xor_saveexec_b32", s_saveexec<[](u32 a, u32 exec) { return a ^ exec; }>);
  add("s_and_not1_saveexec_b32", s_saveexec<[](u32 a, u32 exec) { return a & ~exec; }>);
  add("s_and_not0_saveexec_b32", s_saveexec<[](u32 a, u32 exec) { return ~a & exec; }>);
  add("s_load_b32", s_load_words<1>);
  add("s_load_b64", s_load_words<2>);
  add("s_load_b96", s_load_words<3>);
  add("s_load_b128", s_load_words<4>);
  add("s_load_b256", s_load_words<8>);
  add("s_load_b512", s_load_words<16>);
  add("s_load_u16", s_load_u16);

  // Floats in scalar registers: gfx11.5 and gfx12.
  add("s_add_f32", s_float<[](float a, float b, float) { return a + b; }>);
  add("s_sub_f32", s_float<[](float a, float b, float) { return a - b; }>);
  add("s_mul_f32", s_float<[](float a, float b, float) { return a * b; }>);
  for (const char* name : {"s_min_f32", "s_min_num_f32"}) {
    add(name, s_float<[](float a, float b, float) { return min_float(a, b); }>);
  }
  for (const char* name : {"s_max_f32", "s_max_num_f32"}) {
    add(name, s_float<[](float a, float b, float) { return max_float(a, b); }>);
  }
  add("s_fmaak_f32", s_float<[](float a, float b, float c) { return std::fma(a, b, c); }>);
  add("s_fmamk_f32", s_float<[](float a, float b, float c) { return std::fma(a, b, c); }>);
  add("s_fmac_f32", [](Wave& w, const Inst& i) {
    const float y =
        std::fma(as_float(scalar32(w, i.o[1])), as_float(scalar32(w, i.o[2])), as_float(scalar32(w, i.o[0])));
    set_scalar(w, i.o[0], as_bits(y));
  });
  add("s_trunc_f32", s_float<[](float a, float, float) { return std::trunc(a); }>);
  add("s_floor_f32", s_float<[](float a, float, float) { return std::floor(a); }>);
  add("s_ceil_f32", s_float<[](float a, float, float) { return std::ceil(a); }>);
  add("s_rndne_f32", s_float<[](float a, float, float) { return std::nearbyint(a); }>);
  add("s_cvt_f32_i32", s_unary<[](u32 a) { return as_bits(static_cast<float>(static_cast<i32>(a))); }>);
  add("s_cvt_f32_u32", s_unary<[](u32 a) { return as_bits(static_cast<float>(a)); }>);
  add("s_cvt_i32_f32", s_unary<[](u32 a) { return static_cast<u32>(saturate<i32>(as_float(a))); }>);
  add("s_cvt_u32_f32", s_unary<[](u32 a) { return saturate<u32>(as_float(a)); }>);
  add("s_cvt_f32_f16", s_unary<[](u32 a) { return as_bits(f16_to_f32(static_cast<uint16_t>(a))); }>);
  add("s_cvt_hi_f32_f16", s_unary<[](u32 a) { return as_bits(f16_to_f32(static_cast<uint16_t>(a >> 16))); }>);
  add("s_cvt_f16_f32", s_unary<[](u32 a) { return u32{f32_to_f16(as_float(a))}; }>);
  add("s_cmp_lt_f32", s_compare_float<[](float a, float b) { return a < b; }>);
  add("s_cmp_eq_f32", s_compare_float<[](float a, float b) { return a == b; }>);
  add("s_cmp_le_f32", s_compare_float<[](float a, float b) { return a <= b; }>);
  add("s_cmp_gt_f32", s_compare_float<[](float a, float b) { return a > b; }>);
  add("s_cmp_lg_f32", s_compare_float<[](float a, float b) { return a < b || a > b; }>);
  add("s_cmp_ge_f32", s_compare_float<[](float a, float b) { return a >= b; }>);
  add("s_cmp_o_f32", s_compare_float<[](float a, float b) { return !std::isnan(a) && !std::isnan(b); }>);
  add("s_cmp_u_f32", s_compare_float<[](float a, float b) { return std::isnan(a) || std::isnan(b); }>);
  add("s_cmp_nge_f32", s_compare_float<[](float a, float b) { return !(a >= b); }>);
  add("s_cmp_nlg_f32", s_compare_float<[](float a, float b) { return !(a < b || a > b); }>);
  add("s_cmp_ngt_f32", s_compare_float<[](float a, float b) { return !(a > b); }>);
  add("s_cmp_nle_f32", s_compare_float<[](float a, float b) { return !(a <= b); }>);
  add("s_cmp_neq_f32", s_compare_float<[](float a, float b) { return !(a == b); }>);
  add("s_cmp_nlt_f32", s_compare_float<[](float a, float b) { return !(a < b); }>);
}

}  // namespace tnd::amdsim
