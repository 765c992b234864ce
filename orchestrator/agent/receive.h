#pragma once

// Files of a release come into the store.

#include <sys/stat.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/wire.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

// Store files whose every byte was hashed in this run, and how they looked then: what still looks
// so is still so, and need not be read again.
class Verified {
 public:
  struct Look {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    timespec changed{};  // Its content: links change the other time.
    static Look of(const struct stat& status);
    friend bool operator==(const Look& a, const Look& b) {
      return a.device == b.device && a.inode == b.inode && a.size == b.size &&
             a.changed.tv_sec == b.changed.tv_sec && a.changed.tv_nsec == b.changed.tv_nsec;
    }
  };
  void note(const std::string& name, const Look& look) { looks_[name] = look; }
  // Right after it was hashed on its way into the store.
  void note(const Folder& store, const std::string& name);
  // Is each file of the release, mode and all, one of these?
  bool covers(const Folder& release, const std::vector<ManifestFile>& files) const;

 private:
  std::map<std::string, Look> looks_;  // By name in the store.
};

// Sizes of the files, by digest, of which the store has no whole copy under the name that `files`
// need. What it has is read and hashed again; what is damaged is dropped; what it has under its
// other name only is copied.
Result<std::map<std::string, std::uint64_t>> find_missing(const Folder& store,
                                                          const std::vector<ManifestFile>& files,
                                                          Verified& verified);

// True if the store has a whole copy of this file under one of its names.
Result<bool> is_whole(const Folder& store, const ManifestFile& file);

// The modes that `files` give to this content.
std::set<mode_t> modes_of(const std::vector<ManifestFile>& files, const std::string& digest);

// Under the name for the other mode, too.
Result<void> copy_in_store(const Folder& store, const std::string& name,
                           const std::string& new_name, mode_t mode);

// Receives exactly `missing` and the "commit", and puts each file into the store under the names
// that `files` need. A file is verified before it has its name. `first` is the head's answer to
// "need".
Result<void> receive(const Folder& store, const std::vector<ManifestFile>& files,
                     std::map<std::string, std::uint64_t> missing, protocol::Message first,
                     Wire& wire, Verified& verified);

// A link to, or if the file system has none a copy of, a store file.
Result<void> place_file(const Folder& store, const ManifestFile& file, const Folder& folder,
                        const std::string& name);

}  // namespace dsi::agent
