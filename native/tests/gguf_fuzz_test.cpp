// Replays the seeds of the fuzz target fuzz/gguf_fuzz.cpp.
#include "fuzz/gguf_fuzz.cpp"

#include "fuzz/replay.h"

TEST(seeds_truncations_and_flips) {
  tnd::test::replay_corpus(TND_ROOT "/native/tests/fuzz/corpus/gguf",
                           {"empty", "scalars", "arrays", "tensors", "version2", "types"});
}

TEST_MAIN()
