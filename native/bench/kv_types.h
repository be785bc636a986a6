// Types of cached keys and values by name, for the flags of these programs.
#pragma once

#include <strings.h>

#include <cstdint>

#include "core/kv_type.h"

// kv_type_of returns the id of a type, -1 of a name that is none.
inline int32_t kv_type_of(const char* name) {
#define TND_ROW(type_name, id, codes, words, block) \
  if (strcasecmp(name, #type_name) == 0) return id;
  TND_KV_TYPES(TND_ROW, TND_ROW)
#undef TND_ROW
  return -1;
}
