#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsi {

// The last 16 KiB of a stream.
class Tail {
 public:
  void add(std::string_view data) {
    text_ += data;
    // Cut only now and then: each cut moves what is kept.
    if (text_.size() > 2 * kKept) text_.erase(0, text_.size() - kKept);
  }
  std::string text() const {
    return text_.size() > kKept ? text_.substr(text_.size() - kKept) : text_;
  }

 private:
  static constexpr std::size_t kKept = 16 * 1024;
  std::string text_;
};

}  // namespace dsi
