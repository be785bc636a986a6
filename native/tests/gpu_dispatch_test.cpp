// Holds the tables of src/gpu/README.md: which kernel runs for which rows, type and kind of card. Nothing runs: a
// filter notes the names of the launches that the launch functions choose and leaves them out. The emulation stands for
// every kind of card but the attention of AMD's, whose kernels it does not choose; on a card, or in the simulator of
// one, the column of that card is checked.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "gpu/attention/attention.h"
#include "gpu/delta/delta.h"
#include "gpu/delta/delta_chunk.h"
#include "gpu/matmul/matmul.h"
#include "gpu/sample/sample.h"
#include "harness.h"
#include "matmul_reference.h"

namespace {

using namespace tnd::gpu;  // NOLINT
using tnd::DType;
using tnd::KvType;

constexpr int kMostRows = 320;  // of a step that is tried; what "and more" of the table stands for

// ---- launches

// Collects the names of launches, each once, in order.
class Names final : public LaunchFilter {
 public:
  std::vector<std::string> names;
  bool keep(const Launch& l) override {
    if (std::find(names.begin(), names.end(), l.name) == names.end()) names.push_back(l.name);
    return false;
  }
};

std::string launched(const std::function<void(Stream&)>& launch) {
  Names names;
  Stream stream;
  stream.set_filter(&names);
  launch(stream);
  CHECK(!stream.failed());
  std::string text;
  for (const std::string& name : names.names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Memory that launch functions do arithmetic with and nobody reads.
template <typename T>
T* somewhere() {
  alignas(256) static uint8_t bytes[4096];
  return reinterpret_cast<T*>(bytes);
}

// ---- cards

enum Column : size_t { kHopper, k163, k99, k64, kRdna2, kAmd };
constexpr const char* kColumns[] = {"Hopper", "163 KiB and more", "99 KiB", "64 KiB", "gfx1030", "gfx11, gfx12"};

struct Card {
  Column column = kHopper;  // of the tables
  DeviceInfo info;
  int unit = 0;           // MatmulGroup::unit, in the emulation
  bool clusters = false;  // in the emulation
  bool hopper = false;    // wgmma
  bool attention = true;  // whether this build chooses the card's attention
};

bool emulated() {
  return std::strcmp(api_name(), "emu") == 0;
}

std::vector<Card> cards() {
  const auto card = [](Column column, int major, int kib) {
    Card c;
    c.column = column;
    c.info.major = major;
    c.info.processors = 132;
    c.info.shared_per_block = kib << 10;
    return c;
  };
  if (emulated()) {
    std::vector<Card> all = {card(kHopper, 9, 227), card(k163, 8, 163),  card(k163, 11, 227), card(k99, 8, 99),
                             card(k64, 7, 64),      card(kRdna2, 7, 64), card(kAmd, 11, 64)};
    all[0].clusters = all[0].hopper = true;
    all[5].unit = 3;
    all[6].unit = 1;
    all[6].attention = false;
    return all;
  }
  DeviceInfo info;
  CHECK_OK(device_info(0, &info));
  Card own;
  own.info = info;
  own.hopper = has_attention_wgmma(info);
  if (std::strcmp(api_name(), "hip") == 0) {
    own.column = info.major >= 11 ? kAmd : kRdna2;
  } else if (own.hopper) {
    own.column = kHopper;
  } else {
    const int kib = info.shared_per_block >> 10;
    own.column = kib >= 163 ? k163 : kib >= 99 ? k99 : k64;
  }
  return {own};
}

// ---- operations

#define TND_ROW(name, id, codes, words, block) KvType::k##name,
constexpr KvType kKvTypes[] = {TND_KV_TYPES(TND_ROW, TND_ROW)};
#undef TND_ROW

enum class Operation { kStepProducts, kPromptProducts, kAttention, kDelta, kChoice };
constexpr Operation kOperations[] = {Operation::kStepProducts, Operation::kPromptProducts, Operation::kAttention,
                                     Operation::kDelta, Operation::kChoice};

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kStepProducts:
      return "products of a step";
    case Operation::kPromptProducts:
      return "products of a prompt";
    case Operation::kAttention:
      return "attention";
    case Operation::kDelta:
      return "delta rule";
    case Operation::kChoice:
      return "choice of tokens";
  }
  return "";
}

constexpr const char* kDeltaKinds[] = {"one sequence", "several sequences", "a prompt"};

// What an operation's rows are told apart by: types of weights or of keys and values, kinds of groups.
std::vector<std::string> kinds(Operation operation) {
  std::vector<std::string> all;
  if (operation == Operation::kStepProducts || operation == Operation::kPromptProducts) {
    for (const DType type : tnd::test::kMatmulTypes) all.push_back(tnd::dtype_name(type));
  } else if (operation == Operation::kAttention) {
    for (const KvType type : kKvTypes) {
      all.push_back(tnd::kv_type_name(static_cast<int32_t>(type)));
    }
  } else if (operation == Operation::kDelta) {
    all.assign(std::begin(kDeltaKinds), std::end(kDeltaKinds));
  } else {
    all = {"any"};
  }
  return all;
}

// Inputs of a prompt's rows. The emulation can multiply every kind, a card's own kind is the backend's choice.
Prompt prompt_of(const Card& card) {
  if (!emulated()) return prompt_inputs(card.info);
  if (card.hopper) return Prompt::kPanels;
  return has_matmul_pairs(card.info) ? Prompt::kPairs : Prompt::kNone;
}

std::string products(const Card& card, DType type, int rows, bool prompt) {
  constexpr int kSide = 4096;
  MatmulGroup group;
  group.products[0] = {.w = {type, kSide, kSide, somewhere<uint8_t>()}, .y = somewhere<float>(), .y_stride = kSide};
  group.count = 1;
  group.rows = rows;
  group.acts.paired = has_matmul_pairs(card.info) ? 1 : 0;
  if (prompt) group.acts.prompt = prompt_of(card);
  group.scratch = somewhere<void>();
  group.processors = card.info.processors;
  group.shared_per_block = card.info.shared_per_block;
  // The emulation forms clusters for up to 32 rows where it is told to, and has the tiles of many rows where it is not.
  group.unit = card.clusters && rows <= 32 ? 4 : card.unit;
  return launched([&](Stream& s) { launch_matmul(s, group); });
}

std::string attention(const Card& card, KvType keys, KvType values, int rows, bool many_keys = false) {
  AttentionArgs a;
  a.kv = {static_cast<int32_t>(keys), static_cast<int32_t>(values), 2, 256, 4096};
  a.mode = attention_mode(a.kv, card.info);
  a.q_heads = 8;
  a.rows = rows;
  a.n_bulk = a.n_tail = 1;
  a.bulk_rows = a.tail_rows = rows;
  a.q = somewhere<float>();
  a.out = somewhere<float>();
  a.scratch = somewhere<void>();
  a.scratch_bytes = attention_scratch_bytes(a.mode, a.kv, a.q_heads, rows);
  a.shared_per_block = card.info.shared_per_block;
  a.wgmma = card.hopper;
  a.processors = card.info.processors;
  a.many_keys = many_keys;
  return launched([&](Stream& s) { launch_attention(s, a); });
}

// As the backend does: a prompt's groups by chunks where the card has them, the others by one rule.
std::string delta(const Card& card, const std::string& kind, int rows) {
  const int sequences = kind == kDeltaKinds[1] ? 2 : 1;
  const bool prompt = kind == kDeltaKinds[2];
  const tnd::DeltaShape shape{16, 32};
  std::vector<tnd::DeltaGroup> host(1);
  host[0].count = rows;
  host[0].commit = host[0].prompt = prompt;
  if (delta_chunked(card.info) && DeltaChunks::takes(host[0])) {
    DeltaChunks chunks;
    chunks.plan(host, 0, delta_chunk_capacity(rows));
    DeltaChunkArgs args;
    args.w.shape = shape;
    args.n_chunks = static_cast<int>(chunks.chunks.size());
    args.n_chains = static_cast<int>(chunks.chains.size());
    args.shared_per_block = card.info.shared_per_block;
    return launched([&](Stream& s) {
      launch_delta_prepare(s, args);
      launch_delta_states(s, args);
    });
  }
  std::vector<DeltaStepGroup> groups(static_cast<size_t>(sequences));
  for (DeltaStepGroup& group : groups) group.count = rows;
  DeltaArgs args;
  args.w.shape = shape;
  args.rows = rows * sequences;
  args.groups = sequences;
  args.shared_per_block = card.info.shared_per_block;
  args.processors = card.info.processors;
  return launched([&](Stream& s) { delta_rule(groups)(s, args); });
}

std::string chosen(const Card& card, Operation operation, const std::string& kind, int rows) {
  switch (operation) {
    case Operation::kStepProducts:
    case Operation::kPromptProducts:
      for (const DType type : tnd::test::kMatmulTypes) {
        if (kind == tnd::dtype_name(type)) {
          return products(card, type, rows, operation == Operation::kPromptProducts);
        }
      }
      return "";
    case Operation::kAttention:
      for (const KvType type : kKvTypes) {
        if (kind == tnd::kv_type_name(static_cast<int32_t>(type))) return attention(card, type, type, rows);
      }
      return "";
    case Operation::kDelta:
      return delta(card, kind, rows);
    case Operation::kChoice: {
      ChooseArgs args;
      args.vocab = 1000;
      args.rows = rows;
      return launched([&](Stream& s) { launch_choose(s, args); });
    }
  }
  return "";
}

// ---- the page

// A line of a table: rows [first, last] of an operation for these kinds.
struct Line {
  std::string operation;
  int first = 0, last = 0;
  std::vector<std::string> kinds;
  std::vector<std::string> kernels;  // [columns]
};

std::string trimmed(const std::string& s) {
  const size_t first = s.find_first_not_of(" `"), last = s.find_last_not_of(" `");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

std::vector<std::string> split(const std::string& s, char by) {
  std::vector<std::string> parts;
  std::istringstream in(s);
  for (std::string part; std::getline(in, part, by);) parts.push_back(trimmed(part));
  return parts;
}

const std::string& page() {
  static const std::string text = [] {
    std::ifstream in(TND_ROOT "/native/src/gpu/README.md");
    std::ostringstream all;
    all << in.rdbuf();
    return all.str();
  }();
  return text;
}

// Lines "| operation | rows | of | kernel of every column |" of the page.
std::vector<Line> lines() {
  std::vector<Line> all;
  std::istringstream in(page());
  constexpr size_t kNames = 3, kCells = 1 + kNames + std::size(kColumns);
  for (std::string text; std::getline(in, text);) {
    std::string bare = text;
    std::erase(bare, '`');
    const std::vector<std::string> cells = split(bare, '|');
    const bool known = cells.size() == kCells && std::any_of(std::begin(kOperations), std::end(kOperations),
                                                             [&](Operation o) { return cells[1] == name_of(o); });
    if (!known) continue;
    Line line;
    line.operation = cells[1];
    const std::string& rows = cells[2];
    line.first = std::atoi(rows.c_str());
    const size_t dash = rows.find('-');
    line.last = dash != std::string::npos                     ? std::atoi(rows.c_str() + dash + 1)
                : rows.find(" and more") != std::string::npos ? kMostRows
                                                              : line.first;
    line.kinds = split(cells[3], line.operation == name_of(Operation::kDelta) ? ';' : ',');
    line.kernels.assign(cells.begin() + 1 + kNames, cells.end());
    all.push_back(line);
  }
  return all;
}

// Which lines of the page speak of these rows.
std::vector<const Line*> lines_of(const std::vector<Line>& all, Operation operation, const std::string& kind,
                                  int rows) {
  std::vector<const Line*> found;
  for (const Line& line : all) {
    const bool same = line.operation == name_of(operation) && line.first <= rows && rows <= line.last;
    if (same && std::find(line.kinds.begin(), line.kinds.end(), kind) != line.kinds.end()) found.push_back(&line);
  }
  return found;
}

TEST(the_page_names_the_kernels_that_are_launched) {
  std::string header = "| Operation | Rows | Of |";
  for (const char* column : kColumns) header += std::string(" ") + column + " |";
  CHECK_MSG(page().find(header) != std::string::npos, header);
  const std::vector<Line> all = lines();
  for (const Card& card : cards()) {
    for (const Operation operation : kOperations) {
      if (operation == Operation::kAttention && !card.attention) continue;
      for (const std::string& kind : kinds(operation)) {
        for (int rows = 1; rows <= kMostRows; ++rows) {
          const std::vector<const Line*> found = lines_of(all, operation, kind, rows);
          const std::string want = chosen(card, operation, kind, rows);
          CHECK(!want.empty());
          const std::string text = std::string(name_of(operation)) + ", " + kind + ", " + std::to_string(rows) +
                                   " rows, " + kColumns[card.column] + " with " +
                                   std::to_string(card.info.shared_per_block >> 10) + " KiB launches " + want;
          CHECK_MSG(found.size() == 1, text + "; lines of the page: " + std::to_string(found.size()));
          if (found.size() != 1) continue;
          CHECK_MSG(found[0]->kernels[card.column] == want, text + "; the page has " + found[0]->kernels[card.column]);
        }
      }
    }
  }
}

// Types that attention_codes multiplies.
bool stay_codes(KvType keys, KvType values) {
  const auto codes = [](KvType type) { return type == KvType::kQ8_0 || type == KvType::kQ4_0; };
  return codes(keys) && (values == keys || values == KvType::kQ4_0);
}

// Keys and values of two types run as the page says.
TEST(the_page_holds_for_mixed_types) {
  for (const Card& card : cards()) {
    if (!card.attention) continue;
    for (const KvType keys : kKvTypes) {
      for (const KvType values : kKvTypes) {
        if (keys == values) continue;
        const auto one_is = [&](KvType type) { return keys == type || values == type; };
        const bool scales = tnd::kv_quantised(keys) || tnd::kv_quantised(values);
        const bool both = tnd::kv_quantised(keys) && tnd::kv_quantised(values);
        const KvType as = one_is(KvType::kF32)       ? KvType::kF32
                          : stay_codes(keys, values) ? KvType::kQ4_0
                          : both                     ? KvType::kQ4_1
                                                     : KvType::kBF16;
        for (int rows = 1; rows <= kMostRows; ++rows) {
          const std::string got = attention(card, keys, values, rows);
          // 99 KiB have no room for whole tiles of halves beside 48 queries, unless the other ones are TQ3_0.
          const bool narrow = card.column == k99 && one_is(KvType::kF16) && scales && !one_is(KvType::kTQ3_0);
          const std::string want = attention(card, as, as, narrow && rows > 4 ? kMostRows : rows) +
                                   (tnd::kv_rotated(values) ? ", attention_unrotate" : "");
          CHECK_MSG(got == want, std::string(tnd::kv_type_name(static_cast<int32_t>(keys))) + " and " +
                                     tnd::kv_type_name(static_cast<int32_t>(values)) + ", " + std::to_string(rows) +
                                     " rows, " + kColumns[card.column] + " launch " + got + ", not " + want);
        }
      }
    }
  }
}

// Steps of which a row sees many keys run as the page says.
TEST(the_page_holds_for_many_keys) {
  for (const Card& card : cards()) {
    if (!card.attention) continue;
    for (const KvType keys : kKvTypes) {
      for (const KvType values : kKvTypes) {
        const bool halves = keys == KvType::kF16 && values == KvType::kF16;
        const bool scales = tnd::kv_quantised(keys) && tnd::kv_quantised(values);
        const std::string group =
            std::string("attention_group, attention_merge") + (tnd::kv_rotated(values) ? ", attention_unrotate" : "");
        for (int rows = 1; rows <= kMostRows; ++rows) {
          const std::string few = attention(card, keys, values, rows), many = attention(card, keys, values, rows, true);
          std::string want = card.hopper && rows <= 64 && (halves || scales) ? group : few;
          if (card.hopper && stay_codes(keys, values) && rows * 4 <= 16) want = few;
          const bool large = card.info.shared_per_block >= 227 << 10;
          if (large && stay_codes(keys, values) && rows * 4 > 96 && rows * 4 <= 192) {
            want = "attention_codes, attention_merge";
          }
          CHECK_MSG(many == want, std::string(tnd::kv_type_name(static_cast<int32_t>(keys))) + " and " +
                                      tnd::kv_type_name(static_cast<int32_t>(values)) + ", " + std::to_string(rows) +
                                      " rows, " + kColumns[card.column] + " launch " + many + ", not " + want);
        }
      }
    }
  }
}

// Weights of several types that share an input, as the first products of a DeltaNet layer do: large ones and a few
// outputs in Q8_0. On cards with 99 KiB a launch keeps two blocks a processor, whatever it holds.
TEST(small_cards_keep_two_blocks_and_their_tiles) {
  if (!emulated()) return;
  class Sizes final : public LaunchFilter {
   public:
    std::vector<std::pair<std::string, unsigned>> launches;
    bool keep(const Launch& l) override {
      launches.emplace_back(l.name, l.shared_bytes);
      return false;
    }
  };
  constexpr int kShared = 99 << 10, kReserved = 1024;  // bytes; the system's of every block
  const auto launches = [&](std::vector<DType> types, int rows) {
    MatmulGroup group;
    for (const DType type : types) {
      const int n = type == DType::kQ8_0 ? 48 : 4096;
      group.products[group.count++] = {
          .w = {type, 4096, n, somewhere<uint8_t>()}, .y = somewhere<float>(), .y_stride = n};
    }
    group.rows = rows;
    group.scratch = somewhere<void>();
    group.processors = 82;
    group.shared_per_block = kShared;
    Sizes sizes;
    Stream stream;
    stream.set_filter(&sizes);
    launch_matmul(stream, group);
    CHECK(!stream.failed());
    return sizes.launches;
  };
  const std::vector<std::vector<DType>> layers = {{DType::kQ4_K},
                                                  {DType::kQ5_K},
                                                  {DType::kQ6_K},
                                                  {DType::kQ8_0},
                                                  {DType::kQ5_K, DType::kQ8_0, DType::kQ8_0},
                                                  {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}};
  for (const std::vector<DType>& types : layers) {
    for (const int rows : {1, 8, 16, 23, 32}) {
      const auto all = launches(types, rows);
      CHECK_EQ(all.size(), size_t{1});
      for (const auto& [name, shared] : all) {
        CHECK_MSG(2 * (shared + kReserved) <= kShared + kReserved,
                  name + " of " + std::to_string(rows) + " rows takes " + std::to_string(shared) + " bytes");
      }
    }
  }
  // 64 columns: Q8_0 fits once only, so it does not share the others' launch.
  const auto wide = launches(layers[4], 64);
  CHECK_EQ(wide.size(), size_t{2});
  CHECK(2 * (wide[1].second + kReserved) <= kShared + kReserved);
  // Prompts: only Q8_0 goes without tiles.
  const auto prompt = launches(layers[5], 128);
  CHECK_EQ(prompt.size(), size_t{2});
  CHECK(prompt[0].first == "matmul_rows" && prompt[1].first == "matmul_tiles");
  CHECK(launches(layers[0], 128)[0].first == "matmul_tiles");
}

// Every name of a launch in src/gpu is on the page: those without a choice in the list after the tables.
TEST(the_page_has_every_launch) {
  std::error_code failed;
  int names = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(TND_ROOT "/native/src/gpu", failed)) {
    const std::string extension = file.path().extension().string();
    if (extension != ".cu" && extension != ".cuh" && extension != ".h") continue;
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      size_t at = line.find(".name = ");
      if (at == std::string::npos || line.starts_with("//")) continue;
      while ((at = line.find('"', at)) != std::string::npos) {
        const size_t end = line.find('"', at + 1);
        const std::string name = line.substr(at + 1, end - at - 1);
        at = end + 1;
        ++names;
        CHECK_MSG(page().find("`" + name + "`") != std::string::npos, name + " of " + file.path().filename().string());
      }
    }
  }
  CHECK(!failed);
  CHECK(names > 40);
}

}  // namespace

TEST_MAIN()
