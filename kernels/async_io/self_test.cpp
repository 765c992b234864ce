#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "async_io.h"
#include "self_test_frame.h"

namespace ds {
namespace {

// A file of its own name that is gone with it.
class TemporaryFile {
 public:
  TemporaryFile() {
    const char* const folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp") + "/ds-aio-XXXXXX";
    const int fd = mkstemp(path_.data());
    if (fd < 0) {
      throw std::system_error(errno, std::generic_category(), "cannot make a file like " + path_);
    }
    close(fd);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Writes with a head and a tail that no device takes as they are, then reads all of it and a part.
// The first wrong byte, or an empty text.
std::string difference(AsyncIo& io, unsigned char salt) {
  constexpr std::size_t kBefore = 1234, kSize = 300'001;
  TemporaryFile file;
  std::vector<unsigned char> expected(kBefore + kSize);
  for (std::size_t i = kBefore; i < expected.size(); ++i) {
    expected[i] = static_cast<unsigned char>((i * 2654435761u >> 11) ^ salt);
  }
  AsyncIoRequest write;
  write.write = true;
  write.path = file.path();
  write.data = expected.data() + kBefore;
  write.size = kSize;
  write.offset = kBefore;
  async_io_submit(io, write);
  async_io_wait(io);

  for (const std::size_t begin : {std::size_t{0}, std::size_t{100'003}}) {
    std::vector<unsigned char> got(expected.size() - begin, 0xA5);
    AsyncIoRequest read;
    read.path = file.path();
    read.data = got.data();
    read.size = static_cast<std::int64_t>(got.size());
    read.offset = static_cast<std::int64_t>(begin);
    async_io_submit(io, read);
    async_io_wait(io);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] != expected[begin + i]) {
        return "byte " + std::to_string(begin + i) + " read back is " + std::to_string(got[i]) +
               ", written was " + std::to_string(expected[begin + i]);
      }
    }
  }
  return "";
}

}  // namespace
}  // namespace ds

int ds_self_test_async_io(const char* device, char* detail, unsigned long detail_size) {
  return ds::self_test_on_cpu(device, detail, detail_size, [](const auto& say) {
    try {
      std::string engines, refused;
      unsigned char salt = 1;
      for (const ds::AsyncIoEngine engine :
           {ds::AsyncIoEngine::io_uring, ds::AsyncIoEngine::libaio, ds::AsyncIoEngine::posix}) {
        const std::string name = ds::async_io_engine_name(engine);
        ds::AsyncIoOptions options;
        options.engine = engine;
        options.block_size = 64 << 10;
        options.queue_depth = 4;
        ds::AsyncIoPtr io;
        try {
          io.reset(ds::async_io_open(options));
        } catch (const std::system_error& error) {
          refused += "; " + std::string(error.what());
          continue;
        }
        if (const std::string wrong = ds::difference(*io, salt++); !wrong.empty()) {
          say(name + ": " + wrong);
          return DS_SELF_TEST_WRONG;
        }
        engines += (engines.empty() ? "" : "+") + name;
      }
      if (engines.empty()) {
        say("no engine works" + refused);
        return DS_SELF_TEST_MISSING;
      }
      say(engines + ", every byte written and read back" + refused);
      return DS_SELF_TEST_OK;
    } catch (const std::system_error& error) {
      say(error.what());
      // A machine without a writable folder is not a wrong op.
      const int code = error.code().value();
      for (const int no_room : {EROFS, ENOSPC, EDQUOT, EACCES, EPERM, ENOENT, ENOTDIR}) {
        if (code == no_room) return DS_SELF_TEST_MISSING;
      }
      return DS_SELF_TEST_WRONG;
    }
  });
}
