// Fuzz target of the safetensors reader and its JSON. Build and run as gguf_fuzz.cpp says, with safetensors.cpp and
// json.cpp; corpus/safetensors.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "gguf/safetensors.h"
#include "views.h"

using tnd::Status;
using tnd::TensorView;
using tnd::gguf::Safetensors;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::unique_ptr<Safetensors> f;
  const Status s = Safetensors::open_memory(data, size, &f);
  if (s.ok() != (f != nullptr)) std::abort();
  if (!s.ok()) {
    if (s.message().empty()) std::abort();
    return 0;
  }
  unsigned sum = 0;
  for (const TensorView& t : f->tensors()) {
    sum += read_ends(t, data, size);
    if (f->find(t.name) == nullptr) std::abort();
  }
  [[maybe_unused]] static volatile unsigned sink;
  sink = sum;  // keeps the reads
  return 0;
}
