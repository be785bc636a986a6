// Replays the seeds of the fuzz target fuzz/hparams_fuzz.cpp.
#include "fuzz/hparams_fuzz.cpp"

#include "fuzz/replay.h"

TEST(seeds_truncations_and_flips) {
  tnd::test::replay_corpus(TND_ROOT "/native/tests/fuzz/corpus/hparams",
                           {"qwen3", "qwen35", "dflash-draft", "qwen35-dflash-draft", "dflash"});
}

// Every seed is a file that loads: otherwise the mutations never reach the readers' depths.
TEST(seeds_load) {
  for (const char* name : {"qwen3", "qwen35", "dflash-draft", "qwen35-dflash-draft", "dflash"}) {
    std::unique_ptr<tnd::gguf::File> file;
    CHECK_OK(tnd::gguf::File::open((std::string(TND_ROOT "/native/tests/fuzz/corpus/hparams/") + name).c_str(), &file));
    tnd::HParams p;
    std::unique_ptr<tnd::DflashFile> draft;
    if (std::strstr(name, "dflash") == nullptr) {
      CHECK_OK(tnd::read_hparams(*file, &p));
    } else {
      CHECK_OK(tnd::DflashFile::from_gguf(std::move(file), 24, &draft));
    }
  }
}

TEST_MAIN()
