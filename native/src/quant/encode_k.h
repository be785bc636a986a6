// Encoders of the 256-element K formats, without importance weights.
#pragma once

#include <cstdint>

namespace tnd {

// Each encodes x [256] f32 into one block: 144, 176 or 210 bytes.
void encode_q4_k(const float* x, uint8_t* block);
void encode_q5_k(const float* x, uint8_t* block);
void encode_q6_k(const float* x, uint8_t* block);

}  // namespace tnd
