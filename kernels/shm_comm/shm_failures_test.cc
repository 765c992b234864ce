// Ranks that die, are late, close or never come; names that are taken; nothing left behind.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "fork_ranks.h"
#include "shm_problem.h"

namespace ds {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string path_of(const std::string& name) {
  return "/ds-shm-" + std::to_string(geteuid()) + "-" + name;
}

// Calls until something is thrown.
std::string reduce_until_thrown(ShmComm& comm, std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count), 1.0f);
  return thrown_by([&] {
    for (;;) shm_comm_all_reduce(comm, data.data(), count, CommType::f32);
  });
}

// Which ranks have the group open.
class Seen {
 public:
  Seen() {
    void* const memory = mmap(nullptr, sizeof *flags_ * 64, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    flags_ = static_cast<std::atomic<int>*>(memory);
  }
  ~Seen() { munmap(flags_, sizeof *flags_ * 64); }
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;

  void say(int rank) { flags_[rank] = 1; }
  void wait_for(int rank) const {
    while (flags_[rank] == 0) usleep(100);
  }

 private:
  std::atomic<int>* flags_;
};

TEST(ShmCommFailures, A_rank_that_is_killed_at_any_moment_is_an_error_on_all_others) {
  std::mt19937 random(11);
  for (const int size : {2, 3, 8}) {
    for (int round = 0; round < 6; ++round) {
      const ShmCommOptions group = group_of(size, 4096);
      const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
      const std::int64_t count = round % 2 == 0 ? 8 : 100'000;
      Seen seen;
      Ranks ranks(size, [&](int rank) -> std::string {
        const ShmCommPtr comm = open_group(group, rank);
        seen.say(rank);
        return reduce_until_thrown(*comm, count);
      });
      seen.wait_for(victim);
      usleep(random() % 60'000);
      kill(ranks.pid(victim), SIGKILL);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_THAT(ranks.text(rank), HasSubstr(rank == victim ? "signal 9" : "ECONNRESET"))
            << size << " ranks, round " << round;
      }
      EXPECT_FALSE(is_left_behind(group.name));
    }
  }
}

// One that has not yet said that it is there can only be late.
TEST(ShmCommFailures, A_rank_that_is_killed_while_the_group_opens_is_an_error_on_all_others) {
  std::mt19937 random(12);
  for (int round = 0; round < 12; ++round) {
    ShmCommOptions group = group_of(4, 4096);
    group.timeout = std::chrono::milliseconds(500);
    const int victim = static_cast<int>(random() % 4);
    Ranks ranks(4, [&](int rank) -> std::string {
      usleep(static_cast<useconds_t>(rank * 37 % 4 * 300));
      const ShmCommPtr comm = open_group(group, rank);
      return reduce_until_thrown(*comm, 8);
    });
    usleep(random() % 4'000);
    kill(ranks.pid(victim), SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      const std::string text = ranks.text(rank);
      if (rank == victim) {
        EXPECT_EQ(text, "signal 9");
      } else {
        EXPECT_THAT(text, testing::AnyOf(HasSubstr("ECONNRESET"), HasSubstr("ETIMEDOUT")));
      }
    }
    if (victim == 0) shm_unlink(path_of(group.name).c_str());  // Killed before its first word.
    EXPECT_FALSE(is_left_behind(group.name)) << "round " << round << ", victim " << victim;
  }
}

// Its parent has not asked for its status: the process is still in the table.
TEST(ShmCommFailures, A_zombie_has_died) {
  const ShmCommOptions group = group_of(2);
  Ranks ranks(2, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    if (rank == 1) raise(SIGKILL);
    return reduce_until_thrown(*comm, 8);
  });
  const std::string text = ranks.text(0);
  EXPECT_THAT(text, StartsWith("ECONNRESET: shm_comm all_reduce: group " + group.name +
                               ", rank 0 of 2: rank 1 (process " + std::to_string(ranks.pid(1)) +
                               ") has died"));
}

TEST(ShmCommFailures, A_rank_that_closes_is_an_error_for_who_waits_for_it) {
  const ShmCommOptions group = group_of(3);
  Ranks ranks(3, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    if (rank == 2) return "";
    return reduce_until_thrown(*comm, 8);
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.text(rank), HasSubstr("has closed the group")) << rank;
  }
}

TEST(ShmCommFailures, What_the_last_call_gave_is_right_though_others_close_after_it) {
  for (int round = 0; round < 20; ++round) {
    const ShmCommOptions group = group_of(3, 1024);
    Ranks(3, [&](int rank) -> std::string {
      const ShmCommPtr comm = open_group(group, rank);
      return shm_wrong_element<float>(*comm, 5000, CommType::f32, 3);
    }).expect_all_right();
  }
}

TEST(ShmCommFailures, A_rank_that_is_stopped_is_late_after_the_time_limit) {
  ShmCommOptions group = group_of(3);
  group.timeout = std::chrono::milliseconds(4000);
  Ranks ranks(3, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    if (rank == 1) raise(SIGSTOP);
    return reduce_until_thrown(*comm, 8);
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.text(rank), HasSubstr("rank 1 (process " + std::to_string(ranks.pid(1)) +
                                            ") has not come within 4000 ms"));
  }
  // And when it comes at last, it learns that the group is over.
  kill(ranks.pid(1), SIGCONT);
  EXPECT_THAT(ranks.text(1), HasSubstr("E"));
}

TEST(ShmCommFailures, A_group_that_is_over_stays_so) {
  const ShmCommOptions group = group_of(2);
  Ranks ranks(2, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    if (rank == 1) raise(SIGKILL);
    reduce_until_thrown(*comm, 8);
    return thrown_by([&] { shm_comm_barrier(*comm); });
  });
  EXPECT_THAT(ranks.text(0), HasSubstr("shm_comm barrier: "));
}

TEST(ShmCommFailures, Ranks_that_never_come_are_an_error_and_nothing_is_left) {
  ShmCommOptions group = group_of(3);
  group.timeout = std::chrono::milliseconds(300);
  Ranks ranks(2,
              [&](int rank) -> std::string { return thrown_by([&] { open_group(group, rank); }); });
  EXPECT_THAT(ranks.text(0), HasSubstr("ETIMEDOUT"));
  EXPECT_THAT(ranks.text(1), testing::AnyOf(HasSubstr("ETIMEDOUT"), HasSubstr("ECONNRESET")));
  EXPECT_FALSE(is_left_behind(group.name));
  ShmCommOptions alone = group_of(2);
  alone.timeout = std::chrono::milliseconds(100);
  EXPECT_THAT(thrown_by([&] { open_group(alone, 1); }),
              HasSubstr("rank 0 has not come within 100 ms"));
}

TEST(ShmCommFailures, The_memory_has_no_name_once_all_have_come_and_is_this_users_alone_before) {
  const ShmCommOptions group = group_of(2);
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  Ranks ranks(2, [&](int rank) -> std::string {
    char byte;
    if (rank == 1 && read(go[0], &byte, 1) != 1) return "cannot read";
    const ShmCommPtr comm = open_group(group, rank);
    return is_left_behind(group.name) ? "it has a name" : "";
  });
  struct stat info {};
  while (stat(("/dev/shm" + path_of(group.name)).c_str(), &info) != 0) usleep(1000);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(write(go[1], "x", 1), 1);
  ranks.expect_all_right();
  close(go[0]);
  close(go[1]);
}

TEST(ShmCommFailures, What_a_killed_run_left_under_the_name_is_replaced) {
  ShmCommOptions group = group_of(2, 4096);
  {
    Ranks first(1, [&](int rank) -> std::string {
      open_group(group, rank);
      return "";
    });
    wait_for_rank_0(group.name);
    kill(first.pid(0), SIGKILL);
    first.text(0);
  }
  // Left behind now, unless another test that runs meanwhile has removed it.
  Ranks(2, [&](int rank) -> std::string {
    const ShmCommPtr comm = open_group(group, rank);
    return shm_wrong_element<float>(*comm, 100, CommType::f32, 3);
  }).expect_all_right();
  EXPECT_FALSE(is_left_behind(group.name));
}

TEST(ShmCommFailures, What_killed_runs_left_under_other_names_is_removed) {
  const ShmCommOptions dead = group_of(2, 4096), waiting = group_of(2, 4096);
  Ranks alive(1, [&](int rank) -> std::string {
    open_group(waiting, rank);
    return "";
  });
  wait_for_rank_0(waiting.name);
  {
    Ranks first(1, [&](int rank) -> std::string {
      open_group(dead, rank);
      return "";
    });
    wait_for_rank_0(dead.name);
    kill(first.pid(0), SIGKILL);
    first.text(0);
  }
  const ShmCommPtr another = open_group(group_of(1), 0);
  EXPECT_FALSE(is_left_behind(dead.name));
  EXPECT_TRUE(is_left_behind(waiting.name));  // It may still come together.
  EXPECT_EQ(shm_unlink(path_of(waiting.name).c_str()), 0);
}

TEST(ShmCommFailures, A_name_that_is_in_use_is_refused) {
  const ShmCommOptions group = group_of(2);
  Ranks first(1, [&](int rank) -> std::string {
    open_group(group, rank);
    return "";
  });
  wait_for_rank_0(group.name);
  EXPECT_THAT(thrown_by([&] { open_group(group, 0); }),
              HasSubstr("another group of this name is coming together"));
  ShmCommOptions larger = group;
  larger.size = 3;
  EXPECT_THAT(thrown_by([&] { open_group(larger, 1); }), HasSubstr("opened it with 2 ranks"));
  EXPECT_THAT(first.text(0), HasSubstr("rank 1 could not open the group"));
}

TEST(ShmCommFailures, Memory_that_others_can_write_is_refused) {
  const ShmCommOptions group = group_of(2);
  const int fd = shm_open(path_of(group.name).c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fchmod(fd, 0666), 0);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  EXPECT_THAT(thrown_by([&] { open_group(group, 1); }), HasSubstr("is not this user's alone"));
  close(fd);
  shm_unlink(path_of(group.name).c_str());
}

TEST(ShmCommFailures, No_room_is_an_error_that_says_what_to_do) {
  ShmCommOptions group = group_of(4096);
  group.slot_bytes = 1 << 30;
  const std::string text = thrown_by([&] { open_group(group, 0); });
  EXPECT_THAT(text, HasSubstr("bytes of shared memory; make /dev/shm larger"));
  EXPECT_FALSE(is_left_behind(group.name));
}

TEST(ShmCommFailures, A_child_of_fork_does_not_use_its_parents_group) {
  const ShmCommOptions group = group_of(1);
  const ShmCommPtr comm = open_group(group, 0);
  Ranks child(1, [&](int) -> std::string { return thrown_by([&] { shm_comm_barrier(*comm); }); });
  EXPECT_THAT(child.text(0), HasSubstr("before fork()"));
  EXPECT_EQ(thrown_by([&] { shm_comm_barrier(*comm); }), "");
}

TEST(ShmCommFailures, A_child_of_fork_that_outlives_its_rank_does_not_stand_in_for_it) {
  const ShmCommOptions group = group_of(2);
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  Ranks ranks(2, [&](int rank) -> std::string {
    close(hold[1]);
    const ShmCommPtr comm = open_group(group, rank);
    if (rank == 1) {
      if (fork() == 0) {
        char byte;  // Until the test is over; it keeps the memory mapped.
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
      }
      raise(SIGKILL);
    }
    return reduce_until_thrown(*comm, 8);
  });
  EXPECT_THAT(ranks.text(0), HasSubstr("has died"));
  close(hold[1]);
  close(hold[0]);
}

}  // namespace
}  // namespace ds
