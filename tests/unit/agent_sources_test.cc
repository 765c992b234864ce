#include "orchestrator/distribute/agent_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>

namespace dsi::distribute {
namespace {

using namespace std::chrono_literals;
using Lease = AgentSources::Lease;

AgentSources::Source host(int number) {
  return {"node" + std::to_string(number), 4711, {"10.0.0." + std::to_string(number)}};
}

Result<Lease> take(AgentSources& sources, const std::vector<std::string>& avoid = {},
                   bool from_head = false) {
  return sources.acquire(avoid, from_head, Deadline::after(30s), {});
}

// True if nothing is to be had now.
bool must_wait(AgentSources& sources, const std::vector<std::string>& avoid = {}) {
  return !sources.acquire(avoid, false, Deadline::after(0ms), {});
}

void deliver(Lease lease, int number) {
  lease.delivered();
  lease.becomes(host(number));
}

TEST(AgentSources, The_first_gets_it_from_the_head_and_the_others_wait_for_the_first) {
  AgentSources sources(AgentSources::Limits{});
  auto first = take(sources);
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->from_head());
  EXPECT_TRUE(must_wait(sources));
  auto second = std::async(std::launch::async, [&] { return take(sources)->source().name; });
  deliver(*std::move(first), 1);
  EXPECT_EQ(second.get(), "node1");
}

TEST(AgentSources, One_source_serves_two_at_a_time_and_the_least_busy_comes_first) {
  AgentSources sources(AgentSources::Limits{});
  deliver(*take(sources), 1);
  auto a = take(sources);
  EXPECT_EQ(a->source().name, "node1");
  sources.add(host(2));
  auto b = take(sources);
  EXPECT_EQ(b->source().name, "node2");
  auto c = take(sources);
  auto d = take(sources);
  EXPECT_NE(c->source().name, d->source().name);
  EXPECT_TRUE(must_wait(sources));
  a->delivered();
  EXPECT_EQ(take(sources)->source().name, "node1") << "a place is free as soon as it has arrived";
}

TEST(AgentSources, A_source_that_fails_twice_in_a_row_is_left_alone) {
  AgentSources sources(AgentSources::Limits{});
  sources.add(host(1));
  take(sources)->failed();
  take(sources)->delivered();
  take(sources)->failed();
  EXPECT_EQ(take(sources)->source().name, "node1") << "in between it worked";
  take(sources)->failed();
  EXPECT_TRUE(take(sources)->from_head());
  EXPECT_EQ(sources.numbers().sources, 0u);
}

TEST(AgentSources, A_lease_that_just_ends_gives_its_place_back_and_blames_nobody) {
  AgentSources sources(AgentSources::Limits{});
  sources.add(host(1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(take(sources)->source().name, "node1");
  auto from_head = AgentSources(AgentSources::Limits{});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(take(from_head)->from_head());
  EXPECT_EQ(from_head.numbers().from_head, 0u);
}

TEST(AgentSources, A_host_is_not_sent_to_a_source_that_it_has_tried) {
  AgentSources sources(AgentSources::Limits{});
  sources.add(host(1));
  sources.add(host(2));
  EXPECT_EQ(take(sources, {"node1"})->source().name, "node2");
  EXPECT_TRUE(take(sources, {"node1", "node2"})->from_head()) << "nobody else can be hoped for";
  EXPECT_TRUE(take(sources, {"node1"}, true)->from_head());
}

TEST(AgentSources, Where_no_host_reaches_another_the_head_serves_all) {
  AgentSources sources(AgentSources::Limits{});
  for (int i = 1; i < 5; ++i) sources.add(host(i));
  for (int i = 0; i < 4; ++i) take(sources)->failed();
  std::vector<Lease> leases;
  for (int i = 0; i < 8; ++i) {
    leases.push_back(*take(sources));
    EXPECT_TRUE(leases.back().from_head());
  }
  EXPECT_TRUE(must_wait(sources));
}

TEST(AgentSources, Where_no_host_can_listen_the_head_serves_all) {
  AgentSources sources(AgentSources::Limits{});
  for (int i = 0; i < 2; ++i) {
    auto lease = take(sources);
    EXPECT_TRUE(lease->from_head());
    lease->delivered();
  }
  std::vector<Lease> leases;
  for (int i = 0; i < 8; ++i) leases.push_back(*take(sources));
  EXPECT_TRUE(must_wait(sources));
}

TEST(AgentSources, Only_an_address_in_numbers_is_passed_on) {
  AgentSources sources(AgentSources::Limits{});
  sources.add({"evil", 1, {"10.0.0.1\nstdin", "10.0.0.1 10.0.0.2", "$(id)", ""}});
  sources.add({"mute", 0, {"10.0.0.1"}});
  EXPECT_EQ(sources.numbers().sources, 0u);
  sources.add({"good", 1, {"node1", "10.0.0.1", "2001:db8::1"}});
  auto lease = take(sources);
  ASSERT_FALSE(lease->from_head());
  EXPECT_THAT(lease->source().addresses, ::testing::ElementsAre("10.0.0.1", "2001:db8::1"));
}

TEST(AgentSources, A_source_that_leaves_waits_for_those_who_take_from_it) {
  AgentSources sources(AgentSources::Limits{});
  sources.add(host(1));
  sources.add(host(2));
  std::optional<Lease> lease;
  lease.emplace(*take(sources, {"node2"}));
  EXPECT_FALSE(sources.withdraw("node1", Deadline::after(0ms), {}));
  EXPECT_EQ(take(sources)->source().name, "node2") << "nobody is sent to it any more";
  auto gone = std::async(std::launch::async,
                         [&] { return sources.withdraw("node1", Deadline::after(30s), {}); });
  lease.reset();
  EXPECT_TRUE(gone.get());
  EXPECT_TRUE(sources.withdraw("unknown", Deadline::after(0ms), {}));
}

TEST(AgentSources, Who_waits_hears_the_stop) {
  AgentSources sources(AgentSources::Limits{});
  auto first = take(sources);
  std::stop_source stop;
  auto waits = std::async(std::launch::async, [&] {
    return sources.acquire({}, false, Deadline::after(1h), stop.get_token()).has_value();
  });
  stop.request_stop();
  EXPECT_FALSE(waits.get());
}

TEST(AgentSources, Where_nothing_moves_the_head_helps_out) {
  AgentSources::Limits limits;
  limits.patience = 100ms;
  AgentSources sources(limits);
  auto stuck = take(sources);
  EXPECT_TRUE(take(sources)->from_head());
}

TEST(AgentSources, First_copies_are_few_against_64_KiB_a_host) {
  for (std::size_t hosts : {1u, 8u, 32u, 64u, 1000u, 10'000u}) {
    std::size_t first = AgentSources::limits_for(hosts, 700 * 1024).first;
    EXPECT_GE(first, 1u);
    EXPECT_LE(first, 8u);
    if (hosts >= 32) {
      EXPECT_LE(first * 700, hosts * 32) << hosts;
    }
  }
}

// Time in copies: each round everybody who holds a lease gets the agent.
TEST(AgentSources, Sixty_four_hosts_have_it_after_about_log2_rounds) {
  AgentSources::Limits limits;
  AgentSources sources(limits);
  std::size_t rounds = 0;
  int done = 0;
  while (done < 64) {
    ++rounds;
    ASSERT_LT(rounds, 20u);
    std::vector<Lease> leases;
    for (int i = done; i < 64; ++i) {
      auto lease = sources.acquire({}, false, Deadline::after(0ms), {});
      if (!lease) break;
      leases.push_back(*std::move(lease));
    }
    for (Lease& lease : leases) deliver(std::move(lease), ++done);
  }
  // Two at a time and three times as many each round: 1, 3, 9, 27, 64.
  EXPECT_LE(rounds, 6u);
  EXPECT_EQ(sources.numbers().from_head, 1u);
  EXPECT_EQ(sources.numbers().from_hosts, 63u);
}

TEST(AgentSources, Many_hosts_at_once_all_get_it_although_some_sources_fail) {
  AgentSources sources(AgentSources::limits_for(64, 700 * 1024));
  std::mutex mutex;
  std::map<std::string, int> busy;
  std::atomic<int> got{0};
  std::vector<std::jthread> hosts;
  for (int number = 1; number <= 64; ++number) {
    hosts.emplace_back([&, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      std::vector<std::string> tried;
      for (;;) {
        auto lease = sources.acquire(tried, tried.size() >= 2, Deadline::after(60s), {});
        ASSERT_TRUE(lease);
        std::string from = lease->from_head() ? "head" : lease->source().name;
        {
          std::lock_guard lock(mutex);
          EXPECT_LE(++busy[from], 2) << from;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        bool fails = !lease->from_head() && random() % 5 == 0;
        {
          std::lock_guard lock(mutex);
          --busy[from];
        }
        if (!fails) {
          lease->delivered();
          if (number % 7 != 0) lease->becomes(host(number));
          ++got;
          return;
        }
        tried.push_back(from);
        lease->failed();
      }
    });
  }
  hosts.clear();
  EXPECT_EQ(got, 64);
  EXPECT_LT(sources.numbers().from_head, 32u);
}

}  // namespace
}  // namespace dsi::distribute
