#include "sim/amd/device.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace tnd::amdsim {
namespace {

[[noreturn]] void quit(const std::string& what) {
  std::fprintf(stderr, "amdsim: %s\n", what.c_str());
  std::abort();
}

template <typename T>
T read_at(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Returns the output of a command.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) quit("cannot run " + command);
  std::string out;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  if (pclose(pipe) != 0) quit(command + " failed");
  return out;
}

std::string tool(const char* name) {
  const char* folder = std::getenv("TANDEM_AMDSIM_LLVM");
  return std::string(folder != nullptr ? folder : TND_AMDSIM_LLVM) + "/" + name;
}

// Kernels of the metadata that llvm-readelf prints as YAML: names, symbols and arguments.
struct Metadata {
  std::string name, symbol;
  std::vector<Kernel::Argument> arguments;
};
std::vector<Metadata> parse_metadata(const std::string& text) {
  std::vector<Metadata> kernels;
  size_t at = 0;
  bool in_kernels = false;
  while (at < text.size()) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.rfind("amdhsa.", 0) == 0) {
      in_kernels = line.rfind("amdhsa.kernels:", 0) == 0;
      continue;
    }
    if (!in_kernels) continue;
    if (line.rfind("  - ", 0) == 0) {
      kernels.emplace_back();
      line[2] = ' ';
    }
    if (kernels.empty()) continue;
    Metadata& kernel = kernels.back();
    if (line.rfind("      - ", 0) == 0 && line.find('.') != std::string::npos) {
      kernel.arguments.emplace_back();
      line[6] = ' ';
    }
    const size_t dot = line.find('.'), colon = line.find(':');
    if (dot == std::string::npos || colon == std::string::npos || colon < dot) continue;
    const std::string key = line.substr(dot + 1, colon - dot - 1);
    const size_t value_at = line.find_first_not_of(' ', colon + 1);
    const std::string value = value_at == std::string::npos ? "" : line.substr(value_at);
    const bool of_argument = dot == 8;
    if (of_argument && !kernel.arguments.empty()) {
      Kernel::Argument& argument = kernel.arguments.back();
      if (key == "offset") argument.offset = static_cast<uint32_t>(std::stoul(value));
      if (key == "size") argument.bytes = static_cast<uint32_t>(std::stoul(value));
      if (key == "value_kind") argument.kind = value;
    } else if (dot == 4) {
      if (key == "name") kernel.name = value;
      if (key == "symbol") kernel.symbol = value;
    }
  }
  return kernels;
}

int host_threads() {
  if (const char* text = std::getenv("TANDEM_AMDSIM_THREADS")) return std::max(1, std::atoi(text));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Bits of KERNEL_CODE_PROPERTIES, in the order in which user registers are assigned, with their counts.
struct UserRegister {
  int bit, count;
};
constexpr UserRegister kUserRegisters[] = {{0, 4}, {1, 2}, {2, 2}, {3, 2}, {4, 2}, {5, 2}, {6, 1}};
constexpr int kScratchBufferBit = 0, kArgumentsBit = 3, kScratchBit = 5;

struct Launch {
  const Kernel* kernel;
  Grid blocks, threads;
  uint32_t shared_bytes;
  const uint8_t* arguments;
};

void start_wave(const Launch& launch, Grid block, uint32_t index, Group* group, Wave* w) {
  const Kernel& kernel = *launch.kernel;
  // Registers hold whatever was there before.
  std::memset(w->v, 0xA5, sizeof w->v);
  for (uint32_t& s : w->s) s = 0xA5A5A5A5u;
  w->scc = false, w->ended = false, w->waits = false, w->holds = false;
  w->group = group;
  w->recent = {};  // memory of the last launch may have been freed
  w->number = static_cast<uint8_t>(index);
  w->epoch = 1;
  w->next = kernel.entry;
  w->scratch.assign(uint64_t{kernel.private_bytes} * kLanes, 0xA5);
  int at = 0;
  for (const UserRegister& user : kUserRegisters) {
    if ((kernel.properties >> user.bit & 1) == 0) continue;
    if (kernel.gfx10 && (user.bit == kScratchBufferBit || user.bit == kScratchBit)) {
      at += user.count;  // the address of private memory, which the simulator keeps itself
      continue;
    }
    if (user.bit != kArgumentsBit) quit(kernel.name + " wants user registers that the simulator has not");
    const auto address = reinterpret_cast<uint64_t>(launch.arguments);
    w->s[at] = static_cast<uint32_t>(address);
    w->s[at + 1] = static_cast<uint32_t>(address >> 32);
    at += user.count;
  }
  const auto user_registers = static_cast<int>(kernel.resources2 >> 1 & 31u);
  if (at > user_registers) quit(kernel.name + " has fewer user registers than it asks for");
  at = user_registers;
  if (kernel.gfx12) {  // work group ids have registers of their own
    w->s[kTtmp + 9] = block.x;
    w->s[kTtmp + 7] = block.y | block.z << 16;
  } else {
    const uint32_t ids[] = {block.x, block.y, block.z};
    for (int i = 0; i < 3; ++i) {
      if ((kernel.resources2 >> (7 + i) & 1u) != 0) w->s[at++] = ids[i];
    }
  }
  const uint32_t threads = launch.threads.x * launch.threads.y * launch.threads.z;
  uint32_t exec = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t id = index * kLanes + l;
    if (id >= threads) continue;
    exec |= 1u << l;
    const uint32_t x = id % launch.threads.x, y = id / launch.threads.x % launch.threads.y,
                   z = id / launch.threads.x / launch.threads.y;
    if (kernel.gfx10) {
      w->v[0][l] = x, w->v[1][l] = y, w->v[2][l] = z;
    } else {
      w->v[0][l] = x | y << 10 | z << 20;
    }
  }
  w->s[kExec] = exec;
  w->s[kExec + 1] = 0;
}

void run_group(const Launch& launch, Grid block, std::vector<std::unique_ptr<Wave>>* waves) {
  Group group;
  group.kernel = launch.kernel;
  group.shared.assign(launch.shared_bytes, 0xA5);
  group.touches.assign((launch.shared_bytes + 1) / 2, Touch());
  const uint32_t threads = launch.threads.x * launch.threads.y * launch.threads.z;
  const uint32_t count = (threads + kLanes - 1) / kLanes;
  while (waves->size() < count) waves->push_back(std::make_unique<Wave>());
  for (uint32_t i = 0; i < count; ++i) start_wave(launch, block, i, &group, (*waves)[i].get());
  for (uint32_t running = count; running > 0;) {
    running = 0;
    for (uint32_t i = 0; i < count; ++i) {
      Wave& w = *(*waves)[i];
      if (w.ended) continue;  // a barrier waits for the others only
      run_until_barrier(w);
      if (!w.ended) {
        ++running;
        ++w.epoch;
        continue;
      }
      for (int n = 0; n < kClasses; ++n) launch.kernel->instructions[n] += std::exchange(w.instructions[n], 0);
      ++launch.kernel->waves;
    }
  }
}

}  // namespace

CodeObject::CodeObject(const uint8_t* elf, uint64_t bytes, const std::string& processor)
    : elf_(elf), bytes_(bytes), processor_(processor) {}

void CodeObject::load() {
  const auto header = read_at<Elf64_Ehdr>(elf_);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) quit("a code object that is no ELF file");
  uint64_t size = 0;
  for (int i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(elf_ + header.e_phoff + static_cast<uint64_t>(i) * header.e_phentsize);
    if (segment.p_type == PT_LOAD) size = std::max(size, segment.p_vaddr + segment.p_memsz);
  }
  image_.assign(size, 0);
  std::unordered_map<std::string, uint64_t> symbols;
  for (int i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(elf_ + header.e_phoff + static_cast<uint64_t>(i) * header.e_phentsize);
    if (segment.p_type == PT_LOAD) {
      std::memcpy(image_.data() + segment.p_vaddr, elf_ + segment.p_offset, segment.p_filesz);
    }
  }
  for (int i = 0; i < header.e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(elf_ + header.e_shoff + static_cast<uint64_t>(i) * header.e_shentsize);
    if ((section.sh_type == SHT_RELA || section.sh_type == SHT_REL) && section.sh_size > 0) {
      quit("a code object with relocations: kernels that read tables in memory need the simulator to learn them");
    }
    if (section.sh_type != SHT_DYNSYM) continue;
    const auto names =
        read_at<Elf64_Shdr>(elf_ + header.e_shoff + static_cast<uint64_t>(section.sh_link) * header.e_shentsize);
    for (uint64_t at = 0; at < section.sh_size; at += section.sh_entsize) {
      const auto symbol = read_at<Elf64_Sym>(elf_ + section.sh_offset + at);
      symbols[reinterpret_cast<const char*>(elf_ + names.sh_offset + symbol.st_name)] = symbol.st_value;
    }
  }
  char path[] = "/tmp/amdsim-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0 || write(file, elf_, bytes_) != static_cast<ssize_t>(bytes_)) quit("cannot write a temporary file");
  close(file);
  const std::string quoted = std::string(" ") + path;
  code_ = disassemble(output_of(tool("llvm-objdump") + " -d --mcpu=" + processor_ + quoted));
  const std::vector<Metadata> all = parse_metadata(output_of(tool("llvm-readelf") + " --notes" + quoted));
  unlink(path);
  for (const Metadata& metadata : all) {
    const auto symbol = symbols.find(metadata.symbol);
    if (symbol == symbols.end()) quit("no descriptor of " + metadata.name);
    const uint8_t* descriptor = image_.data() + symbol->second;
    auto kernel = std::make_unique<Kernel>();
    kernel->name = metadata.name;
    kernel->code = &code_;
    kernel->shared_bytes = read_at<uint32_t>(descriptor);
    kernel->private_bytes = read_at<uint32_t>(descriptor + 4);
    kernel->arguments_bytes = read_at<uint32_t>(descriptor + 8);
    kernel->entry = code_.at(symbol->second + static_cast<uint64_t>(read_at<int64_t>(descriptor + 16)));
    kernel->resources2 = read_at<uint32_t>(descriptor + 52);
    kernel->properties = read_at<uint16_t>(descriptor + 56);
    kernel->gfx10 = processor_.rfind("gfx10", 0) == 0;
    kernel->gfx12 = processor_.rfind("gfx12", 0) == 0;
    kernel->copies = processor_.rfind("gfx11", 0) == 0;
    kernel->arguments = metadata.arguments;
    if (kernel->entry < 0) quit(metadata.name + " begins where no instruction does");
    if ((kernel->properties >> 10 & 1) == 0) quit(metadata.name + " is for waves of 64 lanes");
    kernels_[metadata.name] = std::move(kernel);
  }
  Memory::of_device().add(image_.data(), image_.size());
}

const Kernel* CodeObject::find(const std::string& name) {
  std::call_once(loaded_, [this] { load(); });
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : found->second.get();
}

void CodeObject::print_counts(FILE* to) const {
  for (const auto& [name, kernel] : kernels_) {
    if (kernel->launches == 0) continue;
    std::fprintf(to, "%s\t%llu\t%llu", name.c_str(), static_cast<unsigned long long>(kernel->launches),
                 static_cast<unsigned long long>(kernel->waves));
    for (const auto& n : kernel->instructions) std::fprintf(to, "\t%llu", static_cast<unsigned long long>(n));
    std::fprintf(to, "\n");
  }
}

std::unique_ptr<CodeObject> object_of(const uint8_t* bundle, const std::string& processor) {
  constexpr char kMagic[] = "__CLANG_OFFLOAD_BUNDLE__";
  constexpr size_t kMagicBytes = sizeof kMagic - 1;
  if (std::memcmp(bundle, kMagic, kMagicBytes) != 0) quit("a fat binary that is no bundle of clang");
  const uint8_t* entry = bundle + kMagicBytes + 8;
  for (uint64_t left = read_at<uint64_t>(bundle + kMagicBytes); left > 0; --left) {
    const auto offset = read_at<uint64_t>(entry), bytes = read_at<uint64_t>(entry + 8),
               id_bytes = read_at<uint64_t>(entry + 16);
    const std::string id(reinterpret_cast<const char*>(entry + 24), id_bytes);
    entry += 24 + id_bytes;
    if (id.size() >= processor.size() && id.compare(id.size() - processor.size(), processor.size(), processor) == 0 &&
        bytes > 0) {
      return std::make_unique<CodeObject>(bundle + offset, bytes, processor);
    }
  }
  return nullptr;
}

void run_grid(const Kernel& kernel, Grid blocks, Grid threads, void* const* arguments, uint32_t dynamic_shared) {
  const uint32_t shared = kernel.shared_bytes + dynamic_shared;
  std::vector<uint8_t> segment(kernel.arguments_bytes, 0xA5);
  size_t next = 0;
  for (const Kernel::Argument& argument : kernel.arguments) {
    uint8_t* to = segment.data() + argument.offset;
    const auto put = [&](uint64_t value) { std::memcpy(to, &value, argument.bytes); };
    const std::string& kind = argument.kind;
    if (kind.rfind("hidden_", 0) != 0) {
      std::memcpy(to, arguments[next++], argument.bytes);
    } else if (kind == "hidden_block_count_x") {
      put(blocks.x);
    } else if (kind == "hidden_block_count_y") {
      put(blocks.y);
    } else if (kind == "hidden_block_count_z") {
      put(blocks.z);
    } else if (kind == "hidden_group_size_x") {
      put(threads.x);
    } else if (kind == "hidden_group_size_y") {
      put(threads.y);
    } else if (kind == "hidden_group_size_z") {
      put(threads.z);
    } else if (kind.rfind("hidden_remainder_", 0) == 0 || kind.rfind("hidden_global_offset_", 0) == 0) {
      put(0);
    } else if (kind == "hidden_grid_dims") {
      put(blocks.z * threads.z > 1 ? 3 : blocks.y * threads.y > 1 ? 2 : 1);
    } else if (kind == "hidden_dynamic_lds_size") {
      put(dynamic_shared);
    }
  }
  Memory::of_device().add(segment.data(), segment.size());
  ++kernel.launches;
  const Launch launch{&kernel, blocks, threads, shared, segment.data()};
  const uint64_t count = uint64_t{blocks.x} * blocks.y * blocks.z;
  std::atomic<uint64_t> taken{0};
  const auto work = [&] {
    thread_local std::vector<std::unique_ptr<Wave>> waves;
    for (uint64_t i; (i = taken.fetch_add(1)) < count;) {
      const Grid block{static_cast<uint32_t>(i % blocks.x), static_cast<uint32_t>(i / blocks.x % blocks.y),
                       static_cast<uint32_t>(i / blocks.x / blocks.y)};
      run_group(launch, block, &waves);
    }
  };
  static const int limit = host_threads();
  const auto helpers = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(limit), count)) - 1;
  std::vector<std::thread> pool;
  for (int i = 0; i < helpers; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  Memory::of_device().remove(segment.data());
}

}  // namespace tnd::amdsim
