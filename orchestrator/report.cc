#include "orchestrator/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/text.h"

namespace dsi {
namespace {

// ---- Colour ------------------------------------------------------------------------------------

enum class Paint { kPlain, kGood, kBad, kDoubtful, kQuiet, kBold };

std::string painted(const Style& style, Paint paint, std::string_view text) {
  if (!style.colour || paint == Paint::kPlain) return std::string(text);
  static constexpr std::array<std::string_view, 6> kCodes = {"",         "\x1b[32m", "\x1b[1;31m",
                                                             "\x1b[33m", "\x1b[2m",  "\x1b[1m"};
  return fmt::format("{}{}\x1b[0m", kCodes[static_cast<std::size_t>(paint)], text);
}

// For the words that hosts and ops end with; anything that is not one of them stays plain.
Paint paint_of(std::string_view word) {
  static const std::map<std::string_view, Paint> kPaints = {{"ok", Paint::kGood},
                                                            {"installed", Paint::kGood},
                                                            {"up-to-date", Paint::kGood},
                                                            {"rolled-back", Paint::kGood},
                                                            {"uninstalled", Paint::kGood},
                                                            {"reported", Paint::kGood},
                                                            {"repaired", Paint::kGood},
                                                            {"damaged", Paint::kBad},
                                                            {"missing", Paint::kBad},
                                                            {"incompatible", Paint::kBad},
                                                            {"crash", Paint::kBad},
                                                            {"wrong", Paint::kBad},
                                                            {"failed", Paint::kBad},
                                                            {"unreachable", Paint::kBad},
                                                            {"refused", Paint::kBad},
                                                            {"not-tried", Paint::kDoubtful},
                                                            {"not-built", Paint::kDoubtful},
                                                            {"skipped", Paint::kDoubtful},
                                                            {"-", Paint::kQuiet}};
  const auto found = kPaints.find(word);
  return found == kPaints.end() ? Paint::kPlain : found->second;
}

// ---- Which hosts are alike ---------------------------------------------------------------------

// The op's status on the host; "-" if the host said nothing about it.
std::string_view op_status(const HostReport& host, std::string_view op) {
  for (const protocol::OpRow& row : host.ops) {
    if (row.op == op) return row.status;
  }
  return "-";
}

// The wanted columns, then every op that only a host knows: nothing that was said is left out.
std::vector<std::string> all_columns(const RunReport& report) {
  std::vector<std::string> columns = report.columns;
  for (const HostReport& host : report.hosts) {
    for (const protocol::OpRow& row : host.ops) {
      if (std::find(columns.begin(), columns.end(), row.op) == columns.end()) {
        columns.push_back(row.op);
      }
    }
  }
  return columns;
}

struct Group {
  std::vector<std::string> hosts;
  std::vector<std::string> cells;  // Result, release if it is shown, one an op.
  bool good = false;               // Done, and every op is ok.
};

std::string label(const std::vector<std::string>& hosts) {
  return printable(fold_nodeset(hosts));
}

// "node07", or "node[01-03] (3 hosts)".
std::string counted_label(const std::vector<std::string>& hosts) {
  if (hosts.size() == 1) return printable(hosts[0]);
  return fmt::format("{} ({} hosts)", label(hosts), hosts.size());
}

// ---- The matrix --------------------------------------------------------------------------------

struct Table {
  std::string corner;
  std::vector<std::string> columns;
  std::vector<std::string> row_labels;
  std::vector<std::vector<std::string>> cells;  // [row][column]
};

Table turned(const Table& table, std::string corner) {
  Table out{std::move(corner), table.row_labels, table.columns, {}};
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    std::vector<std::string> row;
    for (const auto& cells : table.cells) row.push_back(cells[c]);
    out.cells.push_back(std::move(row));
  }
  return out;
}

// A label cut to `columns`. The count at its end stays: "node[0001-0122,… (998)".
std::string shortened(std::string_view text, std::size_t columns) {
  const std::size_t count = text.ends_with(')') ? text.rfind(" (") : text.npos;
  if (count == text.npos || display_width(text) <= columns) return truncated(text, columns);
  const std::string_view tail = text.substr(count);
  const std::size_t tail_width = display_width(tail);
  if (tail_width + 2 > columns) return truncated(text, columns);
  return truncated(text.substr(0, count), columns - tail_width) + std::string(tail);
}

// How a table that is too wide is broken: panes of columns, one below the other.
struct Layout {
  bool cuts = true;  // What is wider than its place; else that shifts the rest of its line.
  std::size_t label_width = 0;
  std::vector<std::size_t> widths;                         // Of the columns.
  std::vector<std::pair<std::size_t, std::size_t>> panes;  // Columns [first, second).
  std::size_t lines = 0;
};

constexpr int kLeastWidth = 40;  // Of a terminal; a narrower one wraps.
constexpr std::size_t kIndent = 2;
constexpr std::size_t kGap = 2;
constexpr std::size_t kLeastLabel = 20;   // No group's name is cut shorter than this,
constexpr std::size_t kMostHeading = 20;  // nor needs more as the heading of a column.
constexpr std::size_t kMostAligned = 40;  // Where nothing is cut: as far as names are filled up.
constexpr std::size_t kNoLimit = std::string::npos / 2;

Layout lay_out(const Table& table, std::size_t width, std::size_t label_limit,
               std::size_t heading_limit) {
  Layout layout;
  layout.label_width = display_width(table.corner);
  for (const std::string& text : table.row_labels) {
    layout.label_width = std::max(layout.label_width, std::min(display_width(text), label_limit));
  }
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    std::size_t most = std::min(display_width(table.columns[c]), heading_limit);
    for (const auto& row : table.cells) most = std::max(most, display_width(row[c]));
    layout.widths.push_back(most);
  }
  std::size_t first = 0;
  std::size_t used = kIndent + layout.label_width;
  for (std::size_t c = 0; c < layout.widths.size(); ++c) {
    if (used + kGap + layout.widths[c] > width && c > first) {
      layout.panes.emplace_back(first, c);
      first = c;
      used = kIndent + layout.label_width;
    }
    used += kGap + layout.widths[c];
  }
  layout.panes.emplace_back(first, layout.widths.size());
  layout.lines = layout.panes.size() * (table.row_labels.size() + 2) - 1;
  return layout;
}

// One line without spaces at its end, which would only wrap on a narrow terminal.
class Line {
 public:
  explicit Line(const Style& style) : style_(style) {}
  void add(Paint paint, std::string_view text, std::size_t width) {
    text_.append(pending_, ' ');
    text_ += painted(style_, paint, text);
    const std::size_t taken = display_width(text);
    pending_ = kGap + (taken < width ? width - taken : 0);
  }
  const std::string& text() const { return text_; }

 private:
  const Style& style_;
  std::string text_;
  std::size_t pending_ = kIndent;
};

void print_table(std::ostream& out, const Table& table, const Layout& layout, const Style& style) {
  auto fitted = [&](const std::string& text, std::size_t columns) {
    return layout.cuts ? shortened(text, columns) : text;
  };
  for (std::size_t p = 0; p < layout.panes.size(); ++p) {
    if (p > 0) out << '\n';
    const auto [first, last] = layout.panes[p];
    Line heading(style);
    heading.add(Paint::kQuiet, table.corner, layout.label_width);
    for (std::size_t c = first; c < last; ++c) {
      heading.add(Paint::kQuiet, fitted(table.columns[c], layout.widths[c]), layout.widths[c]);
    }
    out << heading.text() << '\n';
    for (std::size_t r = 0; r < table.row_labels.size(); ++r) {
      Line line(style);
      line.add(Paint::kPlain, fitted(table.row_labels[r], layout.label_width), layout.label_width);
      for (std::size_t c = first; c < last; ++c) {
        line.add(paint_of(table.cells[r][c]), table.cells[r][c], layout.widths[c]);
      }
      out << line.text() << '\n';
    }
  }
}

void print_matrix(std::ostream& out, const RunReport& report, const Style& style) {
  const std::vector<std::string> ops = all_columns(report);
  // Which release a host runs is worth a column only if it is not the same everywhere or if nobody
  // said before which one to expect.
  const bool show_release = std::any_of(
      report.hosts.begin(), report.hosts.end(),
      [&](const HostReport& host) { return !host.to.empty() && host.to != report.release; });

  std::vector<Group> groups;
  std::map<std::vector<std::string>, std::size_t> group_of;
  for (const HostReport& host : report.hosts) {
    Group group;
    group.good = is_done(host.status);
    group.cells.push_back(printable(result_word(report, host)));
    if (show_release) group.cells.push_back(host.to.empty() ? "-" : printable(host.to));
    for (const std::string& op : ops) {
      const std::string_view status = op_status(host, op);
      group.good = group.good && status == "ok";
      group.cells.push_back(printable(status));
    }
    const auto [place, is_new] = group_of.emplace(group.cells, groups.size());
    if (is_new) groups.push_back(std::move(group));
    groups[place->second].hosts.push_back(host.host);
  }
  // What is not as it should be stands last, next to the reasons.
  std::stable_partition(groups.begin(), groups.end(), [](const Group& g) { return g.good; });

  Table by_host{
      groups.size() == 1 && groups[0].hosts.size() == 1 ? "host" : "hosts", {"result"}, {}, {}};
  if (show_release) by_host.columns.push_back("release");
  for (const std::string& op : ops) by_host.columns.push_back(printable(op));
  for (const Group& group : groups) {
    by_host.row_labels.push_back(
        group.hosts.size() == 1 ? label(group.hosts)
                                : fmt::format("{} ({})", label(group.hosts), group.hosts.size()));
    by_host.cells.push_back(group.cells);
  }
  if (style.width == 0) {
    Layout whole = lay_out(by_host, kNoLimit, kMostAligned, kNoLimit);
    whole.cuts = false;
    return print_table(out, by_host, whole, style);
  }
  const auto width = static_cast<std::size_t>(std::max(style.width, kLeastWidth));
  // A row for each group if that fits, with names cut short if need be (they stand in full with the
  // reasons); else a row for each op; else whichever way has fewer lines.
  const std::size_t heading = width - kIndent - kLeastLabel - kGap;
  Layout host_rows = lay_out(by_host, width, width, heading);
  for (std::size_t limit = width; host_rows.panes.size() > 1 && limit > kLeastLabel;) {
    host_rows = lay_out(by_host, width, --limit, heading);
  }
  const Table by_op = turned(by_host, "op");
  const std::size_t half = width / 2;
  const Layout op_rows =
      lay_out(by_op, width, half, std::min(kMostHeading, width - kIndent - half - kGap));
  const bool turn =
      host_rows.panes.size() > 1 && (op_rows.panes.size() == 1 || op_rows.lines < host_rows.lines);
  print_table(out, turn ? by_op : by_host, turn ? op_rows : host_rows, style);
}

// ---- The reasons -------------------------------------------------------------------------------

struct Reason {
  std::string subject;  // "unreachable", "cpu_adam crash on cpu".
  std::string what;
  std::string help;
  friend auto operator<=>(const Reason&, const Reason&) = default;
};

struct Told {
  Reason folded;  // With "<host>".
  Reason single;  // As the first host said it.
  std::vector<std::string> hosts;
};

// What differs from host to host though the reason is the same: its name, the numbers of processes.
std::string without_its_own(std::string_view text, const HostReport& host) {
  std::string out = with_name_as(text, host.host, "<host>");
  for (const protocol::BusyProcess& one : host.processes) {
    out = with_name_as(out, std::to_string(one.pid), "<pid>");
  }
  return out;
}

// Reasons in the order of their first host, each with all of its hosts.
class Reasons {
 public:
  void add(const HostReport& host, Reason reason) {
    Reason folded{without_its_own(reason.subject, host), without_its_own(reason.what, host),
                  without_its_own(reason.help, host)};
    const auto [place, is_new] = index_.emplace(folded, told_.size());
    if (is_new) told_.push_back({std::move(folded), std::move(reason), {}});
    told_[place->second].hosts.push_back(host.host);
  }
  const std::vector<Told>& all() const { return told_; }

 private:
  std::vector<Told> told_;
  std::map<Reason, std::size_t> index_;
};

// Continuation lines are indented so that the next "error:" is found at a glance.
std::string indented(std::string_view text) {
  std::string out;
  for (char c : printable(text, true)) {
    out += c;
    if (c == '\n') out += "    ";
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '\n')) out.pop_back();
  return out;
}

void print_reason(std::ostream& out, const Style& style, Paint paint, std::string_view severity,
                  std::string_view subject, std::string_view hosts, std::string_view what,
                  std::string_view help) {
  out << painted(style, paint, fmt::format("{}:", severity)) << ' ' << hosts << ": " << subject;
  if (!what.empty()) out << ": " << indented(what);
  out << '\n';
  if (!help.empty()) {
    out << "  " << painted(style, Paint::kBold, "help:") << ' ' << indented(help) << '\n';
  }
}

void print_reasons(std::ostream& out, const RunReport& report, const Style& style) {
  Reasons of_hosts;
  Reasons of_ops;  // Subject: the op.
  std::map<std::pair<std::string, std::string>, protocol::OpRow> rows;
  for (const HostReport& host : report.hosts) {
    // Of an interrupted run the last line says why hosts were not tried.
    const bool told = host.status != HostStatus::kNotTried || !report.interrupted;
    if (!is_done(host.status) && told) {
      of_hosts.add(host, {result_word(report, host), host.error.what, host.error.help});
    }
    for (const protocol::OpRow& row : host.ops) {
      if (row.status == "ok") continue;
      // Unit separators cannot be in a printed text; the parts are taken apart again below.
      of_ops.add(host, {row.op, row.detail, row.status + '\x1f' + row.device});
    }
  }
  bool printed = false;
  for (const Told& told : of_hosts.all()) {
    if (!printed) out << '\n';
    printed = true;
    const Reason& reason = told.hosts.size() == 1 ? told.single : told.folded;
    const bool held = reason.subject == to_string(HostStatus::kHeld);
    print_reason(out, style, held ? Paint::kDoubtful : Paint::kBad, held ? "note" : "error",
                 reason.subject, counted_label(told.hosts), reason.what, reason.help);
  }

  // Ops that fare alike on the same hosts for the same reason are one entry.
  using Alike = std::tuple<std::string, std::string, std::vector<std::string>>;
  std::vector<std::pair<Alike, std::vector<std::string>>> entries;
  std::map<Alike, std::size_t> entry_of;
  for (const Told& told : of_ops.all()) {
    const Reason& reason = told.hosts.size() == 1 ? told.single : told.folded;
    const Alike alike{reason.help, reason.what, told.hosts};
    const auto [place, is_new] = entry_of.emplace(alike, entries.size());
    if (is_new) entries.push_back({alike, {}});
    entries[place->second].second.push_back(printable(reason.subject));
  }
  for (const auto& [alike, ops] : entries) {
    if (!printed) out << '\n';
    printed = true;
    const auto& [state, what, hosts] = alike;
    const std::size_t cut = state.find('\x1f');
    const std::string status = printable(state.substr(0, cut));
    const std::string device = printable(state.substr(cut + 1));
    std::string subject;
    for (const std::string& op : ops) subject += (subject.empty() ? "" : ", ") + op;
    subject += ": " + status + (device.empty() || device == "-" ? "" : " on " + device);
    const bool mild = status == "skipped" || status == "not-built";
    const bool fails = report.strict;
    print_reason(out, style, fails ? Paint::kBad : Paint::kDoubtful,
                 fails  ? "error"
                 : mild ? "note"
                        : "warning",
                 subject, counted_label(hosts), what, "");
  }
}

// Once for all hosts of which it is said.
void print_remarks(std::ostream& out, const RunReport& report, const Style& style) {
  std::map<std::string_view, const HostReport*> rows;
  for (const HostReport& host : report.hosts) rows.emplace(host.host, &host);
  Reasons remarks;
  for (const HostRemark& remark : report.remarks) {
    HostReport unknown;
    unknown.host = remark.host;
    const auto row = rows.find(remark.host);
    remarks.add(row != rows.end() ? *row->second : unknown, {remark.text, "", ""});
  }
  for (const Told& told : remarks.all()) {
    const Reason& reason = told.hosts.size() == 1 ? told.single : told.folded;
    print_reason(out, style, Paint::kDoubtful, "warning", printable(reason.subject),
                 counted_label(told.hosts), "", "");
  }
}

// ---- The last line -----------------------------------------------------------------------------

std::string duration(std::chrono::duration<double> time) {
  const double seconds = std::max(time.count(), 0.0);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const long long whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

// "6 installed, 1 up-to-date", in the order of `order`, then as they came.
class Counts {
 public:
  explicit Counts(std::vector<std::string> order) {
    for (std::string& word : order) counts_.emplace_back(std::move(word), 0);
  }
  void add(std::string_view word) {
    for (auto& [known, count] : counts_) {
      if (known == word) {
        ++count;
        return;
      }
    }
    counts_.emplace_back(std::string(word), 1);
  }
  std::string text(const Style& style) const {
    std::string out;
    for (const auto& [word, count] : counts_) {
      if (count == 0) continue;
      if (!out.empty()) out += ", ";
      out += painted(style, paint_of(word), fmt::format("{} {}", count, word));
    }
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::size_t>> counts_;
};

void print_recap(std::ostream& out, const RunReport& report, const Style& style) {
  Counts hosts(
      {"installed", "up-to-date", "failed", "unreachable", "refused", "held", "busy", "not-tried"});
  for (const HostReport& host : report.hosts) hosts.add(printable(result_word(report, host)));

  Counts ops({"ok"});
  std::size_t ok = 0;
  std::size_t rows = 0;
  for (const HostReport& host : report.hosts) {
    for (const protocol::OpRow& row : host.ops) {
      ++rows;
      if (row.status == "ok") {
        ++ok;
      } else {
        ops.add(printable(row.status));
      }
    }
  }
  const std::size_t count = report.hosts.size();
  if (report.interrupted) out << painted(style, Paint::kBad, "interrupted:") << ' ';
  out << painted(style, Paint::kBold, fmt::format("{} host{}", count, count == 1 ? "" : "s"));
  if (count > 0) out << ": " << hosts.text(style);
  if (rows > 0) {
    out << "; ";
    if (ok > 0) {
      out << painted(style, Paint::kGood, fmt::format("{} op{} ok", ok, ok == 1 ? "" : "s"));
    } else {
      out << "no op ok";
    }
    const std::string others = ops.text(style);
    if (!others.empty()) out << ", " << others;
  }
  out << "; " << duration(report.seconds) << '\n';
}

}  // namespace

const char* to_string(HostStatus status) {
  switch (status) {
    case HostStatus::kInstalled:
      return "installed";
    case HostStatus::kUpToDate:
      return "up-to-date";
    case HostStatus::kFailed:
      return "failed";
    case HostStatus::kUnreachable:
      return "unreachable";
    case HostStatus::kRefused:
      return "refused";
    case HostStatus::kNotTried:
      return "not-tried";
    case HostStatus::kBusy:
      return "busy";
    case HostStatus::kHeld:
      return "held";
  }
  return "not-tried";
}

bool has_failed(const HostReport& host, bool strict) {
  if (host.status == HostStatus::kHeld) return false;
  if (!is_done(host.status)) return true;
  return strict && std::any_of(host.ops.begin(), host.ops.end(),
                               [](const protocol::OpRow& row) { return row.status != "ok"; });
}

bool is_sound(const HostReport& host) {
  return is_done(host.status) &&
         std::all_of(host.ops.begin(), host.ops.end(), [](const protocol::OpRow& row) {
           return row.status == "ok" || row.status == "skipped" || row.status == "not-built";
         });
}

std::string result_word(const RunReport& report, const HostReport& host) {
  if (is_done(host.status) && report.command != "install" && !host.action.empty()) {
    return host.action;
  }
  return to_string(host.status);
}

int exit_code(const RunReport& report) {
  if (report.error_exit != 0) return report.error_exit;
  if (report.interrupted) return 130;
  bool all_done = true;
  bool all_refused = !report.hosts.empty();
  for (const HostReport& host : report.hosts) {
    all_refused = all_refused && host.status == HostStatus::kRefused;
    all_done = all_done && (is_done(host.status) || host.status == HostStatus::kHeld);
    if (!report.strict || !is_done(host.status)) continue;
    for (const std::string& op : report.columns) {
      all_done = all_done && op_status(host, op) == "ok";
    }
    for (const protocol::OpRow& row : host.ops) all_done = all_done && row.status == "ok";
  }
  if (all_refused) return 4;
  return all_done ? 0 : 1;
}

void print_report(std::ostream& out, const RunReport& report, const Style& style) {
  if (!report.hosts.empty()) print_matrix(out, report, style);
  print_reasons(out, report, style);
  print_remarks(out, report, style);
  for (const std::string& warning : report.warnings) {
    out << painted(style, Paint::kDoubtful, "warning:") << ' ' << printable(warning) << '\n';
  }
  if (report.error_exit != 0) out << indented(to_string(report.error)) << '\n';
  if (!report.hosts.empty()) out << '\n';
  print_recap(out, report, style);
}

}  // namespace dsi
