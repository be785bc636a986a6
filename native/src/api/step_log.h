// The shapes of the steps of an engine, as text: TND_STEP_LOG=PATH has every target and draft engine write its own to
// PATH.<role>.<process>. Lengths, trees and wishes only, no token. native/tests/gpu_graphs_test.cpp replays such files
// (native/tests/data/steps), one line a call:
//
//   step g seq=0 kind=d commit=0 at=120 path=0.2.5 kept=118+3 rows=4 parents=-1.0.0.2 want=3x9,1x11/20 g seq=1 ..
//   append p seq=0 at=120 n=5 p seq=1 ..
//   propose r seq=0 at=125 block=16 top=8 r seq=1 ..
//
// at: the length of the sequence with its path, the position of the first row of a piece, or that of an anchor.
// parents=chain: each row's is the one before. want: runs of rows as count x TND_WANT_* / top_k.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "tandem/engine.h"

namespace tnd {

class StepLog {
 public:
  // open returns nothing where the environment asks for no log. role: "target", "draft".
  static Status open(const char* role, std::unique_ptr<StepLog>* out);
  ~StepLog() { std::fclose(file_); }
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Of calls that were done.
  void step(const tnd_step& step);
  void append(std::span<const tnd_feature_rows> pieces);
  void propose(std::span<const tnd_draft_request> requests);

 private:
  explicit StepLog(std::FILE* file) : file_(file) {}
  void write(const std::string& line);

  std::FILE* const file_;
};

}  // namespace tnd
