#include "api/step_log.h"

#include <unistd.h>

#include <cstdlib>

namespace tnd {
namespace {

// Appends a text and a number. Sums of strings would be shorter, but gcc 12 misreads them.
void add(std::string* to, const char* text, int64_t number) {
  to->append(text).append(std::to_string(number));
}

// Appends the rows of a group whose first row is `rows`.
void add_rows(std::string* to, const tnd_row* rows, int32_t n) {
  add(to, " rows=", n);
  bool chain = true;
  for (int32_t i = 0; i < n; ++i) chain = chain && rows[i].parent == i - 1;
  if (chain) to->append(" parents=chain");
  for (int32_t i = 0; i < n && !chain; ++i) add(to, i == 0 ? " parents=" : ".", rows[i].parent);
  for (int32_t i = 0; i < n;) {
    const auto top_of = [](const tnd_row& row) { return (row.want & TND_WANT_TOP) != 0 ? row.top_k : 0; };
    int32_t run = 1;
    while (i + run < n && rows[i + run].want == rows[i].want && top_of(rows[i + run]) == top_of(rows[i])) ++run;
    add(to, i == 0 ? " want=" : ",", run);
    add(to, "x", rows[i].want);
    if (top_of(rows[i]) > 0) add(to, "/", top_of(rows[i]));
    i += run;
  }
}

}  // namespace

Status StepLog::open(const char* role, std::unique_ptr<StepLog>* out) {
  const char* const path = std::getenv("TND_STEP_LOG");
  if (path == nullptr || path[0] == '\0') return Status();
  std::string name = path;
  name.append(".").append(role);
  add(&name, ".", getpid());
  std::FILE* const file = std::fopen(name.c_str(), "ae");
  if (file == nullptr) return errorf(TND_INVALID_ARGUMENT, "TND_STEP_LOG: %s cannot be written", name.c_str());
  out->reset(new StepLog(file));
  return Status();
}

void StepLog::write(const std::string& line) {
  std::fprintf(file_, "%s\n", line.c_str());
  std::fflush(file_);  // processes of engines may be killed
}

void StepLog::step(const tnd_step& step) {
  std::string line = "step";
  int32_t first = 0;
  for (int32_t i = 0; i < step.n_groups; ++i) {
    const tnd_group& g = step.groups[i];
    add(&line, " g seq=", g.sequence);
    line.append(g.kind == TND_GROUP_PROMPT ? " kind=p" : " kind=d");
    add(&line, " commit=", (g.flags & TND_GROUP_COMMIT) != 0 ? 1 : 0);
    if (g.n_rows > 0) add(&line, " at=", step.rows[first].position);
    for (int32_t j = 0; j < g.n_path; ++j) add(&line, j == 0 ? " path=" : ".", g.path[j]);
    if (g.n_kept > 0) {
      add(&line, " kept=", g.kept_position);
      add(&line, "+", g.n_kept);
    }
    if (g.n_rows > 0) add_rows(&line, step.rows + first, g.n_rows);
    first += g.n_rows;
  }
  write(line);
}

void StepLog::append(std::span<const tnd_feature_rows> pieces) {
  std::string line = "append";
  for (const tnd_feature_rows& piece : pieces) {
    add(&line, " p seq=", piece.sequence);
    add(&line, " at=", piece.position);
    add(&line, " n=", piece.n_rows);
  }
  write(line);
}

void StepLog::propose(std::span<const tnd_draft_request> requests) {
  std::string line = "propose";
  for (const tnd_draft_request& r : requests) {
    add(&line, " r seq=", r.sequence);
    add(&line, " at=", r.position);
    add(&line, " block=", r.block);
    add(&line, " top=", r.top_k);
  }
  write(line);
}

}  // namespace tnd
