#include "orchestrator/elf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "orchestrator/adapters/local_process.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

TEST(Elf, Versions_compare_by_number) {
  EXPECT_TRUE(version_less("2.9", "2.34"));
  EXPECT_FALSE(version_less("2.34", "2.9"));
  EXPECT_TRUE(version_less("3.4", "3.4.30"));
  EXPECT_FALSE(version_less("2.34", "2.34"));
}

TEST(Elf, Says_what_this_program_needs) {
  auto needs = read_elf_needs("/proc/self/exe");
  ASSERT_TRUE(needs) << needs.error().what;
  EXPECT_NE(std::find(needs->libraries.begin(), needs->libraries.end(), "libc.so.6"),
            needs->libraries.end());
  EXPECT_FALSE(version_less(needs->symbols.at("GLIBC"), "2.2.5"));
  EXPECT_EQ(needs->symbols.count("GLIBCXX"), 1u);
}

TEST(Elf, Agrees_with_readelf_about_a_library_made_for_the_purpose) {
  TempFolder folder;
  auto source = folder.write("x.c", "#include <math.h>\ndouble f(double x) { return exp(x); }\n");
  auto library = folder.path() / "x.so";
  LocalProcessRunner processes;
  auto made = processes.run(
      {{"cc", "-shared", "-fPIC", "-o", library.string(), source.string(), "-lm"}, {}, {}},
      Deadline::after(std::chrono::seconds(30)), {});
  ASSERT_TRUE(made && made->ok());
  auto needs = read_elf_needs(library);
  ASSERT_TRUE(needs) << needs.error().what;
  auto readelf = processes.run({{"readelf", "-dV", library.string()}, {}, {}},
                               Deadline::after(std::chrono::seconds(30)), {});
  ASSERT_TRUE(readelf && readelf->ok());
  EXPECT_NE(readelf->out.find("GLIBC_" + needs->symbols.at("GLIBC")), std::string::npos);
  std::vector<std::string> libraries;
  constexpr std::string_view kNeeded = "Shared library: [";
  for (std::size_t at = 0; (at = readelf->out.find(kNeeded, at)) != std::string::npos;) {
    at += kNeeded.size();
    libraries.push_back(readelf->out.substr(at, readelf->out.find(']', at) - at));
  }
  EXPECT_EQ(needs->libraries, libraries);
  EXPECT_FALSE(libraries.empty());
}

TEST(Elf, Anything_else_is_an_error_that_names_the_file) {
  TempFolder folder;
  for (std::string text : {"", "text",
                           "\x7f"
                           "ELF"}) {
    auto needs = read_elf_needs(folder.write("x.so", text));
    ASSERT_FALSE(needs);
    EXPECT_NE(needs.error().what.find("x.so"), std::string::npos);
  }
  EXPECT_FALSE(read_elf_needs(folder.path() / "missing"));
}

}  // namespace
}  // namespace dsi
