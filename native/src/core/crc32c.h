// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of exported sequences.
#pragma once

#include <cstdint>

namespace tnd {

// crc32c of `bytes` bytes; pass the result of the previous part as seed to continue. crc32c("123456789") = 0xE3069283.
uint32_t crc32c(const void* data, uint64_t bytes, uint32_t seed = 0);

}  // namespace tnd
