#include "ccl_comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "../shm_comm/fork_ranks.h"
#include "../shm_comm/shm_problem.h"
#include "oneccl.h"

namespace ds {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct CclCloser {
  void operator()(CclComm* comm) const { ccl_comm_close(comm); }
};
using CclCommPtr = std::unique_ptr<CclComm, CclCloser>;

// How a process finds oneCCL, or does not. Only in processes made for it: it looks once.
struct Way {
  const char* name;
  CclBackend backend;
  void take() const {
    // DS_TEST_ONECCL_ROOT: a real one instead of ours.
    const char* const real = getenv("DS_TEST_ONECCL_ROOT");
    setenv("CCL_ROOT", real != nullptr ? real : DS_FAKE_ONECCL_ROOT, 1);
    setenv("DS_CCL_BACKEND", backend == CclBackend::shm ? "shm" : "oneccl", 1);
  }
};

// The id of rank 0, sent as DeepSpeed would.
class Post {
 public:
  explicit Post(int size) : size_(size) {
    if (pipe(ends_) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  }
  ~Post() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  std::vector<std::uint8_t> id(int rank) const {
    std::vector<std::uint8_t> id(kCclIdBytes);
    if (rank == 0) {
      id = ccl_comm_new_id();
      for (int i = 1; i < size_; ++i) {
        if (write(ends_[1], id.data(), id.size()) != static_cast<ssize_t>(id.size())) abort();
      }
    } else {
      for (std::size_t n = 0; n < id.size();) {
        const ssize_t got = read(ends_[0], id.data() + n, id.size() - n);
        if (got <= 0) abort();
        n += static_cast<std::size_t>(got);
      }
    }
    return id;
  }

 private:
  int size_;
  int ends_[2];
};

CclCommPtr open_ccl(std::vector<std::uint8_t> id, int rank, int size) {
  CclCommOptions options;
  options.id = std::move(id);
  options.rank = rank;
  options.size = size;
  options.timeout = std::chrono::seconds(200);
  return CclCommPtr(ccl_comm_open(options));
}

class CclCommWays : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, CclCommWays,
                         testing::Values(Way{"oneccl", CclBackend::oneccl},
                                         Way{"shm", CclBackend::shm}),
                         [](const auto& way) { return way.param.name; });

// Small whole numbers: exact in every type and order of additions.
template <class T>
std::string wrong_reduction(CclComm& comm, std::int64_t count, CommType type,
                            CommReduction reduction) {
  const int size = ccl_comm_size(comm);
  const auto number = [](int rank, std::int64_t i) {
    return static_cast<float>((i + rank) % 3 + 1);
  };
  using Wide = ShmWide<T>;
  using W = typename Wide::type;
  std::vector<T> data;
  for (std::int64_t i = 0; i < count; ++i) {
    data.push_back(Wide::narrow(static_cast<W>(number(ccl_comm_rank(comm), i))));
  }
  ccl_comm_all_reduce(comm, count > 0 ? data.data() : nullptr, count, type, reduction);
  for (std::int64_t i = 0; i < count; ++i) {
    auto want = static_cast<W>(number(0, i));
    for (int r = 1; r < size; ++r) {
      want = shm_combine<W>(reduction, want, static_cast<W>(number(r, i)));
    }
    if (Wide::widen(data[static_cast<std::size_t>(i)]) != want) {
      return "element " + std::to_string(i) + " of type " + std::to_string(static_cast<int>(type)) +
             ", reduction " + std::to_string(static_cast<int>(reduction));
    }
  }
  return "";
}

TEST_P(CclCommWays, All_reduce_of_all_types_and_reductions) {
  const Post post(3);
  Ranks(3, [&](int rank) -> std::string {
    GetParam().take();
    const CclCommPtr comm = open_ccl(post.id(rank), rank, 3);
    if (ccl_comm_backend(*comm) != GetParam().backend) return "went another way";
    for (const CommReduction op :
         {CommReduction::sum, CommReduction::product, CommReduction::min, CommReduction::max}) {
      for (const std::int64_t count : {0, 1, 300, 100'001}) {
        std::string wrong = wrong_reduction<float>(*comm, count, CommType::f32, op);
        wrong += wrong_reduction<f16>(*comm, count, CommType::f16, op);
        wrong += wrong_reduction<bf16>(*comm, count, CommType::bf16, op);
        wrong += wrong_reduction<double>(*comm, count, CommType::f64, op);
        wrong += wrong_reduction<std::int8_t>(*comm, count, CommType::i8, op);
        wrong += wrong_reduction<std::uint8_t>(*comm, count, CommType::u8, op);
        wrong += wrong_reduction<std::int32_t>(*comm, count, CommType::i32, op);
        wrong += wrong_reduction<std::int64_t>(*comm, count, CommType::i64, op);
        if (!wrong.empty()) return wrong;
      }
    }
    return "";
  }).expect_all_right();
}

TEST_P(CclCommWays, All_gather_broadcast_and_barrier_in_two_groups) {
  const Post all_post(3), pair_post(2);
  Ranks(3, [&](int rank) -> std::string {
    GetParam().take();
    const CclCommPtr all = open_ccl(all_post.id(rank), rank, 3);
    const CclCommPtr pair = rank < 2 ? open_ccl(pair_post.id(rank), rank, 2) : nullptr;
    for (CclComm* const comm : {all.get(), pair.get(), all.get()}) {
      if (comm == nullptr) continue;
      const int size = ccl_comm_size(*comm);
      for (const std::int64_t count : {0, 1, 100'003}) {
        std::vector<std::int32_t> own(static_cast<std::size_t>(count)),
            got(static_cast<std::size_t>(count * size));
        std::iota(own.begin(), own.end(), rank * 1'000'000);
        ccl_comm_all_gather(*comm, own.data(), got.data(), count * 4);
        for (std::int64_t i = 0; i < count * size; ++i) {
          if (got[static_cast<std::size_t>(i)] != i / count * 1'000'000 + i % count)
            return "gather";
        }
        ccl_comm_broadcast(*comm, own.data(), count * 4, size - 1);
        for (std::int64_t i = 0; i < count; ++i) {
          if (own[static_cast<std::size_t>(i)] != (size - 1) * 1'000'000 + i) return "broadcast";
        }
        ccl_comm_barrier(*comm);
      }
    }
    return "";
  }).expect_all_right();
}

TEST_P(CclCommWays, Says_through_what_it_goes) {
  const Way way = GetParam();
  const Post post(1);
  Ranks ranks(1, [&](int rank) -> std::string {
    way.take();
    const CclCommPtr comm = open_ccl(post.id(rank), rank, 1);
    return ccl_comm_backend_name(*comm) + "|" + ccl_comm_why_not_oneccl();
  });
  EXPECT_THAT(ranks.text(0), way.backend == CclBackend::shm
                                 ? StartsWith("shared memory|DS_CCL_BACKEND is shm")
                                 : StartsWith("oneCCL 2"));
}

// What becomes of `body` in a process with these variables.
std::string said_with(const std::vector<std::pair<std::string, std::string>>& variables,
                      const std::function<std::string()>& body) {
  Ranks ranks(1, [&](int) -> std::string {
    unsetenv("CCL_ROOT");
    unsetenv("DS_CCL_BACKEND");
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return body();
  });
  return ranks.text(0);
}

TEST(CclCommChoice, Shared_memory_stands_in_for_a_oneCCL_that_cannot_send_and_says_why) {
  EXPECT_THAT(
      said_with({{"CCL_ROOT", DS_FAKE_ONECCL_ROOT}, {"DS_FAKE_ONECCL_HAS_NO_TRANSPORT", "1"}},
                [] {
                  const CclCommPtr comm = open_ccl(ccl_comm_new_id(), 0, 1);
                  return ccl_comm_backend_name(*comm) + ": " + ccl_comm_why_not_oneccl();
                }),
      StartsWith("shared memory: ccl_comm new_id: oneCCL: no transport (11)"));
}

TEST(CclCommChoice, What_is_asked_for_and_not_there_is_an_error) {
  EXPECT_THAT(said_with({{"CCL_ROOT", DS_FAKE_ONECCL_ROOT},
                         {"DS_FAKE_ONECCL_HAS_NO_TRANSPORT", "1"},
                         {"DS_CCL_BACKEND", "oneccl"}},
                        [] { return thrown_by([] { ccl_comm_new_id(); }); }),
              HasSubstr("DS_CCL_BACKEND is oneccl: "));
  EXPECT_THAT(
      said_with({{"DS_CCL_BACKEND", "mpi"}}, [] { return thrown_by([] { ccl_comm_new_id(); }); }),
      HasSubstr("it can be oneccl or shm"));
}

TEST(CclCommChoice, An_id_of_another_host_is_an_error_at_once) {
  EXPECT_THAT(said_with({{"DS_CCL_BACKEND", "shm"}},
                        [] {
                          std::vector<std::uint8_t> id = ccl_comm_new_id();
                          id[8 + 1 + 127] ^= 1;  // The host's first letter.
                          return thrown_by([&] { open_ccl(id, 1, 2); });
                        }),
              HasSubstr("EREMOTE: ccl_comm open: the rank that made the id is on another host"));
}

TEST(CclCommChoice, Arguments_out_of_range_are_refused) {
  EXPECT_EQ(said_with({{"DS_CCL_BACKEND", "shm"}},
                      []() -> std::string {
                        const std::vector<std::uint8_t> id = ccl_comm_new_id();
                        const CclCommPtr comm = open_ccl(id, 0, 1);
                        float x = 1;
                        const std::function<void()> calls[] = {
                            [&] { open_ccl({}, 0, 1); },
                            [&] { open_ccl(std::vector<std::uint8_t>(kCclIdBytes), 0, 1); },
                            [&] { open_ccl(id, 1, 1); },
                            [&] { open_ccl(id, 0, 0); },
                            [&] { ccl_comm_all_reduce(*comm, &x, -1, CommType::f32); },
                            [&] { ccl_comm_all_reduce(*comm, nullptr, 1, CommType::f32); },
                            [&] { ccl_comm_all_gather(*comm, nullptr, &x, 4); },
                            [&] { ccl_comm_all_gather(*comm, &x, &x, -4); },
                            [&] { ccl_comm_broadcast(*comm, &x, 4, 1); },
                            [&] { ccl_comm_broadcast(*comm, nullptr, 4, 0); }};
                        for (std::size_t i = 0; i < std::size(calls); ++i) {
                          try {
                            calls[i]();
                            return "call " + std::to_string(i) + " was not refused";
                          } catch (const std::invalid_argument&) {
                          }
                        }
                        return "";
                      }),
            "");
}

// In a process of its own, as all that looks for oneCCL: that is done once.
TEST(CclComm, Self_test_is_right_and_skips_other_devices) {
  const auto detail_for = [](const char* device, int expected) {
    return said_with({{"CCL_ROOT", DS_FAKE_ONECCL_ROOT}}, [&]() -> std::string {
      char detail[300];
      const int got = ds_self_test_ccl_comm(device, detail, sizeof detail);
      return (got == expected ? "" : std::to_string(got) + ": ") + detail;
    });
  };
  EXPECT_EQ(detail_for("cpu", DS_SELF_TEST_OK), "oneCCL 2022.2 is there; shared memory is right");
  EXPECT_EQ(detail_for("cuda", DS_SELF_TEST_SKIPPED), "has code for cpu, not for cuda");
}

}  // namespace
}  // namespace ds
