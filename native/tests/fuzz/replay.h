// Drives a fuzz target over its seed corpus, every truncation and every flipped bit of it, without libFuzzer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tnd::test {

// replay_corpus runs the named seeds of a corpus folder; each input lies in a heap block of its own size, so that
// sanitizers see one byte too far.
inline void replay_corpus(const std::string& folder, const std::vector<const char*>& seeds) {
  for (const char* seed : seeds) {
    const std::string path = folder + "/" + seed;
    std::vector<uint8_t> bytes;
    FILE* f = std::fopen(path.c_str(), "rb");
    REQUIRE(f != nullptr);
    for (int c; (c = std::fgetc(f)) != EOF;) bytes.push_back(static_cast<uint8_t>(c));
    std::fclose(f);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    for (size_t n = 0; n < bytes.size(); n++) {
      const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<long>(n));
      LLVMFuzzerTestOneInput(cut.data(), cut.size());
    }
    for (size_t i = 0; i < bytes.size() * 8; i++) {
      bytes[i / 8] ^= static_cast<uint8_t>(1u << i % 8);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      bytes[i / 8] ^= static_cast<uint8_t>(1u << i % 8);
    }
  }
}

}  // namespace tnd::test
