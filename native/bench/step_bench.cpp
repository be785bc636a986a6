// Times whole steps of a target engine through the C ABI: rows of a tree on top of a context, plain decoding, prefill
// by chunk, and the share of every phase. Usage:
//   step_bench [model.gguf] [threads] [what] [draft.gguf]   what: rows, plain, prefill, mixed, choice or all (default)
// With a draft every row also gives its fused features, as when that draft is attached; plain decoding is timed without
// them, with them at once and with them kept and read many at a time. mixed: a prompt's piece of 512 rows beside rows
// of 8 other sequences in one step, against both apart. choice (not part of all): what every sampler adds to a plain
// step and to a tree of 16 rows, as a ratio to the same step with argmax just before it; the file wants a large
// vocabulary then, as synthetic_gguf's have.
// The default model is the demonstration target, run from the root of the repository. Each figure is the median of many
// runs, so that other work on the machine disturbs little.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "bench_engine.h"
#include "tandem/engine.h"

using tnd::bench::cpu_us, tnd::bench::median;

namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(tnd_engine* e, tnd_status s, const char* what) {
  if (s == TND_OK) return;
  char text[512] = "";
  tnd_last_error(e, text, sizeof text);
  std::fprintf(stderr, "%s: status %d: %s\n", what, s, text);
  std::exit(1);
}

// A way to choose tokens, and how many log-probabilities every row gives with them.
struct Choice {
  const char* name;
  float temperature, top_p, min_p;
  int32_t top_k;
  float repetition, presence;
  int32_t top;
};

constexpr Choice kChoices[] = {
    {"argmax", 0, 1, 0, 0, 1, 0, 0},  // the first: what the others are compared with
    {"temperature", 0.7f, 1, 0, 0, 1, 0, 0},
    {"top_k 20", 0.7f, 1, 0, 20, 1, 0, 0},
    {"top_p 0.95", 0.7f, 0.95f, 0, 0, 1, 0, 0},
    {"top_p 0.95 top_k 50000", 0.7f, 0.95f, 0, 50000, 1, 0, 0},
    {"level top_p 0.5", 2, 0.5f, 0, 0, 1, 0, 0},
    {"min_p 0.05", 0.7f, 1, 0.05f, 0, 1, 0, 0},
    {"penalties", 0.7f, 1, 0, 0, 1.1f, 0.5f, 0},
    {"penalties top_p 0.95", 0.7f, 0.95f, 0, 0, 1.1f, 0.5f, 0},
    {"logprobs 5", 0, 1, 0, 0, 1, 0, 5},
    {"logprobs 5 top_p 0.95", 0.7f, 0.95f, 0, 0, 1, 0, 5},
    {"recommended", 0.7f, 0.8f, 0, 20, 1, 0, 0},
};

struct Runner {
  tnd_engine* e = nullptr;
  int32_t vocab = 0, sequence = -1, length = 0;
  uint32_t seed = 1;
  int32_t prompt_rows = 0;   // above these a piece of a prompt states that it is one; 0: never
  uint64_t feature_row = 0;  // bytes of a row's fused features; 0 = none are wanted

  // Captures for the draft of the file and fuses.
  void attach(const char* draft, const char* tables) {
    tnd_open_options o{};
    o.struct_size = sizeof o;
    o.role = TND_ROLE_DRAFT;
    o.model_path = draft;
    o.tables_path = tables;
    o.max_context = 256;
    o.kv_type_k = o.kv_type_v = TND_KV_DEFAULT;
    tnd_engine* d = nullptr;
    char error[512];
    if (tnd_open(&o, &d, error, sizeof error) != TND_OK) {
      std::fprintf(stderr, "%s\n", error);
      std::exit(1);
    }
    tnd_info info{};
    info.struct_size = sizeof info;
    tnd_get_info(d, &info);
    check(e, tnd_capture_set(e, info.capture_layers, info.n_capture), "capture");
    check(e, tnd_fuse_load(e, draft), "fuse");
    feature_row = static_cast<uint64_t>(info.feature_fused) * sizeof(uint16_t);
    tnd_close(d);
  }

  int32_t next_token() {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<int32_t>(seed >> 8) % (vocab - 64);
  }

  // The contract of a prompt's piece.
  uint32_t kind(int count) const {
    return prompt_rows > 0 && count > prompt_rows ? TND_GROUP_PROMPT : TND_GROUP_DECODE;
  }

  // Commits n random tokens in chunks; returns the time in us.
  double prefill(int n, int chunk) {
    const double start = now_us();
    for (int done = 0; done < n;) {
      const int count = std::min(chunk, n - done);
      std::vector<tnd_row> rows(static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) rows[i] = tnd_row{next_token(), length + i, i - 1, 0, 0, 0, -1};
      std::vector<int32_t> tokens(static_cast<size_t>(count));
      rows.back().want = TND_WANT_TOKEN;
      const tnd_group group{sequence, count, kind(count), TND_GROUP_COMMIT, nullptr, 0, 0, 0};
      tnd_step step{};
      step.struct_size = sizeof step;
      step.n_groups = 1;
      step.groups = &group;
      step.n_rows = count;
      step.rows = rows.data();
      step.tokens = tokens.data();
      check(e, tnd_step_run(e, &step), "prefill");
      length += count;
      done += count;
    }
    return now_us() - start;
  }

  // One uncommitted step of n rows: a chain, or a tree of which every third row branches off two rows earlier.
  double step(int n, bool tree, int32_t top = 0) {
    std::vector<tnd_row> rows(static_cast<size_t>(n));
    std::vector<float> logprobs(static_cast<size_t>(n)), top_logprobs(static_cast<size_t>(n * top));
    std::vector<int32_t> top_ids(static_cast<size_t>(n * top));
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      const int parent = tree && i >= 3 && i % 3 == 0 ? i - 3 : i - 1;
      const int position = parent < 0 ? length : rows[parent].position + 1;
      rows[i] = tnd_row{next_token(), position, parent, TND_WANT_TOKEN, 0, 0, -1};
      if (feature_row > 0) rows[i].want |= TND_WANT_FEATURES;
      if (top > 0) rows[i].want |= TND_WANT_TOP;
      rows[i].top_k = top;
    }
    std::vector<uint8_t> features(static_cast<size_t>(n) * feature_row);
    const tnd_group group{sequence, n, TND_GROUP_DECODE, 0, nullptr, 0, 0, 0};
    tnd_step step{};
    step.struct_size = sizeof step;
    step.n_groups = 1;
    step.groups = &group;
    step.n_rows = n;
    step.rows = rows.data();
    step.tokens = tokens.data();
    if (top > 0) {
      step.logprobs = logprobs.data();
      step.top_ids = top_ids.data();
      step.top_logprobs = top_logprobs.data();
      step.top_stride = top;
    }
    if (feature_row > 0) {
      step.feature_encoding = TND_FEATURE_FUSED_BF16;
      step.features = features.data();
    }
    const double start = now_us();
    check(e, tnd_step_run(e, &step), "step");
    return now_us() - start;
  }

  // Plain decoding of TND_KEPT_ROWS tokens with `want` of features; kept ones are read at the end.
  // Returns the time in us.
  double plain(uint32_t want) {
    std::vector<uint8_t> features(TND_KEPT_ROWS * feature_row);
    const double start = now_us();
    for (int i = 0; i < TND_KEPT_ROWS; ++i) {
      const tnd_row row{next_token(), length, -1, TND_WANT_TOKEN | want, 0, 0, -1};
      const tnd_group group{sequence, 1, TND_GROUP_DECODE, TND_GROUP_COMMIT, nullptr, 0, 0, 0};
      int32_t token;
      tnd_step step{};
      step.struct_size = sizeof step;
      step.n_groups = 1;
      step.groups = &group;
      step.n_rows = 1;
      step.rows = &row;
      step.tokens = &token;
      step.feature_encoding = TND_FEATURE_FUSED_BF16;
      step.features = features.data() + static_cast<uint64_t>(i) * feature_row;
      check(e, tnd_step_run(e, &step), "plain step");
      ++length;
    }
    if ((want & TND_WANT_KEEP) != 0) {
      const tnd_group group{sequence, 0, 0, 0, nullptr, 0, length - TND_KEPT_ROWS, TND_KEPT_ROWS};
      tnd_step step{};
      step.struct_size = sizeof step;
      step.n_groups = 1;
      step.groups = &group;
      step.feature_encoding = TND_FEATURE_FUSED_BF16;
      step.features = features.data();
      check(e, tnd_step_run(e, &step), "kept features");
    }
    return now_us() - start;
  }

  // One step: a prompt's piece of `piece` rows (0 = none) for an empty sequence, and a row of each of the others, whose
  // lengths are `context`; us.
  double mixed(int piece, const std::vector<int32_t>& others, int context) {
    std::vector<tnd_row> rows;
    std::vector<tnd_group> groups;
    if (piece > 0) {
      groups.push_back(tnd_group{sequence, piece, kind(piece), TND_GROUP_COMMIT, nullptr, 0, 0, 0});
      for (int i = 0; i < piece; ++i) rows.push_back(tnd_row{next_token(), i, i - 1, 0, 0, 0, -1});
      rows.back().want = TND_WANT_TOKEN;
    }
    for (const int32_t other : others) {
      groups.push_back(tnd_group{other, 1, TND_GROUP_DECODE, 0, nullptr, 0, 0, 0});
      rows.push_back(tnd_row{next_token(), context, -1, TND_WANT_TOKEN, 0, 0, -1});
    }
    std::vector<int32_t> tokens(rows.size());
    tnd_step step{};
    step.struct_size = sizeof step;
    step.n_groups = static_cast<int32_t>(groups.size());
    step.groups = groups.data();
    step.n_rows = static_cast<int32_t>(rows.size());
    step.rows = rows.data();
    step.tokens = tokens.data();
    check(e, tnd_sequence_truncate(e, sequence, 0), "truncate");
    const double start = now_us();
    check(e, tnd_step_run(e, &step), "mixed step");
    return now_us() - start;
  }

  // An uncommitted step of n rows with a sampler; us.
  double choose(int n, const Choice& c) {
    tnd_sampler s{};
    s.struct_size = sizeof s;
    s.temperature = c.temperature;
    s.top_p = c.top_p;
    s.min_p = c.min_p;
    s.top_k = c.top_k;
    s.repetition_penalty = c.repetition;
    s.presence_penalty = c.presence;
    s.penalty_window = 8192;
    s.seed = ++seed;
    check(e, tnd_sequence_sampler(e, sequence, &s), "sampler");
    return step(n, true, c.top);
  }

  std::vector<tnd_stat> stats() {
    uint64_t count = 0;
    tnd_stats(e, nullptr, &count);
    std::vector<tnd_stat> all(count);
    tnd_stats(e, all.data(), &count);
    return all;
  }
};

void print_phases(const std::vector<tnd_stat>& before, const std::vector<tnd_stat>& after, double runs) {
  std::printf("    ");
  for (size_t i = 0; i < after.size(); ++i) {
    const size_t n = std::strlen(after[i].name);
    if (n < 3 || std::strcmp(after[i].name + n - 3, "_ns") != 0 || after[i].value == before[i].value) continue;
    std::printf(" %.*s %.0f", static_cast<int>(n - 3), after[i].name,
                static_cast<double>(after[i].value - before[i].value) / runs / 1e3);
  }
  std::printf(" us\n");
}

// Time of a step by sampler, for a plain step and a tree of 16. In turns, so that a slow second hits all of them; a
// step's ratio is to the mean of the steps with argmax before and after it.
void choices(Runner* r) {
  constexpr int kRounds[] = {40, 25};
  constexpr int kRows[] = {1, 16};
  r->prefill(200, 512);
  for (size_t k = 0; k < std::size(kRows); ++k) {
    const int n = kRows[k];
    std::vector<double> times[std::size(kChoices)], ratios[std::size(kChoices)];
    for (int i = 0; i < 3; ++i) r->choose(n, kChoices[0]);
    double before = r->choose(n, kChoices[0]);
    for (int round = 0; round < kRounds[k]; ++round) {
      for (size_t i = 1; i < std::size(kChoices); ++i) {
        const double us = r->choose(n, kChoices[i]), after = r->choose(n, kChoices[0]);
        times[i].push_back(us);
        times[0].push_back(after);
        ratios[i].push_back(2 * us / (before + after));
        before = after;
      }
    }
    for (size_t i = 0; i < std::size(kChoices); ++i) {
      std::printf("rows %2d   %-24s median %7.0f us   best %7.0f us", n, kChoices[i].name, median(times[i]),
                  *std::min_element(times[i].begin(), times[i].end()));
      if (i > 0) std::printf("   to argmax %.3f", median(ratios[i]));
      std::printf("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* path = argc > 1 ? argv[1] : "models/tandem-tiny-target-q4_k_m.gguf";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::string what = argc > 3 ? argv[3] : "all";
  const bool all = what == "all";
  constexpr int kPiece = 512, kOthers = 8;
  tnd_open_options o{};
  o.struct_size = sizeof o;
  o.role = TND_ROLE_TARGET;
  o.model_path = path;
  o.threads = threads;
  o.max_context = 16384;
  o.kv_type_k = o.kv_type_v = TND_KV_DEFAULT;
  if (all || what == "mixed") {
    o.max_sequences = 1 + kOthers;
    o.max_batch_rows = kPiece + kOthers;
  }
  Runner r;
  char error[512];
  if (tnd_open(&o, &r.e, error, sizeof error) != TND_OK) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  tnd_info info{};
  info.struct_size = sizeof info;
  tnd_get_info(r.e, &info);
  r.vocab = info.vocab;
  r.prompt_rows = info.prompt_rows;
  std::printf("%s on %s\n", info.name, info.device);
  check(r.e, tnd_sequence_create(r.e, &r.sequence), "sequence");

  if (argc > 4) r.attach(argv[4], path);

  if (all || what == "rows") {
    r.prefill(200, 512);
    for (const int n : {1, 2, 4, 8, 16, 23, 32, 64}) {
      for (const bool tree : {false, true}) {
        if (n < 4 && tree) continue;
        const int runs = n <= 8 ? 200 : 60;
        for (int i = 0; i < 5; ++i) r.step(n, tree);
        const auto before = r.stats();
        std::vector<double> times;
        const double cpu = cpu_us();
        for (int i = 0; i < runs; ++i) times.push_back(r.step(n, tree));
        const double cpu_step = (cpu_us() - cpu) / runs;
        const double best = *std::min_element(times.begin(), times.end());
        std::printf("%-5s rows %2d   median %7.0f us   best %7.0f us   cpu %7.0f us\n", tree ? "tree" : "chain", n,
                    median(times), best, cpu_step);
        print_phases(before, r.stats(), runs);
      }
    }
  }
  if (all || what == "plain") {
    // In turn, so that a slow second hits all of them; always on the same context.
    constexpr int kTurns = 60;
    const struct {
      const char* name;
      uint32_t want;
    } kinds[] = {{"without", 0}, {"at once", TND_WANT_FEATURES}, {"kept", TND_WANT_KEEP}};
    const size_t count = r.feature_row > 0 ? std::size(kinds) : 1;
    std::vector<double> times[std::size(kinds)];
    for (int turn = 0; turn < kTurns; ++turn) {
      for (size_t k = 0; k < count; ++k) {
        check(r.e, tnd_sequence_truncate(r.e, r.sequence, 0), "truncate");
        r.length = 0;
        r.prefill(200, 512);
        times[k].push_back(r.plain(kinds[k].want) / TND_KEPT_ROWS);
      }
    }
    for (size_t k = 0; k < count; ++k) {
      std::printf("plain, features %-8s median %7.1f us   best %7.1f us\n", kinds[k].name, median(times[k]),
                  *std::min_element(times[k].begin(), times[k].end()));
    }
  }
  if (all || what == "prefill") {
    for (const int n : {512, 2048, 3500, 8192}) {
      check(r.e, tnd_sequence_truncate(r.e, r.sequence, 0), "truncate");
      r.length = 0;
      std::vector<double> times;
      const auto before = r.stats();
      const int runs = n <= 2048 ? 5 : 3;
      const double cpu = cpu_us();
      for (int i = 0; i < runs; ++i) {
        check(r.e, tnd_sequence_truncate(r.e, r.sequence, 0), "truncate");
        r.length = 0;
        times.push_back(r.prefill(n, 512));
      }
      const double best = *std::min_element(times.begin(), times.end());
      std::printf("prefill %5d   median %8.0f us   %6.0f tokens/s   best %6.0f tokens/s   cpu %8.0f us\n", n,
                  median(times), n / median(times) * 1e6, n / best * 1e6, (cpu_us() - cpu) / runs);
      print_phases(before, r.stats(), runs);
    }
  }
  if (all || what == "mixed") {
    constexpr int kTurns = 15, kContext = 200;
    std::vector<int32_t> others(kOthers);
    for (int32_t& other : others) {
      check(r.e, tnd_sequence_create(r.e, &other), "sequence");
      std::swap(r.sequence, other);
      r.length = 0;
      r.prefill(kContext, kPiece);
      std::swap(r.sequence, other);
    }
    std::vector<double> piece, rows, both, ratio;
    std::vector<tnd_stat> phases[4];
    for (int turn = 0; turn < kTurns; ++turn) {  // in turn, so that a slow second hits all of them
      phases[0] = r.stats();
      piece.push_back(r.mixed(kPiece, {}, kContext));
      phases[1] = r.stats();
      both.push_back(r.mixed(kPiece, others, kContext));
      phases[2] = r.stats();
      rows.push_back(r.mixed(0, others, kContext));
      phases[3] = r.stats();
      ratio.push_back(both.back() / (piece.back() + rows.back()));
    }
    for (int i = 0; i < 3; ++i) print_phases(phases[i], phases[i + 1], 1);  // of the last turn
    std::printf(
        "piece of %d rows %.0f us, %d rows %.0f us, in one step %.0f us: %.3f of both apart (median of turns)\n",
        kPiece, median(piece), kOthers, median(rows), median(both), median(ratio));
  }
  if (what == "choice") choices(&r);
  tnd_close(r.e);
  return 0;
}
