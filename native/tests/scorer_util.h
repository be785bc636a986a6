// What tests of scorers share.
#pragma once

#include <cstdint>
#include <span>

#include "roles/roles.h"

namespace tnd::test {

// score_one scores one prompt.
inline Status score_one(ScoreEngine& role, std::span<const int32_t> ids, std::span<const int32_t> query, uint32_t flags,
                        float* scores) {
  const tnd_score_prompt p{ids.data(), query.data(), scores, static_cast<int32_t>(ids.size()),
                           static_cast<int32_t>(query.size())};
  return role.score(std::span<const tnd_score_prompt>(&p, 1), flags, nullptr, nullptr);
}

}  // namespace tnd::test
