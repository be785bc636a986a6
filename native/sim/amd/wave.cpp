#include "sim/amd/wave.h"

#include <cstdio>
#include <cstdlib>

#include "sim/amd/operands.h"

namespace tnd::amdsim {

Handler handler_of(std::string_view name) {
  static const Table* table = [] {
    auto* all = new Table();
    add_scalar_instructions(*all);
    add_vector_instructions(*all);
    add_comparisons(*all);
    add_matrix_instructions(*all);
    add_memory_instructions(*all);
    return all;
  }();
  const auto found = table->find(std::string(name));
  return found == table->end() ? nullptr : found->second;
}

void Wave::fail(const char* what, uint64_t address, int lane) const {
  std::fprintf(stderr, "amdsim: %s", what);
  if (address != 0) std::fprintf(stderr, " at 0x%llx", static_cast<unsigned long long>(address));
  if (lane >= 0) std::fprintf(stderr, ", lane %d", lane);
  if (at != nullptr) {
    std::fprintf(stderr, "\n  %06llx: %s\n  in %s\n", static_cast<unsigned long long>(at->address), at->text.c_str(),
                 group != nullptr ? group->kernel->name.c_str() : "?");
  }
  std::abort();
}

void run_until_barrier(Wave& w) {
  const std::vector<Inst>& insts = w.group->kernel->code->insts;
  w.waits = false;
  while (!w.ended && !w.waits) {
    const Inst& i = insts[static_cast<size_t>(w.next)];
    w.at = &i;
    ++w.next;
    if (i.run == nullptr) w.fail("unknown instruction");
    ++w.instructions[static_cast<int>(i.kind)];
    if (i.second == nullptr) {
      i.run(w, i);
      continue;
    }
    if (i.second->run == nullptr) w.fail("unknown second half of an instruction");
    w.holds = true;
    i.run(w, i);
    w.holds = false;
    i.second->run(w, *i.second);
    write_lanes(w, w.held, w.held_values);
  }
}

}  // namespace tnd::amdsim
