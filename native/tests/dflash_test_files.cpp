// Files of DFlash drafts: dialects, safetensors, and those that are refused with the reason.
#include <cstring>
#include <string>
#include <vector>

#include "dflash_util.h"

using namespace tnd;
using namespace tnd::dflash_test;

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
