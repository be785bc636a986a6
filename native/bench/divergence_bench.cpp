// How far an engine's logits are from those of float32 arithmetic with the same weights (docs/spec/qwen35.md §12): mean
// and largest Kullback-Leibler divergence per position and how often both think the same token likeliest, over texts
// that both are forced to follow.
//
//   divergence_bench [--model FILE] [--texts FILE] [--library FILE] [--device cuda:0] [--kv K[,V]] [--rows N]
//                    [--bf16 1] [--threads N] [--most-kl X] [--least-same X]
//
// The reference is the CPU engine on a copy of the model whose weights are decoded to F32, with an F32 cache. Compared
// is the engine of --library (default: the CPU engine of this program) on --device, with rows of a step --rows at a
// time (1: plain decoding; more than 64: prompts), and with keys and values of the types --kv (one name: both). With
// --bf16 1 both have a copy of the model whose matrices are BF16.
// --texts is a file like tests/testdata/golden/tandem-tiny-q4km.json: of every case "ids" and "greedy" are followed.
// The defaults are the demonstration target and those texts, from the root of the repository. Exit code 1: the mean
// divergence is above --most-kl (nats) or the share of equal tokens below --least-same (percent).
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "gguf/gguf.h"
#include "gguf/json.h"
#include "kv_types.h"
#include "tandem/engine.h"

namespace {

using namespace tnd;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "divergence_bench: %s\n", text.c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (!s.ok()) fail(s.message());
}

std::string read_file(const std::string& path) {
  std::FILE* f = std::fopen(path.c_str(), "rb");
  if (f == nullptr) fail(path + ": cannot be opened");
  std::string all;
  char block[1 << 16];
  for (size_t n; (n = std::fread(block, 1, sizeof block, f)) > 0;) all.append(block, n);
  std::fclose(f);
  return all;
}

// Where the key/value pairs of a GGUF image that was opened without error end.
class Pairs {
 public:
  explicit Pairs(const std::string& image) : image_(image) {}
  size_t end() {
    at_ = 16;
    for (uint64_t n = number(8); n > 0; --n) {
      at_ += number(8);
      skip_value(static_cast<uint32_t>(number(4)));
    }
    return at_;
  }

 private:
  uint64_t number(size_t bytes) {
    uint64_t v = 0;
    if (at_ + bytes > image_.size()) fail("the model ends within its keys");
    std::memcpy(&v, image_.data() + at_, bytes);
    at_ += bytes;
    return v;
  }
  void skip_value(uint32_t type) {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == gguf::kString) {
      at_ += number(8);
    } else if (type == gguf::kArray) {
      const auto element = static_cast<uint32_t>(number(4));
      for (uint64_t n = number(8); n > 0; --n) skip_value(element);
    } else {
      at_ += kSizes[type];
    }
  }

  const std::string& image_;
  size_t at_ = 0;
};

// A copy of the model in memory with every matrix as `type` and the rest as F32; the path opens it from this process.
std::string copy_as(DType type, const std::string& path) {
  constexpr uint64_t kAlign = 32;
  const std::string image = read_file(path);
  std::unique_ptr<gguf::File> file;
  must(gguf::File::open(path.c_str(), &file));
  std::string head = image.substr(0, Pairs(image).end());
  const auto put = [&head](auto v) { head.append(reinterpret_cast<const char*>(&v), sizeof v); };
  // The convolution's taps stay floats, as all files have them.
  const auto type_of = [type](const TensorView& t) { return t.n_dims == 2 && t.ne[0] % 32 == 0 ? type : DType::kF32; };
  const auto rows_of = [](const TensorView& t) { return t.ne[1] * t.ne[2] * t.ne[3]; };
  uint64_t at = 0;
  for (const TensorView& t : file->tensors()) {
    put(uint64_t{t.name.size()});
    head.append(t.name);
    put(t.n_dims);
    for (uint32_t d = 0; d < t.n_dims; ++d) put(t.ne[d]);
    put(static_cast<uint32_t>(type_of(t)));
    put(at);
    at += (rows_of(t) * row_bytes(type_of(t), t.ne[0]) + kAlign - 1) / kAlign * kAlign;
  }
  int32_t align = kAlign;
  must(file->get_i32_or("general.alignment", 1, 1 << 20, &align));
  if (align != kAlign) fail(path + ": general.alignment is not 32");
  head.resize((head.size() + kAlign - 1) / kAlign * kAlign);

  const int fd = memfd_create("copy.gguf", MFD_CLOEXEC);
  const auto write_all = [fd](const void* data, size_t bytes) {
    for (const auto* p = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t n = write(fd, p, bytes);
      if (n <= 0) fail("no memory for a copy of the model");
      p += n, bytes -= static_cast<size_t>(n);
    }
  };
  write_all(head.data(), head.size());
  std::vector<float> values;
  std::vector<uint8_t> rows;
  for (const TensorView& t : file->tensors()) {
    const auto from = static_cast<DType>(t.type);
    const uint64_t n = rows_of(t), read = row_bytes(from, t.ne[0]), written = row_bytes(type_of(t), t.ne[0]);
    values.resize(t.ne[0]);
    rows.assign((n * written + kAlign - 1) / kAlign * kAlign, 0);
    for (uint64_t r = 0; r < n; ++r) {
      dequantise_row(from, static_cast<const uint8_t*>(t.data) + r * read, values.data(), t.ne[0]);
      must(quantise_row(type_of(t), values.data(), rows.data() + r * written, t.ne[0]));
    }
    write_all(rows.data(), rows.size());
  }
  return "/proc/self/fd/" + std::to_string(fd);
}

std::vector<std::vector<int32_t>> read_texts(const std::string& path) {
  const std::string text = read_file(path);
  Json json;
  must(json.parse(text, path));
  const Json::Value* cases = json.get(&json.root(), "cases");
  if (cases == nullptr) fail(path + ": no \"cases\"");
  std::vector<std::vector<int32_t>> all;
  for (const Json::Value* c = json.first(*cases); c != nullptr; c = json.next(*c)) {
    std::vector<int32_t>& ids = all.emplace_back();
    for (const char* key : {"ids", "greedy"}) {
      const Json::Value* list = json.get(c, key);
      if (list == nullptr) fail(path + ": a case has no \"" + key + "\"");
      for (const Json::Value* v = json.first(*list); v != nullptr; v = json.next(*v)) {
        ids.push_back(static_cast<int32_t>(v->integer));
      }
    }
  }
  return all;
}

// The C ABI of one library.
struct Library {
  decltype(&tnd_open) open = tnd_open;
  decltype(&tnd_get_info) get_info = tnd_get_info;
  decltype(&tnd_last_error) last_error = tnd_last_error;
  decltype(&tnd_sequence_create) sequence_create = tnd_sequence_create;
  decltype(&tnd_sequence_free) sequence_free = tnd_sequence_free;
  decltype(&tnd_step_run) step_run = tnd_step_run;

  void load(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) fail(dlerror());
    const auto find = [&](const char* name, auto* f) {
      *reinterpret_cast<void**>(f) = dlsym(handle, name);
      if (*f == nullptr) fail(path + ": no " + name);
    };
    find("tnd_open", &open);
    find("tnd_get_info", &get_info);
    find("tnd_last_error", &last_error);
    find("tnd_sequence_create", &sequence_create);
    find("tnd_sequence_free", &sequence_free);
    find("tnd_step_run", &step_run);
  }
};

class Model {
 public:
  Model(const Library& library, const std::string& path, const std::string& device, int32_t k_type, int32_t v_type,
        int32_t context, int32_t rows, int32_t threads)
      : lib_(library), rows_(rows) {
    tnd_open_options o{};
    o.struct_size = sizeof o;
    o.role = TND_ROLE_TARGET;
    o.model_path = path.c_str();
    o.device = device.empty() ? nullptr : device.c_str();
    o.threads = threads;
    o.max_sequences = 1;
    o.max_context = context;
    o.max_batch_rows = std::max(rows, 64);
    o.kv_type_k = k_type;
    o.kv_type_v = v_type;
    char error[512] = "";
    if (lib_.open(&o, &engine_, error, sizeof error) != TND_OK) fail(error);
    info_.struct_size = sizeof info_;
    check(lib_.get_info(engine_, &info_));
  }
  const tnd_info& info() const { return info_; }

  // logits [ids.size(), vocab] of all positions of a text.
  void follow(const std::vector<int32_t>& ids, std::vector<float>* logits) {
    const auto vocab = static_cast<size_t>(info_.vocab);
    logits->resize(ids.size() * vocab);
    int32_t sequence = -1;
    check(lib_.sequence_create(engine_, &sequence));
    std::vector<tnd_row> rows;
    for (size_t at = 0; at < ids.size(); at += rows.size()) {
      rows.assign(std::min(ids.size() - at, static_cast<size_t>(rows_)), tnd_row{});
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].token = ids[at + i];
        rows[i].position = static_cast<int32_t>(at + i);
        rows[i].parent = static_cast<int32_t>(i) - 1;
        rows[i].want = TND_WANT_LOGITS;
        rows[i].mask = -1;
      }
      const auto n = static_cast<int32_t>(rows.size());
      const uint32_t kind = info_.prompt_rows > 0 && n > info_.prompt_rows ? TND_GROUP_PROMPT : TND_GROUP_DECODE;
      const tnd_group group{sequence, n, kind, TND_GROUP_COMMIT, nullptr, 0, 0, 0};
      tnd_step step{};
      step.struct_size = sizeof step;
      step.n_groups = 1;
      step.groups = &group;
      step.n_rows = static_cast<int32_t>(rows.size());
      step.rows = rows.data();
      step.logits = logits->data() + at * vocab;
      check(lib_.step_run(engine_, &step));
    }
    check(lib_.sequence_free(engine_, sequence));
  }

 private:
  void check(tnd_status status) {
    if (status == TND_OK) return;
    char text[512] = "";
    lib_.last_error(engine_, text, sizeof text);
    fail(text);
  }

  const Library& lib_;
  const int32_t rows_;
  tnd_engine* engine_ = nullptr;
  tnd_info info_{};
};

struct Divergence {
  double sum = 0, largest = 0, error = 0;  // nats; error: largest difference of logits over the largest logit
  int64_t positions = 0, same = 0;

  void add(const float* p, const float* q, size_t vocab) {
    const auto log_sum = [vocab](const float* x, size_t* top) {
      *top = static_cast<size_t>(std::max_element(x, x + vocab) - x);
      double sum = 0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - x[*top]);
      return x[*top] + std::log(sum);
    };
    size_t p_top = 0, q_top = 0;
    const double p_log = log_sum(p, &p_top), q_log = log_sum(q, &q_top);
    double kl = 0, apart = 0, scale = 0;
    for (size_t i = 0; i < vocab; ++i) {
      const double lp = p[i] - p_log, lq = q[i] - q_log;
      kl += std::exp(lp) * (lp - lq);
      apart = std::max(apart, std::abs(static_cast<double>(p[i]) - q[i]));
      scale = std::max(scale, std::abs(static_cast<double>(p[i])));
    }
    sum += kl;
    largest = std::max(largest, kl);
    error = std::max(error, apart / scale);
    ++positions;
    same += p_top == q_top;
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options = {{"model", "models/tandem-tiny-target-q4_k_m.gguf"},
                                                {"texts", "tests/testdata/golden/tandem-tiny-q4km.json"},
                                                {"library", ""},
                                                {"device", ""},
                                                {"kv", "f16"},
                                                {"rows", "64"},
                                                {"bf16", "0"},
                                                {"threads", "0"},
                                                {"most-kl", "1e9"},
                                                {"least-same", "0"}};
  for (int i = 1; i < argc; i += 2) {
    const std::string key = std::strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
    if (options.count(key) == 0 || i + 1 == argc) fail("unknown option or missing value: " + std::string(argv[i]));
    options[key] = argv[i + 1];
  }
  const std::string keys = options["kv"].substr(0, options["kv"].find(','));
  const std::string values = keys.size() == options["kv"].size() ? keys : options["kv"].substr(keys.size() + 1);
  const int32_t k_type = kv_type_of(keys.c_str()), v_type = kv_type_of(values.c_str());
  if (k_type < 0 || v_type < 0) fail("--kv: " + options["kv"] + " is not of " + kKvTypeNames);
  const int32_t rows = std::atoi(options["rows"].c_str()), threads = std::atoi(options["threads"].c_str());
  if (rows < 1) fail("--rows: " + options["rows"]);

  const std::vector<std::vector<int32_t>> texts = read_texts(options["texts"]);
  size_t longest = 1;
  for (const auto& ids : texts) longest = std::max(longest, ids.size());
  const Library here;
  Library tested;
  if (!options["library"].empty()) tested.load(options["library"]);
  const auto context = static_cast<int32_t>(longest);
  const bool bf16 = options["bf16"] == "1";
  const std::string path = bf16 ? copy_as(DType::kBF16, options["model"]) : options["model"];
  Model reference(here, copy_as(DType::kF32, path), "cpu", 0, 0, context, 64, threads);
  Model model(tested, path, options["device"], k_type, v_type, context, rows, threads);

  const auto vocab = static_cast<size_t>(model.info().vocab);
  Divergence all;
  std::vector<float> p, q;
  for (const auto& ids : texts) {
    reference.follow(ids, &p);
    model.follow(ids, &q);
    for (size_t i = 0; i < ids.size(); ++i) all.add(&p[i * vocab], &q[i * vocab], vocab);
  }
  const auto n = static_cast<double>(all.positions);
  std::printf("%s%s on %s, %s cache, %d rows a step, against float32 on %lld positions of %zu texts:\n",
              options["model"].c_str(), bf16 ? " as BF16" : "", model.info().device, options["kv"].c_str(), rows,
              static_cast<long long>(all.positions), texts.size());
  std::printf(
      "mean KL %.2e nats, largest %.2e; same likeliest token %.2f %%; largest error %.2f %% of the largest logit\n",
      all.sum / n, all.largest, 100 * static_cast<double>(all.same) / n, 100 * all.error);
  const bool within = all.sum / n <= std::atof(options["most-kl"].c_str()) &&
                      100 * static_cast<double>(all.same) / n >= std::atof(options["least-same"].c_str());
  return within ? 0 : 1;
}
