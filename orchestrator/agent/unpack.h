#pragma once

// A file comes out of the zstd stream that it travels as.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "orchestrator/agent/folder.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/sha256.h"

namespace dsi::agent {

// A new file in `folder` that is written from its beginning to its end.
class NewFile {
 public:
  // <name>.partial, instead of what may be left of an earlier one.
  static Result<NewFile> create(const Folder& folder, const std::string& name, mode_t mode);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();  // Removes it unless it was kept.

  Result<void> write(std::string_view bytes);
  // All is written. The disk begins to take it now, so that a later fsync has little to wait for.
  void settle();
  // On the disk and under its name.
  Result<void> commit();
  // The partial file stays, for whoever names it later.
  void keep() { folder_ = nullptr; }

 private:
  NewFile(const Folder& folder, std::string name, UniqueFd fd)
      : folder_(&folder), name_(std::move(name)), fd_(std::move(fd)) {}

  const Folder* folder_;
  std::string name_;
  UniqueFd fd_;
  std::uint64_t written_ = 0;
  std::uint64_t settled_ = 0;
};

// Decompresses one stream, with the base that it may be a patch to, and believes nothing in it: the
// file has the announced size and SHA-256, or there is none.
class Unpacker {
 public:
  // The base is looked for in the store.
  static Result<Unpacker> start(const Folder& store, const protocol::FileHeader& header);
  Unpacker(Unpacker&&) noexcept;
  Unpacker& operator=(Unpacker&&) = delete;
  ~Unpacker();

  // The next bytes of the stream.
  Result<void> feed(std::string_view bytes, NewFile& file);
  // After the last of them.
  Result<void> finish();

 private:
  struct State;
  explicit Unpacker(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dsi::agent
