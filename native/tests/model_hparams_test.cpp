// Models that do not fit together are refused with file, key or tensor named: every case is a good file with one
// thing changed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "engine_util.h"
#include "models/hparams.h"

using namespace tnd;
using namespace tnd::test;

namespace {

using Image = std::vector<uint8_t>;

Image load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Image(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// Offset behind the first stored string `text` (length-prefixed), 0 when absent.
size_t behind(const Image& image, const std::string& text) {
  const uint64_t n = text.size();
  std::string wanted(reinterpret_cast<const char*>(&n), sizeof n);
  wanted += text;
  const auto at = std::search(image.begin(), image.end(), wanted.begin(), wanted.end());
  return at == image.end() ? 0 : static_cast<size_t>(at - image.begin()) + wanted.size();
}

// Replaces the 32-bit value of a key (its type stays).
Image with_value(Image image, const std::string& key, uint32_t value) {
  const size_t at = behind(image, key);
  if (at == 0) report(__FILE__, __LINE__, "no key " + key);
  std::memcpy(image.data() + at + 4, &value, 4);
  return image;
}
Image with_float(Image image, const std::string& key, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return with_value(std::move(image), key, bits);
}
// Renames a key or tensor to a text of the same length.
Image renamed(Image image, const std::string& from, const std::string& to) {
  const size_t at = behind(image, from);
  if (at == 0 || from.size() != to.size()) report(__FILE__, __LINE__, "cannot rename " + from);
  std::copy(to.begin(), to.end(), image.begin() + static_cast<std::ptrdiff_t>(at - from.size()));
  return image;
}
// Replaces ne[dim] of a tensor.
Image with_ne(Image image, const std::string& tensor, int dim, uint64_t value) {
  const size_t at = behind(image, tensor);
  if (at == 0) report(__FILE__, __LINE__, "no tensor " + tensor);
  std::memcpy(image.data() + at + 4 + static_cast<size_t>(dim) * 8, &value, 8);
  return image;
}

tnd_status open_image(const Image& image, std::string* error) {
  char path[] = "/tmp/tandem_model_XXXXXX";
  const int fd = mkstemp(path);
  if (fd < 0) return TND_INTERNAL;
  std::FILE* f = fdopen(fd, "wb");
  const bool written = std::fwrite(image.data(), 1, image.size(), f) == image.size();
  std::fclose(f);
  EngineOptions o;
  o.max_context = 64;
  Engine e;
  const tnd_status s = written ? e.open(path, o, error) : TND_INTERNAL;
  unlink(path);
  return s;
}

void refused(const Image& image, tnd_status status, const char* text) {
  std::string error;
  const tnd_status got = open_image(image, &error);
  CHECK_MSG(got == status, std::string(text) + ": status " + std::to_string(got) + " " + error);
  CHECK_MSG(error.find(text) != std::string::npos, error);
}

}  // namespace

TEST(metadata_that_cannot_work) {
  const Image good = load(random_model("onelayer"));
  std::string error;
  CHECK_EQ(open_image(good, &error), TND_OK);
  refused(renamed(good, "qwen35", "qwen99"), TND_UNIMPLEMENTED, "qwen99");
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
        "rope.freq_base", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
        "ssm.inner_size"}) {
    const std::string full = std::string("qwen35.") + key;
    std::string other = full;
    other.back() = '#';
    refused(renamed(good, full, other), TND_INVALID_ARGUMENT, full.c_str());
    refused(with_value(good, full, 0), TND_INVALID_ARGUMENT, full.c_str());
  }
  refused(with_value(good, "qwen35.block_count", 5000), TND_INVALID_ARGUMENT, "block_count");
  refused(with_value(good, "qwen35.ssm.conv_kernel", 5), TND_UNIMPLEMENTED, "convolution");
  refused(with_value(good, "qwen35.ssm.state_size", 64), TND_UNIMPLEMENTED, "heads of 64");
  refused(with_value(good, "qwen35.ssm.group_count", 3), TND_INVALID_ARGUMENT, "ssm.time_step_rank");
  refused(with_value(good, "qwen35.ssm.inner_size", 512), TND_INVALID_ARGUMENT, "ssm.inner_size");
  refused(with_value(good, "qwen35.attention.head_count_kv", 3), TND_INVALID_ARGUMENT, "head_count");
  refused(with_value(good, "qwen35.attention.value_length", 128), TND_INVALID_ARGUMENT, "value_length");
  refused(with_value(good, "qwen35.rope.dimension_count", 40), TND_UNIMPLEMENTED, "dimension_count");
  refused(with_float(good, "qwen35.attention.layer_norm_rms_epsilon", -1.0f), TND_INVALID_ARGUMENT, "epsilon");
  refused(with_float(good, "qwen35.rope.freq_base", 0.5f), TND_INVALID_ARGUMENT, "freq_base");
}

TEST(tensors_that_do_not_fit) {
  const Image good = load(random_model("onelayer"));
  refused(renamed(good, "blk.1.ssm_a", "blk.1.ssm_b"), TND_INVALID_ARGUMENT, "blk.1.ssm_a");
  refused(renamed(good, "token_embd.weight", "token_embd.weighs"), TND_INVALID_ARGUMENT, "token_embd.weight");
  refused(renamed(good, "output_norm.weight", "output_norm.weighs"), TND_INVALID_ARGUMENT, "output_norm.weight");
  refused(with_value(good, "qwen35.attention.head_count", 4), TND_INVALID_ARGUMENT, "blk.3.attn_q.weight");
  refused(with_value(good, "qwen35.feed_forward_length", 512), TND_INVALID_ARGUMENT, "ffn_gate.weight");
  refused(with_value(good, "qwen35.full_attention_interval", 2), TND_INVALID_ARGUMENT, "blk.1.attn");
  // Another size of a tensor already contradicts the offsets behind it.
  refused(with_ne(good, "blk.0.ssm_conv1d.weight", 0, 8), TND_INVALID_ARGUMENT, "offset");
}

TEST(next_token_blocks_are_left_out) {
  // A key of the same length makes room: the last of four blocks is declared a next-token block.
  const Image image =
      with_value(renamed(load(random_model("onelayer")), "tokenizer.ggml.eos_token_id", "qwen35.nextn_predict_layers"),
                 "qwen35.nextn_predict_layers", 1);
  std::unique_ptr<gguf::File> file;
  CHECK_OK(gguf::File::open_memory(image.data(), image.size(), &file));
  HParams p;
  CHECK_OK(read_hparams(*file, &p));
  CHECK_EQ(p.n_layers, 3);
  CHECK_EQ(p.delta_layers(0, 3), 3);
  CHECK_EQ(p.attention_layers(0, 3), 0);
  std::string error;
  CHECK_EQ(open_image(image, &error), TND_OK);
  refused(with_value(image, "qwen35.nextn_predict_layers", 4), TND_INVALID_ARGUMENT, "nextn_predict_layers");
}

TEST(a_shard_may_have_no_attention) {
  EngineOptions o;
  o.layer_last = 3;
  Engine e(random_model("onelayer"), o);
  REQUIRE(e.handle() != nullptr);
  StepIn in;
  in.groups = {e.rows(e.sequence(), {1, 2}, {-1, 0}, 0)};
  CHECK_EQ(e.run_ok(in).hidden.size(), size_t{512});
  CHECK_EQ(e.info().kv_bytes_per_token, uint64_t{0});
}

TEST_MAIN()
