// The contract of Connector, RemoteHost and Channel, for every implementation.

#include "orchestrator/ports/remote_host.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "orchestrator/adapters/local_host.h"
#include "orchestrator/adapters/srun_host.h"
#include "orchestrator/adapters/ssh_host.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "tests/contract/test_slurm.h"
#include "tests/contract/test_sshd.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() {
  return Deadline::after(seconds(30));
}

// Far more than any deadline that a test sets, and less than what it would hang for: these tests
// ask whether a wait ends, not how fast a busy machine is.
constexpr double kHang = 15;

double elapsed(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

enum class Kind { kLocal, kSsh, kSlurm };

class RemoteHostContract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kLocal) {
      connector_ = std::make_unique<LocalConnector>();
    } else if (GetParam() == Kind::kSlurm) {
      if (!TestSlurm::is_installed()) GTEST_SKIP() << "scripts/setup test installs Slurm";
      // One for all tests of this process.
      static TestSlurm slurm;
      target_ = slurm.host();
      connector_ = std::make_unique<SrunConnector>();
    } else {
      sshd_ = std::make_unique<TestSshd>();
      target_ = sshd_->host();
      connector_ = std::make_unique<SshConnector>(sshd_->options());
    }
    auto connected = connector_->connect(target_, soon(), stop_.get_token());
    ASSERT_TRUE(connected) << to_string(connected.error().error) << (sshd_ ? sshd_->log() : "");
    host_ = *std::move(connected);
  }

  std::unique_ptr<Channel> exec(const std::string& command) {
    auto channel = host_->exec(command, soon());
    if (!channel) {
      ADD_FAILURE() << channel.error().what;
      return nullptr;
    }
    return *std::move(channel);
  }

  std::string read_all(Channel& channel) {
    std::string text;
    std::vector<char> buffer(256 * 1024);
    for (;;) {
      auto n = channel.read(buffer, soon());
      if (!n) {
        ADD_FAILURE() << n.error().what;
        return text;
      }
      if (*n == 0) return text;
      text.append(buffer.data(), *n);
    }
  }

  std::unique_ptr<TestSshd> sshd_;
  std::unique_ptr<Connector> connector_;
  Host target_{.name = "this machine", .user = {}};
  std::stop_source stop_;
  std::unique_ptr<RemoteHost> host_;
};

std::string pattern(std::size_t size) {
  std::string data(size, '\0');
  std::uint32_t state = 1;
  for (char& c : data) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>(state >> 24);
  }
  return data;
}

TEST_P(RemoteHostContract, A_command_is_run_and_its_output_read_to_the_end) {
  auto channel = exec("echo hello; echo world");
  EXPECT_EQ(read_all(*channel), "hello\nworld\n");
  auto exit = channel->wait(soon());
  ASSERT_TRUE(exit) << exit.error().what;
  EXPECT_EQ(exit->code, 0);
  EXPECT_EQ(exit->signal, "");
  EXPECT_EQ(exit->err, "");
}

TEST_P(RemoteHostContract, Several_commands_run_one_after_the_other) {
  for (int i = 0; i < 5; ++i) {
    auto channel = exec("exit " + std::to_string(i));
    auto exit = channel->wait(soon());
    ASSERT_TRUE(exit) << exit.error().what;
    EXPECT_EQ(exit->code, i);
  }
}

TEST_P(RemoteHostContract, Sixty_four_mebibytes_go_there_and_arrive_unchanged) {
  std::string data = pattern(64 << 20);
  auto channel = exec("sha256sum");
  auto written = channel->write(data, soon());
  ASSERT_TRUE(written) << written.error().what;
  ASSERT_TRUE(channel->close_stdin());
  EXPECT_EQ(read_all(*channel).substr(0, 64), sha256_hex(data));
  EXPECT_EQ(channel->wait(soon())->code, 0);
}

TEST_P(RemoteHostContract, Sixty_four_mebibytes_come_back_unchanged) {
  TestFolder folder;
  std::string data = pattern(64 << 20);
  write_text(folder.path() / "data", data);
  auto channel = exec("cat " + (folder.path() / "data").string());
  EXPECT_EQ(sha256_hex(read_all(*channel)), sha256_hex(data));
  EXPECT_EQ(channel->wait(soon())->code, 0);
}

TEST_P(RemoteHostContract, Bytes_go_round_while_both_directions_are_full) {
  std::string data = pattern(12 << 20);
  auto channel = exec("cat");
  auto written = channel->write(data, soon());  // cat answers all the while; nobody reads.
  ASSERT_TRUE(written) << written.error().what;
  ASSERT_TRUE(channel->close_stdin());
  EXPECT_EQ(sha256_hex(read_all(*channel)), sha256_hex(data));
}

TEST_P(RemoteHostContract, Every_byte_value_passes) {
  std::string data;
  for (int i = 0; i < 256; ++i) data += static_cast<char>(i);
  auto channel = exec("cat");
  ASSERT_TRUE(channel->write(data, soon()));
  ASSERT_TRUE(channel->close_stdin());
  EXPECT_EQ(read_all(*channel), data);
}

TEST_P(RemoteHostContract, Standard_error_is_kept_apart) {
  auto channel = exec("echo out; echo err >&2; exit 3");
  EXPECT_EQ(read_all(*channel), "out\n");
  auto exit = channel->wait(soon());
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->code, 3);
  EXPECT_EQ(exit->err, "err\n");
  EXPECT_EQ(channel->standard_error(), "err\n");
}

TEST_P(RemoteHostContract, A_flood_on_standard_error_blocks_nothing_and_its_tail_is_kept) {
  auto channel = exec("head -c 8000000 /dev/zero | tr '\\0' e >&2; echo last words >&2; echo done");
  EXPECT_EQ(read_all(*channel), "done\n");
  auto exit = channel->wait(soon());
  ASSERT_TRUE(exit) << exit.error().what;
  EXPECT_LE(exit->err.size(), 16u * 1024);
  EXPECT_TRUE(exit->err.ends_with("last words\n"));
}

TEST_P(RemoteHostContract, A_flood_on_standard_error_does_not_stop_a_write) {
  std::string data = pattern(4 << 20);
  auto channel = exec("head -c 8000000 /dev/zero >&2; sha256sum");
  auto written = channel->write(data, soon());
  ASSERT_TRUE(written) << written.error().what;
  ASSERT_TRUE(channel->close_stdin());
  EXPECT_EQ(read_all(*channel).substr(0, 64), sha256_hex(data));
}

TEST_P(RemoteHostContract, A_signal_is_told_by_name) {
  auto channel = exec("kill -KILL $$");
  auto exit = channel->wait(soon());
  ASSERT_TRUE(exit) << exit.error().what;
  EXPECT_EQ(exit->code, -1);
  EXPECT_EQ(exit->signal, "KILL");
}

TEST_P(RemoteHostContract, A_silent_command_runs_into_the_deadline_of_read) {
  auto channel = exec("sleep 60");
  std::vector<char> buffer(100);
  auto start = Deadline::Clock::now();
  auto n = channel->read(buffer, Deadline::after(milliseconds(300)));
  ASSERT_FALSE(n);
  EXPECT_NE(n.error().what.find("sent nothing"), std::string::npos) << n.error().what;
  EXPECT_GE(elapsed(start), 0.29);
  EXPECT_LT(elapsed(start), kHang);
  EXPECT_TRUE(host_->alive());
}

TEST_P(RemoteHostContract, A_read_after_a_missed_deadline_goes_on) {
  auto channel = exec("sleep 0.5; echo late");
  std::vector<char> buffer(100);
  EXPECT_FALSE(channel->read(buffer, Deadline::after(milliseconds(50))));
  EXPECT_EQ(read_all(*channel), "late\n");
}

TEST_P(RemoteHostContract, A_write_to_a_command_that_does_not_read_runs_into_its_deadline) {
  auto channel = exec("sleep 60");
  std::string data(32 << 20, 'x');
  auto start = Deadline::Clock::now();
  auto written = channel->write(data, Deadline::after(milliseconds(500)));
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().what.find("took only"), std::string::npos) << written.error().what;
  EXPECT_GE(elapsed(start), 0.49);
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, A_write_to_a_command_that_is_gone_is_an_error_and_no_signal) {
  auto channel = exec("exit 0");
  std::string data(8 << 20, 'x');
  auto written = channel->write(data, soon());
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().what.find("ended before"), std::string::npos) << written.error().what;
}

TEST_P(RemoteHostContract, Wait_runs_into_its_deadline) {
  auto channel = exec("sleep 60");
  auto start = Deadline::Clock::now();
  auto exit = channel->wait(Deadline::after(milliseconds(300)));
  ASSERT_FALSE(exit);
  EXPECT_NE(exit.error().what.find("did not end"), std::string::npos) << exit.error().what;
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, Wait_drains_what_was_not_read) {
  auto channel = exec("head -c 20000000 /dev/zero; exit 7");
  auto exit = channel->wait(soon());
  ASSERT_TRUE(exit) << exit.error().what;
  EXPECT_EQ(exit->code, 7);
}

TEST_P(RemoteHostContract, Wait_does_not_wait_for_what_the_command_left_behind) {
  if (GetParam() == Kind::kSlurm) GTEST_SKIP() << "slurmstepd keeps a step until its streams end";
  auto channel = exec("sleep 30 & exit 5");
  auto start = Deadline::Clock::now();
  auto exit = channel->wait(soon());
  ASSERT_TRUE(exit) << exit.error().what;
  EXPECT_EQ(exit->code, 5);
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, A_stop_from_another_thread_ends_a_read_at_once) {
  auto channel = exec("sleep 60");
  std::jthread stopper([this] {
    std::this_thread::sleep_for(milliseconds(200));
    stop_.request_stop();
  });
  std::vector<char> buffer(100);
  auto start = Deadline::Clock::now();
  auto n = channel->read(buffer, soon());
  ASSERT_FALSE(n);
  EXPECT_NE(n.error().what.find("interrupted"), std::string::npos) << n.error().what;
  EXPECT_LT(elapsed(start), kHang);
  EXPECT_FALSE(host_->alive());
  EXPECT_FALSE(host_->exec("true", soon()));
}

TEST_P(RemoteHostContract, A_stop_from_another_thread_ends_a_write_at_once) {
  auto channel = exec("sleep 60");
  std::jthread stopper([this] {
    std::this_thread::sleep_for(milliseconds(200));
    stop_.request_stop();
  });
  std::string data(64 << 20, 'x');
  auto start = Deadline::Clock::now();
  auto written = channel->write(data, soon());
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().what.find("interrupted"), std::string::npos) << written.error().what;
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, Readable_hears_of_bytes_of_the_end_and_of_a_deadline) {
  auto channel = exec("read line; echo $line; read line");
  EXPECT_FALSE(channel->readable(-1, Deadline::after(milliseconds(50))).value());
  ASSERT_TRUE(channel->write("one\n", soon()));
  EXPECT_TRUE(channel->readable(-1, soon()).value());
  std::vector<char> buffer(16);
  EXPECT_EQ(channel->read(buffer, soon()).value(), 4u);
  EXPECT_FALSE(channel->readable(-1, Deadline::after(milliseconds(50))).value());
  ASSERT_TRUE(channel->close_stdin());
  EXPECT_TRUE(channel->readable(-1, soon()).value());
  EXPECT_EQ(channel->read(buffer, soon()).value(), 0u);
}

TEST_P(RemoteHostContract, Readable_is_woken_by_another_descriptor) {
  auto channel = exec("echo first; sleep 60");
  std::vector<char> buffer(16);
  EXPECT_EQ(channel->read(buffer, soon()).value(), 6u);
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::jthread waker([&] {
    std::this_thread::sleep_for(milliseconds(100));
    ::eventfd_write(wake.get(), 1);
  });
  auto start = Deadline::Clock::now();
  EXPECT_FALSE(channel->readable(wake.get(), soon()).value());
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, A_stop_ends_readable_at_once) {
  auto channel = exec("sleep 60");
  std::jthread stopper([this] {
    std::this_thread::sleep_for(milliseconds(200));
    stop_.request_stop();
  });
  auto start = Deadline::Clock::now();
  EXPECT_FALSE(channel->readable(-1, soon()));
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, A_stop_ends_a_wait_at_once) {
  auto channel = exec("sleep 60");
  std::jthread stopper([this] {
    std::this_thread::sleep_for(milliseconds(200));
    stop_.request_stop();
  });
  auto start = Deadline::Clock::now();
  EXPECT_FALSE(channel->wait(soon()));
  EXPECT_LT(elapsed(start), kHang);
}

TEST_P(RemoteHostContract, A_stop_that_came_before_is_heard_by_connect) {
  std::stop_source stopped;
  stopped.request_stop();
  auto connected = connector_->connect(target_, soon(), stopped.get_token());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kCancelled);
}

TEST_P(RemoteHostContract, A_session_may_move_to_another_thread) {
  std::thread([this] {
    auto channel = exec("echo moved");
    EXPECT_EQ(read_all(*channel), "moved\n");
  }).join();
}

INSTANTIATE_TEST_SUITE_P(Every, RemoteHostContract,
                         testing::Values(Kind::kLocal, Kind::kSsh, Kind::kSlurm),
                         [](const testing::TestParamInfo<Kind>& kind) {
                           return kind.param == Kind::kLocal   ? "local"
                                  : kind.param == Kind::kSlurm ? "slurm"
                                                               : "ssh";
                         });

}  // namespace
}  // namespace dsi
