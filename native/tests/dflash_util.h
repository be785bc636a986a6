// Draft models in memory and an engine over them, for the parts of dflash_test.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/fp.h"
#include "harness.h"
#include "models/dflash_hparams.h"
#include "roles/roles.h"

namespace tnd::dflash_test {

// ---- a small GGUF in memory -----------------------------------------------------------------------------------------

template <typename T>
std::string raw(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);
}
inline std::string text(std::string_view s) {
  return raw<uint64_t>(s.size()) + std::string(s);
}

struct Writer {
  std::vector<std::string> values;
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;
    std::vector<float> data;
    uint32_t type = 0;
    std::string encoded = {};  // of a type other than F32
  };
  std::vector<Tensor> tensors;

  void str(const std::string& k, const std::string& v) { values.push_back(text(k) + raw<uint32_t>(8) + text(v)); }
  void u32(const std::string& k, uint32_t v) { values.push_back(text(k) + raw<uint32_t>(4) + raw(v)); }
  void f32(const std::string& k, float v) { values.push_back(text(k) + raw<uint32_t>(6) + raw(v)); }
  void flag(const std::string& k, bool v) { values.push_back(text(k) + raw<uint32_t>(7) + raw<uint8_t>(v)); }
  void i32s(const std::string& k, const std::vector<int32_t>& v) {
    std::string s = text(k) + raw<uint32_t>(9) + raw<uint32_t>(5) + raw<uint64_t>(v.size());
    for (int32_t x : v) s += raw(x);
    values.push_back(s);
  }
  void flags(const std::string& k, const std::vector<bool>& v) {
    std::string s = text(k) + raw<uint32_t>(9) + raw<uint32_t>(7) + raw<uint64_t>(v.size());
    for (bool x : v) s += raw<uint8_t>(x);
    values.push_back(s);
  }
  std::string bytes() const {
    std::string s = "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(values.size());
    for (const auto& v : values) s += v;
    std::string data;
    for (const Tensor& t : tensors) {
      s += text(t.name) + raw<uint32_t>(uint32_t(t.ne.size()));
      for (uint64_t e : t.ne) s += raw(e);
      s += raw<uint32_t>(t.type) + raw<uint64_t>(data.size());
      data.append(reinterpret_cast<const char*>(t.data.data()), t.data.size() * 4);
      data += t.encoded;
      data.resize((data.size() + 31) / 32 * 32);
    }
    s.resize((s.size() + 31) / 32 * 32);
    return s + data;
  }
};

struct Spec {
  std::string arch = "dflash-draft";
  int layers = 2, hidden = 64, heads = 2, kv = 1, dim = 32, ffn = 96, block = 8, nf = 2, window = 0, vocab = 100;
  std::vector<bool> sliding;
  float theta = 1e6f;
  bool doubled = false;  // architecture "dflash" with its keys behind "dflash.dflash."
};

inline std::string fc_name(const std::string& arch) {
  return arch == "dflash-draft" ? "dflash_fc" : arch == "dflash" ? "fc" : "dflash.fc";
}
inline std::string hidden_norm_name(const std::string& arch) {
  return arch == "dflash-draft" ? "dflash_hidden_norm" : arch == "dflash" ? "enc.output_norm" : "dflash.hidden_norm";
}

// The same weights for the same seed in every dialect.
inline Writer draft_file(const Spec& s, uint64_t seed) {
  Writer w;
  const std::string a = s.arch + ".";
  w.str("general.architecture", s.arch);
  w.u32(a + "block_count", s.layers);
  w.u32(a + "context_length", 4096);
  w.u32(a + "embedding_length", s.hidden);
  w.u32(a + "feed_forward_length", s.ffn);
  w.u32(a + "attention.head_count", s.heads);
  w.u32(a + "attention.head_count_kv", s.kv);
  w.u32(a + "attention.key_length", s.dim);
  w.u32(a + "attention.value_length", s.dim);
  w.f32(a + "attention.layer_norm_rms_epsilon", 1e-6f);
  w.f32(a + "rope.freq_base", s.theta);
  const std::string own = s.arch == "dflash" && !s.doubled ? a : a + "dflash.";
  w.u32(own + "block_size", s.block);
  const std::vector<int32_t> ids = dflash_layer_ids(24, s.nf);
  if (s.arch == "dflash") {
    std::vector<int32_t> plus;
    for (int32_t i : ids) plus.push_back(i + 1);
    w.i32s(own + "target_layers", plus);
    w.u32("tokenizer.ggml.mask_token_id", 7);
  } else {
    if (s.arch == "dflash-draft") w.i32s(a + "dflash.target_layer_ids", ids);
    if (s.arch == "qwen35-dflash-draft") w.u32(a + "dflash.n_target_layers", s.nf);
    w.u32(a + "dflash.mask_token_id", 7);
  }
  if (s.window > 0) {
    w.u32(a + "attention.sliding_window", s.window);
    w.flags(a + "attention.sliding_window_pattern", s.sliding);
  }
  test::Rng rng(seed);
  auto matrix = [&](const std::string& name, int k, int n) {
    Writer::Tensor t{name + ".weight", {uint64_t(k), uint64_t(n)}, std::vector<float>(size_t(k) * n)};
    for (float& x : t.data) x = rng.normal() * 1.5f / std::sqrt(float(k));
    w.tensors.push_back(t);
  };
  auto vector = [&](const std::string& name, int n) {
    Writer::Tensor t{name + ".weight", {uint64_t(n)}, std::vector<float>(n)};
    for (float& x : t.data) x = rng.uniform(0.5f, 1.5f);
    w.tensors.push_back(t);
  };
  matrix(fc_name(s.arch), s.nf * s.hidden, s.hidden);
  vector(hidden_norm_name(s.arch), s.hidden);
  vector("output_norm", s.hidden);
  for (int i = 0; i < s.layers; i++) {
    const std::string b = "blk." + std::to_string(i) + ".";
    vector(b + "attn_norm", s.hidden);
    matrix(b + "attn_q", s.hidden, s.heads * s.dim);
    matrix(b + "attn_k", s.hidden, s.kv * s.dim);
    matrix(b + "attn_v", s.hidden, s.kv * s.dim);
    matrix(b + "attn_output", s.heads * s.dim, s.hidden);
    vector(b + "attn_q_norm", s.dim);
    vector(b + "attn_k_norm", s.dim);
    vector(b + (s.arch == "dflash-draft" && i == 0 ? "post_attention_norm" : "ffn_norm"), s.hidden);
    matrix(b + "ffn_gate", s.hidden, s.ffn);
    matrix(b + "ffn_up", s.hidden, s.ffn);
    matrix(b + "ffn_down", s.ffn, s.hidden);
  }
  return w;
}

inline Writer table_file(const Spec& s) {
  Writer w;
  w.str("general.architecture", "qwen35");
  w.u32("qwen35.block_count", 24);
  w.f32("qwen35.rope.freq_base", 1e6f);
  test::Rng rng(99);
  Writer::Tensor t{"token_embd.weight", {uint64_t(s.hidden), uint64_t(s.vocab)}, {}};
  for (int i = 0; i < s.hidden * s.vocab; i++) t.data.push_back(rng.normal());
  w.tensors.push_back(t);
  return w;
}

struct TempFile {
  std::string path;
  explicit TempFile(const std::string& bytes, const char* suffix = ".gguf") {
    char name[] = "/tmp/tnd-dflash-XXXXXX";
    const int fd = mkstemp(name);
    std::remove(name);
    path = std::string(name) + suffix;
    FILE* f = std::fopen(path.c_str(), "wb");
    std::fwrite(bytes.data(), 1, bytes.size(), f);
    std::fclose(f);
    if (fd >= 0) fclose(fdopen(fd, "r"));
  }
  ~TempFile() { std::remove(path.c_str()); }
};

// ---- a draft engine -------------------------------------------------------------------------------------------------

struct Engine {
  std::unique_ptr<Backend> backend;
  std::atomic<bool> cancel{false};
  Stats stats;
  std::unique_ptr<DraftEngine> role;
  std::vector<std::string> warnings;
  Status status;
  int stride = 0;
  tnd_info info{};

  Engine(const std::string& model, const std::string& tables, int sequences = 2, int context = 512, int kv_type = 0,
         int top_k = 8, int batch_rows = 64, uint64_t cap = uint64_t{1} << 33) {
    CHECK_OK(make_backend(nullptr, 2, &backend));
    OpenContext c;
    c.options.struct_size = sizeof c.options;
    c.options.role = TND_ROLE_DRAFT;
    c.options.max_sequences = sequences;
    c.options.max_context = context;
    c.options.max_tree_rows = 64;
    c.options.max_batch_rows = batch_rows;
    c.options.max_top_k = stride = top_k;
    c.options.kv_type_k = c.options.kv_type_v = kv_type;
    c.options.user = this;
    c.options.log = [](void* user, int32_t, const char* t) { static_cast<Engine*>(user)->warnings.push_back(t); };
    c.model_path = model;
    c.tables_path = tables;
    c.memory_cap = cap;
    c.backend = backend.get();
    c.cancel = &cancel;
    c.stats = &stats;
    status = open_draft(c, &role);
    if (status.ok()) role->info(&info);
  }
  int32_t sequence() {
    int32_t s = -1;
    CHECK_OK(role->sequence_create(&s));
    return s;
  }
  Status append(int32_t s, int32_t position, int32_t n, int32_t encoding, const void* features) {
    const tnd_feature_rows piece{s, position, n, encoding, features};
    return role->append(std::span<const tnd_feature_rows>(&piece, 1));
  }
  struct Top {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
  };
  Top propose(const std::vector<tnd_draft_request>& r) {
    Top t;
    t.ids.resize(r.size() * size_t(info.block_size - 1) * stride);
    t.logprobs.resize(t.ids.size());
    CHECK_OK(role->propose(r, t.ids.data(), t.logprobs.data()));
    return t;
  }
};

inline std::vector<float> random_features(int rows, int width, uint64_t seed) {
  test::Rng rng(seed);
  std::vector<float> f(size_t(rows) * width);
  for (float& x : f) x = rng.normal();
  return f;
}

inline bool same(const Engine::Top& a, const Engine::Top& b) {
  return a.ids == b.ids && std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * 4) == 0;
}

inline float max_diff(const Engine::Top& a, const Engine::Top& b) {
  float d = 0;
  for (size_t i = 0; i < a.logprobs.size(); i++) d = std::max(d, std::fabs(a.logprobs[i] - b.logprobs[i]));
  return d;
}

}  // namespace tnd::dflash_test
