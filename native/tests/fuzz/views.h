// What fuzz targets of readers of model files ask of each tensor.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "core/tensor_view.h"

// read_ends aborts unless the view lies inside data [size], and returns its first and last byte added.
inline unsigned read_ends(const tnd::TensorView& t, const uint8_t* data, size_t size) {
  const uint8_t* p = static_cast<const uint8_t*>(t.data);
  if (t.bytes == 0 || p < data || t.bytes > size || p + t.bytes > data + size) std::abort();
  return p[0] + p[t.bytes - 1];
}
