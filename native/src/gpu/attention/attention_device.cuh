// What the attention kernels share: the place of a key, and which part of the keys a segment is.
#pragma once

#include "gpu/attention/attention.h"
#include "gpu/attention/kv_device.cuh"

namespace tnd::gpu {

// slot_of is the slot that holds the key of an absolute position of a row.
TND_DEVICE int32_t slot_of(const AttentionArgs& a, const AttentionRow& row, int32_t position) {
  return position < row.past ? kv_slot(a.pages + row.pages, position) : a.tails[row.tail + position - row.past];
}

}  // namespace tnd::gpu
