#include "shm_comm.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fork_ranks.h"
#include "repeated_memory.h"
#include "self_test.h"
#include "shm_problem.h"

namespace ds {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string wrong_of_type(ShmComm& comm, std::int64_t count, CommType type, std::uint64_t seed,
                          CommReduction reduction = CommReduction::sum) {
  switch (type) {
    case CommType::f32:
      return shm_wrong_element<float>(comm, count, type, seed, reduction);
    case CommType::f16:
      return shm_wrong_element<f16>(comm, count, type, seed, reduction);
    case CommType::bf16:
      return shm_wrong_element<bf16>(comm, count, type, seed, reduction);
    case CommType::f64:
      return shm_wrong_element<double>(comm, count, type, seed, reduction);
    case CommType::i8:
      return shm_wrong_element<std::int8_t>(comm, count, type, seed, reduction);
    case CommType::u8:
      return shm_wrong_element<std::uint8_t>(comm, count, type, seed, reduction);
    case CommType::i32:
      return shm_wrong_element<std::int32_t>(comm, count, type, seed, reduction);
    case CommType::i64:
      return shm_wrong_element<std::int64_t>(comm, count, type, seed, reduction);
  }
  return "no such type";
}

constexpr CommType kAllTypes[] = {CommType::f32, CommType::f16, CommType::bf16, CommType::f64,
                                  CommType::i8,  CommType::u8,  CommType::i32,  CommType::i64};
constexpr CommReduction kAllReductions[] = {CommReduction::sum, CommReduction::product,
                                            CommReduction::min, CommReduction::max};

class ShmCommOfRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmCommOfRanks, testing::Values(1, 2, 3, 8, 17),
                         testing::PrintToStringParamName());

TEST_P(ShmCommOfRanks, All_reduce_gives_the_sum_in_order_of_ranks_to_the_last_bit) {
  const ShmCommOptions group = group_of(GetParam(), 4096);
  Ranks(GetParam(), [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    std::uint64_t seed = 0;
    for (const CommType type : {CommType::f32, CommType::f16, CommType::bf16}) {
      // Around a line, a vector, a slot, and the change from one phase to several.
      for (const std::int64_t count :
           {0,   1,   11,   12,   13,   24,   25,   31,   32,   33,   127,
            128, 129, 1023, 1024, 1025, 2047, 2048, 2049, 5000, 12345}) {
        const std::string wrong = wrong_of_type(*comm, count, type, ++seed);
        if (!wrong.empty()) return wrong;
      }
    }
    return "";
  }).expect_all_right();
}

TEST_P(ShmCommOfRanks, All_reduce_knows_all_types_and_reductions) {
  const ShmCommOptions group = group_of(GetParam(), 4096);
  Ranks(GetParam(), [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    std::uint64_t seed = 0;
    for (const CommType type : kAllTypes) {
      for (const CommReduction reduction : kAllReductions) {
        for (const std::int64_t count : {1, 300, 9001}) {
          const std::string wrong = wrong_of_type(*comm, count, type, ++seed, reduction);
          if (!wrong.empty()) return wrong;
        }
      }
    }
    return "";
  }).expect_all_right();
}

TEST_P(ShmCommOfRanks, All_gather_and_broadcast_move_any_number_of_bytes) {
  const ShmCommOptions group = group_of(GetParam(), 4096);
  Ranks(GetParam(), [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    const int size = group.size;
    for (const std::int64_t bytes : {0, 1, 63, 64, 65, 4095, 4096, 4097, 8192, 8193, 30'001}) {
      const auto byte_of = [&](int r, std::int64_t i) {
        return shm_element<std::uint8_t>(r, i, static_cast<std::uint64_t>(bytes));
      };
      const auto n = static_cast<std::size_t>(bytes);
      std::vector<std::uint8_t> own(n), all(n * static_cast<std::size_t>(size) + 1, 0xA5);
      for (std::int64_t i = 0; i < bytes; ++i) own[static_cast<std::size_t>(i)] = byte_of(rank, i);
      for (const bool in_place : {false, true}) {
        std::uint8_t* const mine = all.data() + static_cast<std::size_t>(rank) * n;
        if (in_place) {
          std::fill(all.begin(), all.end(), std::uint8_t{0xA5});
          std::copy(own.begin(), own.end(), mine);
        }
        shm_comm_all_gather(*comm, in_place ? mine : own.data(), all.data(), bytes);
        for (int r = 0; r < size; ++r) {
          for (std::int64_t i = 0; i < bytes; ++i) {
            if (all[static_cast<std::size_t>(r * bytes + i)] != byte_of(r, i)) {
              return "byte " + std::to_string(i) + " of rank " + std::to_string(r);
            }
          }
        }
        if (all.back() != 0xA5) return "wrote behind the last byte";
      }
      for (int root = 0; root < size; root += 2) {
        std::vector<std::uint8_t> data = own;
        shm_comm_broadcast(*comm, data.data(), bytes, root);
        for (std::int64_t i = 0; i < bytes; ++i) {
          if (data[static_cast<std::size_t>(i)] != byte_of(root, i)) {
            return "broadcast byte " + std::to_string(i) + " of " + std::to_string(bytes);
          }
        }
      }
    }
    return "";
  }).expect_all_right();
}

TEST(ShmComm, All_reduce_gives_the_same_bits_on_every_code_path) {
  for (const CpuIsa isa : runnable_isas()) {
    ShmCommOptions group = group_of(3, 4096);
    group.isa = isa;
    Ranks(3, [&](int rank) -> std::string {
      const ShmCommPtr comm = open_group(group, rank);
      for (const CommType type : {CommType::f32, CommType::f16, CommType::bf16}) {
        for (const std::int64_t count : {15, 16, 17, 255, 257, 20'011}) {
          const std::string wrong = wrong_of_type(*comm, count, type, 5);
          if (!wrong.empty()) return std::string(isa_name(isa)) + ": " + wrong;
        }
      }
      return "";
    }).expect_all_right();
  }
}

TEST(ShmComm, Large_slots_and_messages_that_they_do_not_divide) {
  for (const int size : {2, 3}) {
    const ShmCommOptions group = group_of(size);
    Ranks(size, [&](int rank) -> std::string {
      const ShmCommPtr comm = open_group(group, rank);
      for (const std::int64_t count : {65'536, 65'537, 131'072, 131'073, 700'001}) {
        const std::string wrong = wrong_of_type(*comm, count, CommType::f32, 9);
        if (!wrong.empty()) return wrong;
      }
      return wrong_of_type(*comm, 700'001, CommType::bf16, 9);
    }).expect_all_right();
  }
}

// All ranks on one core: they sleep in most phases, so that chunks grow to a whole slot, and
// between short calls that nobody waits for they shrink again.
TEST(ShmComm, Messages_of_many_chunks_are_right_where_cores_are_short) {
  const ShmCommOptions group = group_of(5);
  cpu_set_t core;
  ASSERT_EQ(sched_getaffinity(0, sizeof core, &core), 0);
  int first = 0;
  while (!CPU_ISSET(first, &core)) ++first;
  Ranks(5, [&](int rank) -> std::string {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return "cannot be on one core";
    const ShmCommPtr comm = open_group(group, rank);
    for (std::uint64_t round = 0; round < 6; ++round) {
      for (const std::int64_t count : {70'001, 200'003, 500'009}) {
        const std::string wrong = wrong_of_type(*comm, count, CommType::f32, round);
        if (!wrong.empty()) return wrong;
      }
      std::vector<std::int64_t> own(90'001, rank), all(own.size() * 5);
      shm_comm_all_gather(*comm, own.data(), all.data(), 90'001 * 8);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i] != static_cast<std::int64_t>(i / own.size())) return "gather";
      }
      shm_comm_broadcast(*comm, own.data(), 90'001 * 8, 3);
      for (const std::int64_t x : own) {
        if (x != 3) return "broadcast";
      }
      for (int i = 0; i < 20; ++i) shm_comm_barrier(*comm);
    }
    return "";
  }).expect_all_right();
}

// Random calls of random sizes, in a group of all, in one of the even ranks and in one of every two
// neighbours, one after the other without a pause: whatever is reused too early shows.
// A core that is given away while others want it comes back after all of them; who sleeps is sooner
// back.
TEST(ShmComm, Beside_other_work_on_every_core_a_phase_costs_no_turn_of_the_scheduler) {
  constexpr int kBusyOnACore = 4, kCalls = 300;
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  Ranks busy(kBusyOnACore * std::min(cores, 4), [](int) -> std::string {
    for (std::atomic<unsigned> i{0};; i.fetch_add(1)) {
    }
  });
  const ShmCommOptions group = group_of(2);
  Ranks ranks(2, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    std::vector<float> data(64 << 10);
    std::vector<double> taken;
    for (int i = 0; i < kCalls; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      shm_comm_all_reduce(*comm, data.data(), static_cast<std::int64_t>(data.size()), CommType::f32,
                          CommReduction::sum);
      taken.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    std::sort(taken.begin(), taken.end());
    const double median = taken[kCalls / 2];
    return median < 3.0 ? "" : "half of the calls took more than " + std::to_string(median) + " ms";
  });
  ranks.expect_all_right();
}

TEST(ShmComm, Any_sequence_of_calls_in_several_groups_at_once_is_right) {
  constexpr int kSize = 6;
  const ShmCommOptions all = group_of(kSize, 1024), even = group_of(kSize / 2, 2048);
  std::vector<ShmCommOptions> pairs;
  for (int i = 0; i < kSize / 2; ++i) pairs.push_back(group_of(2, 4096));
  Ranks(kSize, [&](int rank) -> std::string {
    const ShmCommPtr of_all = open_group(all, rank);
    const ShmCommPtr of_pair = open_group(pairs[static_cast<std::size_t>(rank / 2)], rank % 2);
    const ShmCommPtr of_even = rank % 2 == 0 ? open_group(even, rank / 2) : nullptr;
    std::mt19937 random(77);  // All ranks draw the same numbers.
    for (std::uint64_t round = 0; round < 600; ++round) {
      const auto which = random() % 3, what = random() % 6;
      const auto root = random();
      auto count = static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 6000 : 70));
      const CommType type = kAllTypes[random() % 8];
      ShmComm* const comm = which == 0 ? of_all.get() : which == 1 ? of_pair.get() : of_even.get();
      if (comm == nullptr) continue;
      const int r = shm_comm_rank(*comm), size = shm_comm_size(*comm);
      std::string wrong;
      if (what < 3) {
        wrong = wrong_of_type(*comm, count, type, round);
      } else if (what == 3) {
        std::vector<std::int64_t> own(static_cast<std::size_t>(count)),
            got(static_cast<std::size_t>(count * size));
        std::iota(own.begin(), own.end(), r * 1'000'000);
        shm_comm_all_gather(*comm, own.data(), got.data(), count * 8);
        for (std::int64_t i = 0; i < count * size; ++i) {
          if (got[static_cast<std::size_t>(i)] != i / count * 1'000'000 + i % count)
            wrong = "gather";
        }
      } else if (what == 4) {
        const int from = static_cast<int>(root % static_cast<unsigned>(size));
        std::vector<std::int64_t> data(static_cast<std::size_t>(count));
        std::iota(data.begin(), data.end(), r * 1'000'000);
        shm_comm_broadcast(*comm, data.data(), count * 8, from);
        for (std::int64_t i = 0; i < count; ++i) {
          if (data[static_cast<std::size_t>(i)] != from * 1'000'000 + i) wrong = "broadcast";
        }
      } else {
        shm_comm_barrier(*comm);
      }
      if (!wrong.empty()) return "round " + std::to_string(round) + ": " + wrong;
    }
    return "";
  }).expect_all_right();
}

TEST(ShmComm, Nobody_leaves_a_barrier_before_the_last_has_come) {
  const ShmCommOptions group = group_of(4);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Ranks ranks(4, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    for (int round = 0; round < 50; ++round) {
      // The others have nothing to read until the one whose turn it is has written.
      if (rank == round % 4) {
        usleep(200);
        if (write(ends[1], "xxx", 3) != 3) return "cannot write";
      }
      shm_comm_barrier(*comm);
      char byte;
      if (rank != round % 4) {
        const int flags = fcntl(ends[0], F_GETFL);
        fcntl(ends[0], F_SETFL, flags | O_NONBLOCK);
        if (read(ends[0], &byte, 1) != 1) return "left too early in round " + std::to_string(round);
      }
      shm_comm_barrier(*comm);
    }
    return "";
  });
  ranks.expect_all_right();
  close(ends[0]);
  close(ends[1]);
}

TEST(ShmComm, Calls_that_do_not_match_are_an_error_on_every_rank_and_the_group_goes_on) {
  const ShmCommOptions group = group_of(3, 1024);
  Ranks(3, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    std::vector<float> data(3000, 1.0f);
    const auto expect_refused = [&](const std::function<void()>& odd,
                                    const std::function<void()>& others) -> std::string {
      const std::string thrown = thrown_by(rank == 1 ? odd : others);
      if (thrown.find("EPROTO") != 0 || thrown.find("do not match") == std::string::npos) {
        return "got: " + thrown;
      }
      return wrong_of_type(*comm, 2000, CommType::f32, 3);
    };
    const auto reduce = [&](std::int64_t count, CommType type = CommType::f32,
                            CommReduction reduction = CommReduction::sum) {
      return [&, count, type, reduction] {
        shm_comm_all_reduce(*comm, data.data(), count, type, reduction);
      };
    };
    const std::function<void()> barrier = [&] { shm_comm_barrier(*comm); };
    const auto from = [&](int root) {
      return [&, root] { shm_comm_broadcast(*comm, &data[0], 8, root); };
    };
    for (const auto& [odd, others] :
         std::vector<std::pair<std::function<void()>, std::function<void()>>>{
             {reduce(7), reduce(8)},
             {reduce(7), reduce(3000)},
             {reduce(3000), reduce(7)},
             {reduce(3000), reduce(2999)},
             {reduce(8), reduce(8, CommType::i32)},
             {reduce(8), reduce(8, CommType::f32, CommReduction::max)},
             {barrier, reduce(3000)},
             {reduce(1), barrier},
             {from(0), from(2)}}) {
      if (const std::string wrong = expect_refused(odd, others); !wrong.empty()) return wrong;
    }
    return "";
  }).expect_all_right();
}

TEST(ShmComm, A_mismatch_names_both_calls) {
  const ShmCommOptions group = group_of(2);
  Ranks ranks(2, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    std::vector<float> data(64);
    return thrown_by([&] { shm_comm_all_reduce(*comm, data.data(), 10 + rank, CommType::f32); });
  });
  EXPECT_THAT(
      ranks.text(0),
      HasSubstr("rank 1 makes all_reduce (sum) of 11 f32, this one all_reduce (sum) of 10 f32"));
  EXPECT_THAT(ranks.text(1), HasSubstr("rank 0 makes all_reduce (sum) of 10 f32"));
}

TEST(ShmComm, Threads_can_be_ranks_and_calls_of_one_rank_wait_for_each_other) {
  char detail[200];
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ds_self_test_shm_comm("cpu", detail, sizeof detail), DS_SELF_TEST_OK) << detail;
  }
  EXPECT_THAT(detail, HasSubstr("scalar"));
  EXPECT_EQ(ds_self_test_shm_comm("cuda", detail, sizeof detail), DS_SELF_TEST_SKIPPED);
  EXPECT_STREQ(detail, "has code for cpu, not for cuda");
}

TEST(ShmComm, Arguments_out_of_range_are_refused_before_anything_is_sent) {
  ShmCommOptions options = group_of(1);
  const ShmCommPtr comm(shm_comm_open(options));
  float x = 1;
  EXPECT_THROW(shm_comm_all_reduce(*comm, &x, -1, CommType::f32), std::invalid_argument);
  EXPECT_THROW(shm_comm_all_reduce(*comm, nullptr, 1, CommType::f32), std::invalid_argument);
  EXPECT_THROW(shm_comm_all_reduce(*comm, &x, INT64_MAX / 2, CommType::f32), std::invalid_argument);
  EXPECT_THROW(shm_comm_all_reduce(*comm, &x, 1, static_cast<CommType>(99)), std::invalid_argument);
  EXPECT_THROW(shm_comm_all_reduce(*comm, &x, 1, CommType::f32, static_cast<CommReduction>(9)),
               std::invalid_argument);
  EXPECT_THROW(shm_comm_all_gather(*comm, &x, nullptr, 4), std::invalid_argument);
  EXPECT_THROW(shm_comm_broadcast(*comm, &x, 4, 1), std::invalid_argument);
  EXPECT_THROW(shm_comm_broadcast(*comm, &x, -4, 0), std::invalid_argument);
  shm_comm_all_reduce(*comm, &x, 1, CommType::f32);
  EXPECT_EQ(x, 1.0f);
  const auto refused = [&](auto change) {
    ShmCommOptions bad = group_of(2);
    change(bad);
    EXPECT_THROW(shm_comm_open(bad), std::invalid_argument);
  };
  refused([](ShmCommOptions& o) { o.name = ""; });
  refused([](ShmCommOptions& o) { o.name = "a/b"; });
  refused([](ShmCommOptions& o) { o.name = std::string(101, 'a'); });
  refused([](ShmCommOptions& o) { o.size = 0; });
  refused([](ShmCommOptions& o) { o.size = 4097; });
  refused([](ShmCommOptions& o) { o.rank = 2; });
  refused([](ShmCommOptions& o) { o.rank = -1; });
  refused([](ShmCommOptions& o) { o.timeout = std::chrono::milliseconds(0); });
  refused([](ShmCommOptions& o) { o.slot_bytes = -1; });
}

TEST(ShmComm, Names_are_random) {
  const std::string a = shm_comm_new_name(), b = shm_comm_new_name();
  EXPECT_EQ(a.size(), 32u);
  EXPECT_NE(a, b);
}

// The largest of two ranks, over memory that is the same few pages again and again.
TEST(ShmCommLarge, More_than_two_to_the_31_elements_are_all_reduced) {
  const ShmCommOptions group = group_of(2);
  Ranks(2, [&](int rank) -> std::string {
    constexpr std::int64_t kWindow = 1 << 20, kRepetitions = 2048, kTail = 17;
    RepeatedMemory memory(kWindow, kRepetitions, kTail);
    const auto fill = [&](std::uint8_t* data, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) data[i] = shm_element<std::uint8_t>(rank, i, 1);
    };
    fill(memory.window<std::uint8_t>(), kWindow);
    fill(memory.tail<std::uint8_t>(), kTail);
    const ShmCommPtr comm = open_group(group, rank);
    shm_comm_all_reduce(*comm, memory.data(), kWindow * kRepetitions + kTail, CommType::u8,
                        CommReduction::max);
    const auto wrong = [&](const std::uint8_t* data, std::int64_t n) -> std::string {
      for (std::int64_t i = 0; i < n; ++i) {
        const auto want = shm_expected<std::uint8_t>(2, i, 1, CommReduction::max);
        if (data[i] != want) return "element " + std::to_string(i);
      }
      return "";
    };
    return wrong(memory.window<std::uint8_t>(), kWindow) +
           wrong(memory.tail<std::uint8_t>(), kTail);
  }).expect_all_right();
}

}  // namespace
}  // namespace ds
