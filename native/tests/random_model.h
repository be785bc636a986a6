// Small random models, made from a seed when a test asks for one: data/random_models.txt says what is in them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../bench/gguf_header.h"
#include "harness.h"

namespace tnd::test {

// random_value draws one value of a tensor. All operations are exact or rounded once, so it is the same everywhere.
inline float random_value(Rng* rng, int64_t centre, int64_t spread) {
  const uint64_t r = rng->next();
  const int64_t n = static_cast<int64_t>((r & 0xFFFF) + (r >> 16 & 0xFFFF) + (r >> 32 & 0xFFFF) + (r >> 48)) - 131070;
  return static_cast<float>(centre * 131072 + spread * n) * 0x1p-24f;
}

struct RandomModel {
  std::string image;   // the GGUF file
  std::string sha256;  // of the image, as the description says
};

// make_random_model makes the model of that name; the image is empty when the description has no such model or is
// damaged, which is reported.
inline RandomModel make_random_model(const std::string& name) {
  const std::string path = TND_ROOT "/native/tests/data/random_models.txt";
  std::ifstream file(path);
  bench::GgufHeader header;
  std::string data, line;
  RandomModel out;
  Rng rng(0);
  bool here = false;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    std::string kind, key;
    in >> kind >> key;
    if (kind == "model") {
      uint64_t seed = 0;
      here = key == name;
      if (here) in >> seed >> out.sha256;
      if (here) rng = Rng(seed);
    } else if (!here) {
      continue;
    } else if (kind == "text") {
      std::string value;
      std::getline(in >> std::ws, value);
      header.key_text(key, value);
    } else if (kind == "u32") {
      uint32_t value = 0;
      in >> value;
      header.key_u32(key, value);
    } else if (kind == "f32") {
      float value = 0;
      in >> value;
      header.key_f32(key, value);
    } else if (kind == "i32s") {
      std::vector<int32_t> values;
      for (int32_t v; in >> v;) values.push_back(v);
      in.clear();
      header.key_ints(key, values);
    } else if (kind == "names") {
      int n = 0;
      in >> n;
      std::vector<std::string> names;
      for (int i = 0; i < n; ++i) names.push_back("<t" + std::to_string(i) + ">");
      header.key_texts(key, names);
    } else if (kind == "same") {
      size_t n = 0;
      int32_t value = 0;
      in >> n >> value;
      header.key_ints(key, std::vector<int32_t>(n, value));
    } else if (kind == "tensor") {
      std::string type;
      int64_t centre = 0, spread = 0;
      in >> type >> centre >> spread;
      std::vector<uint64_t> ne;
      uint64_t values = 1;
      for (uint64_t n; in >> n;) {
        ne.push_back(n);
        values *= n;
      }
      in.clear();
      const bool bf16 = type == "bf16";
      header.tensor(key, ne, bf16 ? 30 : 0, data.size());
      for (uint64_t i = 0; i < values; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(random_value(&rng, centre, spread));
        const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        data.append(reinterpret_cast<const char*>(bf16 ? &rounded : &bits), bf16 ? 2 : 4);
      }
      data.resize((data.size() + 31) / 32 * 32);
      if (!bf16 && type != "f32") in.setstate(std::ios::failbit);
    } else {
      in.setstate(std::ios::failbit);
    }
    if (in.fail()) {
      report(__FILE__, __LINE__, path + ": cannot read \"" + line + "\"");
      return {};
    }
  }
  if (out.sha256.empty()) {
    report(__FILE__, __LINE__, path + ": no model " + name);
    return {};
  }
  out.image = header.bytes();
  out.image.resize((out.image.size() + 31) / 32 * 32);
  out.image += data;
  return out;
}

// random_model returns a path that opens the model in this process: a file in memory, made at the first call and kept,
// so that nothing is left behind and processes that run side by side share nothing.
inline std::string random_model(const std::string& name) {
  static std::map<std::string, std::string> paths;
  std::string& path = paths[name];
  if (!path.empty()) return path;
  const std::string image = make_random_model(name).image;
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  size_t done = 0;
  while (fd >= 0 && done < image.size()) {
    const ssize_t n = write(fd, image.data() + done, image.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  if (fd < 0 || done < image.size()) report(__FILE__, __LINE__, "no memory for the model " + name);
  return path = "/proc/self/fd/" + std::to_string(fd);
}

}  // namespace tnd::test
