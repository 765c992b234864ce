#pragma once

// Writes one JSON object of bounded size. An empty text is left out: a fact that was not found is
// no fact. For numbers and flags the caller knows, and does not write those.

#include "orchestrator/facts/base.h"

namespace dsi::facts {

class Json {
 public:
  Json();

  void open(Str key);  // An object; `key` is empty in an array.
  void close();
  void open_list(Str key);
  void close_list();

  void text(Str key, Str value);
  void number(Str key, std::uint64_t value);  // Always written, zero too: it was found.
  void flag(Str key, bool value);             // Always written.

  Str done();

 private:
  void name(Str key);
  void put(char c);
  void put(Str raw);
  void quote(Str value);

  char* bytes_;
  std::size_t size_ = 0;
  bool first_ = true;
};

}  // namespace dsi::facts
