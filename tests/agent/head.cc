#include "tests/agent/head.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <zstd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

namespace dsi::testing {

namespace fs = std::filesystem;
using protocol::HostResult;
using protocol::Message;

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "ds-agent-test.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string slurp(const fs::path& path) {
  return read_file(path).value_or("");
}

std::string compress(std::string_view data) {
  std::string out(ZSTD_compressBound(data.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), data.data(), data.size(), protocol::kZstdLevel));
  return out;
}

void TestRelease::add_file(const std::string& path, std::string content, std::uint32_t mode) {
  std::string digest = sha256_hex(content);
  ManifestFile file{path, mode, content.size(), digest};
  auto at = manifest.files.begin();
  while (at != manifest.files.end() && at->path < path) ++at;
  manifest.files.insert(at, std::move(file));
  contents[digest] = std::move(content);
}

ManifestOp& TestRelease::add_op(const std::string& name, const fs::path& library) {
  ManifestOp op;
  op.name = name;
  op.capability = "op." + name;
  op.library = "lib/libds_" + name + ".so";
  op.devices = {"cpu"};
  add_file(op.library, slurp(library));
  auto at = manifest.ops.begin();
  while (at != manifest.ops.end() && at->name < name) ++at;
  return *manifest.ops.insert(at, std::move(op));
}

Head::Head(const std::string& agent, const fs::path& prefix, const HeadSettings& settings) {
  std::signal(SIGPIPE, SIG_IGN);
  int down[2];
  int up[2];
  if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) std::abort();
  std::vector<std::string> words = settings.before;
  for (const std::string& word :
       {agent, std::string("serve"), std::string("n0nce"), prefix.string()}) {
    words.push_back(word);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(down[0], 0);
    ::dup2(up[1], 1);
    if (settings.in_child) settings.in_child();
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(down[0]);
  ::close(up[1]);
  to_.reset(down[1]);
  from_.reset(up[0]);

  std::string line;
  char c = 0;
  while (::read(from_.get(), &c, 1) == 1 && c != '\n') line += c;
  if (line != "DSI1 n0nce") return;
  auto message = receive();
  if (!message || message->type != "hello") return;
  if (auto hello = protocol::body_as<protocol::Hello>(*message)) {
    hello_ = *hello;
    connected_ = true;
  }
}

Head::~Head() {
  leave();
  if (pid_ > 0) wait();
}

void Head::leave() {
  to_.reset();
  from_.reset();
}

int Head::wait() {
  int status = -1;
  if (pid_ > 0) ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

void Head::send_raw(std::string_view bytes) {
  if (!to_) return;
  (void)write_all(to_.get(), bytes);
  if (--writes_left_ <= 0) leave();
}

void Head::send_file(const std::string& digest, const std::string& content) {
  std::string wire = compress(content);
  send("file", protocol::FileHeader{digest, content.size(), wire.size(), {}});
  for (std::size_t at = 0; at < wire.size(); at += protocol::kMaxDataFrame) {
    send_raw(protocol::data_frame(std::string_view(wire).substr(at, protocol::kMaxDataFrame)));
  }
  ++files_sent_;
}

std::optional<Message> Head::receive_within(std::chrono::milliseconds wait, bool& gone) {
  protocol::Frame frame;
  for (;;) {
    auto whole = reader_.next(frame);
    if (whole && *whole) {
      auto message = protocol::read_message(frame);
      gone = !message;
      return message ? std::optional(*message) : std::nullopt;
    }
    gone = !whole || !from_;
    if (gone) return std::nullopt;
    pollfd in{from_.get(), POLLIN, 0};
    if (::poll(&in, 1, static_cast<int>(wait.count())) <= 0) return std::nullopt;
    char buffer[65536];
    ssize_t n = ::read(from_.get(), buffer, sizeof buffer);
    gone = n <= 0;
    if (gone) return std::nullopt;
    reader_.feed({buffer, static_cast<std::size_t>(n)});
  }
}

std::optional<Message> Head::receive() {
  bool gone = false;
  return receive_within(std::chrono::seconds(60), gone);
}

void Head::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

void Head::note_stage(const Message& message) {
  stages_.push_back(message.body.at("stage").get<std::string>());
  if (on_stage_) on_stage_(stages_.back());
}

std::optional<HostResult> Head::result() {
  while (auto message = receive()) {
    if (message->type == "stage") note_stage(*message);
    if (message->type == "result") {
      auto result = protocol::body_as<HostResult>(*message);
      return result ? std::optional(*result) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<HostResult> Head::install(const TestRelease& release,
                                        protocol::InstallRequest request) {
  if (request.manifest.empty()) request.manifest = release.text();
  if (request.run.empty()) request.run = "run-1";
  if (request.by.empty()) request.by = "tester@head";
  send("install", request);
  while (auto message = receive()) {
    if (message->type == "need") {
      auto need = protocol::body_as<protocol::Need>(*message);
      if (!need) return std::nullopt;
      for (const std::string& digest : need->digests) {
        send_file(digest, release.contents.at(digest));
      }
      send("commit", nullptr);
      return result();
    }
    if (message->type == "stage") note_stage(*message);
    if (message->type == "result") {
      auto result = protocol::body_as<HostResult>(*message);
      return result ? std::optional(*result) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<HostResult> Head::rollback() {
  send("rollback", protocol::RollbackRequest{"run-r", "tester@head", {}, 60, 30});
  return result();
}

std::optional<HostResult> Head::uninstall() {
  send("uninstall", protocol::UninstallRequest{"run-u", "tester@head", 30});
  return result();
}

std::optional<HostResult> Head::report(int probe_timeout_s) {
  send("report", protocol::ReportRequest{{}, probe_timeout_s});
  return result();
}

}  // namespace dsi::testing
