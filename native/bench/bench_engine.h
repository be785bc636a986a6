// What benchmarks of whole engines share: an engine that ends the program on any error, processor time, medians.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "tandem/engine.h"

namespace tnd::bench {

struct Engine {
  tnd_engine* e = nullptr;

  // batch_rows: 0 = the engine's own limit.
  Engine(uint32_t role, const std::string& model, const std::string& tables, int32_t context, int32_t threads,
         int32_t sequences = 1, int32_t batch_rows = 0) {
    tnd_open_options o{};
    o.struct_size = sizeof o;
    o.role = role;
    o.model_path = model.c_str();
    o.tables_path = tables.empty() ? nullptr : tables.c_str();
    o.threads = threads;
    o.max_sequences = sequences;
    o.max_context = context;
    o.max_batch_rows = batch_rows;
    o.kv_type_k = o.kv_type_v = TND_KV_DEFAULT;
    o.max_top_k = 8;
    char error[1024] = "";
    if (tnd_open(&o, &e, error, sizeof error) != TND_OK) {
      std::fprintf(stderr, "%s\n", error);
      std::exit(1);
    }
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() { tnd_close(e); }

  void check(tnd_status s) const {
    if (s == TND_OK) return;
    char text[1024];
    tnd_last_error(e, text, sizeof text);
    std::fprintf(stderr, "%s\n", text);
    std::exit(1);
  }

  std::map<std::string, uint64_t> stats() const {
    tnd_stat s[128];
    uint64_t n = 128;
    check(tnd_stats(e, s, &n));
    std::map<std::string, uint64_t> m;
    for (uint64_t i = 0; i < n; i++) m[s[i].name] = s[i].value;
    return m;
  }
};

// Processor time of the whole program: unlike wall time it hardly depends on what else runs (with one thread; more
// threads also count their polling).
inline double cpu_us() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

}  // namespace tnd::bench
