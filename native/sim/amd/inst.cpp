#include "sim/amd/inst.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "core/fp.h"

namespace tnd::amdsim {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool starts_with(std::string_view s, std::string_view prefix) {
  return s.substr(0, prefix.size()) == prefix;
}

// gfx11's name of an instruction of gfx10.
std::string present_name(std::string name) {
  static const std::pair<std::string_view, std::string_view> kWhole[] = {
      {"s_andn2_b32", "s_and_not1_b32"}, {"s_andn2_saveexec_b32", "s_and_not1_saveexec_b32"},
      {"s_orn2_b32", "s_or_not1_b32"},   {"s_ff1_i32_b32", "s_ctz_i32_b32"},
      {"v_ffbl_b32", "v_ctz_i32_b32"},   {"v_ffbh_u32", "v_clz_i32_u32"},
  };
  for (const auto& [old_name, new_name] : kWhole) {
    if (name == old_name) return std::string(new_name);
  }
  // In this order: the first match counts.
  static const std::pair<std::string_view, std::string_view> kParts[] = {
      {"ds_read2st64_", "ds_load_2addr_stride64_"},
      {"ds_write2st64_", "ds_store_2addr_stride64_"},
      {"ds_read2_", "ds_load_2addr_"},
      {"ds_write2_", "ds_store_2addr_"},
      {"ds_read_", "ds_load_"},
      {"ds_write_", "ds_store_"},
  };
  for (const auto& [old_part, new_part] : kParts) {
    if (starts_with(name, old_part)) return std::string(new_part) + name.substr(old_part.size());
  }
  static const std::pair<std::string_view, std::string_view> kEnds[] = {
      {"_load_dwordx16", "_load_b512"},     {"_load_dwordx8", "_load_b256"},
      {"_load_dwordx4", "_load_b128"},      {"_load_dwordx3", "_load_b96"},
      {"_load_dwordx2", "_load_b64"},       {"_load_dword", "_load_b32"},
      {"_store_dwordx4", "_store_b128"},    {"_store_dwordx3", "_store_b96"},
      {"_store_dwordx2", "_store_b64"},     {"_store_dword", "_store_b32"},
      {"_load_ubyte", "_load_u8"},          {"_load_sbyte", "_load_i8"},
      {"_load_ushort", "_load_u16"},        {"_load_sshort", "_load_i16"},
      {"_load_short_d16", "_load_d16_b16"}, {"_load_short_d16_hi", "_load_d16_hi_b16"},
      {"_store_short", "_store_b16"},       {"_store_short_d16_hi", "_store_d16_hi_b16"},
      {"_store_byte", "_store_b8"},
  };
  for (const auto& [old_end, new_end] : kEnds) {
    if (name.ends_with(old_end)) return name.substr(0, name.size() - old_end.size()) + std::string(new_end);
  }
  return name;
}

Part part_of(std::string_view name) {
  constexpr std::string_view kNames[] = {"DWORD", "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Part>(i);
  }
  return Part::kDword;
}

// Number of "v12", "v[12:15]", "s[4:5]", "ttmp9".
uint16_t register_index(std::string_view s, size_t prefix) {
  s.remove_prefix(prefix);
  if (!s.empty() && s.front() == '[') s.remove_prefix(1);
  return static_cast<uint16_t>(std::strtoul(std::string(s).c_str(), nullptr, 10));
}

Operand constant(std::string_view s) {
  Operand o;
  o.kind = Operand::kConst;
  const std::string text(s);
  const bool hex = text.find("0x") != std::string::npos;
  if (!hex && text.find_first_of(".e") != std::string::npos) {
    const double d = std::strtod(text.c_str(), nullptr);
    o.bits32 = std::bit_cast<uint32_t>(static_cast<float>(d));
    o.bits16 = f32_to_f16(static_cast<float>(d));
    o.double64 = std::bit_cast<uint64_t>(d);
    o.bits64 = o.bits32;
    return o;
  }
  const int64_t n = hex ? static_cast<int64_t>(std::strtoull(text.c_str(), nullptr, 16)) : std::atoll(text.c_str());
  o.bits32 = static_cast<uint32_t>(n);
  o.bits16 = static_cast<uint16_t>(n);
  o.bits64 = static_cast<uint64_t>(n);
  o.double64 = hex ? static_cast<uint64_t>(o.bits32) << 32 : o.bits64;
  return o;
}

Operand parse_operand(std::string_view s) {
  Operand o;
  if (starts_with(s, "-") && s.size() > 1 && (s[1] < '0' || s[1] > '9')) {
    o.neg = true;
    s.remove_prefix(1);
  }
  if (starts_with(s, "|")) {
    o.abs = true;
    s = s.substr(1, s.size() - 2);
  }
  const auto scalar = [&](uint16_t index) {
    o.kind = Operand::kScalar;
    o.index = index;
  };
  if (s == "vcc" || s == "vcc_lo") {
    scalar(kVcc);
  } else if (s == "vcc_hi") {
    scalar(kVcc + 1);
  } else if (s == "exec" || s == "exec_lo") {
    scalar(kExec);
  } else if (s == "exec_hi") {
    scalar(kExec + 1);
  } else if (s == "m0") {
    scalar(kM0);
  } else if (s == "null") {
    scalar(kNullReg);
  } else if (s == "off") {
    o.kind = Operand::kOff;
  } else if (s == "src_shared_base") {
    o.kind = Operand::kSharedBase;
  } else if (s == "src_private_base") {
    o.kind = Operand::kPrivateBase;
  } else if (s == "src_scc") {
    o.kind = Operand::kScc;
  } else if (starts_with(s, "ttmp")) {
    scalar(static_cast<uint16_t>(kTtmp + register_index(s, 4)));
  } else if (s.size() > 1 && s[0] == 'v' && (s[1] == '[' || (s[1] >= '0' && s[1] <= '9'))) {
    o.kind = Operand::kVector;
    o.index = register_index(s, 1);
  } else if (s.size() > 1 && s[0] == 's' && (s[1] == '[' || (s[1] >= '0' && s[1] <= '9'))) {
    scalar(register_index(s, 1));
  } else if (!s.empty() && (s[0] == '-' || (s[0] >= '0' && s[0] <= '9'))) {
    const bool neg = o.neg, abs = o.abs;
    o = constant(s);
    o.neg = neg, o.abs = abs;
  }
  return o;
}

// Bits of "[1,0,0]".
uint8_t bit_list(std::string_view s) {
  uint8_t bits = 0;
  int i = 0;
  for (const char c : s) {
    if (c == '1') bits = static_cast<uint8_t>(bits | 1 << i);
    if (c == '0' || c == '1') ++i;
  }
  return bits;
}

Class class_of(std::string_view name) {
  if (starts_with(name, "v_wmma")) return Class::kMatrix;
  if (starts_with(name, "ds_")) return Class::kShared;
  if (starts_with(name, "s_load") || !(starts_with(name, "s_") || starts_with(name, "v_"))) return Class::kMemory;
  if (name[0] == 's') return Class::kScalar;
  for (const std::string_view slow : {"v_mul_lo_u32", "v_mul_hi_", "v_mad_u64", "v_mad_i64", "v_rcp", "v_sqrt"}) {
    if (starts_with(name, slow)) return Class::kSlowVector;
  }
  return name.find("64") != std::string_view::npos ? Class::kSlowVector : Class::kVector;
}

// parse_modifier returns false for an unknown modifier. Hints for caches are accepted and ignored.
bool parse_modifier(std::string_view s, Inst* inst) {
  bool known = s == "glc" || s == "slc" || s == "dlc" || starts_with(s, "scope:") || starts_with(s, "th:");
  const auto value = [&](std::string_view name, auto&& take) {
    if (!starts_with(s, name)) return;
    take(s.substr(name.size()));
    known = true;
  };
  const auto number = [](std::string_view v) {
    return static_cast<int32_t>(std::strtol(std::string(v).c_str(), nullptr, 0));
  };
  value("offset:", [&](std::string_view v) { inst->offset[0] = number(v); });
  value("offset0:", [&](std::string_view v) { inst->offset[0] = number(v); });
  value("offset1:", [&](std::string_view v) { inst->offset[1] = number(v); });
  value("op_sel:", [&](std::string_view v) { inst->op_sel = bit_list(v); });
  value("op_sel_hi:", [&](std::string_view v) { inst->op_sel_hi = bit_list(v); });
  value("neg_lo:", [&](std::string_view v) { inst->neg_lo = bit_list(v); });
  value("neg_hi:", [&](std::string_view v) { inst->neg_hi = bit_list(v); });
  value("dst_sel:", [&](std::string_view v) { inst->parts[0] = part_of(v); });
  value("src0_sel:", [&](std::string_view v) { inst->parts[1] = part_of(v); });
  value("src1_sel:", [&](std::string_view v) { inst->parts[2] = part_of(v); });
  value("dst_unused:", [&](std::string_view v) { inst->keeps = v == "UNUSED_PRESERVE"; });
  if (s == "clamp") known = inst->clamp = true;
  return known;
}

void parse_instruction(std::string_view text, Inst* inst) {
  const size_t space = text.find(' ');
  std::string name(text.substr(0, space));
  std::string_view rest = space == std::string_view::npos ? std::string_view() : trim(text.substr(space));
  const bool dual = starts_with(name, "v_dual_");
  if (dual) name = "v_" + name.substr(7);
  for (const std::string_view suffix : {"_e32", "_e64"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  const bool parts = name.ends_with("_sdwa");
  if (parts) name.resize(name.size() - 5);
  name = present_name(name);
  inst->run = handler_of(name);
  inst->kind = class_of(name);
  inst->op_sel_hi = starts_with(name, "v_fma_mix") ? 0 : 7;
  bool known = true;
  while (!rest.empty()) {
    const size_t comma = rest.find(", ");
    std::string_view piece = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : trim(rest.substr(comma + 2));
    // The modifiers follow the last operand.
    bool first = true;
    while (!piece.empty()) {
      const size_t end = piece.find(' ');
      const std::string_view word = piece.substr(0, end);
      piece = end == std::string_view::npos ? std::string_view() : trim(piece.substr(end));
      if (first && word.find(':') != std::string_view::npos && word.find('[') == std::string_view::npos) {
        known = parse_modifier(word, inst) && known;  // no operands at all
      } else if (first && inst->operands < 5) {
        const bool extends = starts_with(word, "sext(");
        if (inst->operands < 3) inst->extends[inst->operands] = extends;
        inst->o[inst->operands++] = parse_operand(extends ? word.substr(5, word.size() - 6) : word);
      } else {
        known = parse_modifier(word, inst) && known;
      }
      first = false;
    }
  }
  // Scalar instructions that are not loads have hints and counters in words of their own.
  if (!known && (name[0] != 's' || starts_with(name, "s_load"))) inst->run = nullptr;
  if (inst->op_sel != 0 && !starts_with(name, "v_pk_") && !starts_with(name, "v_fma_mix") && name != "v_cvt_f32_f16") {
    inst->run = nullptr;
  }
  if (dual && name == "v_cndmask_b32") inst->o[inst->operands++] = parse_operand("vcc_lo");
  if (!parts || inst->run == nullptr) return;
  inst->inner = std::make_unique<Inst>();
  Inst& inner = *inst->inner;
  inner.run = std::exchange(inst->run, handler_of("sdwa"));
  inner.operands = inst->operands;
  inner.clamp = inst->clamp;
  inner.text = inst->text;
  std::copy(std::begin(inst->o), std::end(inst->o), std::begin(inner.o));
  for (int i = 0; i < 3 && i < inst->operands; ++i) {
    if (i == 0 && inst->o[0].kind != Operand::kVector) continue;  // a mask
    inner.o[i].kind = Operand::kVector;
    inner.o[i].index = static_cast<uint16_t>(kHidden + i);
  }
}

}  // namespace

int Code::at(uint64_t address) const {
  const auto found = std::lower_bound(insts.begin(), insts.end(), address,
                                      [](const Inst& inst, uint64_t value) { return inst.address < value; });
  return found != insts.end() && found->address == address ? static_cast<int>(found - insts.begin()) : -1;
}

// A line is "\tNAME OPERANDS // ADDRESS: WORDS <where a branch goes>".
Code disassemble(const std::string& listing) {
  Code code;
  std::vector<uint64_t> targets;
  size_t at = 0;
  while (at < listing.size()) {
    size_t end = listing.find('\n', at);
    if (end == std::string::npos) end = listing.size();
    const std::string_view line(listing.data() + at, end - at);
    at = end + 1;
    const size_t comment = line.find("// ");
    if (line.empty() || line[0] != '\t' || comment == std::string_view::npos) continue;
    const std::string_view text = trim(line.substr(0, comment));
    if (starts_with(text, "s_code_end")) continue;
    Inst inst;
    inst.address = std::strtoull(std::string(line.substr(comment + 3, 16)).c_str(), nullptr, 16);
    inst.text = std::string(text);
    if (const size_t both = text.find(" :: "); both != std::string_view::npos) {
      inst.second = std::make_unique<Inst>();
      parse_instruction(text.substr(0, both), &inst);
      parse_instruction(text.substr(both + 4), inst.second.get());
    } else {
      parse_instruction(text, &inst);
    }
    uint64_t target = 0;
    if (starts_with(text, "s_cbranch") || starts_with(text, "s_branch")) {
      const auto words = static_cast<int16_t>(inst.o[0].bits32);
      target = inst.address + 4 + static_cast<uint64_t>(int64_t{words} * 4);
    }
    code.insts.push_back(std::move(inst));
    targets.push_back(target);
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != 0) code.insts[i].target = code.at(targets[i]);
  }
  return code;
}

}  // namespace tnd::amdsim
