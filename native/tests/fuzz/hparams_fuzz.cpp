// Fuzz target of the hyper-parameter readers behind the GGUF reader: targets, scorers and drafts of every dialect.
// Build and run as gguf_fuzz.cpp says, with src/{core,gguf,quant,models}/*.cpp; corpus/hparams.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "models/dflash_hparams.h"
#include "models/hparams.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::unique_ptr<tnd::gguf::File> file;
  if (!tnd::gguf::File::open_memory(data, size, &file).ok()) return 0;
  tnd::HParams p;
  if (tnd::read_hparams(*file, &p).ok()) {
    if (p.n_layers < 1 || p.q_heads % p.kv_heads != 0 || p.recurrent.size() != static_cast<size_t>(p.n_layers)) {
      std::abort();
    }
    std::vector<uint32_t> bits;
    (void)tnd::read_unused_tokens(*file, p.vocab, &bits);
  }
  std::unique_ptr<tnd::DflashFile> draft;
  if (tnd::DflashFile::from_gguf(std::move(file), 24, &draft).ok()) {
    const tnd::DflashHParams& d = draft->hparams();
    if (d.block < 2 || d.target_layers.empty() || d.sliding.size() != static_cast<size_t>(d.decoder.n_layers) ||
        d.feature_raw != static_cast<int32_t>(d.target_layers.size()) * d.decoder.hidden) {
      std::abort();
    }
    for (int32_t id : d.target_layers) {
      if (id < 0 || id >= 24) std::abort();
    }
    (void)draft->find("blk.0.ffn_norm.weight");
  }
  return 0;
}
