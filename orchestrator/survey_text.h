#pragma once

// What the hosts are, for people and for programs: identical hosts folded, and what differs. Pure.

#include <iosfwd>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/requirements.h"
#include "orchestrator/rules.h"

namespace dsi {

// Hosts that a build cannot tell apart: all their FactUse::kGroup facts are the same.
struct HostGroup {
  std::vector<std::size_t> rows;  // Into the survey, in its order.
};

struct HostGroups {
  std::vector<HostGroup> groups;      // In the order of their first hosts.
  std::vector<std::size_t> unlooked;  // Rows that did not answer.
};

HostGroups group_hosts(const std::vector<SurveyRow>& survey);

// "x86_64, x86-64-v4, glibc 2.36, 8 × NVIDIA H100 (9.0), driver 550.54.15 (CUDA 12.4),
// torch 2.4.0".
std::string describe(const NodeFacts& node);

void print_survey(std::ostream& out, const std::vector<SurveyRow>& survey, const Rules& rules,
                  const std::set<std::string>& ignored);

// JSON Lines:
//   {"type":"host","host","result":"looked-at"|"unreachable"|...,"release","facts":{...},
//    "findings":[{"rule","severity","message",...}],"undecided":[{"rule","unknown":[field]}],
//    "error":{"what","help"}}   in order; a fact that could not be found out is null, and
//    "undecided" is there if such a one keeps a rule from deciding whether to refuse
//   {"type":"group","hosts":"node[01-60]","count","facts":{field: text}}
//   {"type":"summary","command":"survey","hosts","groups","cuda_archs","not_looked_at"}
void print_survey_json(std::ostream& out, const std::vector<SurveyRow>& survey, const Rules& rules,
                       const std::set<std::string>& ignored);

}  // namespace dsi
