#include "models/architectures.h"

#include "models/layers.h"

namespace tnd {
namespace {

constexpr Architecture kArchitectures[] = {
    // name, DeltaNet, gated, scores
    {"qwen35", true, true, false, make_qwen35_layer},
    {"qwen3", false, false, true, make_qwen3_layer},
};

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

std::string architecture_names(bool scores_only) {
  std::string names;
  for (const Architecture& a : kArchitectures) {
    if (scores_only && !a.scores) continue;
    if (!names.empty()) names += ", ";
    names += a.name;
  }
  return names;
}

}  // namespace tnd
