// Fits y = 3x - 1 with AdamW from the installed op library, on memory of its own.

#include <ds/cpu_adam.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  char detail[200];
  if (ds_self_test_cpu_adam("cpu", detail, sizeof detail) != DS_SELF_TEST_OK) {
    std::fprintf(stderr, "cpu_adam does not work here: %s\n", detail);
    return 1;
  }
  std::printf("cpu_adam: %s\n", detail);

  std::vector<float> param = {0.0f, 0.0f};  // Slope and offset.
  std::vector<float> grad(2), exp_avg(2), exp_avg_sq(2);
  const ds::AdamTensor tensor{param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), 2};
  ds::AdamOptions options;
  options.lr = 0.05;

  double loss = 0.0;
  for (options.step = 1; options.step <= 1000; ++options.step) {
    loss = 0.0;
    grad = {0.0f, 0.0f};
    for (float x = -1.0f; x <= 1.0f; x += 0.125f) {
      const float error = param[0] * x + param[1] - (3.0f * x - 1.0f);
      loss += error * error / 17;
      grad[0] += 2 * error * x / 17;
      grad[1] += 2 * error / 17;
    }
    ds::cpu_adam_step(&tensor, 1, options);
  }
  std::printf("y = %.3f x + %.3f, loss %.2g\n", param[0], param[1], loss);
  return std::fabs(param[0] - 3) < 1e-2 && std::fabs(param[1] + 1) < 1e-2 ? 0 : 1;
}
