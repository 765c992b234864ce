#pragma once

// The swarm's stream on this node, as far as it has come:
//
//   <prefix>/incoming/<first 16 digits of the index's digest>/index
//                                                             stream
//
// It is a cache of what others have, so it is never fsynced: who finds it after a crash hashes it
// again, chunk by chunk, and believes what is right.
//
// Three threads would be one too many: the exchange's thread stores and serves chunks, and the main
// thread follows it through the stream (assemble.h).

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/agent/folder.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/distribute/index.h"

namespace dsi::agent {

inline constexpr char kIncomingFolder[] = "incoming";

// Everything in incoming/ but the folder for the index `digest`. With an empty one: what cannot be
// such a folder.
void remove_incoming_but(const Folder& root, std::string_view digest);

class Incoming {
 public:
  // With what an earlier run left there.
  static Result<std::shared_ptr<Incoming>> open(const Folder& root,
                                                const protocol::SwarmRequest& request);

  const distribute::Hash& digest() const { return digest_; }
  std::uint64_t index_size() const { return index_size_; }

  // ---- For the exchange's thread; for the main thread before the exchange knows of it.

  bool has_index() const { return index_.has_value(); }
  const distribute::ChunkIndex& index() const { return *index_; }
  const std::string& encoded_index() const { return encoded_; }
  // False: these bytes are not the index. An error: the disk does not take it.
  Result<bool> take_index(std::string_view bytes);

  enum class Stored { kNew, kAlready, kWrong };
  // A chunk that somebody sent. An error: the disk does not take it.
  Result<Stored> store(std::uint32_t number, std::string_view bytes);
  bool has(std::uint32_t number) const { return number < have_.size() && have_[number]; }
  // Bytes of a chunk, without adding up the index's objects each time.
  std::uint32_t size_of(std::uint32_t number) const;
  // So many bytes of a chunk that is here.
  bool load(std::uint32_t number, char* to) const;
  const std::vector<bool>& have() const { return have_; }
  std::vector<bool> have_of(std::uint32_t stripe) const;
  // Verified chunks of each stripe.
  const std::vector<std::uint32_t>& counts() const { return counts_; }
  // The stripe's chunks from this on are not here.
  std::uint32_t end_of(std::uint32_t stripe) const { return ends_[stripe]; }
  bool whole() const { return has_index() && stored_ == index_->chunks(); }

  // ---- For the main thread.

  // Waits for the index.
  Result<const distribute::ChunkIndex*> wait_for_index();
  // Waits until more than the first `known` bytes of the stream are here, a good step more or all;
  // how many there are.
  Result<std::uint64_t> wait_for_more(std::uint64_t known);
  Result<void> read(std::uint64_t offset, char* to, std::size_t size) const;
  // Bytes that the stream may still take from the disk.
  std::uint64_t unallocated() const;

  // For any thread: nothing more will come. Who waits for what is not here gets this error.
  void give_up(Error error);

 private:
  Incoming(Folder folder, distribute::Hash digest, std::uint64_t index_size)
      : folder_(std::move(folder)), digest_(digest), index_size_(index_size) {}
  Result<bool> believe_index(std::string_view bytes);
  Result<void> open_stream();
  void find_chunks();
  void count(std::uint32_t number);
  void publish();

  Folder folder_;
  distribute::Hash digest_;
  std::uint64_t index_size_;
  std::string encoded_;
  std::optional<distribute::ChunkIndex> index_;
  std::uint64_t stream_size_ = 0;
  UniqueFd stream_;
  std::vector<bool> have_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> ends_;
  std::uint32_t stored_ = 0;
  std::uint32_t front_ = 0;  // Chunks from the first on without a gap.

  std::mutex mutex_;  // For what is below.
  std::condition_variable news_;
  bool index_known_ = false;
  std::uint64_t front_bytes_ = 0;
  std::uint64_t awaited_ = 0;
  std::optional<Error> given_up_;
};

}  // namespace dsi::agent
