// Constants shared by block decoders and matrix kernels. Source: the GGUF block formats.
#pragma once

#include <cstdint>

namespace tnd {

// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// k4_scale_min unpacks the six-bit scale and min of group j (0..7) from the 12 scale bytes of a Q4_K or Q5_K block.
inline void k4_scale_min(const uint8_t* s, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6) << 4);
  }
}

// k4_pack_scales is the inverse: scale[8] and min[8], six bits each, into 12 bytes.
inline void k4_pack_scales(const uint8_t* scale, const uint8_t* min, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    s[j] = static_cast<uint8_t>(scale[j] | (scale[j + 4] >> 4) << 6);
    s[j + 4] = static_cast<uint8_t>(min[j] | (min[j + 4] >> 4) << 6);
    s[j + 8] = static_cast<uint8_t>((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
  }
}

// iq4xs_scale returns the signed scale (ls - 32) of group j (0..7).
inline int iq4xs_scale(uint16_t scales_h, const uint8_t* scales_l, int j) {
  return ((scales_l[j / 2] >> 4 * (j % 2) & 15) | (scales_h >> 2 * j & 3) << 4) - 32;
}

}  // namespace tnd
