// 16-bit floats, dot products of bytes and matrix instructions.
#include "core/fp.h"
#include "sim/amd/operands.h"

namespace tnd::amdsim {
namespace {

float half_at(uint32_t word, bool upper) {
  return f16_to_f32(static_cast<uint16_t>(upper ? word >> 16 : word));
}
// fma over sources of which each is a float or one of two halves.
void mixed_fma(const Wave& w, const Inst& i, Lanes& out) {
  Lanes p[3];
  const uint32_t* x[3];
  for (int n = 0; n < 3; ++n) {
    Operand o = i.o[n + 1];
    o.neg = o.abs = false;  // they act on the float
    x[n] = (i.op_sel_hi >> n & 1) != 0 ? read<Width::kHalf>(w, o, p[n]) : read<Width::kInt>(w, o, p[n]);
  }
  for (int l = 0; l < kLanes; ++l) {
    float v[3];
    for (int n = 0; n < 3; ++n) {
      const bool half = (i.op_sel_hi >> n & 1) != 0;
      v[n] = half ? half_at(x[n][l], (i.op_sel >> n & 1) != 0) : as_float(x[n][l]);
      if (i.o[n + 1].abs) v[n] = std::fabs(v[n]);
      if (i.o[n + 1].neg) v[n] = -v[n];
    }
    out[l] = as_bits(std::fma(v[0], v[1], v[2]));
  }
}
void v_fma_mix_f32(Wave& w, const Inst& i) {
  Lanes out;
  mixed_fma(w, i, out);
  finish<float>(w, i, out);
}
template <bool UPPER>
void v_fma_mix_f16(Wave& w, const Inst& i) {
  Lanes out;
  mixed_fma(w, i, out);
  const uint32_t* old = w.v[i.o[0].index];
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t h = f32_to_f16(as_float(out[l]));
    out[l] = UPPER ? h << 16 | (old[l] & 0xFFFFu) : (old[l] & 0xFFFF0000u) | h;
  }
  write(w, i.o[0], out);
}
// Both halves of a word; op_sel and op_sel_hi choose the half of a source for the lower and the upper result. Sums and
// products of two halves are computed in f32 and rounded to halves, with the result of a single rounding.
template <auto F>
void v_packed_half(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kInt>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[2], pb);
  for (int l = 0; l < kLanes; ++l) {
    uint32_t y = 0;
    for (int half = 0; half < 2; ++half) {
      const uint8_t select = half == 0 ? i.op_sel : i.op_sel_hi, neg = half == 0 ? i.neg_lo : i.neg_hi;
      float u = half_at(a[l], (select & 1) != 0), v = half_at(b[l], (select & 2) != 0);
      if ((neg & 1) != 0) u = -u;
      if ((neg & 2) != 0) v = -v;
      y |= uint32_t{f32_to_f16(F(u, v))} << (16 * half);
    }
    out[l] = y;
  }
  write(w, i.o[0], out);
}
void v_add_f16(Wave& w, const Inst& i) {
  Lanes pa, pb, out;
  const uint32_t* a = read<Width::kHalf>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kHalf>(w, i.o[2], pb);
  for (int l = 0; l < kLanes; ++l) out[l] = f32_to_f16(half_at(a[l], false) + half_at(b[l], false));
  write_low(w, i.o[0], out);
}
void v_cvt_f16_f32(Wave& w, const Inst& i) {
  Lanes pa, out;
  const uint32_t* a = read<Width::kFloat>(w, i.o[1], pa);
  for (int l = 0; l < kLanes; ++l) out[l] = f32_to_f16(as_float(a[l]));
  write_low(w, i.o[0], out);
}
void v_cvt_f32_f16(Wave& w, const Inst& i) {
  Lanes pa, out;
  const uint32_t* a = read<Width::kHalf>(w, i.o[1], pa);
  for (int l = 0; l < kLanes; ++l) out[l] = as_bits(half_at(a[l], (i.op_sel & 1) != 0));
  finish<float>(w, i, out);
}

// ---- dot products and matrices

void v_dot4_i32_iu8(Wave& w, const Inst& i) {
  Lanes pa, pb, pc, out;
  const uint32_t* a = read<Width::kInt>(w, i.o[1], pa);
  const uint32_t* b = read<Width::kInt>(w, i.o[2], pb);
  const uint32_t* c = read<Width::kInt>(w, i.o[3], pc);
  const auto byte = [](uint32_t word, int at, bool is_signed) {
    const uint32_t x = word >> at & 0xFFu;
    return is_signed ? int32_t{static_cast<int8_t>(x)} : static_cast<int32_t>(x);
  };
  for (int l = 0; l < kLanes; ++l) {
    int32_t sum = static_cast<int32_t>(c[l]);
    for (int at = 0; at < 32; at += 8) {
      sum += byte(a[l], at, (i.neg_lo & 1) != 0) * byte(b[l], at, (i.neg_lo & 2) != 0);
    }
    out[l] = static_cast<uint32_t>(sum);
  }
  write(w, i.o[0], out);
}

// The result is the third operand, too.
void v_dot4c_i32_i8(Wave& w, const Inst& i) {
  Inst whole;
  for (int n = 0; n < 3; ++n) whole.o[n] = i.o[n];
  whole.o[3] = i.o[0];
  whole.neg_lo = 3;
  v_dot4_i32_iu8(w, whole);
}

// An operand of 16 x 16 elements: gfx11 holds all 16 k of row lane % 16 in a lane, twice; gfx12 eight of them.
// DECODE(word, index in word) gives an element, PER how many a word has.
template <int PER, typename T, typename DECODE>
void matrix_operand(const Wave& w, const Operand& o, const DECODE& decode, T (&to)[16][16]) {
  if (o.kind != Operand::kVector) w.fail("matrix operand that is no register");
  const bool whole = w.group->kernel->copies;
  const int elements = whole ? 16 : 8;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int first = whole ? 0 : lane / 16 * 8;
    if (whole && lane >= 16) {
      for (int r = 0; r < elements / PER; ++r) {
        if (w.v[o.index + r][lane] != w.v[o.index + r][lane - 16]) w.fail("halves of a matrix operand differ", 0, lane);
      }
      continue;
    }
    for (int e = 0; e < elements; ++e) to[lane % 16][first + e] = decode(w.v[o.index + e / PER][lane], e % PER);
  }
}
int result_row(const Wave& w, int lane, int i) {
  return w.group->kernel->copies ? 2 * i + lane / 16 : lane / 16 * 8 + i;
}
template <typename T, typename ACC, int PER, typename DECODE_A, typename DECODE_B>
void wmma(Wave& w, const Inst& i, const DECODE_A& decode_a, const DECODE_B& decode_b) {
  if (w.exec() != ~0u) w.fail("matrix instruction with lanes off");
  T a[16][16], b[16][16];
  matrix_operand<PER>(w, i.o[1], decode_a, a);
  matrix_operand<PER>(w, i.o[2], decode_b, b);
  ACC c[16][16];
  for (int e = 0; e < 8; ++e) {
    Lanes place;
    Operand o = i.o[3];
    o.index = static_cast<uint16_t>(o.index + (o.kind == Operand::kVector ? e : 0));
    const uint32_t* from = read<Width::kInt>(w, o, place);
    for (int l = 0; l < kLanes; ++l) c[result_row(w, l, e)][l % 16] = std::bit_cast<ACC>(from[l]);
  }
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      ACC sum = c[row][column];
      for (int k = 0; k < 16; ++k) sum += static_cast<ACC>(a[row][k]) * static_cast<ACC>(b[column][k]);
      c[row][column] = sum;
    }
  }
  for (int e = 0; e < 8; ++e) {
    for (int l = 0; l < kLanes; ++l) {
      w.v[i.o[0].index + e][l] = std::bit_cast<uint32_t>(c[result_row(w, l, e)][l % 16]);
    }
  }
}
void v_wmma_iu8(Wave& w, const Inst& i) {
  const auto decode = [](bool is_signed) {
    return [is_signed](uint32_t word, int e) {
      const uint32_t x = word >> (8 * e) & 0xFFu;
      return static_cast<int16_t>(is_signed ? int32_t{static_cast<int8_t>(x)} : static_cast<int32_t>(x));
    };
  };
  wmma<int16_t, int32_t, 4>(w, i, decode((i.neg_lo & 1) != 0), decode((i.neg_lo & 2) != 0));
}
template <float (*DECODE)(uint16_t)>
void v_wmma_half(Wave& w, const Inst& i) {
  const auto decode = [](uint32_t word, int e) { return DECODE(static_cast<uint16_t>(word >> (16 * e))); };
  wmma<float, float, 2>(w, i, decode, decode);
}

}  // namespace

void add_matrix_instructions(Table& table) {
  const auto add = [&](const std::string& name, Handler run) { table[name] = run; };
  add("v_fma_mix_f32", v_fma_mix_f32);
  add("v_fma_mixlo_f16", v_fma_mix_f16<false>);
  add("v_fma_mixhi_f16", v_fma_mix_f16<true>);
  add("v_pk_add_f16", v_packed_half<[](float a, float b) { return a + b; }>);
  add("v_pk_mul_f16", v_packed_half<[](float a, float b) { return a * b; }>);
  add("v_add_f16", v_add_f16);
  add("v_cvt_f16_f32", v_cvt_f16_f32);
  add("v_cvt_f32_f16", v_cvt_f32_f16);

  add("v_dot4_i32_iu8", v_dot4_i32_iu8);
  add("v_dot4c_i32_i8", v_dot4c_i32_i8);
  add("v_wmma_i32_16x16x16_iu8", v_wmma_iu8);
  add("v_wmma_f32_16x16x16_f16", v_wmma_half<f16_to_f32>);
  add("v_wmma_f32_16x16x16_bf16", v_wmma_half<bf16_to_f32>);
}

}  // namespace tnd::amdsim
