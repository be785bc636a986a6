// Factories of the roles that this build lacks.
#include "engine/roles.h"

namespace tnd {

Status open_score(const OpenContext&, std::unique_ptr<Role>*) {
  return errorf(TND_UNIMPLEMENTED, "role score is not part of this build");
}

}  // namespace tnd
