// The architectures that targets and scorers may have: the one list of their names.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tnd {

class Layer;

struct Architecture {
  const char* name;  // general.architecture
  bool delta;        // has DeltaNet layers: HParams::recurrent says which, and their keys are read
  bool gated;        // query rows of attention carry an output gate
  bool scores;       // the scorer runs it
  std::unique_ptr<Layer> (*make_layer)(bool recurrent);
};

std::span<const Architecture> architectures();
// find_architecture returns nullptr for a name that this build does not run.
const Architecture* find_architecture(std::string_view name);
// architecture_names lists the names for error texts, of all or of those that score: "qwen35, qwen3".
std::string architecture_names(bool scores_only);

std::unique_ptr<Layer> make_qwen35_layer(bool recurrent);  // qwen35.cpp
std::unique_ptr<Layer> make_qwen3_layer(bool recurrent);   // qwen3.cpp

}  // namespace tnd
