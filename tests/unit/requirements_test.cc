// What a release asks of a host is read from its files: made here by the compiler, packed as a
// build packs them, and held against hosts by the rules.

#include "orchestrator/requirements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/bundle.h"
#include "orchestrator/condition.h"
#include "orchestrator/rules.h"
#include "tests/unit/survey_fixture.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A section as nvcc makes it: one container with machine code for 8.0 and 9.0 and PTX of 9.0. Only
// the headers are looked at.
constexpr char kDeviceCode[] = R"(
struct Entry {
  unsigned short kind, version;
  unsigned header;
  unsigned long size;
  unsigned unused[3];
  unsigned arch;
  unsigned more[2];
  unsigned long flags;
  char payload[8];
};
struct Container {
  unsigned magic;
  unsigned short version, header;
  unsigned long size;
  struct Entry entries[3];
};
__attribute__((section(".nv_fatbin"), used)) struct Container code = {
    0xBA55ED50, 1, 16, sizeof(struct Entry[3]),
    {{.kind = 2, .header = 48, .size = 8, .arch = 80},
     {.kind = 2, .header = 48, .size = 8, .arch = 90},
     {.kind = 1, .header = 48, .size = 8, .arch = 90}}};
)";

class Requirement : public ::testing::Test {
 protected:
  // Compiles lib/libds_<name>.so.
  void add(const std::string& name, const std::string& source, std::vector<std::string> devices,
           const std::vector<std::string>& flags = {}) {
    fs::path text = folder_.write(name + ".c", source);
    fs::create_directories(folder_.path() / "stage/lib");
    std::string library = "lib/libds_" + name + ".so";
    std::vector<std::string> argv = {"cc",    "-shared",
                                     "-fPIC", text.string(),
                                     "-o",    (folder_.path() / "stage" / library).string()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    LocalProcessRunner processes;
    auto made = processes.run({argv, {}, {}}, Deadline::after(std::chrono::seconds(60)), {});
    ASSERT_TRUE(made && made->ok()) << (made ? made->err : made.error().what);
    ManifestOp op;
    op.name = name;
    op.library = library;
    op.devices = std::move(devices);
    ops_.push_back(op);
  }

  // As it comes out of a bundle.
  Requirements packed() {
    auto files = list_files(folder_.path() / "stage");
    auto payload = make_payload(*files, ops_, built_with_);
    EXPECT_TRUE(payload) << payload.error().what;
    auto read = Manifest::parse(payload->text);
    EXPECT_TRUE(read) << read.error().what;
    return requirements_of(*read);
  }

  std::vector<std::string> said(const SurveyRow& row, const Requirements& build) {
    std::vector<std::string> ids;
    for (const Finding& finding : evaluate(default_rules(), FactContext{row, build}, {})) {
      ids.push_back(finding.rule);
      last_ = to_string(finding);
    }
    return ids;
  }

  TempFolder folder_;
  std::vector<ManifestOp> ops_;
  std::map<std::string, std::string> built_with_ = {
      {"arch", "x86_64"},     {"torch", "2.4.1+cu124"}, {"torch_cxx11_abi", "1"},
      {"torch_cuda", "12.4"}, {"cuda", "12.4"},
  };
  std::string last_;
};

TEST_F(Requirement, Device_code_is_read_from_the_file_and_held_against_the_devices_and_drivers) {
  add("scale", kDeviceCode, {"cuda"});
  add("count", "int count(int x) { return x + 1; }\n", {"cpu"});
  Requirements build = packed();
  ASSERT_EQ(build.ops.size(), 2u);
  EXPECT_THAT(build.ops[0].compute_capabilities, IsEmpty()) << "count has none";
  EXPECT_THAT(build.ops[1].compute_capabilities, ElementsAre("8.0", "9.0", "9.0+PTX"));
  EXPECT_THAT(compute_capabilities_of(build), ElementsAre("8.0", "9.0", "9.0+PTX"));
  EXPECT_EQ(build.cuda, "12.4");
  EXPECT_EQ(build.torch_cuda, "12.4");

  SurveyRow row = testing::good_host("node1");
  EXPECT_THAT(said(row, build), IsEmpty());
  row.node.gpus[2].compute_capability = "12.0";
  EXPECT_THAT(said(row, build), IsEmpty()) << "PTX serves it";
  row.node.gpus[2].compute_capability = "7.5";
  EXPECT_THAT(said(row, build), ElementsAre("no-code-for-device"));
  EXPECT_EQ(last_,
            "scale has no code for a device of the host (required code for 7.5, found code for "
            "8.0, 9.0, 9.0+PTX) [no-code-for-device]");

  row = testing::good_host("node1");
  row.node.driver.cuda = "11.4";
  EXPECT_THAT(said(row, build), ElementsAre("driver-too-old"));
  row.node.driver.cuda = "12.2";
  EXPECT_THAT(said(row, build), ElementsAre("driver-older-minor"));

  row = testing::good_host("node1");
  row.node.torch.cuda = "11.8";
  EXPECT_THAT(said(row, build), ElementsAre("torch-other-cuda"));

  row = testing::good_host("node1");
  row.node.gpus.clear();
  row.node.driver = NodeDriver{};
  row.node.driver.devices_on_bus = 0;
  EXPECT_THAT(said(row, build), ElementsAre("no-device"));
}

TEST_F(Requirement, Without_device_code_no_driver_device_or_CUDA_of_torch_matters) {
  add("count", "int count(int x) { return x + 1; }\n", {"cpu"});
  Requirements build = packed();
  EXPECT_EQ(build.cuda, "") << "the toolkit was there, and no op has code from it";
  SurveyRow row = testing::good_host("node1");
  row.node.driver.cuda = "11.4";
  row.node.torch.cuda = "11.8";
  row.node.gpus[0].compute_capability = "5.2";
  EXPECT_THAT(said(row, build), IsEmpty());
  row.node.gpus.clear();
  row.node.driver = NodeDriver{};
  EXPECT_THAT(said(row, build), IsEmpty());
}

#if defined(__x86_64__)
TEST_F(Requirement, The_level_of_the_processor_is_read_from_the_file) {
  add("vector", "int count(int x) { return x + 1; }\n", {"cpu"}, {"-Wl,-z,x86-64-v3"});
  add("plain", "int more(int x) { return x + 2; }\n", {"cpu"});
  Requirements build = packed();
  ASSERT_EQ(build.ops.size(), 2u);
  EXPECT_EQ(build.ops[0].isa_level, 0) << "plain says nothing";
  EXPECT_EQ(build.ops[1].isa_level, 3);
  SurveyRow row = testing::good_host("node1");
  row.node.cpu.isa = "x86-64-v3";
  EXPECT_THAT(said(row, build), IsEmpty());
  row.node.cpu.isa = "x86-64-v2";
  EXPECT_THAT(said(row, build), ElementsAre("isa-too-low"));
  EXPECT_EQ(last_,
            "the processor lacks instructions that vector uses (required x86-64-v3, found "
            "x86-64-v2) [isa-too-low]");
}
#endif

void fields_in(const Condition& condition, std::set<const FactSpec*>& fields) {
  if (condition.field != nullptr) fields.insert(condition.field);
  if (condition.operand.field != nullptr) fields.insert(condition.operand.field);
  for (const Condition& part : condition.parts) fields_in(part, fields);
}

// A field that no manifest ever has makes a rule that never speaks.
TEST_F(Requirement, Every_field_of_a_build_that_the_rules_ask_for_is_in_a_manifest) {
  // Strings and exceptions: versions of all three libraries.
  fs::path text = folder_.write("cxx.cc",
                                "#include <cstdio>\n#include <stdexcept>\n#include <string>\n"
                                "std::string f(int x) { if (x < -1) std::puts(\"less\"); if (x < "
                                "0) throw std::runtime_error(\"x\"); "
                                "return std::to_string(x); }\n");
  fs::path object = folder_.path() / "cxx.o";
  LocalProcessRunner processes;
  auto made = processes.run({{"c++", "-c", "-fPIC", text.string(), "-o", object.string()}, {}, {}},
                            Deadline::after(std::chrono::seconds(60)), {});
  ASSERT_TRUE(made && made->ok());
  add("scale", kDeviceCode, {"cuda"}, {object.string(), "-lstdc++", "-Wl,-z,x86-64-v3"});
  Requirements build = packed();
  ASSERT_EQ(build.ops.size(), 1u);
  SurveyRow row = testing::good_host("node1");
  FactContext context{row, build, build.ops.data()};
  std::set<const FactSpec*> fields;
  for (const Rule& rule : default_rules()) fields_in(*rule.when, fields);
  std::size_t asked = 0;
  for (const FactSpec* field : fields) {
    if (field->name.starts_with("node.")) continue;
    ++asked;
    EXPECT_FALSE(std::holds_alternative<std::monostate>(field->read(context))) << field->name;
  }
  EXPECT_GE(asked, 12u);
}

}  // namespace
}  // namespace dsi
