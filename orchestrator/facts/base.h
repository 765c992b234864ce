#pragma once

// What the rest of ds-facts stands on: there is no libc. Memory comes from one arena and is never
// given back, because the program lives for a tenth of a second.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace dsi::facts {

using Str = std::string_view;

// Zeroed and aligned for anything. Ends the program where there is no memory.
void* allocate(std::size_t size);

// All of them one after the other, with a zero behind that the view does not count.
Str join(std::initializer_list<Str> parts);

// A list in the arena.
template <typename T>
class List {
 public:
  void add(const T& value) {
    if (size_ == room_) {
      std::size_t room = room_ == 0 ? 16 : 2 * room_;
      T* more = static_cast<T*>(allocate(room * sizeof(T)));
      for (std::size_t i = 0; i < size_; ++i) more[i] = items_[i];
      items_ = more;
      room_ = room;
    }
    items_[size_++] = value;
  }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }
  std::size_t size() const { return size_; }
  const T& operator[](std::size_t i) const { return items_[i]; }

 private:
  T* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
};

// ---- Text

constexpr std::size_t kNowhere = Str::npos;

// The part from `begin`, at most `size` long; empty where there is none. Never throws, unlike
// substr.
Str part(Str text, std::size_t begin, std::size_t size = kNowhere);
std::size_t find(Str text, Str what, std::size_t from = 0);
Str trimmed(Str text);
// Takes what is before `separator`, and it, from the front of `rest`; all of it where there is
// none.
Str take(Str& rest, char separator);
// The digits in front, as a number.
std::uint64_t number(Str text);
Str decimal(std::uint64_t value);
// "3.4.9" < "3.4.30".
bool version_less(Str a, Str b);
// The name behind the last '/', the folder before it.
Str base_name(Str path);
Str folder_of(Str path);

// ---- Files; paths end with a zero, as join() makes them.

// At most `limit` bytes; empty where it cannot be read.
Str read_file(Str path, std::size_t limit = 1u << 20);
bool exists(Str path);
// Where a symbolic link leads, as it is written; empty where it is none.
Str link_target(Str path);
// Absolute and without links; empty where it is not there.
Str canonical(Str path);
// The names in a folder, without "." and "..", at most `limit`.
List<Str> names_in(Str folder, std::size_t limit = 4096);

// A file that is not copied: libraries are large, and little of them is looked at.
class Mapped {
 public:
  explicit Mapped(Str path);
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  Str bytes() const { return bytes_; }

 private:
  Str bytes_;
};

// ---- The environment

void set_environment(char** environment);
char** environment();
Str environment_value(Str name);
// The first executable of this name in PATH and in the folders that every system has; empty: none.
Str program_path(Str name);

}  // namespace dsi::facts
