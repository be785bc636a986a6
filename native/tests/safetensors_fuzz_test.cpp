// Replays the seeds of the fuzz target fuzz/safetensors_fuzz.cpp.
#include "fuzz/safetensors_fuzz.cpp"

#include "fuzz/replay.h"

TEST(seeds_truncations_and_flips) {
  tnd::test::replay_corpus(TND_ROOT "/native/tests/fuzz/corpus/safetensors", {"empty", "two", "escapes", "deep"});
}

TEST_MAIN()
