#include "orchestrator/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/plan.h"
#include "orchestrator/rules_default.h"
#include "tests/unit/survey_fixture.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

using ::testing::ElementsAre;
using testing::good_host;
using testing::good_release;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Case {
  SurveyRow row = good_host("node1");
  Requirements build = good_release();
  std::size_t shared_by = 1;
};

std::vector<Finding> ask(const Case& c, const Rules& rules = default_rules()) {
  return evaluate(rules, FactContext{c.row, c.build, nullptr, c.shared_by}, {});
}

std::vector<std::string> ids(const std::vector<Finding>& findings) {
  std::vector<std::string> ids;
  for (const Finding& finding : findings) ids.push_back(finding.rule);
  return ids;
}

Rules rules_in(std::string_view text) {
  auto rules = read_rules(text, "site.yaml");
  EXPECT_TRUE(rules) << rules.error().what;
  return rules.value_or(Rules{});
}

std::string mistake_in(std::string_view text) {
  auto rules = read_rules(text, "site.yaml");
  return rules ? "no mistake" : to_string(rules.error());
}

// What makes a good host one that the rule speaks about. Each rule must have one.
const std::map<std::string, std::function<void(Case&)>> kExamples = {
    {"other-architecture", [](Case& c) { c.row.node.arch = "aarch64"; }},
    {"isa-too-low", [](Case& c) { c.row.node.cpu.isa = "x86-64-v1"; }},
    {"cpu-emulated", [](Case& c) { c.row.node.cpu.hypervisor = "TCGTCGTCGTCG"; }},
    {"not-looked-at",
     [](Case& c) {
       c.row.node = NodeFacts{};
       c.row.node.unknown_because = "there is no folder in which a program may run";
     }},
    {"no-glibc",
     [](Case& c) {
       c.row.node.libc = {"musl", "", "", "", ""};
     }},
    {"glibc-too-old", [](Case& c) { c.row.node.libc.glibc = "2.31"; }},
    {"libstdcxx-too-old", [](Case& c) { c.row.node.libc.glibcxx = "3.4.9"; }},
    {"cxxabi-too-old", [](Case& c) { c.row.node.libc.cxxabi = "1.3.8"; }},
    {"library-missing", [](Case& c) { c.row.node.absent_libraries = {"libaio.so.1"}; }},
    {"old-kernel-for-async-io", [](Case& c) { c.row.facts.kernel = "4.18.0-553.el8.x86_64"; }},
    {"little-locked-memory", [](Case& c) { c.row.node.memory.locked_bytes = 65536; }},
    {"prefix-read-only",
     [](Case& c) {
       c.row.node.prefix.read_only = true;
       c.row.node.prefix.writable = false;
     }},
    {"prefix-not-writable", [](Case& c) { c.row.node.prefix.writable = false; }},
    {"prefix-noexec", [](Case& c) { c.row.node.prefix.no_exec = true; }},
    {"no-space", [](Case& c) { c.row.node.prefix.free_bytes = 1 << 20; }},
    {"little-space",
     [](Case& c) {
       c.row.node.prefix.free_bytes = 1 << 20;
       c.row.facts.current = "0123456789abcdef";
     }},
    {"no-inodes", [](Case& c) { c.row.node.prefix.free_inodes = 3; }},
    {"temp-full", [](Case& c) { c.row.node.temp.free_bytes = 0; }},
    {"shared-prefix",
     [](Case& c) {
       c.row.node.prefix.network = true;
       c.row.node.prefix.share = "server:/export/ds-ops";
       c.shared_by = 4;
     }},
    {"torch-other-version", [](Case& c) { c.row.node.torch.version = "2.3.1+cu124"; }},
    {"torch-other-abi", [](Case& c) { c.row.node.torch.abi = "old"; }},
    {"torch-other-cuda", [](Case& c) { c.row.node.torch.cuda = "11.8"; }},
    {"torch-too-old",
     [](Case& c) {
       c.row.node.torch.version = "1.9.1";
       c.build.torch = "1.9.0";
     }},
    {"torch-without-cuda",
     [](Case& c) {
       c.row.node.torch.with_cuda = false;
       c.row.node.torch.cuda = "";
     }},
    {"torch-not-found",
     [](Case& c) {
       c.row.node.torch = NodeTorch{};
       c.row.node.torch.searched = true;
     }},
    {"stale-extension-lock",
     [](Case& c) {
       c.row.node.locks = {{"/home/x/lock", 7200}};
     }},
    {"shared-extension-cache", [](Case& c) { c.row.node.extensions.network = true; }},
    {"no-code-for-device", [](Case& c) { c.row.node.gpus[3].compute_capability = "7.0"; }},
    {"driver-too-old", [](Case& c) { c.row.node.driver.cuda = "11.4"; }},
    {"driver-older-minor", [](Case& c) { c.row.node.driver.cuda = "12.2"; }},
    {"driver-missing",
     [](Case& c) {
       c.row.node.gpus.clear();
       c.row.node.driver = {"", "", 8, ""};
     }},
    {"driver-silent",
     [](Case& c) { c.row.node.driver.error = "nvidia-smi gave no answer within 5 s"; }},
    {"no-device",
     [](Case& c) {
       c.row.node.gpus.clear();
       c.row.node.driver = NodeDriver{};
       c.row.node.driver.devices_on_bus = 0;
     }},
    {"mig-mode", [](Case& c) { c.row.node.gpus[7].mig = true; }},
    {"clock-off", [](Case& c) { c.row.node.clock_off_s = -90; }},
    {"little-shared-memory", [](Case& c) { c.row.node.memory.shm_bytes = 64 << 20; }},
    {"deepspeed-transformers", [](Case& c) { c.row.node.packages["transformers"] = "4.19.2"; }},
    {"deepspeed-optimum-transformers",
     [](Case& c) {
       c.row.node.packages = {{"optimum", "1.12.0"}, {"transformers", "4.33.0"}};
     }},
    {"deepspeed-onnxruntime",
     [](Case& c) { c.row.node.packages["onnxruntime_training"] = "1.18.0"; }},
    {"deepspeed-zero-under-onnxruntime",
     [](Case& c) {
       c.row.node.packages = {
           {"deepspeed", "0.9.1"}, {"onnxruntime_training", "1.18.0"}, {"optimum", "1.21.0"}};
     }},
    {"optimum-without-onnxruntime", [](Case& c) { c.row.node.packages["optimum"] = "1.21.0"; }},
    {"deepspeed-fairscale", [](Case& c) { c.row.node.packages["fairscale"] = "0.4.13"; }},
};

TEST(Rules, The_programs_own_have_no_mistake) {
  auto rules = read_rules(kDefaultRules, "rules.yaml");
  ASSERT_TRUE(rules) << rules.error().what;
  EXPECT_GE(rules->size(), 30u);
}

TEST(Rules, A_good_host_is_told_nothing) {
  EXPECT_THAT(ids(ask({})), IsEmpty());
}

TEST(Rules, Each_speaks_about_its_own_case_and_about_no_other) {
  for (const Rule& rule : default_rules()) {
    auto example = kExamples.find(rule.id);
    ASSERT_NE(example, kExamples.end()) << rule.id << " has no example";
    Case c;
    example->second(c);
    std::vector<Finding> findings = ask(c);
    EXPECT_THAT(ids(findings), ElementsAre(rule.id));
    for (const Finding& finding : findings) {
      EXPECT_EQ(to_string(finding).find('{'), std::string::npos) << to_string(finding);
      EXPECT_EQ(to_string(finding).find("unknown"), std::string::npos) << to_string(finding);
      EXPECT_FALSE(finding.remedy.empty());
      // A refusal shows both sides.
      if (finding.severity == Severity::kRefuse) {
        EXPECT_FALSE(finding.required.empty()) << rule.id;
        EXPECT_FALSE(finding.found.empty()) << rule.id;
      }
    }
  }
  EXPECT_EQ(kExamples.size(), default_rules().size()) << "an example has no rule";
}

TEST(Rules, What_is_not_known_refuses_nobody) {
  Case blind;
  blind.row.node = NodeFacts{};
  blind.row.node.unknown_because = "ds-facts does not run there";
  EXPECT_THAT(ids(ask(blind)), ElementsAre("not-looked-at"));
  Case unbuilt;
  unbuilt.build = Requirements{};
  EXPECT_THAT(ids(ask(unbuilt)), IsEmpty());
  Case bare;  // It was looked at and has nothing of what is compared.
  bare.row.node = NodeFacts{};
  bare.row.node.known = true;
  for (const Finding& finding : ask(bare)) EXPECT_NE(finding.severity, Severity::kRefuse);
}

// 0 is a number. What was not found is none, and says nothing; but who asks hears what it was.
TEST(Rules, Nothing_free_is_refused_and_an_unknown_amount_is_not) {
  Case none;
  none.row.node.prefix.free_bytes = 0;
  none.row.node.prefix.free_inodes = 0;
  EXPECT_THAT(ids(ask(none)), ElementsAre("no-space", "no-inodes"));
  Case unknown;
  unknown.row.node.prefix.free_bytes.reset();
  unknown.row.node.prefix.free_inodes.reset();
  EXPECT_THAT(ids(ask(unknown)), IsEmpty());
  auto open = undecided(default_rules(), FactContext{unknown.row, unknown.build}, {});
  EXPECT_THAT(open, ElementsAre(Undecided{"no-space", {"node.prefix.free_bytes"}},
                                Undecided{"no-inodes", {"node.prefix.free_inodes"}}));
  Case unlimited;  // btrfs counts none.
  unlimited.row.node.prefix.counts_inodes = false;
  unlimited.row.node.prefix.free_inodes.reset();
  EXPECT_THAT(ids(ask(unlimited)), IsEmpty());
  EXPECT_THAT(undecided(default_rules(), FactContext{unlimited.row, unlimited.build}, {}),
              IsEmpty());
}

TEST(Rules, No_device_and_unknown_devices_are_two_things) {
  Case none;
  none.row.node.gpus.clear();
  none.row.node.driver = NodeDriver{};
  none.row.node.driver.devices_on_bus = 0;
  EXPECT_THAT(ids(ask(none)), ElementsAre("no-device"));
  Case hung;
  hung.row.node.gpus.clear();
  hung.row.node.gpus_known = false;
  hung.row.node.driver = {"550.54.15", "", 8, "nvidia-smi gave no answer within 5 s"};
  EXPECT_THAT(ids(ask(hung)), ElementsAre("driver-silent"));
  std::vector<std::string> open;
  for (const auto& one : undecided(default_rules(), FactContext{hung.row, hung.build}, {})) {
    open.push_back(one.rule);
  }
  EXPECT_THAT(open, ElementsAre("no-code-for-device", "driver-too-old"));
}

TEST(Rules, Of_a_host_of_which_all_is_known_every_rule_is_decided) {
  Case c;
  EXPECT_THAT(undecided(default_rules(), FactContext{c.row, c.build}, {}), IsEmpty());
  // What is not known of the build is not the host's fault.
  EXPECT_THAT(undecided(default_rules(), FactContext{c.row, Requirements{}}, {}), IsEmpty());
  c.row.node.libc.glibc.clear();
  EXPECT_THAT(undecided(default_rules(), FactContext{c.row, c.build}, {}),
              ElementsAre(Undecided{"glibc-too-old", {"node.libc.glibc"}}));
  EXPECT_THAT(undecided(default_rules(), FactContext{c.row, c.build}, {"glibc-too-old"}),
              IsEmpty());
}

TEST(Rules, Ops_that_need_the_same_are_one_finding) {
  Case c;
  c.row.node.libc.glibc = "2.31";
  auto findings = ask(c);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(to_string(findings[0]),
            "async_io, cpu_adam needs a newer C library than the host has (required GLIBC_2.34, "
            "found GLIBC_2.31) [glibc-too-old]");
  c.row.node.libc.glibc = "2.12";
  EXPECT_THAT(ids(ask(c)), ElementsAre("glibc-too-old", "glibc-too-old"))
      << "fused_adam needs another version";
}

TEST(Rules, Unknown_words_are_mistakes_with_their_place_and_what_was_meant) {
  EXPECT_EQ(mistake_in("- id: x\n  when: {node.libc.glib: {older_than: '2.3'}}\n"
                       "  severity: refuse\n  message: m\n"),
            "error: the rules in site.yaml have 1 mistake\n"
            "site.yaml:2:10: error: there is no field node.libc.glib\n"
            "  help: did you mean node.libc.glibc?");
  EXPECT_THAT(
      mistake_in("- id: x\n  when: {node.libc.glibc: {older_then: '2.3'}}\n"
                 "  severity: refuse\n  message: m\n"),
      HasSubstr("site.yaml:2:28: error: there is no operator older_then\n  help: did you mean "
                "older_than?"));
  EXPECT_THAT(mistake_in("- id: x\n  when: {node.arch: {is: arm}}\n  severity: refuze\n"
                         "  message: m\n"),
              HasSubstr("site.yaml:3:13: error: there is no severity refuze\n  help: did you mean "
                        "refuse?"));
  EXPECT_THAT(mistake_in("- id: x\n  wen: {}\n"), HasSubstr("did you mean when?"));
  EXPECT_THAT(mistake_in("- id: x\n  when: {node.arch: {is: arm}}\n  severity: warn\n"
                         "  message: 'on {node.arhc}'\n"),
              HasSubstr("site.yaml:4:12: error: there is no field node.arhc"));
  EXPECT_THAT(mistake_in("- id: x\n  when: {op.glibc: {known: true}}\n  severity: warn\n"
                         "  message: m\n"),
              HasSubstr("add each: op to the rule"));
  EXPECT_THAT(mistake_in("- id: x\n  when: {node.arch: {below: 3}}\n  severity: warn\n"
                         "  message: m\n"),
              HasSubstr("node.arch is text, and below is not for that\n  help: for it there are: "
                        "is, is_not, known"));
  EXPECT_THAT(mistake_in("- id: x\n  when: {node.memory.bytes: {below: 3 parsecs}}\n"
                         "  severity: warn\n  message: m\n"),
              HasSubstr("\"3 parsecs\" is no number of bytes\n  help: write 64MiB"));
  EXPECT_THAT(mistake_in("- id: x\n  when: {node.memory.bytes: {below: node.arch}}\n"
                         "  severity: warn\n  message: m\n"),
              HasSubstr("cannot be compared with node.arch, which is text"));
  EXPECT_THAT(mistake_in("- id: x\n  severity: warn\n"),
              ::testing::AllOf(HasSubstr("2 mistakes"), HasSubstr("a rule needs when"),
                               HasSubstr("a rule needs message")));
  EXPECT_THAT(mistake_in("- {id: x, severity: 'off'}\n- {id: x, severity: 'off'}\n"),
              HasSubstr("site.yaml:2:8: error: there are two rules x"));
  EXPECT_THAT(mistake_in("id: x"), HasSubstr("site.yaml:1:1: error: expected a list of rules"));
  EXPECT_THAT(mistake_in("- [\n"), HasSubstr("not YAML"));
}

TEST(Rules, Conditions_nest_and_compare_with_lists_numbers_and_other_fields) {
  Rules rules = rules_in(R"(
- id: mine
  when:
    any:
      - {node.arch: {is: [aarch64, ppc64le]}}
      - all:
          - {node.memory.bytes: {above: 1TB, below: 4TB}}
          - {node.gpus.compute_capabilities: {has: "9.0", lacks: ["7.0", "8.0"]}}
          - not: {node.torch.version: {other_major_than: build.torch}}
  severity: warn
  message: "{node.name} has {node.memory.bytes} and {node.gpus.compute_capabilities}"
)");
  auto findings = ask({}, rules);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].message, "node1 has 2.0 TiB and 9.0");
  Case other;
  other.row.node.gpus[0].compute_capability = "8.0";
  EXPECT_THAT(ask(other, rules), IsEmpty());
  other.row.node.arch = "ppc64le";
  EXPECT_EQ(ask(other, rules).size(), 1u);
}

TEST(Rules, A_site_replaces_silences_and_adds) {
  TempFolder folder;
  auto site = folder.write("rules.yaml", "- {id: clock-off, severity: 'off'}\n");
  auto more = folder.write("more.yaml",
                           "- id: mig-mode\n  when: {node.gpus.mig: {is: true}}\n"
                           "  severity: refuse\n  message: not here\n"
                           "- id: ours\n  when: {node.shell: {is: /bin/csh}}\n"
                           "  severity: warn\n  message: oh\n");
  auto rules = load_rules({more}, site);
  ASSERT_TRUE(rules) << rules.error().what;
  EXPECT_EQ(rules->size(), default_rules().size() + 1);
  Case c;
  c.row.node.clock_off_s = 90;
  c.row.node.gpus[0].mig = true;
  c.row.node.shell = "/bin/csh";
  auto findings = ask(c, *rules);
  EXPECT_THAT(ids(findings), ElementsAre("mig-mode", "ours"));
  EXPECT_EQ(findings[0].severity, Severity::kRefuse);

  auto absent = load_rules({folder.path() / "nowhere.yaml"}, site);
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().what, HasSubstr("nowhere.yaml"));
}

TEST(Rules, A_name_to_ignore_that_is_none_says_which_is_meant) {
  auto good = check_ignored(default_rules(), {"no-space", "clock-off"});
  ASSERT_TRUE(good);
  EXPECT_EQ(good->size(), 2u);
  auto bad = check_ignored(default_rules(), {"no-spaces"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().help, "did you mean no-space?");
}

// ---- In the plan

Intention install_of(const Requirements& build) {
  Intention intention;
  intention.command = "install";
  intention.build = build;
  return intention;
}

TEST(RulesInPlan, A_refused_host_shows_all_reasons_and_the_others_go_on) {
  SurveyRow bad = good_host("bad");
  bad.node.prefix.no_exec = true;
  bad.node.libc.glibcxx = "3.4.20";
  Plan plan = make_plan(install_of(good_release()), {good_host("good"), bad});
  EXPECT_EQ(plan.hosts[0].action,
            Action::kDecide == plan.hosts[0].action ? Action::kDecide : Action::kInstall);
  EXPECT_EQ(plan.hosts[1].action, Action::kRefuse);
  EXPECT_EQ(plan.hosts[1].status, HostStatus::kRefused);
  EXPECT_THAT(plan.hosts[1].error.what,
              ::testing::AllOf(HasSubstr("required GLIBCXX_3.4.30, found GLIBCXX_3.4.20"),
                               HasSubstr("[prefix-noexec]")));
  EXPECT_FALSE(plan.hosts[1].error.help.empty());
  EXPECT_FALSE(plan.all_refused());
}

TEST(RulesInPlan, Ignored_rules_refuse_nobody_and_stand_in_the_record) {
  SurveyRow bad = good_host("bad");
  bad.node.prefix.no_exec = true;
  Plan plan = make_plan(install_of(good_release()), {bad}, default_rules(), {"prefix-noexec"});
  EXPECT_EQ(plan.hosts[0].action, Action::kInstall);
  EXPECT_THAT(plan_json(plan), HasSubstr("\"prefix-noexec\""));
  std::ostringstream text;
  print_plan(text, plan);
  EXPECT_THAT(text.str(), HasSubstr("  ignored: prefix-noexec\n"));
}

TEST(RulesInPlan, Warnings_are_one_line_for_all_hosts_that_share_them) {
  std::vector<SurveyRow> rows;
  for (const char* name : {"node01", "node02", "node03"}) rows.push_back(good_host(name));
  rows[0].node.gpus[0].mig = rows[2].node.gpus[0].mig = true;
  Plan plan = make_plan(install_of(good_release()), rows);
  EXPECT_THAT(
      warnings_of(plan),
      ElementsAre("node[01,03]: a device is in MIG mode, and a process sees one slice of it "
                  "only [mig-mode]\n  help: take it out of MIG mode if whole devices are "
                  "wanted"));
}

TEST(RulesInPlan, Hosts_that_see_one_folder_are_counted) {
  std::vector<SurveyRow> rows;
  for (const char* name : {"a", "b", "c"}) {
    rows.push_back(good_host(name));
    rows.back().node.prefix.network = true;
    rows.back().node.prefix.share = name[0] == 'c' ? "server:/other" : "server:/export";
  }
  Plan plan = make_plan(install_of(good_release()), rows);
  EXPECT_EQ(ids(plan.hosts[0].findings), std::vector<std::string>{"shared-prefix"});
  EXPECT_THAT(plan.hosts[0].findings[0].message, HasSubstr("2 hosts see the same"));
  EXPECT_THAT(plan.hosts[2].findings, IsEmpty());
}

TEST(RulesInPlan, Nobody_is_kept_from_a_report_or_from_taking_away) {
  SurveyRow bad = good_host("bad");
  bad.node.arch = "aarch64";
  for (const char* command : {"report", "rollback", "uninstall"}) {
    Intention intention = install_of(good_release());
    intention.command = command;
    EXPECT_NE(make_plan(intention, {bad}).hosts[0].action, Action::kRefuse) << command;
  }
}

// docs/rules.md ends with what the tables say. After a wanted change run this program with
// DSI_UPDATE_GOLDEN=1 from the root of the sources.
TEST(RulesDocument, Says_what_the_tables_say) {
  const char* path = "orchestrator/docs/rules.md";
  constexpr std::string_view kMark = "<!-- from here on: written by the tests -->\n";
  std::string text = read_file(path).value_or("");
  std::size_t at = text.find(kMark);
  ASSERT_NE(at, std::string::npos) << path << " has no line " << kMark;
  std::string wanted = text.substr(0, at) + std::string(kMark) + rules_document(default_rules());
  if (std::getenv("DSI_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << wanted;
    return;
  }
  EXPECT_EQ(text, wanted) << "if this is wanted, run with DSI_UPDATE_GOLDEN=1";
}

}  // namespace
}  // namespace dsi
