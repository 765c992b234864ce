// The agent's libc is musl and the static libraries in it were compiled for glibc (docs/adr/0006):
// what passes between them has to have one shape.

#include "tests/agent/libc_layouts.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstring>

#if DSI_HAVE_MUSL

extern "C" {
extern const layout dsi_layouts_glibc[];
extern const layout dsi_layouts_musl[];
extern const pthread_mutex_t dsi_new_mutex_glibc;
extern const pthread_mutex_t dsi_new_mutex_musl;
extern const pthread_cond_t dsi_new_condition_glibc;
extern const pthread_cond_t dsi_new_condition_musl;
extern const pthread_once_t dsi_new_once_glibc;
extern const pthread_once_t dsi_new_once_musl;
}

namespace dsi {
namespace {

TEST(Libc, Types_and_constants_are_the_same_in_glibc_and_in_musl) {
  int count = 0;
  for (; dsi_layouts_glibc[count].name != nullptr; ++count) {
    ASSERT_NE(dsi_layouts_musl[count].name, nullptr);
    EXPECT_STREQ(dsi_layouts_glibc[count].name, dsi_layouts_musl[count].name);
    EXPECT_EQ(dsi_layouts_glibc[count].value, dsi_layouts_musl[count].value)
        << dsi_layouts_glibc[count].name;
  }
  EXPECT_GT(count, 80);
}

TEST(Libc, A_new_lock_is_the_same_bytes_in_glibc_and_in_musl) {
  EXPECT_EQ(std::memcmp(&dsi_new_mutex_glibc, &dsi_new_mutex_musl, sizeof(pthread_mutex_t)), 0);
  EXPECT_EQ(std::memcmp(&dsi_new_condition_glibc, &dsi_new_condition_musl, sizeof(pthread_cond_t)),
            0);
  EXPECT_EQ(dsi_new_once_glibc, dsi_new_once_musl);
}

}  // namespace
}  // namespace dsi

#endif
