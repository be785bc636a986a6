// Writes a GGUF of a real model's shapes with random weights, so that the programs can serve it: bench/served27 does.
//
//   synthetic_gguf 27b|27b-draft|0.8b|0.6b OUT.gguf [THREADS]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "synthetic_model.h"

int main(int argc, char** argv) {
  using namespace tnd::bench;
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: synthetic_gguf 27b|27b-draft|0.8b|0.6b OUT.gguf [THREADS]\n");
    return 2;
  }
  const std::string name = argv[1];
  SyntheticShape shape;
  if (name == "27b") {
    shape = qwen35_27b_q4_k_m();
  } else if (name == "27b-draft") {
    shape = dflash_27b_q8_0();
  } else if (name == "0.8b") {
    shape = qwen35_08b_bf16();
    shape.name = "synthetic 0.8B Q4_K_M";
    shape.mix = Mix::kQ4KM;
  } else if (name == "0.6b") {
    shape = qwen3_06b_bf16();
  } else {
    std::fprintf(stderr, "synthetic_gguf: no shape is called %s\n", argv[1]);
    return 2;
  }
  const int threads = argc > 3 ? std::atoi(argv[3]) : 4;
  if (threads < 1) {
    std::fprintf(stderr, "synthetic_gguf: THREADS is %s, not a number above 0\n", argv[3]);
    return 2;
  }
  const tnd::Status s = SyntheticModel::write(shape, threads, argv[2]);
  if (!s.ok()) {
    std::fprintf(stderr, "synthetic_gguf: %s\n", s.message().c_str());
    return 1;
  }
  return 0;
}
