// The webhook against a server of this test's own.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "orchestrator/adapters/curl_webhook.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Takes one request and gives one answer; none if `answer` is empty.
class Server {
 public:
  explicit Server(std::string answer) : answer_(std::move(answer)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 1) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      std::abort();
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this] { serve(); });
  }
  ~Server() { ::shutdown(listener_.get(), SHUT_RDWR); }

  std::string url(const std::string& user = "") const {
    return "http://" + user + "127.0.0.1:" + std::to_string(port_) + "/hook?token=SECRET";
  }
  std::string request() {
    thread_.join();
    return request_;
  }

 private:
  void serve() {
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) return;
    char buffer[4096];
    // Up to the end of the body, which is one JSON object.
    while (!request_.ends_with("}")) {
      const ssize_t n = ::read(client.get(), buffer, sizeof buffer);
      if (n <= 0) return;
      request_.append(buffer, static_cast<std::size_t>(n));
    }
    if (!answer_.empty()) {
      (void)write_all(client.get(), answer_);
      return;
    }
    (void)!::read(client.get(), buffer, sizeof buffer);  // Until the other side gives up.
  }

  std::string answer_;
  std::string request_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

TEST(CurlWebhook, Posts_json) {
  Server server("HTTP/1.1 204 No Content\r\n\r\n");
  CurlWebhook webhook;
  auto sent = webhook.post(server.url("user:pw@"), "{\"text\":\"well\"}", 60s);
  EXPECT_TRUE(sent) << sent.error().what;
  EXPECT_THAT(server.request(), AllOf(StartsWith("POST /hook?token=SECRET HTTP/1.1\r\n"),
                                      HasSubstr("\r\nContent-Type: application/json\r\n"),
                                      HasSubstr("\r\nAuthorization: Basic "),
                                      HasSubstr("\r\n\r\n{\"text\":\"well\"}")));
}

TEST(CurlWebhook, Says_what_is_wrong_and_no_secret) {
  CurlWebhook webhook;
  {
    Server server("HTTP/1.1 500 Oh\r\nContent-Length: 6\r\n\r\nSECRET");
    auto sent = webhook.post(server.url(), "{}", 60s);
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().what, "it answers with status 500");
  }
  {
    Server server("HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n");
    auto sent = webhook.post(server.url(), "{}", 60s);
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().what, "it answers with status 302");
  }
  {
    Server silent("");
    auto sent = webhook.post(silent.url(), "{}", 1s);
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().what, "no answer within 1 s");
  }
  std::string url;
  {
    Server gone("x");
    url = gone.url("SECRET@");
  }
  auto sent = webhook.post(url, "{}", 60s);
  ASSERT_FALSE(sent);
  EXPECT_THAT(sent.error().what, Not(HasSubstr("SECRET")));
  sent = webhook.post("file:///etc/SECRET", "{}", 60s);
  ASSERT_FALSE(sent);
  EXPECT_THAT(sent.error().what, Not(HasSubstr("SECRET")));
}

}  // namespace
}  // namespace dsi
