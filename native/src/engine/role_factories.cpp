// Factories of the draft and score roles.
#include "engine/roles.h"

namespace tnd {

Status open_draft(const OpenContext&, std::unique_ptr<Role>*) {
  return errorf(TND_UNIMPLEMENTED, "role draft is not part of this build");
}

Status open_score(const OpenContext&, std::unique_ptr<Role>*) {
  return errorf(TND_UNIMPLEMENTED, "role score is not part of this build");
}

}  // namespace tnd
