#include "models/target.h"

#include <string>

#include "models/architectures.h"

namespace tnd {

Status TargetModel::load(WeightLoader& w, Arena& arena, const TargetLimits& limits) {
  limits_ = limits;
  ws_ = Workspace();
  ends_ = Ends();
  TND_TRY(ends_.load(w, backend_, p_, limits.layer_first == 0, limits.layer_last == p_.n_layers, &ws_));
  layers_.clear();
  int counts[2] = {0, 0};
  for (int32_t i = limits.layer_first; i < limits.layer_last; ++i) {
    const bool recurrent = p_.recurrent[static_cast<size_t>(i)];
    layers_.push_back({p_.architecture->make_layer(recurrent), counts[recurrent]++});
    const std::string prefix = "blk." + std::to_string(i) + ".";
    TND_TRY(layers_.back().layer->load(w, backend_, p_, prefix, limits.kv, &ws_));
  }
  ws_.take(backend_, arena, limits.max_rows, p_.hidden);
  return Status();
}

void TargetModel::scratch(ScratchLimits* limits) const {
  limits->rows = limits_.max_rows;
  limits->max_k = ws_.max_k;
  limits->forms |= ws_.forms;
  for (const Place& l : layers_) l.layer->scratch(limits);
}

Status TargetModel::forward(const TargetStep& step, Stats* stats) {
  PhaseTimer timer(stats);
  if (limits_.layer_first == 0) {
    backend_.embed(*ends_.embedding, step.tokens, ws_.x);
  } else {
    take_hidden(backend_, p_, ws_, step);
  }
  timer.mark(Counter::kEmbedNs);
  return run_layers(step, timer);
}

Status TargetModel::run_layers(const TargetStep& step, PhaseTimer& timer) {
  int32_t number = limits_.layer_first;
  for (const Place& l : layers_) {
    if (step.cancel != nullptr && step.cancel->load(std::memory_order_relaxed)) {
      return errorf(TND_CANCELED, "cancelled before layer %d", number);
    }
    l.layer->forward(backend_, p_, ws_, l.index, step, timer);
    capture(backend_, p_, ws_, number++, step, timer);
  }
  return Status();
}

}  // namespace tnd
