#include <libaio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "backend.h"

namespace ds {
namespace {

// libaio's structures, but not its library: the archive's symbols carry versions that cannot be
// linked into another library, and the shared one would have to be on every node. Its functions are
// these system calls; like them, these return -errno.
template <class... Arguments>
int call(long number, Arguments... arguments) {
  const long result = syscall(number, arguments...);
  return result < 0 ? -errno : static_cast<int>(result);
}

class Libaio : public Backend {
 public:
  explicit Libaio(int depth) : control_(static_cast<std::size_t>(depth)), events_(control_.size()) {
    if (const int code = call(SYS_io_setup, depth, &context_); code < 0) {
      throw std::system_error(-code, std::generic_category(), "libaio");
    }
    for (iocb& one : control_) free_.push_back(&one);
  }
  ~Libaio() override { call(SYS_io_destroy, context_); }
  Libaio(const Libaio&) = delete;
  Libaio& operator=(const Libaio&) = delete;

  void start(Io& io) override {
    iocb* const one = free_.back();
    free_.pop_back();
    if (io.write) {
      io_prep_pwrite(one, io.fd, io.data, io.length, io.offset);
    } else {
      io_prep_pread(one, io.fd, io.data, io.length, io.offset);
    }
    one->data = &io;
    queued_.push_back(one);
  }

  void flush() override {
    std::size_t sent = 0;
    while (sent < queued_.size()) {
      const int n = call(SYS_io_submit, context_, static_cast<long>(queued_.size() - sent),
                         queued_.data() + sent);
      if (n > 0) {
        sent += static_cast<std::size_t>(n);
        in_kernel_ += static_cast<std::size_t>(n);
      } else if (n == -EINTR || (n == -EAGAIN && in_kernel_ == 0)) {
        continue;
      } else if (n == -EAGAIN) {
        break;  // The kernel is out of resources for now; after the next completion.
      } else {
        // The first of them is at fault (a descriptor that was closed, say): it has ended.
        refuse(queued_[sent++], n == 0 ? -EIO : n);
      }
    }
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(sent));
  }

  void wait_some(std::vector<Completion>& ended) override {
    flush();
    const bool must_wait = refused_.empty();
    ended.insert(ended.end(), refused_.begin(), refused_.end());
    refused_.clear();
    if (in_kernel_ == 0) return;
    timespec at_once{0, 0};
    int n;
    do {
      n = call(SYS_io_getevents, context_, must_wait ? 1 : 0, static_cast<long>(events_.size()),
               events_.data(), must_wait ? nullptr : &at_once);
    } while (n == -EINTR);
    if (n < 0) throw std::system_error(-n, std::generic_category(), "libaio: io_getevents");
    for (int i = 0; i < n; ++i) {
      const io_event& event = events_[static_cast<std::size_t>(i)];
      ended.push_back({static_cast<Io*>(event.data), static_cast<long>(event.res)});
      free_.push_back(event.obj);
    }
    in_kernel_ -= static_cast<std::size_t>(n);
  }

 private:
  void refuse(iocb* one, int result) {
    refused_.push_back({static_cast<Io*>(one->data), result});
    free_.push_back(one);
  }

  io_context_t context_ = nullptr;
  std::vector<iocb> control_;
  std::vector<io_event> events_;
  std::vector<iocb*> free_;
  std::vector<iocb*> queued_;
  std::vector<Completion> refused_;
  std::size_t in_kernel_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_libaio(int depth) {
  return std::make_unique<Libaio>(depth);
}

}  // namespace ds
