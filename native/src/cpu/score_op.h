// A part of the CPU backend's score_peaks, declared for its test.
#pragma once

#include <cstdint>

namespace tnd::cpu {

// take_peaks turns the scaled scores s [visible] of one query row, layer and head into exp(s - max) (in place) and
// raises best [visible] to their softmax where it is larger.
void take_peaks(float* s, int32_t visible, float* best);

}  // namespace tnd::cpu
