#include "orchestrator/base/shell_quote.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include <memory>
#include <string>

namespace dsi {
namespace {

std::string through_sh(const std::string& word) {
  std::string command = "printf %s " + shell_quote(word);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string out;
  for (int c = fgetc(pipe.get()); c != EOF; c = fgetc(pipe.get())) out += static_cast<char>(c);
  return out;
}

TEST(ShellQuote, Sh_gives_every_word_back_unchanged) {
  for (std::string word :
       {"plain", "two words", "it's", "\"quoted\"", "line\nbreak", "$HOME `id` $(id)",
        "back\\slash", "*?[a]", "; rm -rf /", "!history", "#", "~", "ümlaut"}) {
    EXPECT_EQ(through_sh(word), word);
  }
}

TEST(ShellQuote, An_empty_word_stays_a_word) {
  EXPECT_EQ(shell_quote(""), "''");
}

TEST(ShellQuote, Plain_words_stay_readable) {
  EXPECT_EQ(shell_join({"cmake", "--build", "/a/b c"}), "cmake --build '/a/b c'");
}

}  // namespace
}  // namespace dsi
