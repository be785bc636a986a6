// The DFlash draft: dialects, masks, incremental K/V, batching, and closeness to reference logits.
// Reference files: tests/testdata/golden; the BF16 models are not part of the repository: set TANDEM_SHARED_MODELS to
// their folder to run the tests that need them.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/fp.h"
#include "harness.h"
#include "models/dflash_hparams.h"
#include "roles/roles.h"

using namespace tnd;

namespace {

// ---- a small GGUF in memory -----------------------------------------------------------------------------------------

template <typename T>
std::string raw(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);
}
std::string text(std::string_view s) {
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

std::string fc_name(const std::string& arch) {
  return arch == "dflash-draft" ? "dflash_fc" : arch == "dflash" ? "fc" : "dflash.fc";
}
std::string hidden_norm_name(const std::string& arch) {
  return arch == "dflash-draft" ? "dflash_hidden_norm" : arch == "dflash" ? "enc.output_norm" : "dflash.hidden_norm";
}

// The same weights for the same seed in every dialect.
Writer draft_file(const Spec& s, uint64_t seed) {
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

Writer table_file(const Spec& s) {
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

std::vector<float> random_features(int rows, int width, uint64_t seed) {
  test::Rng rng(seed);
  std::vector<float> f(size_t(rows) * width);
  for (float& x : f) x = rng.normal();
  return f;
}

bool same(const Engine::Top& a, const Engine::Top& b) {
  return a.ids == b.ids && std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * 4) == 0;
}

float max_diff(const Engine::Top& a, const Engine::Top& b) {
  float d = 0;
  for (size_t i = 0; i < a.logprobs.size(); i++) d = std::max(d, std::fabs(a.logprobs[i] - b.logprobs[i]));
  return d;
}

}  // namespace

TEST(layer_ids_of_the_rule) {
  const struct {
    int nl;
    std::vector<int32_t> want;
  } cases[] = {{64, {1, 16, 31, 46, 61}}, {48, {1, 12, 23, 34, 45}}, {40, {1, 10, 19, 28, 37}},
               {36, {1, 9, 17, 25, 33}},  {32, {1, 8, 15, 22, 29}},  {28, {1, 7, 13, 19, 25}},
               {24, {1, 6, 11, 16, 21}}};
  for (const auto& c : cases) CHECK(dflash_layer_ids(c.nl, 5) == c.want);
  CHECK(dflash_layer_ids(24, 1) == std::vector<int32_t>{12});
  // 1 + 27/2 = 14.5 rounds to the even 14; 1 + 29/2 = 15.5 to 16.
  CHECK(dflash_layer_ids(31, 3) == (std::vector<int32_t>{1, 14, 28}));
  CHECK(dflash_layer_ids(33, 3) == (std::vector<int32_t>{1, 16, 30}));
}

// GGUF dialects with the same weights give the same proposals; ids mean the same layers. The keys of "dflash" stand
// behind its name once, as others publish them, or twice.
TEST(dialects_agree) {
  Spec s;
  TempFile tables(table_file(s).bytes());
  Engine::Top first;
  for (const char* arch : {"dflash-draft", "qwen35-dflash-draft", "dflash", "dflash twice"}) {
    s.doubled = std::string_view(arch) == "dflash twice";
    s.arch = s.doubled ? "dflash" : arch;
    TempFile file(draft_file(s, 5).bytes());
    Engine e(file.path, tables.path);
    CHECK_OK(e.status);
    if (!e.status.ok()) continue;
    CHECK(e.info.n_capture == 2 && e.info.capture_layers[0] == 1 && e.info.capture_layers[1] == 21);
    CHECK_EQ(e.info.mask_token, 7);
    const int32_t q = e.sequence();
    const auto f = random_features(20, e.info.feature_raw, 1);
    CHECK_OK(e.append(q, 0, 20, TND_FEATURE_RAW_F32, f.data()));
    const auto t = e.propose({{q, 3, 20, 8, 8, 1.0f}});
    if (first.ids.empty()) first = t;
    CHECK(same(first, t));
  }
}

// The same weights as a safetensors file beside its config.json.
TEST(safetensors_agree_with_gguf) {
  Spec s;
  s.window = 12;
  s.sliding = {true, false};
  TempFile tables(table_file(s).bytes()), gguf_file(draft_file(s, 5).bytes());
  char dir[] = "/tmp/tnd-dflash-st-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  const std::string model = std::string(dir) + "/model.safetensors", config = std::string(dir) + "/config.json";
  auto write = [](const std::string& path, const std::string& bytes) {
    FILE* f = std::fopen(path.c_str(), "wb");
    std::fwrite(bytes.data(), 1, bytes.size(), f);
    std::fclose(f);
  };
  const char* names[][2] = {{"attn_norm", "input_layernorm"},
                            {"attn_q_norm", "self_attn.q_norm"},
                            {"attn_k_norm", "self_attn.k_norm"},
                            {"attn_q", "self_attn.q_proj"},
                            {"attn_k", "self_attn.k_proj"},
                            {"attn_v", "self_attn.v_proj"},
                            {"attn_output", "self_attn.o_proj"},
                            {"post_attention_norm", "post_attention_layernorm"},
                            {"ffn_norm", "post_attention_layernorm"},
                            {"ffn_gate", "mlp.gate_proj"},
                            {"ffn_up", "mlp.up_proj"},
                            {"ffn_down", "mlp.down_proj"}};
  std::string header = "{", data;
  for (const auto& t : draft_file(s, 5).tensors) {
    std::string name = t.name;
    if (name == "dflash_fc.weight") name = "fc.weight";
    if (name == "dflash_hidden_norm.weight") name = "hidden_norm.weight";
    if (name == "output_norm.weight") name = "norm.weight";
    if (name.starts_with("blk.")) {
      const size_t dot = name.find('.', 4);
      const std::string stem = name.substr(dot + 1, name.size() - dot - 1 - 7);
      for (const auto& n : names) {
        if (stem == n[0]) name = "layers." + name.substr(4, dot - 4) + "." + n[1] + ".weight";
      }
    }
    std::string shape;
    for (size_t i = t.ne.size(); i-- > 0;) shape += std::to_string(t.ne[i]) + (i > 0 ? "," : "");
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(t.data.data()), t.data.size() * 4);
    header += (header.size() > 1 ? "," : "") + ("\"" + name) + "\":{\"dtype\":\"F32\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
  }
  header += "}";
  write(model, raw<uint64_t>(header.size()) + header + data);
  const std::string good =
      R"({"architectures":["DFlashDraftModel"],"model_type":"qwen3","hidden_size":64,"num_hidden_layers":2,)"
      R"("num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"intermediate_size":96,"hidden_act":"silu",)"
      R"("rms_norm_eps":1e-6,"rope_theta":1000000,"rope_scaling":null,"max_position_embeddings":4096,)"
      R"("attention_bias":false,"block_size":8,"use_sliding_window":true,"sliding_window":12,)"
      R"("layer_types":["sliding_attention","full_attention"],)"
      R"("dflash_config":{"mask_token_id":7,"target_layer_ids":[1,21]}})";
  write(config, good);
  Engine a(gguf_file.path, tables.path), b(model, tables.path);
  CHECK_OK(a.status);
  CHECK_OK(b.status);
  if (a.status.ok() && b.status.ok()) {
    const auto f = random_features(40, a.info.feature_raw, 1);
    std::vector<Engine::Top> tops;
    for (Engine* e : {&a, &b}) {
      const int32_t q = e->sequence();
      CHECK_OK(e->append(q, 0, 40, TND_FEATURE_RAW_F32, f.data()));
      tops.push_back(e->propose({{q, 3, 40, 8, 8, 1.0f}}));
    }
    CHECK(same(tops[0], tops[1]));
  }
  const struct {
    const char *from, *to, *wanted;
  } broken[] = {
      {"DFlashDraftModel", "Other", "architectures"},
      {"DFlashDraftModel", "DFlash2DraftModel", "is a DFlash2 draft"},
      {"\"qwen3\"", "\"gemma\"", "model_type"},
      {"\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"yarn\"}", "rope_scaling"},
      {"\"attention_bias\":false", "\"attention_bias\":true", "attention_bias"},
      {"\"mask_token_id\":7,", "", "mask_token_id"},
      {"[1,21]", "[21,1]", "out of order"},
      {"[1,21]", "[1,24]", "beyond the target's 24 layers"},
      {"\"sliding_window\":12", "\"sliding_window\":4", "shorter than the block"},
      {"sliding_attention", "local_attention", "layer_types"},
      {"{\"mask_token_id\"", "{\"use_swa\":true,\"mask_token_id\"", "use_swa"},
      {"\"head_dim\":32", "\"head_dim\":48", "multiples of 32"},
      {"\"hidden_size\":64", "\"hidden_size\":96", "fc"},
  };
  for (const auto& c : broken) {
    std::string text = good;
    text.replace(text.find(c.from), std::strlen(c.from), c.to);
    write(config, text);
    const Status st = Engine(model, tables.path).status;
    CHECK_MSG(!st.ok() && st.message().find(c.wanted) != std::string::npos,
              std::string(c.wanted) + ": " + st.message());
  }
  std::remove(config.c_str());
  CHECK_EQ(Engine(model, tables.path).status.code(), TND_NOT_FOUND);
  std::remove(model.c_str());
  rmdir(dir);
}

// Both spellings of a key may stand side by side as long as they agree; the error names both otherwise.
TEST(plain_and_doubled_keys) {
  Spec s;
  s.arch = "dflash";
  TempFile tables(table_file(s).bytes());
  auto open = [&](const Writer& w) {
    TempFile file(w.bytes());
    return Engine(file.path, tables.path).status;
  };
  auto names = [](const Status& st, const char* a, const char* b) {
    CHECK_MSG(st.code() == TND_INVALID_ARGUMENT && st.message().find(a) != std::string::npos &&
                  st.message().find(b) != std::string::npos,
              st.message());
  };
  Writer w = draft_file(s, 1);
  w.u32("dflash.dflash.block_size", 8);
  w.i32s("dflash.dflash.target_layers", {2, 22});
  w.u32("dflash.dflash.n_target_features", 128);
  w.u32("dflash.n_target_features", 128);
  CHECK_OK(open(w));
  w = draft_file(s, 1);
  w.u32("dflash.dflash.block_size", 16);
  names(open(w), " dflash.block_size is 8", "dflash.dflash.block_size is 16");
  w = draft_file(s, 1);
  w.i32s("dflash.dflash.target_layers", {1, 22});
  names(open(w), " dflash.target_layers", "dflash.dflash.target_layers");
  w = draft_file(s, 1);
  w.u32("dflash.n_target_features", 64);
  names(open(w), " dflash.n_target_features", "");
  s.block = 1;
  names(open(draft_file(s, 1)), " dflash.block_size", "");
}

// Files of DFlash's successors carry its architecture name: they are refused by what they are.
TEST(refuses_successors) {
  Spec s;
  s.arch = "dflash";
  TempFile tables(table_file(s).bytes());
  auto refused = [&](const Writer& w, const char* kind, const char* where) {
    TempFile file(w.bytes());
    const Status st = Engine(file.path, tables.path).status;
    CHECK_MSG(st.code() == TND_UNIMPLEMENTED && st.message().find(kind) != std::string::npos &&
                  st.message().find(where) != std::string::npos,
              std::string(where) + ": " + st.message());
  };
  for (const char* key : {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}) {
    for (const char* prefix : {"dflash.", "dflash.dflash."}) {
      Writer w = draft_file(s, 1);
      w.u32(std::string(prefix) + key, 2);
      refused(w, "DFlash2", key);
    }
  }
  for (const char* tensor : {"selector_hidden.weight", "selector.pred_codebook", "blk.0.attn_conv_base",
                             "blk.1.ffn_conv.proj.weight", "blk.0.attn_conv_proj.weight"}) {
    Writer w = draft_file(s, 1);
    w.tensors.push_back({tensor, {2}, {0, 0}});
    refused(w, "DFlash2", tensor);
  }
  Writer w = draft_file(s, 1);
  w.tensors.push_back({"markov_w1.weight", {2}, {0, 0}});
  refused(w, "DSpark", "markov_w1");
  w = draft_file(s, 1);  // a file that says it has none of the parts
  w.u32("dflash.selector_top_k", 0);
  TempFile file(w.bytes());
  CHECK_OK(Engine(file.path, tables.path).status);
}

// A type that no matmul computes is named: one that the format knows, whether or not the engine decodes it.
TEST(names_types_without_matmul) {
  Spec s;
  s.hidden = 256;
  TempFile tables(table_file(s).bytes());
  const struct {
    uint32_t type, bytes;
    const char* name;
  } cases[] = {{16, 66, "no matmul for type IQ2_XXS (16)"},
               {34, 54, "no matmul for type TQ1_0 (34)"},
               {24, 256, "no matmul for type I8 (24)"},
               {10, 84, "no matmul for type Q2_K (10)"}};
  for (const auto& c : cases) {
    Writer w = draft_file(s, 1);
    Writer::Tensor& fc = w.tensors[0];
    fc.encoded.assign(fc.ne[0] / 256 * fc.ne[1] * c.bytes, '\0');
    fc.data.clear();
    fc.type = c.type;
    TempFile file(w.bytes());
    const Status st = Engine(file.path, tables.path).status;
    CHECK_MSG(st.code() == TND_UNIMPLEMENTED && st.message().find(c.name) != std::string::npos, st.message());
  }
  Writer w = draft_file(s, 1);
  for (Writer::Tensor& t : w.tensors) {
    if (t.name != "output_norm.weight") continue;
    t.data.clear();
    t.encoded.assign(256, '\0');
    t.type = 24;
  }
  TempFile file(w.bytes());
  const Status st = Engine(file.path, tables.path).status;
  CHECK_MSG(st.message().find("its type is I8 (24)") != std::string::npos, st.message());
  CHECK_EQ(gguf::type_label(99), std::string("99"));
}

TEST(refuses_other_drafts) {
  Spec s;
  TempFile tables(table_file(s).bytes());
  auto error = [&](const Writer& w) {
    TempFile file(w.bytes());
    return Engine(file.path, tables.path).status;
  };
  s.arch = "gemma4-dflash-draft";
  Status st = error(draft_file(s, 1));
  CHECK(st.code() == TND_UNIMPLEMENTED && st.message().find("Gemma") != std::string::npos);
  s.arch = "llama";
  CHECK_EQ(error(draft_file(s, 1)).code(), TND_INVALID_ARGUMENT);
  s.arch = "dflash-draft";
  Writer w = draft_file(s, 1);
  w.tensors.push_back({"blk.0.attn_sinks.weight", {2}, {0, 0}});
  st = error(w);
  CHECK(st.code() == TND_UNIMPLEMENTED && st.message().find("attn_sinks") != std::string::npos);
  w = draft_file(s, 1);
  w.str("dflash-draft.rope.scaling.type", "yarn");
  CHECK_EQ(error(w).code(), TND_UNIMPLEMENTED);
  w = draft_file(s, 1);
  w.flag("dflash-draft.attention.causal", true);
  CHECK_EQ(error(w).code(), TND_UNIMPLEMENTED);
  w = draft_file(s, 1);
  w.tensors.pop_back();
  CHECK(error(w).message().find("ffn_down") != std::string::npos);
  w = draft_file(s, 1);
  w.tensors[0].ne = {32, 256};
  CHECK(error(w).message().find("fc") != std::string::npos);
  s.hidden = 128;
  CHECK_EQ(error(draft_file(s, 1)).code(), TND_FAILED_PRECONDITION);  // width against the tables
  s.hidden = 64;
  // A theta that is not the target's is reported, not refused.
  s.theta = 5e5f;
  TempFile file(draft_file(s, 1).bytes());
  Engine e(file.path, tables.path);
  CHECK_OK(e.status);
  CHECK(e.warnings.size() == 1 && e.warnings[0].find("rope.freq_base") != std::string::npos);
  CHECK_EQ(Engine(file.path, "").status.code(), TND_INVALID_ARGUMENT);
}

// Appending at once, one by one, in bf16 pieces or already fused gives the same cache: same bits but for the encoding.
TEST(incremental_equals_whole) {
  Spec s;
  s.window = 12;
  s.sliding = {true, false};
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 3).bytes());
  for (int kv_type : {0, 1, 2, 8}) {
    Engine e(file.path, tables.path, 2, 512, kv_type, 8, 16);
    CHECK_OK(e.status);
    if (!e.status.ok()) return;
    const int n = 70;
    auto f = random_features(n, e.info.feature_raw, 2);
    for (float& x : f) x = bf16_to_f32(f32_to_bf16(x));
    const int32_t a = e.sequence(), b = e.sequence();
    CHECK_OK(e.append(a, 0, n, TND_FEATURE_RAW_F32, f.data()));
    std::vector<uint16_t> half(f.size());
    for (size_t i = 0; i < f.size(); i++) half[i] = f32_to_bf16(f[i]);
    for (int i = 0; i < n; i++) {
      CHECK_OK(e.append(b, i, 1, TND_FEATURE_RAW_BF16, half.data() + size_t(i) * e.info.feature_raw));
      if (i % 9 == 0) e.propose({{b, 1, i + 1, 8, 4, 1.0f}});  // a block leaves nothing behind
    }
    const auto x = e.propose({{a, 3, n, 8, 8, 1.0f}});
    CHECK(same(x, e.propose({{b, 3, n, 8, 8, 1.0f}})));
    // Truncate and append again.
    CHECK_OK(e.role->sequence_truncate(b, 33));
    CHECK_OK(e.append(b, 33, n - 33, TND_FEATURE_RAW_F32, f.data() + 33 * size_t(e.info.feature_raw)));
    CHECK(same(x, e.propose({{b, 3, n, 8, 8, 1.0f}})));
    CHECK_EQ(e.append(b, n + 1, 1, TND_FEATURE_RAW_F32, f.data()).code(), TND_FAILED_PRECONDITION);
    CHECK_EQ(e.append(b, n, 500, TND_FEATURE_RAW_F32, f.data()).code(), TND_RESOURCE_EXHAUSTED);
    CHECK_EQ(e.append(b, n, 1, 9, f.data()).code(), TND_INVALID_ARGUMENT);
  }
}

// Pieces of several sequences in one call have the bits of single calls, whatever their lengths and encodings, and
// whether they fit into one pass: lengths around the border to the contract of prompts, several pieces of a sequence.
TEST(appends_of_several_sequences) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 5).bytes());
  constexpr int kSequences = 5, kRows = 420;
  Engine joint(file.path, tables.path, kSequences, 1024, 1, 8, 200),
      alone(file.path, tables.path, kSequences, 1024, 1, 8, 200);
  CHECK_OK(joint.status);
  CHECK_OK(alone.status);
  if (!joint.status.ok() || !alone.status.ok()) return;
  const int32_t raw = joint.info.feature_raw, fused = joint.info.feature_fused;
  std::vector<std::vector<float>> wide;
  std::vector<std::vector<uint16_t>> half;
  std::vector<int32_t> sequences, lengths(kSequences, 0);
  for (int i = 0; i < kSequences; i++) {
    sequences.push_back(joint.sequence());
    CHECK_EQ(alone.sequence(), sequences.back());
    wide.push_back(random_features(kRows, raw, 40 + i));
    half.emplace_back();
    for (float x : wide.back()) half.back().push_back(f32_to_bf16(x));
  }
  const int sizes[] = {0, 1, 5, 63, 64, 65, 66, 130, 200, 201};
  test::Rng rng(3);
  for (int call = 0; call < 12; call++) {
    std::vector<tnd_feature_rows> pieces;
    std::vector<int32_t> next = lengths;
    for (int k = 0; k < 2 * kSequences; k++) {
      const auto i = static_cast<size_t>(rng.below(kSequences));
      const int32_t n = std::min(sizes[rng.below(10)], kRows - next[i]);
      const int32_t encoding = 1 + static_cast<int32_t>(rng.below(4));
      const auto from = static_cast<size_t>(next[i]) * static_cast<size_t>(fused_features(encoding) ? fused : raw);
      const void* data =
          bf16_features(encoding) ? static_cast<const void*>(half[i].data() + from) : wide[i].data() + from;
      pieces.push_back({sequences[i], next[i], n, encoding, data});
      next[i] += n;
    }
    // One that is refused leaves the others as they were.
    std::vector<tnd_feature_rows> wrong = pieces;
    wrong.push_back({sequences[0], next[0] + 1, 1, TND_FEATURE_RAW_F32, wide[0].data()});
    CHECK_EQ(joint.role->append(wrong).code(), TND_FAILED_PRECONDITION);
    int32_t length = 0;
    for (size_t i = 0; i < kSequences; i++) {
      CHECK_OK(joint.role->sequence_length(sequences[i], &length));
      CHECK_EQ(length, lengths[i]);
    }
    CHECK_OK(joint.role->append(pieces));
    for (const tnd_feature_rows& p : pieces)
      CHECK_OK(alone.append(p.sequence, p.position, p.n_rows, p.encoding, p.features));
    lengths = next;
    for (const int32_t q : sequences) {
      uint64_t a = 0, b = 0;
      CHECK_OK(joint.role->export_size(q, &a));
      CHECK_OK(alone.role->export_size(q, &b));
      CHECK_EQ(a, b);
      std::vector<uint8_t> x(a), y(b);
      CHECK_OK(joint.role->export_to(q, x.data(), a));
      CHECK_OK(alone.role->export_to(q, y.data(), b));
      CHECK(x == y);
    }
  }
  std::vector<tnd_draft_request> r;
  for (size_t i = 0; i < kSequences; i++) r.push_back({sequences[i], 7, lengths[i], 8, 4, 1.0f});
  CHECK(same(joint.propose(r), alone.propose(r)));
}

// Several requests in one call give the bits of single calls; shorter blocks fill less.
TEST(batched_requests) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 4).bytes());
  Engine e(file.path, tables.path, 3);
  CHECK_OK(e.status);
  if (!e.status.ok()) return;
  std::vector<tnd_draft_request> r;
  for (int i = 0; i < 3; i++) {
    const int32_t q = e.sequence();
    const int n = 5 + 40 * i;
    const auto f = random_features(n, e.info.feature_raw, 10 + i);
    CHECK_OK(e.append(q, 0, n, TND_FEATURE_RAW_F32, f.data()));
    r.push_back({q, 20 + i, n, 8 - 2 * i, 8 - i, 0.5f + i});
  }
  const auto all = e.propose(r);
  const size_t per = all.ids.size() / 3;
  for (int i = 0; i < 3; i++) {
    const auto one = e.propose({r[i]});
    for (size_t j = 0; j < per; j++) {
      CHECK_EQ(one.ids[j], all.ids[i * per + j]);
      CHECK_EQ(one.logprobs[j], all.logprobs[i * per + j]);
      const int pos = int(j) / e.stride, rank = int(j) % e.stride;
      CHECK_EQ(one.ids[j] >= 0, pos < r[i].block - 1 && rank < r[i].top_k);
    }
  }
  CHECK_EQ(e.role->propose(std::vector{r[0], r[0]}, nullptr, nullptr).code(), TND_INVALID_ARGUMENT);
}

// Section 11 tests 3 to 5: shifting all positions, the order of MASK rows, and causal sliding blocks.
TEST(positions_and_masks) {
  Spec s;
  TempFile tables(table_file(s).bytes()), full(draft_file(s, 6).bytes());
  {
    // A gap of unknown features shifts the block against the context; without context a shift changes nothing.
    Engine e(full.path, tables.path);
    const int32_t q = e.sequence();
    const auto a = e.propose({{q, 3, 0, 8, 8, 1.0f}}), b = e.propose({{q, 3, 300, 8, 8, 1.0f}});
    CHECK_MSG(max_diff(a, b) < 2e-4f, std::to_string(max_diff(a, b)));
    const auto f = random_features(4, e.info.feature_raw, 7);
    CHECK_OK(e.append(q, 0, 4, TND_FEATURE_RAW_F32, f.data()));
    const auto near = e.propose({{q, 3, 4, 8, 8, 1.0f}}), far = e.propose({{q, 3, 200, 8, 8, 1.0f}});
    CHECK(max_diff(near, far) > 1e-3f);
    // Block length changes a full layer's rows, since every row sees the whole block.
    const auto shorter = e.propose({{q, 3, 4, 4, 8, 1.0f}});
    CHECK(std::memcmp(near.logprobs.data(), shorter.logprobs.data(), 4 * 8) != 0);
  }
  {
    // All layers sliding: rows j see the block causally, so a shorter block gives the same first rows.
    s.window = 10;
    s.sliding = {true, true};
    TempFile slide(draft_file(s, 6).bytes());
    Engine e(slide.path, tables.path);
    CHECK_OK(e.status);
    const int32_t q = e.sequence(), p = e.sequence();
    const int n = 40;
    auto f = random_features(n, e.info.feature_raw, 8);
    CHECK_OK(e.append(q, 0, n, TND_FEATURE_RAW_F32, f.data()));
    const auto whole = e.propose({{q, 3, n, 8, 8, 1.0f}}), part = e.propose({{q, 3, n, 4, 8, 1.0f}});
    for (int i = 0; i < 3 * e.stride; i++) CHECK_EQ(whole.logprobs[i], part.logprobs[i]);
    // Row j sees context p >= n + j - 9: changing row n-9 moves row 0 alone of each layer. Row 1's candidates depend on
    // row 0 only through the causal block of the next layer, so compare with a one-layer draft.
    s.layers = 1;
    s.sliding = {true};
    TempFile single(draft_file(s, 6).bytes());
    Engine o(single.path, tables.path);
    CHECK_OK(o.status);
    const int32_t u = o.sequence(), v = o.sequence();
    CHECK_OK(o.append(u, 0, n, TND_FEATURE_RAW_F32, f.data()));
    for (int row : {n - 9 + 0, n - 9 + 1, n - 9 + 4}) {
      auto g = f;
      for (int i = 0; i < o.info.feature_raw; i++) g[size_t(row) * o.info.feature_raw + i] += 1.0f;
      CHECK_OK(o.role->sequence_truncate(v, 0));
      CHECK_OK(o.append(v, 0, n, TND_FEATURE_RAW_F32, g.data()));
      const auto a = o.propose({{u, 3, n, 8, 8, 1.0f}}), b = o.propose({{v, 3, n, 8, 8, 1.0f}});
      for (int j = 1; j < 8; j++) {
        const bool sees = row >= n + j - 9;
        const bool equal = std::memcmp(&a.logprobs[(j - 1) * o.stride], &b.logprobs[(j - 1) * o.stride], 4 * 8) == 0;
        CHECK_EQ(equal, !sees);
      }
    }
    (void)p;
  }
}

// Permuting two captured layers changes the output: fc reads them in ascending order.
TEST(feature_order_matters) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes());
  Engine e(file.path, tables.path);
  const int32_t a = e.sequence(), b = e.sequence();
  auto f = random_features(3, e.info.feature_raw, 8);
  CHECK_OK(e.append(a, 0, 3, TND_FEATURE_RAW_F32, f.data()));
  for (int r = 0; r < 3; r++) std::rotate(&f[r * 128], &f[r * 128 + 64], f.data() + r * 128 + 128);
  CHECK_OK(e.append(b, 0, 3, TND_FEATURE_RAW_F32, f.data()));
  CHECK(!same(e.propose({{a, 3, 3, 8, 8, 1.0f}}), e.propose({{b, 3, 3, 8, 8, 1.0f}})));
}

// Snapshots and exports bring a sequence back bit for bit, also into another engine; damage is found.
TEST(snapshots_and_export) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes()), other(draft_file(s, 7).bytes());
  Engine e(file.path, tables.path), twin(file.path, tables.path), stranger(other.path, tables.path);
  const int32_t a = e.sequence();
  const auto f = random_features(60, e.info.feature_raw, 8);
  CHECK_OK(e.append(a, 0, 50, TND_FEATURE_RAW_F32, f.data()));
  const std::vector<tnd_draft_request> ask = {{a, 3, 50, 8, 8, 1.0f}};
  const auto want = e.propose(ask);
  int32_t snap = -1;
  CHECK_OK(e.role->snapshot_create(a, &snap));
  uint64_t bytes = 0;
  CHECK_OK(e.role->export_size(a, &bytes));
  CHECK_EQ(bytes, 64 + 50 * e.info.kv_bytes_per_token);
  REQUIRE(bytes > 64);
  std::vector<uint8_t> data(bytes);
  CHECK_OK(e.role->export_to(a, data.data(), bytes));
  CHECK_EQ(e.role->export_to(a, data.data(), bytes - 1).code(), TND_INVALID_ARGUMENT);

  CHECK_OK(e.role->sequence_truncate(a, 5));
  CHECK_OK(e.append(a, 5, 50, TND_FEATURE_RAW_F32, f.data() + 3));
  CHECK_OK(e.role->snapshot_restore(snap, a));
  CHECK(same(want, e.propose(ask)));
  CHECK_OK(e.role->snapshot_free(snap));
  CHECK_EQ(e.role->snapshot_restore(snap, a).code(), TND_NOT_FOUND);

  const int32_t t = twin.sequence();
  CHECK_OK(twin.role->import_from(t, data.data(), bytes));
  CHECK(same(want, twin.propose({{t, 3, 50, 8, 8, 1.0f}})));
  CHECK_EQ(stranger.role->import_from(stranger.sequence(), data.data(), bytes).code(), TND_FAILED_PRECONDITION);
  for (const size_t at : {size_t{0}, size_t{20}, size_t{40}, size_t{64}, data.size() - 1}) {
    data[at] ^= 4;
    CHECK_EQ(twin.role->import_from(t, data.data(), bytes).code(), TND_DATA_LOSS);
    data[at] ^= 4;
  }
  CHECK_EQ(twin.role->import_from(t, data.data(), 63).code(), TND_DATA_LOSS);
  CHECK_EQ(twin.role->import_from(t, data.data(), bytes - 8).code(), TND_DATA_LOSS);
}

// Memory stays within the cap: a context that does not fit is refused with what would, an open one is cut to fit.
TEST(memory_cap) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes());
  auto used = [](const Engine& e, const char* purpose = "_bytes") {
    std::vector<tnd_stat> m;
    e.role->memory(&m);
    uint64_t n = 0;
    for (const tnd_stat& x : m) n += std::strstr(x.name, purpose) != nullptr ? x.value : 0;
    return n;
  };
  Engine big(file.path, tables.path, 2, 4096);
  CHECK_OK(big.status);
  const uint64_t cap = used(big) - used(big, "kv_bytes") / 2;  // the other memory is a backend's own matter
  Engine refused(file.path, tables.path, 2, 4096, 0, 8, 64, cap);
  CHECK_EQ(refused.status.code(), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(refused.status.message().find("would fit") != std::string::npos, refused.status.message());
  Engine cut(file.path, tables.path, 2, 0, 0, 8, 64, cap);
  CHECK_OK(cut.status);
  if (!cut.status.ok()) return;
  CHECK(cut.info.max_context >= 256 && cut.info.max_context < 4096);
  CHECK(used(cut) <= cap);
  CHECK_EQ(Engine(file.path, tables.path, 2, 0, 0, 8, 64, 100000).status.code(), TND_RESOURCE_EXHAUSTED);
}

TEST(demonstration_draft_opens) {
  const std::string models = TND_ROOT "/models/tandem-tiny-";
  Engine e(models + "draft-q8_0.gguf", models + "target-q4_k_m.gguf", 1, 1024, TND_KV_DEFAULT);
  CHECK_OK(e.status);
  CHECK(e.info.block_size == 16 && e.info.mask_token == 8169 && e.info.n_capture == 3 && e.info.feature_raw == 1536);
  CHECK(e.info.capture_layers[0] == 1 && e.info.capture_layers[1] == 3 && e.info.capture_layers[2] == 5);
  CHECK_EQ(e.warnings.size(), 0u);
}

// The demonstration draft rewritten to the dialect "dflash" as others publish it proposes the same.
TEST(demonstration_draft_as_published) {
  const std::string models = TND_ROOT "/models/tandem-tiny-", tables = models + "target-q4_k_m.gguf";
  std::unique_ptr<gguf::File> source;
  CHECK_OK(gguf::File::open((models + "draft-q8_0.gguf").c_str(), &source));
  REQUIRE(source != nullptr);
  Writer w;
  w.str("general.architecture", "dflash");
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "attention.key_length"}) {
    int32_t v = 0;
    CHECK_OK(source->get_i32(std::string("dflash-draft.") + key, 1, 1 << 28, &v));
    w.u32(std::string("dflash.") + key, uint32_t(v));
  }
  for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"}) {
    float v = 0;
    CHECK_OK(source->get_f32(std::string("dflash-draft.") + key, &v));
    w.f32(std::string("dflash.") + key, v);
  }
  int32_t window = 0;
  CHECK_OK(source->get_i32_or("dflash-draft.attention.sliding_window", 0, 1 << 28, &window));
  if (window > 0) {
    std::vector<bool> sliding;
    CHECK_OK(source->get_bools("dflash-draft.attention.sliding_window_pattern", &sliding));
    w.u32("dflash.attention.sliding_window", uint32_t(window));
    w.flags("dflash.attention.sliding_window_pattern", sliding);
  }
  w.u32("dflash.block_size", 16);
  w.i32s("dflash.target_layers", {2, 4, 6});
  w.u32("tokenizer.ggml.mask_token_id", 8169);
  for (const TensorView& t : source->tensors()) {
    std::string name(t.name);
    if (name == "dflash_fc.weight") name = "fc.weight";
    if (name == "dflash_hidden_norm.weight") name = "enc.output_norm.weight";
    w.tensors.push_back({name,
                         std::vector<uint64_t>(t.ne, t.ne + t.n_dims),
                         {},
                         t.type,
                         std::string(static_cast<const char*>(t.data), t.bytes)});
  }
  TempFile published(w.bytes());
  std::vector<Engine::Top> tops;
  for (const std::string& path : {models + "draft-q8_0.gguf", published.path}) {
    Engine e(path, tables, 1, 1024, TND_KV_DEFAULT);
    CHECK_OK(e.status);
    if (!e.status.ok()) return;
    const auto f = random_features(40, e.info.feature_raw, 1);
    const int32_t q = e.sequence();
    CHECK_OK(e.append(q, 0, 40, TND_FEATURE_RAW_F32, f.data()));
    tops.push_back(e.propose({{q, 3, 40, 8, 8, 1.0f}}));
  }
  CHECK(same(tops[0], tops[1]));
}

TEST_MAIN()
