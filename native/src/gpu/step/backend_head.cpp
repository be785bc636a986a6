// Head of a GPU backend: final norm of the requested rows, product with the vocabulary, choice of tokens on the device.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/draw.h"
#include "gpu/norm/norm.h"
#include "gpu/step/backend_gpu.h"

namespace tnd::gpu {

void GpuBackend::head(const HeadArgs& args) {
  const int prompt_rows = std::exchange(prompt_rows_, 0);
  const int step_rows = std::exchange(step_rows_, prompt_rows > 0 ? 0 : std::min(step_rows_, limits_.head_rows));
  const size_t most = static_cast<size_t>(limits_.head_rows);
  for (size_t first = 0; first < args.rows.size(); first += most) {
    head_rows(args, args.rows.data() + first, static_cast<int>(std::min(args.rows.size() - first, most)));
  }
  prompt_rows_ = prompt_rows;
  step_rows_ = step_rows;
}

void GpuBackend::head_rows(const HeadArgs& args, const HeadRow* rows, int n) {
  const int64_t hidden = args.w->k;
  numbers_.clear();
  for (int i = 0; i < n; ++i) numbers_.push_back(rows[i].row);
  if (args.norm != nullptr) {
    const size_t most = static_cast<size_t>(row_room(n));
    if (!recorder_.reserve(Recorder::padded(most * sizeof(int32_t)))) return;
    const Rows r = bucketed(n);
    NormArgs& norm = recorder_.add(launch_norm);
    norm.x = args.x;
    norm.x_stride = hidden;
    norm.w = args.norm;
    norm.eps = args.eps;
    norm.rows = r.most;
    norm.live = r.live;
    norm.dim = static_cast<int>(hidden);
    norm.acts = outputs(head_acts_.get(), r.most).part[0].acts;
    norm.forms = forms(*args.w);
    norm.gather = recorder_.put(numbers_.data(), numbers_.size(), most);
  } else {
    copy_rows(args.x, hidden, numbers_, {}, rows_, hidden);
    prepare(rows_, hidden, n, hidden, forms(*args.w), head_acts_.get());
  }
  const Product product{args.w, logits_, logits_stride_, nullptr};
  matmul(std::span<const Product>(&product, 1), *head_acts_, n);

  const int64_t vocab = args.w->n;
  for (int i = 0; i < n; ++i) {
    if (rows[i].logits != nullptr) download(rows[i].logits, logits_ + i * logits_stride_, vocab);
  }
  choose_rows(args, rows, n);
}

// Chooses for rows [0, n) of the logits, at a time as many as have room for their lists in the plan.
void GpuBackend::choose_rows(const HeadArgs& args, const HeadRow* rows, int n) {
  const int64_t vocab = args.w->n;
  const uint64_t words = static_cast<uint64_t>(vocab + 31) / 32;
  const uint64_t mask_bytes = Recorder::padded(words * sizeof(uint32_t));
  const auto loose_bytes = [&](const HeadRow& r) {
    uint64_t bytes = r.mask != nullptr ? mask_bytes : 0;
    const uint64_t bias = r.sampler != nullptr ? r.sampler->bias_tokens.size() : 0, history = r.history.size();
    return bytes + Recorder::padded(bias * 4) * 2 + Recorder::padded(history * sizeof(TokenCount)) +
           Recorder::padded((bias + history) * 4);
  };
  const auto result_bytes = [&](const HeadRow& r) {
    return Recorder::padded(sizeof(ChooseResult)) + 2 * Recorder::padded(static_cast<uint64_t>(r.top_k) * 4);
  };
  for (int first = 0; first < n;) {
    Recorder::Sizes sizes;
    int count = 0;
    for (; first + count < n; ++count) {
      const HeadRow& r = rows[first + count];
      if (count > 0 && (sizes.loose_plan + loose_bytes(r) > recorder_.loose_plan_capacity() ||
                        sizes.loose_results + result_bytes(r) > recorder_.loose_result_capacity())) {
        break;
      }
      sizes.loose_plan += loose_bytes(r);
      sizes.loose_results += result_bytes(r);
    }
    const size_t most = static_cast<size_t>(row_room(count));
    sizes.plan = Recorder::padded(most * sizeof(ChooseRow)) + (args.never != nullptr ? mask_bytes : 0);
    if (!recorder_.reserve(sizes)) return;
    choices_.clear();
    bool anything = false;
    const uint32_t *mask = nullptr, *placed = nullptr;  // the last row's: consecutive rows may share one
    for (int i = 0; i < count; ++i) {
      const HeadRow& r = rows[first + i];
      ChooseRow c = plan_choice(r);
      if (r.mask != mask) {
        mask = r.mask;
        placed = mask != nullptr ? recorder_.put_loose(mask, words) : nullptr;
      }
      c.mask = placed;
      const bool plain = args.never == nullptr && r.mask == nullptr && c.n_bias + c.n_history == 0;
      if (plain && c.temperature <= 0.0f) c.wants |= kWantPlainId;
      anything = anything || (c.wants & ~kWantPlainId) != 0;
      choices_.push_back(c);
    }
    if (anything) {
      const Rows r = bucketed(count);
      ChooseArgs& choose = recorder_.add(launch_choose);
      choose.logits = logits_ + first * logits_stride_;
      choose.stride = logits_stride_;
      choose.vocab = static_cast<int32_t>(vocab);
      choose.rows = r.most;
      choose.live = r.live;
      choose.plans = recorder_.put(choices_.data(), choices_.size(), most);
      choose.never = args.never != nullptr ? recorder_.put(args.never, words) : nullptr;
      choose.scratch = choose_scratch_;
    }
    first += count;
  }
}

ChooseRow GpuBackend::plan_choice(const HeadRow& row) {
  static const SamplerParams kGreedy;
  const SamplerParams& s = row.sampler != nullptr ? *row.sampler : kGreedy;
  ChooseRow c;
  auto* result = static_cast<ChooseResult*>(recorder_.loose_result(nullptr, sizeof(ChooseResult)));
  c.result = result;
  if (row.token != nullptr) {
    c.wants |= kWantToken;
    recorder_.scatter(row.token, &result->token, sizeof(int32_t));
    c.temperature = s.temperature;
    c.top_p = s.top_p;
    c.min_p = s.min_p;
    c.top_k = s.top_k;
    c.repetition_penalty = s.repetition_penalty;
    c.frequency_penalty = s.frequency_penalty;
    c.presence_penalty = s.presence_penalty;
    c.draw = uniform_draw(s.seed, s.choice, row.output_position);
    if (!s.bias_tokens.empty()) {
      bias_.clear();
      for (size_t i = 0; i < s.bias_tokens.size(); ++i) bias_.emplace_back(s.bias_tokens[i], s.bias_values[i]);
      std::stable_sort(bias_.begin(), bias_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      numbers_.clear();
      values_.clear();
      for (const auto& [token, value] : bias_) {
        numbers_.push_back(token);
        values_.push_back(value);
      }
      c.bias_tokens = recorder_.put_loose(numbers_.data(), numbers_.size());
      c.bias_values = recorder_.put_loose(values_.data(), values_.size());
      c.n_bias = static_cast<int32_t>(bias_.size());
    }
    if (!row.history.empty()) {
      c.history = recorder_.put_loose(row.history.data(), row.history.size());
      c.n_history = static_cast<int32_t>(row.history.size());
    }
    if (c.n_bias + c.n_history > 0) {
      c.undo = static_cast<float*>(recorder_.loose_room(static_cast<uint64_t>(c.n_bias + c.n_history) * sizeof(float)));
    }
  }
  if (row.logprob != nullptr) {
    c.wants |= kWantLogprob | kWantRawSum;
    recorder_.scatter(row.logprob, &result->logprob, sizeof(float));
  }
  if (row.score != nullptr) {
    c.wants |= kWantScore | kWantRawSum;
    c.score_token = row.score_token;
    recorder_.scatter(row.score, &result->score, sizeof(float));
  }
  if (row.top_k > 0) {
    const uint64_t bytes = static_cast<uint64_t>(row.top_k) * sizeof(int32_t);
    c.top_n = row.top_k;
    c.top_temperature = row.top_temperature;
    c.wants |= row.top_temperature == 1.0f ? kWantRawSum : kWantTopSum;
    c.top_ids = static_cast<int32_t*>(recorder_.loose_result(row.top_ids, bytes));
    c.top_logprobs = static_cast<float*>(recorder_.loose_result(row.top_logprobs, bytes));
  }
  return c;
}

}  // namespace tnd::gpu
