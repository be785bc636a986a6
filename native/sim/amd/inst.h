// Instructions of AMD processors (RDNA2 to RDNA4, waves of 32 lanes) as the simulator runs them. They are decoded from
// the output of llvm-objdump, so nothing here depends on their encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tnd::amdsim {

struct Wave;
struct Inst;
using Handler = void (*)(Wave&, const Inst&);

// Vector registers: those of the processor and three that only the simulator has.
inline constexpr int kVectors = 256, kHidden = 256, kHiddenCount = 3;
// Scalar registers by their numbers in the encoding.
enum : uint16_t { kVcc = 106, kTtmp = 108, kNullReg = 124, kM0 = 125, kExec = 126, kScalars = 128 };

struct Operand {
  enum Kind : uint8_t { kNone, kVector, kScalar, kConst, kOff, kSharedBase, kPrivateBase, kScc };
  Kind kind = kNone;
  bool neg = false, abs = false;
  uint16_t index = 0;  // of the first register
  // Constants as instructions of each width read them: 1.0 is the float of that width, 7 the integer, a literal in
  // hexadecimal the low 32 bits, of a double the high ones.
  uint32_t bits32 = 0;
  uint16_t bits16 = 0;
  uint64_t bits64 = 0;  // integer
  uint64_t double64 = 0;
};

// The unit that an instruction occupies. A slow vector instruction multiplies words or is of 64 bits.
enum class Class : uint8_t { kScalar, kVector, kSlowVector, kMatrix, kShared, kMemory };
inline constexpr int kClasses = 6;

enum class Part : uint8_t { kDword, kByte0, kByte1, kByte2, kByte3, kWord0, kWord1 };

struct Inst {
  Handler run = nullptr;
  Operand o[5];  // in the order of the text, results first
  int operands = 0;
  Class kind = Class::kScalar;
  int32_t offset[2] = {0, 0};
  uint8_t op_sel = 0, op_sel_hi = 0, neg_lo = 0, neg_hi = 0;  // bit i: source i
  bool clamp = false;
  int target = -1;               // of a branch, index into Code::insts
  std::unique_ptr<Inst> second;  // of a dual instruction
  // gfx10's parts of registers: `inner` works on hidden registers, run extracts and inserts the parts.
  std::unique_ptr<Inst> inner;
  Part parts[3] = {Part::kDword, Part::kDword, Part::kDword};  // of the result and two sources
  bool extends[3] = {};                                        // sources with their sign
  bool keeps = false;                                          // the rest of the result is kept, else it is zero
  uint64_t address = 0;
  std::string text;
};

// A code object's instructions in the order of their addresses.
struct Code {
  std::vector<Inst> insts;
  // Index of the instruction at an address, -1 if none begins there.
  int at(uint64_t address) const;
};

// disassemble reads the listing of `llvm-objdump -d`. Instructions that the simulator lacks have a null handler:
// running one ends the program.
Code disassemble(const std::string& listing);

// handler_of returns the function that runs an instruction, null if it is unknown. The name is that of gfx11, without
// _e32 and _e64.
Handler handler_of(std::string_view name);

}  // namespace tnd::amdsim
