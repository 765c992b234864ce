#pragma once

#include <vector>

namespace ds {

// Sum of w[i] * x[i].
double weigh(const std::vector<double>& w, const std::vector<double>& x);

}  // namespace ds
