// What the attention kernels share: the place of a key, and which part of the keys a segment is.
#pragma once

#include "gpu/attention/attention.h"
#include "gpu/attention/kv_device.cuh"

namespace tnd::gpu {

// slot_of is the slot that holds the key of an absolute position of a row.
TND_DEVICE int32_t slot_of(const AttentionRow& row, const int32_t* tails, int32_t position) {
  return position < row.past ? position : tails[row.tail + position - row.past];
}

}  // namespace tnd::gpu
