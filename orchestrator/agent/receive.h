#pragma once

// Files of a release come into the store.

#include <map>
#include <string>
#include <vector>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/wire.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

// Sizes of the files, by digest, of which the store has no whole copy under the name that `files`
// need. What it has is read and hashed again; what is damaged is dropped; what it has under its
// other name only is copied.
Result<std::map<std::string, std::uint64_t>> find_missing(const Folder& store,
                                                          const std::vector<ManifestFile>& files);

// Receives exactly `missing` and the "commit", and puts each file into the store under the names
// that `files` need. A file is verified before it has its name. `received` gets the names, also
// where it fails.
Result<void> receive(const Folder& store, const std::vector<ManifestFile>& files,
                     std::map<std::string, std::uint64_t> missing, Wire& wire,
                     std::vector<std::string>& received);

// A link to, or if the file system has none a copy of, a store file.
Result<void> place_file(const Folder& store, const ManifestFile& file, const Folder& folder,
                        const std::string& name);

}  // namespace dsi::agent
