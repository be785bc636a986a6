// Code objects and launches.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/amd/wave.h"

namespace tnd::amdsim {

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

// A code object for one processor, as clang embeds it in a library. Its instructions are decoded when a kernel is
// first launched.
class CodeObject {
 public:
  // elf: the object, which must outlive this. Ends the program if it cannot be read.
  CodeObject(const uint8_t* elf, uint64_t bytes, const std::string& processor);
  // find returns null where the object has no kernel of that name.
  const Kernel* find(const std::string& name);
  // print_counts writes one line for each kernel that ran: name, launches, waves, instructions by Class.
  void print_counts(FILE* to) const;

 private:
  void load();

  const uint8_t* elf_;
  uint64_t bytes_;
  std::string processor_;
  std::once_flag loaded_;
  Code code_;
  std::vector<uint8_t> image_;  // segments at their addresses
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels_;
};

// object_of finds a processor's code in a bundle of clang (__CLANG_OFFLOAD_BUNDLE__), null if it has none.
std::unique_ptr<CodeObject> object_of(const uint8_t* bundle, const std::string& processor);

// run_grid runs all work groups of a kernel. arguments: pointers to the values of the explicit ones. The caller has
// checked that threads and shared memory are no more than a processor has.
void run_grid(const Kernel& kernel, Grid blocks, Grid threads, void* const* arguments, uint32_t dynamic_shared);

}  // namespace tnd::amdsim
