#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hostfile/diagnostic.h"
#include "hostfile/host.h"

namespace dsi {

// The most hosts that one hostfile or list may name. A bound for typing errors and for memory.
inline constexpr std::size_t kMaxHosts = 100'000;
// More errors than anyone reads; the file is something else than a hostfile.
inline constexpr std::size_t kMaxFindings = 10'000;

// Where something stands. `file` is an index into the collector's files.
struct Place {
  std::size_t file = 0;
  int line = 0;
  int column = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// What it means that a host is named a second time.
enum class Again {
  kIsAnError,  // DeepSpeed, Open MPI, Hydra: two lines that both say how many slots there are.
  kAddsASlot,  // PBS and rankfiles: one line a process.
  kIsTheSame,  // Lists of the command line: sets, which may overlap.
};

// Gathers what the readers find in all files of one run, and what only shows when everything has
// been read: duplicates and exclusions.
class Collector {
 public:
  std::size_t add_file(std::string name);
  const std::string& file_name(std::size_t index) const { return files_[index]; }

  void error(Place place, std::string message, std::string help = {});
  void warning(Place place, std::string message, std::string help = {});
  void report(std::size_t file, Diagnostic diagnostic);
  bool has_errors() const { return errors_ > 0; }
  // True the first time: a key that is unknown on 10,000 lines is one warning.
  bool first_time(std::size_t file, const std::string& key) {
    return seen_.insert({file, key}).second;
  }

  void host(Host host, Place place, Again again);
  std::size_t host_count() const { return named_.size(); }
  // So much is wrong, or so many hosts are named, that reading on only costs memory.
  bool full() const { return full_; }
  // pdsh's `-name`: applies to all hosts, also to those named later.
  void exclude(std::string name, Place place);
  // pdsh's `^path`: whoever runs the reader takes these and reads them.
  void include(std::string path, Place place) { includes_.push_back({std::move(path), place}); }

  struct Mention {
    std::string text;
    Place place;
  };
  std::vector<Mention> take_includes() { return std::exchange(includes_, {}); }

  // Settles duplicates and exclusions. `hosts` stay in the order in which they were first named.
  void finish(std::vector<Host>& hosts, std::vector<Diagnostic>& diagnostics);

 private:
  struct Named {
    Host host;
    Place place;
    Again again;
    int times = 1;
  };
  void settle_duplicates();
  void settle_exclusions();

  std::vector<std::string> files_;
  std::vector<Named> named_;
  std::vector<Mention> excluded_;
  std::vector<Mention> includes_;
  std::vector<std::pair<Place, Diagnostic>> findings_;
  std::set<std::pair<std::size_t, std::string>> seen_;
  std::size_t errors_ = 0;
  bool full_ = false;
};

}  // namespace dsi
