#pragma once

namespace ds {

// Multiplies n values on the device by a factor. 0, or CUDA's error.
int scale(float* values, int n, float factor);

}  // namespace ds
