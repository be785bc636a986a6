// Speed of the draft and score roles through the C ABI, with the time of each phase, and the whole long-prompt path
// (score, then prefill of what is kept) against a full prefill of the target.
//   roles_bench MODELS_DIR [draft|score|joint|all] [threads]
// MODELS_DIR holds tandem-tiny-{target-q4_k_m,draft-q8_0,prefill-q8_0}.gguf.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bench_engine.h"
#include "tandem/engine.h"

using tnd::bench::Engine;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void print_phases(const std::map<std::string, uint64_t>& before, const std::map<std::string, uint64_t>& after,
                  double per) {
  for (const auto& [name, value] : after) {
    const uint64_t old = before.count(name) != 0 ? before.at(name) : 0;
    if (name.size() > 3 && name.compare(name.size() - 3, 3, "_ns") == 0 && value > old) {
      std::printf("    %-16s %10.1f us\n", name.c_str(), double(value - old) * 1e-3 / per);
    }
  }
}

std::vector<int32_t> tokens(int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  uint32_t x = 12345;
  for (int32_t& id : ids) {
    x = x * 1664525u + 1013904223u;
    id = static_cast<int32_t>((x >> 8) % 8000);
  }
  return ids;
}

void bench_draft(const std::string& dir, int32_t threads) {
  Engine d(TND_ROLE_DRAFT, dir + "/tandem-tiny-draft-q8_0.gguf", dir + "/tandem-tiny-target-q4_k_m.gguf", 20000,
           threads);
  tnd_info info{};
  info.struct_size = sizeof info;
  d.check(tnd_get_info(d.e, &info));
  int32_t seq = 0;
  d.check(tnd_sequence_create(d.e, &seq));
  std::vector<float> features(size_t(512) * info.feature_raw);
  for (size_t i = 0; i < features.size(); i++) features[i] = float((i * 7919) % 2001) / 1000.0f - 1.0f;
  std::vector<int32_t> ids(size_t(info.block_size) * 8);
  std::vector<float> logprobs(ids.size());
  int32_t n = 0;
  for (const int32_t context : {256, 2048, 17408}) {
    const double t0 = now();
    const int32_t from = n;
    for (; n < context; n += std::min(512, context - n)) {
      const tnd_feature_rows piece{seq, n, std::min(512, context - n), TND_FEATURE_RAW_F32, features.data()};
      d.check(tnd_draft_append(d.e, &piece, 1));
    }
    std::printf("draft: append to %d in pieces of 512: %.1f us a row\n", context,
                (now() - t0) * 1e6 / (context - from));
    const int reps = 60;
    tnd_draft_request r{seq, 5, n, info.block_size, 8, 1.0f};
    for (int i = 0; i < 5; i++) d.check(tnd_draft_propose(d.e, &r, 1, ids.data(), logprobs.data()));
    auto before = d.stats();
    double best = 1e9;
    for (int i = 0; i < reps; i++) {
      const double t = now();
      d.check(tnd_draft_propose(d.e, &r, 1, ids.data(), logprobs.data()));
      best = std::min(best, now() - t);
    }
    auto after = d.stats();
    std::printf("draft: block of %d at %d: best %.0f us, mean by phase\n", info.block_size, n, best * 1e6);
    print_phases(before, after, reps);
  }
  for (const int32_t rows : {1, 4, 9, 16}) {
    const int reps = 40;
    double best = 1e9;
    for (int i = 0; i < reps; i++) {
      const double t = now();
      const tnd_feature_rows piece{seq, n, rows, TND_FEATURE_RAW_F32, features.data()};
      d.check(tnd_draft_append(d.e, &piece, 1));
      best = std::min(best, now() - t);
      d.check(tnd_sequence_truncate(d.e, seq, n));
    }
    std::printf("draft: append %d rows: %.0f us, %.1f a row\n", rows, best * 1e6, best * 1e6 / rows);
  }
}

// Appends of a few rows to several sequences, in one call and in calls of their own.
void bench_appends(const std::string& dir, int32_t threads) {
  constexpr int kMost = 8;
  Engine d(TND_ROLE_DRAFT, dir + "/tandem-tiny-draft-q8_0.gguf", dir + "/tandem-tiny-target-q4_k_m.gguf", 1024, threads,
           kMost);
  tnd_info info{};
  info.struct_size = sizeof info;
  d.check(tnd_get_info(d.e, &info));
  const std::vector<float> features(size_t(64) * info.feature_raw, 0.5f);
  int32_t sequences[kMost];
  for (int32_t& s : sequences) d.check(tnd_sequence_create(d.e, &s));
  for (const int32_t rows : {1, 4, 9}) {
    for (const int n : {1, 2, 4, kMost}) {
      std::vector<tnd_feature_rows> pieces;
      for (int i = 0; i < n; i++) pieces.push_back({sequences[i], 0, rows, TND_FEATURE_RAW_F32, features.data()});
      double joint = 1e9, apart = 1e9;
      const auto clear = [&] {
        for (int i = 0; i < n; i++) d.check(tnd_sequence_truncate(d.e, sequences[i], 0));
      };
      for (int rep = 0; rep < 60; rep++) {
        double t = now();
        d.check(tnd_draft_append(d.e, pieces.data(), n));
        joint = std::min(joint, now() - t);
        clear();
        t = now();
        for (const tnd_feature_rows& piece : pieces) d.check(tnd_draft_append(d.e, &piece, 1));
        apart = std::min(apart, now() - t);
        clear();
      }
      std::printf("draft: append %d rows to each of %d sequences: %.0f us in one call, %.0f in %d\n", rows, n,
                  joint * 1e6, apart * 1e6, n);
    }
  }
}

// Proposals for several sequences, in one call and in calls of their own.
void bench_proposals(const std::string& dir, int32_t threads) {
  constexpr int kMost = 8;
  constexpr int32_t kContext = 512;
  Engine d(TND_ROLE_DRAFT, dir + "/tandem-tiny-draft-q8_0.gguf", dir + "/tandem-tiny-target-q4_k_m.gguf", 1024, threads,
           kMost);
  tnd_info info{};
  info.struct_size = sizeof info;
  d.check(tnd_get_info(d.e, &info));
  const std::vector<float> features(size_t(kContext) * info.feature_raw, 0.5f);
  const std::vector<int32_t> first = tokens(kMost);
  std::vector<tnd_draft_request> requests;
  for (int i = 0; i < kMost; i++) {
    int32_t s = 0;
    d.check(tnd_sequence_create(d.e, &s));
    const tnd_feature_rows context{s, 0, kContext, TND_FEATURE_RAW_F32, features.data()};
    d.check(tnd_draft_append(d.e, &context, 1));
    requests.push_back({s, first[size_t(i)], kContext, info.block_size, 8, 1.0f});
  }
  std::vector<int32_t> ids(size_t(kMost) * info.block_size * 8);
  std::vector<float> logprobs(ids.size());
  for (const int n : {1, 2, 4, kMost}) {
    double joint = 1e9, apart = 1e9;
    for (int rep = 0; rep < 60; rep++) {
      double t = now();
      d.check(tnd_draft_propose(d.e, requests.data(), n, ids.data(), logprobs.data()));
      joint = std::min(joint, now() - t);
      t = now();
      for (int i = 0; i < n; i++) d.check(tnd_draft_propose(d.e, &requests[i], 1, ids.data(), logprobs.data()));
      apart = std::min(apart, now() - t);
    }
    std::printf("draft: block of %d for each of %d sequences: %.0f us in one call, %.0f in %d\n", info.block_size, n,
                joint * 1e6, apart * 1e6, n);
  }
}

// Seconds of a full prefill of n tokens.
double prefill(const Engine& t, int32_t seq, const std::vector<int32_t>& ids) {
  t.check(tnd_sequence_truncate(t.e, seq, 0));
  tnd_info info{};
  info.struct_size = sizeof info;
  t.check(tnd_get_info(t.e, &info));
  const double t0 = now();
  for (size_t at = 0; at < ids.size(); at += 512) {
    const int n = int(std::min<size_t>(512, ids.size() - at));
    std::vector<tnd_row> rows(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) rows[i] = {ids[at + i], int32_t(at) + i, i - 1, 0, 0, 0, -1};
    const uint32_t kind = info.prompt_rows > 0 && n > info.prompt_rows ? TND_GROUP_PROMPT : TND_GROUP_DECODE;
    const tnd_group group{seq, n, kind, TND_GROUP_COMMIT, nullptr, 0, 0, 0};
    tnd_step s{};
    s.struct_size = sizeof s;
    s.n_groups = 1;
    s.groups = &group;
    s.n_rows = n;
    s.rows = rows.data();
    t.check(tnd_step_run(t.e, &s));
  }
  return now() - t0;
}

// What a token costs in prompts of several lengths: whether joining short prompts into one pass could pay.
void bench_lengths(const std::string& dir, int32_t threads) {
  Engine s(TND_ROLE_SCORE, dir + "/tandem-tiny-prefill-q8_0.gguf", "", 20000, threads);
  for (const int n : {64, 256, 1024, 2048}) {
    const auto ids = tokens(n);
    const int count = 4096 / n;
    std::vector<std::vector<float>> scores(size_t(count), std::vector<float>(ids.size()));
    std::vector<int32_t> query;
    for (int i = 0; i < 8; i++) query.push_back(n - 24 + i);
    std::vector<tnd_score_prompt> prompts;
    for (auto& out : scores) prompts.push_back({ids.data(), query.data(), out.data(), n, 8});
    double joint = 1e9, apart = 1e9;
    for (int rep = 0; rep < 5; rep++) {
      double t = now();
      s.check(tnd_score(s.e, prompts.data(), count, 0, nullptr, nullptr));
      joint = std::min(joint, now() - t);
      t = now();
      for (const tnd_score_prompt& p : prompts) s.check(tnd_score(s.e, &p, 1, 0, nullptr, nullptr));
      apart = std::min(apart, now() - t);
    }
    std::printf("score: %d prompts of %d: %.1f us a token in one call, %.1f in %d\n", count, n, joint * 1e6 / 4096,
                apart * 1e6 / 4096, count);
  }
}

void bench_score(const std::string& dir, int32_t threads) {
  Engine s(TND_ROLE_SCORE, dir + "/tandem-tiny-prefill-q8_0.gguf", "", 20000, threads);
  Engine t(TND_ROLE_TARGET, dir + "/tandem-tiny-target-q4_k_m.gguf", "", 20000, threads);
  int32_t seq = 0;
  t.check(tnd_sequence_create(t.e, &seq));
  for (const int n : {4096, 17500}) {
    const auto ids = tokens(n);
    std::vector<float> scores(ids.size());
    std::vector<int32_t> query;
    for (int i = 0; i < 8; i++) query.push_back(n - 24 + i);
    auto before = s.stats();
    const double t0 = now();
    const tnd_score_prompt prompt{ids.data(), query.data(), scores.data(), n, 8};
    s.check(tnd_score(s.e, &prompt, 1, 0, nullptr, nullptr));
    const double score = now() - t0;
    std::printf("score: %d tokens: %.3f s, %.0f tokens/s\n", n, score, n / score);
    print_phases(before, s.stats(), 1);
    auto t_before = t.stats();
    const double full = prefill(t, seq, ids);
    std::printf("target: full prefill of %d: %.3f s, %.0f tokens/s\n", n, full, n / full);
    print_phases(t_before, t.stats(), 1);
    const double kept = prefill(t, seq, tokens(std::max(1280, n / 10)));
    std::printf("path: score %.3f + prefill of %d kept %.3f = %.3f s, %.2f of full\n", score, std::max(1280, n / 10),
                kept, score + kept, (score + kept) / full);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: roles_bench MODELS_DIR [draft|score|joint|all] [threads]\n");
    return 2;
  }
  const std::string what = argc > 2 ? argv[2] : "all";
  const int32_t threads = argc > 3 ? std::atoi(argv[3]) : 2;
  if (what == "draft" || what == "all") bench_draft(argv[1], threads);
  if (what == "score" || what == "all") bench_score(argv[1], threads);
  if (what == "joint" || what == "all") {
    bench_appends(argv[1], threads);
    bench_proposals(argv[1], threads);
    bench_lengths(argv[1], threads);
  }
  return 0;
}
