// The random numbers of the sampler: one by position and choice, the same on every backend.
#pragma once

#include <cstdint>

namespace tnd {

// Philox4x32-10 counter-based generator (Salmon et al., SC 2011): out = philox(counter, key). Bijective in the counter.
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

// uniform_draw is the random number of one output position, in [0, 1): 53 bits of
// philox(counter = {position, choice, 0, 0}, key = {seed low, seed high}); docs/sampling.md.
double uniform_draw(uint64_t seed, int32_t choice, int32_t position);

}  // namespace tnd
