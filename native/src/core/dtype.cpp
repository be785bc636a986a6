#include "core/dtype.h"

namespace tnd {
namespace {

struct TypeInfo {
  DType type;
  const char* name;
  uint64_t elems;
  uint64_t bytes;
  bool matmul;
};

constexpr TypeInfo kTypes[] = {
    {DType::kF32, "F32", 1, 4, true},         {DType::kF16, "F16", 1, 2, true},
    {DType::kQ4_0, "Q4_0", 32, 18, true},     {DType::kQ4_1, "Q4_1", 32, 20, true},
    {DType::kQ5_0, "Q5_0", 32, 22, true},     {DType::kQ5_1, "Q5_1", 32, 24, true},
    {DType::kQ8_0, "Q8_0", 32, 34, true},     {DType::kQ2_K, "Q2_K", 256, 84, false},
    {DType::kQ3_K, "Q3_K", 256, 110, false},  {DType::kQ4_K, "Q4_K", 256, 144, true},
    {DType::kQ5_K, "Q5_K", 256, 176, true},   {DType::kQ6_K, "Q6_K", 256, 210, true},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18, true}, {DType::kIQ4_XS, "IQ4_XS", 256, 136, true},
    {DType::kBF16, "BF16", 1, 2, true},       {DType::kMXFP4, "MXFP4", 32, 17, false},
    {DType::kNVFP4, "NVFP4", 64, 36, false},
};

const TypeInfo* find(int32_t id) {
  for (const TypeInfo& info : kTypes) {
    if (static_cast<int32_t>(info.type) == id) return &info;
  }
  return nullptr;
}

const TypeInfo& info_of(DType type) {
  const TypeInfo* info = find(static_cast<int32_t>(type));
  return info != nullptr ? *info : kTypes[0];
}

}  // namespace

bool dtype_known(int32_t id) {
  return find(id) != nullptr;
}
bool dtype_matmul(DType type) {
  return info_of(type).matmul;
}
const char* dtype_name(DType type) {
  return info_of(type).name;
}
uint64_t block_elems(DType type) {
  return info_of(type).elems;
}
uint64_t block_bytes(DType type) {
  return info_of(type).bytes;
}

uint64_t row_bytes(DType type, uint64_t k) {
  const TypeInfo& info = info_of(type);
  return k / info.elems * info.bytes;
}

}  // namespace tnd
