// The exact contract of attention.h; called by launch_attention.
#pragma once

#include "gpu/attention/attention.h"

namespace tnd::gpu {

void launch_attention_exact(Stream& stream, const AttentionArgs& args);

}  // namespace tnd::gpu
