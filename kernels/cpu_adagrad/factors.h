#pragma once

namespace ds {

struct AdagradFactors {
  float lr, eps, weight_decay;
};

}  // namespace ds
