#include "orchestrator/agent/protocol.h"

#include <gtest/gtest.h>

namespace dsi::protocol {
namespace {

TEST(FrameReader, Gives_the_frames_back_however_the_bytes_come) {
  std::string stream =
      json_frame("commit", {}) + data_frame("bytes") + json_frame("stage", {{"stage", "probed"}});
  for (std::size_t piece : {1u, 3u, 1000u}) {
    FrameReader reader;
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      Frame frame;
      while (reader.next(frame).value()) frames.push_back(frame);
    }
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(read_message(frames[0])->type, "commit");
    EXPECT_EQ(frames[1].payload, "bytes");
    EXPECT_EQ(read_message(frames[2])->body.at("stage"), "probed");
  }
}

TEST(FrameReader, Refuses_what_cannot_be_a_frame_before_it_reserves_memory) {
  Frame frame;
  FrameReader huge;
  huge.feed(
      std::string("\xff\xff\xff\xff"
                  "D",
                  5));
  EXPECT_FALSE(huge.next(frame));
  FrameReader unknown;
  unknown.feed(
      std::string("\0\0\0\1"
                  "X",
                  5));
  EXPECT_FALSE(unknown.next(frame));
}

TEST(Protocol, A_result_comes_back_unchanged_whatever_bytes_an_error_holds) {
  HostResult result;
  result.result = "failed";
  result.from = "0123456789abcdef";
  result.ops = {{"cpu_adam", "crash", "cpu", "SIGSEGV"}};
  result.error = {"cannot write \xff\xfe\n", "free some space"};
  FrameReader reader;
  reader.feed(json_frame("result", result));
  Frame frame;
  ASSERT_TRUE(reader.next(frame).value());
  auto back = body_as<HostResult>(*read_message(frame));
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(back->ops, result.ops);
  EXPECT_EQ(back->error.help, "free some space");
}

TEST(Protocol, A_malformed_message_is_an_error_that_names_it) {
  auto need = body_as<Need>(Message{"need", {{"digests", 7}}});
  ASSERT_FALSE(need);
  EXPECT_NE(need.error().what.find("\"need\""), std::string::npos);
  EXPECT_FALSE(read_message(Frame{'J', "{"}));
  EXPECT_FALSE(read_message(Frame{'J', "[]"}));
  EXPECT_FALSE(read_message(Frame{'D', "{}"}));
}

}  // namespace
}  // namespace dsi::protocol
