#include "synthetic_model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>

#include "gguf_header.h"

namespace tnd::bench {
namespace {

constexpr uint64_t kAlign = 4096;  // of tensors in the image: pages are filled by several threads
constexpr float kEps = 1e-6f;

uint64_t aligned(uint64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

// SplitMix64: the same model on every machine.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  // normal by the sum of twelve uniform numbers: no tails beyond 6, which real weights hardly have either.
  float normal() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
};

// Chunks of values of a matrix type; a tensor is made of them in an order of its own, so that its rows differ: rows of
// a head that are equal would give tokens that are equally likely, which no trained model has.
constexpr uint64_t kChunk = 256, kChunks = 1021;
Status make_chunks(DType type, float deviation, std::vector<uint8_t>* out) {
  constexpr uint64_t n = kChunk * kChunks;
  std::vector<float> values(n);
  Random random{0x7A6D * (static_cast<uint64_t>(type) + 1)};
  for (float& v : values) v = deviation * random.normal();
  out->resize(row_bytes(type, n));
  return quantise_row(type, values.data(), out->data(), n);
}

// Fills tensor data at `base`, `offsets` apart, with several threads.
class Filler {
 public:
  Filler(const std::vector<SyntheticTensor>& tensors, const std::vector<uint64_t>& offsets, uint8_t* base)
      : tensors_(tensors), offsets_(offsets), base_(base) {}

  Status make_all_chunks() {
    for (const SyntheticTensor& t : tensors_) {
      if (t.ne.size() < 2 || t.type == DType::kF32) continue;
      std::vector<uint8_t>& p = chunks_[key(t)];
      if (p.empty()) TND_TRY(make_chunks(t.type, t.gain / std::sqrt(static_cast<float>(t.ne[0])), &p));
    }
    return Status();
  }

  void run(int threads) {
    std::vector<std::thread> team;
    for (int i = 1; i < threads; ++i) team.emplace_back([this] { work(); });
    work();
    for (std::thread& t : team) t.join();
  }

 private:
  static std::tuple<int32_t, uint64_t, float> key(const SyntheticTensor& t) {
    return {static_cast<int32_t>(t.type), t.ne[0], t.gain};
  }

  void work() {
    for (size_t i = next_++; i < tensors_.size(); i = next_++) fill(tensors_[i], base_ + offsets_[i]);
  }

  void fill(const SyntheticTensor& t, uint8_t* at) const {
    if (t.type == DType::kF32) {
      Random random{t.name.size() * 131 + static_cast<uint8_t>(t.name.back())};
      for (uint64_t i = 0; i < t.elements(); ++i) {
        const float v = t.low + (t.high - t.low) * random.uniform();
        std::memcpy(at + i * sizeof v, &v, sizeof v);
      }
      return;
    }
    const std::vector<uint8_t>& chunks = chunks_.at(key(t));
    const uint64_t n = t.bytes(), size = chunks.size() / kChunks;
    Random random{0};
    for (const char c : t.name) random.state = random.next() + static_cast<uint8_t>(c);
    for (uint64_t done = 0; done < n; done += size) {
      std::memcpy(at + done, &chunks[random.next() % kChunks * size], std::min(size, n - done));
    }
  }

  const std::vector<SyntheticTensor>& tensors_;
  const std::vector<uint64_t>& offsets_;
  uint8_t* const base_;
  std::map<std::tuple<int32_t, uint64_t, float>, std::vector<uint8_t>> chunks_;
  std::atomic<size_t> next_{0};
};

// A layer's list of tensors grows here; matrices get the type of the mix.
struct List {
  const SyntheticShape& s;
  std::vector<SyntheticTensor> all;
  float branch;  // gain of matrices that add to the residual stream

  explicit List(const SyntheticShape& shape)
      : s(shape), branch(1 / std::sqrt(2.0f * static_cast<float>(shape.layers))) {}

  void vector(const std::string& name, uint64_t n, float low, float high) {
    all.push_back({name, DType::kF32, {n}, 1, low, high});
  }
  // matrix [k, n]; `quantised` is its type in the Q4_K_M mix.
  void matrix(const std::string& name, int64_t k, int64_t n, DType quantised, float gain = 1) {
    const DType type = s.mix == Mix::kQ4KM ? quantised : s.mix == Mix::kBF16 ? DType::kBF16 : DType::kQ8_0;
    all.push_back({name, type, {static_cast<uint64_t>(k), static_cast<uint64_t>(n)}, gain, 0, 0});
  }

  void mlp(const std::string& p, bool more) {
    matrix(p + "ffn_gate.weight", s.hidden, s.ffn, DType::kQ4_K);
    matrix(p + "ffn_up.weight", s.hidden, s.ffn, DType::kQ4_K);
    matrix(p + "ffn_down.weight", s.ffn, s.hidden, more ? DType::kQ6_K : DType::kQ4_K, branch);
  }

  void attention(const std::string& p, bool six_bit_v) {
    const int64_t q = int64_t{s.q_heads} * s.head_dim, kv = int64_t{s.kv_heads} * s.head_dim;
    const bool gated = s.arch == "qwen35";
    vector(p + "attn_q_norm.weight", static_cast<uint64_t>(s.head_dim), 1, 1);
    vector(p + "attn_k_norm.weight", static_cast<uint64_t>(s.head_dim), 1, 1);
    matrix(p + "attn_q.weight", s.hidden, gated ? 2 * q : q, DType::kQ4_K);
    matrix(p + "attn_k.weight", s.hidden, kv, DType::kQ4_K);
    matrix(p + "attn_v.weight", s.hidden, kv, six_bit_v ? DType::kQ6_K : DType::kQ4_K);
    matrix(p + "attn_output.weight", q, s.hidden, DType::kQ4_K, branch);
  }

  void delta(const std::string& p) {
    const int64_t key = int64_t{s.delta_key_heads} * 128, value = int64_t{s.delta_value_heads} * 128;
    const auto heads = static_cast<uint64_t>(s.delta_value_heads);
    matrix(p + "attn_qkv.weight", s.hidden, 2 * key + value, DType::kQ5_K);
    matrix(p + "attn_gate.weight", s.hidden, value, DType::kQ5_K);
    matrix(p + "ssm_alpha.weight", s.hidden, s.delta_value_heads, DType::kQ8_0);
    matrix(p + "ssm_beta.weight", s.hidden, s.delta_value_heads, DType::kQ8_0);
    SyntheticTensor conv{p + "ssm_conv1d.weight", DType::kF32, {4, static_cast<uint64_t>(2 * key + value)}, 1, -1, 1};
    all.push_back(conv);
    vector(p + "ssm_a", heads, -4, -0.5f);  // -exp(A_log)
    vector(p + "ssm_dt.bias", heads, -4, -1);
    vector(p + "ssm_norm.weight", 128, 1, 1);
    matrix(p + "ssm_out.weight", value, s.hidden, DType::kQ4_K, branch);
  }
};

void write_keys(const SyntheticShape& s, GgufHeader* h) {
  const std::string a = s.arch + ".";
  const auto u = [&](const char* key, int32_t v) { h->key_u32(a + key, static_cast<uint32_t>(v)); };
  h->key_text("general.architecture", s.arch);
  h->key_text("general.name", s.name);
  h->key_u32("general.alignment", kAlign);
  h->key_u32("general.quantization_version", 2);
  u("block_count", s.layers);
  u("context_length", s.context_length);
  u("embedding_length", s.hidden);
  u("feed_forward_length", s.ffn);
  u("attention.head_count", s.q_heads);
  u("attention.head_count_kv", s.kv_heads);
  u("attention.key_length", s.head_dim);
  u("attention.value_length", s.head_dim);
  u("rope.dimension_count", s.rope_dims);
  h->key_f32(a + "attention.layer_norm_rms_epsilon", kEps);
  h->key_f32(a + "rope.freq_base", s.rope_theta);
  if (s.delta_value_heads > 0) {
    u("full_attention_interval", 4);
    u("ssm.conv_kernel", 4);
    u("ssm.state_size", 128);
    u("ssm.group_count", s.delta_key_heads);
    u("ssm.time_step_rank", s.delta_value_heads);
    u("ssm.inner_size", s.delta_value_heads * 128);
  }
  if (!s.target_layers.empty()) {
    u("dflash.block_size", 16);
    u("dflash.mask_token_id", 0);
    h->key_ints(a + "dflash.target_layer_ids", s.target_layers);
    if (!s.sliding.empty()) {
      u("attention.sliding_window", s.window);
      h->key_flags(a + "attention.sliding_window_pattern", s.sliding);
    }
  }
}

// The character that stands for a byte in vocabulary files (docs/spec/tokenizer.md §4), in UTF-8.
std::string byte_character(int byte) {
  static const std::vector<int> points = [] {
    std::vector<int> all(256);
    int next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      all[static_cast<size_t>(b)] = printable ? b : next++;
    }
    return all;
  }();
  const int point = points[static_cast<size_t>(byte)];
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

// write_tokenizer gives every id a token: bytes, two control tokens, then words that no merge makes. So each id can be
// generated, as with a real vocabulary, while a prompt is one token a byte.
void write_tokenizer(int32_t vocab, GgufHeader* h) {
  constexpr int32_t kNormal = 1, kControl = 3;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int b = 0; b < 256; ++b) tokens.push_back(byte_character(b));
  types.assign(tokens.size(), kNormal);
  for (const char* text : {"<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(text);
    types.push_back(kControl);
  }
  for (int32_t i = static_cast<int32_t>(tokens.size()); i < vocab; ++i) {
    tokens.push_back(std::to_string(i) + 'w');
    types.push_back(kNormal);
  }
  h->key_text("tokenizer.ggml.model", "gpt2");
  h->key_text("tokenizer.ggml.pre", "qwen35");
  h->key_texts("tokenizer.ggml.tokens", tokens);
  h->key_ints("tokenizer.ggml.token_type", types);
  h->key_texts("tokenizer.ggml.merges", {});
  h->key_u32("tokenizer.ggml.eos_token_id", 257);
  h->key_text("tokenizer.chat_template",
              "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
              "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

}  // namespace

uint64_t SyntheticTensor::elements() const {
  uint64_t n = 1;
  for (const uint64_t d : ne) n *= d;
  return n;
}

uint64_t SyntheticTensor::bytes() const {
  return row_bytes(type, ne[0]) * (elements() / ne[0]);
}

SyntheticShape qwen35_27b_q4_k_m() {
  SyntheticShape s;
  s.arch = "qwen35";
  s.name = "synthetic 27B Q4_K_M";
  s.mix = Mix::kQ4KM;
  s.layers = 64;
  s.hidden = 5120;
  s.ffn = 17408;
  s.q_heads = 24;
  s.kv_heads = 4;
  s.head_dim = 256;
  s.rope_dims = 64;
  s.delta_key_heads = 16;
  s.delta_value_heads = 48;
  s.vocab = 248320;
  return s;
}

SyntheticShape qwen35_08b_bf16() {
  SyntheticShape s = qwen35_27b_q4_k_m();
  s.name = "synthetic 0.8B BF16";
  s.mix = Mix::kBF16;
  s.layers = 24;
  s.hidden = 1024;
  s.ffn = 3584;
  s.q_heads = 8;
  s.kv_heads = 2;
  s.delta_value_heads = 16;
  s.tied = true;
  return s;
}

SyntheticShape dflash_27b_q8_0() {
  SyntheticShape s;
  s.arch = "dflash-draft";
  s.name = "synthetic 27B drafter Q8_0";
  s.mix = Mix::kQ8_0;
  s.layers = 5;
  s.hidden = 5120;
  s.ffn = 17408;
  s.q_heads = 32;
  s.kv_heads = 8;
  s.head_dim = s.rope_dims = 128;
  s.target_layers = {1, 16, 31, 46, 61};
  return s;
}

SyntheticShape qwen3_06b_bf16() {
  SyntheticShape s;
  s.arch = "qwen3";
  s.name = "synthetic Qwen3-0.6B BF16";
  s.layers = 28;
  s.hidden = 1024;
  s.ffn = 3072;
  s.q_heads = 16;
  s.kv_heads = 8;
  s.head_dim = s.rope_dims = 128;
  s.vocab = 151936;
  s.tied = true;
  s.rope_theta = 1e6f;
  s.context_length = 40960;
  return s;
}

std::vector<SyntheticTensor> synthetic_tensors(const SyntheticShape& s) {
  List list(s);
  const auto hidden = static_cast<uint64_t>(s.hidden);
  const bool draft = !s.target_layers.empty();
  if (draft) {
    list.matrix("dflash_fc.weight", static_cast<int64_t>(s.target_layers.size()) * s.hidden, s.hidden, DType::kQ8_0);
    list.vector("dflash_hidden_norm.weight", hidden, 1, 1);
  }
  if (s.vocab > 0) {
    list.matrix("token_embd.weight", s.hidden, s.vocab, s.tied ? DType::kQ6_K : DType::kQ4_K);
    if (!s.tied) list.matrix("output.weight", s.hidden, s.vocab, DType::kQ6_K);
  }
  list.vector("output_norm.weight", hidden, 1, 1);
  int32_t attention = 0;
  for (int32_t i = 0; i < s.layers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    list.vector(p + "attn_norm.weight", hidden, 1, 1);
    if (s.recurrent(i)) {
      list.delta(p);
    } else {
      list.attention(p, attention++ % 8 < 5);  // ten of sixteen, as the published file has
    }
    list.vector(p + (s.arch == "qwen35" ? "post_attention_norm.weight" : "ffn_norm.weight"), hidden, 1, 1);
    const int32_t eighth = s.layers / 8;
    list.mlp(p, i < eighth || i >= 7 * s.layers / 8 || (i - eighth) % 3 == 2);
  }
  return list.all;
}

Status SyntheticModel::make(const SyntheticShape& shape, int threads, std::unique_ptr<SyntheticModel>* out) {
  std::unique_ptr<SyntheticModel> m(new SyntheticModel());
  m->fd_ = memfd_create("synthetic.gguf", MFD_CLOEXEC);
  TND_TRY(m->fill(shape, threads, false));
  m->path_ = "/proc/self/fd/" + std::to_string(m->fd_);
  *out = std::move(m);
  return Status();
}

Status SyntheticModel::write(const SyntheticShape& shape, int threads, const std::string& path) {
  SyntheticModel m;
  m.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return m.fill(shape, threads, true);
}

Status SyntheticModel::fill(const SyntheticShape& shape, int threads, bool served) {
  const std::vector<SyntheticTensor> tensors = synthetic_tensors(shape);
  GgufHeader h;
  write_keys(shape, &h);
  if (served && shape.vocab > 0) write_tokenizer(shape.vocab, &h);

  std::vector<uint64_t> offsets;
  uint64_t at = 0;
  for (const SyntheticTensor& t : tensors) {
    h.tensor(t.name, t.ne, static_cast<uint32_t>(t.type), at);
    offsets.push_back(at);
    at += aligned(t.bytes());
    tensor_bytes_ += t.bytes();
    const bool table = t.name == "token_embd.weight" && !shape.tied;
    if (!table) read_bytes_ += t.bytes();
    const bool head = t.name == "output.weight" || (t.name == "token_embd.weight" && shape.tied);
    if (head) head_macs_ = t.elements();
    if (t.ne.size() == 2 && t.type != DType::kF32 && !table) macs_ += t.elements();
  }
  const std::string head = h.bytes();
  const uint64_t start = aligned(head.size());
  for (uint64_t& o : offsets) o += start;

  const uint64_t size = start + at;
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(size)) != 0) {
    return errorf(TND_RESOURCE_EXHAUSTED, "%s: no file of %llu bytes: %s", shape.name.c_str(),
                  static_cast<unsigned long long>(size), std::strerror(errno));
  }
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) {
    return errorf(TND_RESOURCE_EXHAUSTED, "%s: cannot map %llu bytes", shape.name.c_str(),
                  static_cast<unsigned long long>(size));
  }
  std::memcpy(base, head.data(), head.size());
  Filler filler(tensors, offsets, static_cast<uint8_t*>(base));
  Status s;
  if (threads > 0) {
    s = filler.make_all_chunks();
    if (s.ok()) filler.run(threads);
  }
  munmap(base, size);
  return s;
}

SyntheticModel::~SyntheticModel() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace tnd::bench
