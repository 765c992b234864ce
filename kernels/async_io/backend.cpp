#include "backend.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

namespace ds {
namespace {

// One system call at a time, in the calling thread.
class Posix : public Backend {
 public:
  void start(Io& io) override { waiting_.push_back(&io); }
  void flush() override {}

  void wait_some(std::vector<Completion>& ended) override {
    for (Io* io : waiting_) {
      const ssize_t n = io->write ? pwrite(io->fd, io->data, io->length, io->offset)
                                  : pread(io->fd, io->data, io->length, io->offset);
      ended.push_back({io, n < 0 ? -errno : n});
    }
    waiting_.clear();
  }

 private:
  std::vector<Io*> waiting_;
};

std::unique_ptr<Backend> make(AsyncIoEngine engine, int depth) {
  switch (engine) {
    case AsyncIoEngine::io_uring:
      return make_uring(depth);
    case AsyncIoEngine::libaio:
      return make_libaio(depth);
    default:
      return make_posix();
  }
}

}  // namespace

std::unique_ptr<Backend> make_posix() {
  return std::make_unique<Posix>();
}

const char* async_io_engine_name(AsyncIoEngine engine) {
  switch (engine) {
    case AsyncIoEngine::io_uring:
      return "io_uring";
    case AsyncIoEngine::libaio:
      return "libaio";
    case AsyncIoEngine::posix:
      return "posix";
    case AsyncIoEngine::automatic:
      break;
  }
  return "auto";
}

AsyncIoEngine async_io_engine_named(const std::string& name) {
  for (AsyncIoEngine engine : {AsyncIoEngine::automatic, AsyncIoEngine::io_uring,
                               AsyncIoEngine::libaio, AsyncIoEngine::posix}) {
    if (name == async_io_engine_name(engine)) return engine;
  }
  throw std::invalid_argument("async_io: there is no engine \"" + name +
                              "\"; they are auto, io_uring, libaio, posix");
}

ChosenBackend choose_backend(AsyncIoEngine wanted, int depth) {
  if (wanted == AsyncIoEngine::automatic) {
    if (const char* name = std::getenv("DS_AIO_ENGINE"); name != nullptr && *name != '\0') {
      wanted = async_io_engine_named(name);
    }
  }
  if (wanted != AsyncIoEngine::automatic) return {make(wanted, depth), wanted, ""};
  std::string reason;
  for (AsyncIoEngine engine : {AsyncIoEngine::io_uring, AsyncIoEngine::libaio}) {
    try {
      return {make(engine, depth), engine, reason};
    } catch (const std::system_error& error) {
      if (!reason.empty()) reason += "; ";
      reason += error.what();
    }
  }
  return {make_posix(), AsyncIoEngine::posix, reason};
}

}  // namespace ds
