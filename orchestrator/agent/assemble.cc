#include "orchestrator/agent/assemble.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "orchestrator/agent/exchange.h"
#include "orchestrator/agent/incoming.h"
#include "orchestrator/agent/peer_link.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/agent/unpack.h"

namespace dsi::agent {

using distribute::ChunkIndex;
using distribute::WireObject;

namespace {

constexpr std::size_t kPiece = 256u << 10;

std::string bitmap_in_digits(const std::vector<bool>& bits) {
  if (std::find(bits.begin(), bits.end(), true) == bits.end()) return {};
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (char c : pack_bits(bits)) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

// The objects that this node needs, each once. The stream may hold more, for others.
Result<std::vector<bool>> choose(const ChunkIndex& index,
                                 std::map<std::string, std::uint64_t> missing) {
  std::vector<bool> chosen;
  for (const WireObject& object : index.objects) {
    auto wanted = missing.find(object.digest);
    chosen.push_back(wanted != missing.end());
    if (wanted == missing.end()) continue;
    if (wanted->second != object.size) {
      return fail("a file of {} bytes was announced where the manifest has {}",
                  with_commas(object.size), with_commas(wanted->second));
    }
    missing.erase(wanted);
  }
  if (!missing.empty()) return fail("the swarm brings {} files too few", missing.size());
  return chosen;
}

// Follows the stream and writes <name>.partial for each file that is needed.
class Assembler {
 public:
  Assembler(const Folder& store, const std::vector<ManifestFile>& files, Incoming& incoming)
      : store_(store), files_(files), incoming_(incoming) {}
  Assembler(const Assembler&) = delete;
  Assembler& operator=(const Assembler&) = delete;
  ~Assembler() {
    for (const std::string& name : partial_) (void)store_.remove(name + ".partial");
  }

  Result<void> unpack(const WireObject& object) {
    std::set<mode_t> modes = modes_of(files_, object.digest);
    std::string name = store_name(object.digest, *modes.begin());
    DSI_TRY(NewFile file, NewFile::create(store_, name, *modes.begin()));
    DSI_TRY(Unpacker unpacker,
            Unpacker::start(store_, {object.digest, object.size, object.wire_size, object.base}));
    std::uint64_t end = at_ + object.wire_size;
    while (at_ < end) {
      if (known_ <= at_) {
        DSI_TRY(known_, incoming_.wait_for_more(at_));
        continue;
      }
      std::size_t size = std::min<std::uint64_t>({kPiece, end - at_, known_ - at_});
      DSI_CHECK(incoming_.read(at_, piece_.data(), size));
      DSI_CHECK(unpacker.feed({piece_.data(), size}, file));
      at_ += size;
    }
    DSI_CHECK(unpacker.finish());
    file.settle();
    file.keep();
    partial_.push_back(name);
    return {};
  }
  void skip(const WireObject& object) { at_ += object.wire_size; }

  // All on the disk, then all under their names. The first fsync takes most of the time: what the
  // file system has to write down for one it writes down for all.
  Result<void> commit(Verified& verified) {
    for (const std::string& name : partial_) {
      DSI_TRY(UniqueFd fd, store_.open_file(name + ".partial"));
      if (::fsync(fd.get()) != 0) {
        return fail_system(errno, fmt::format("cannot fsync {}", store_.path_of(name)));
      }
    }
    for (const std::string& name : partial_) {
      DSI_CHECK(store_.rename(name + ".partial", store_, name));
      verified.note(store_, name);
      std::string digest = name.substr(0, 64);
      for (mode_t mode : modes_of(files_, digest)) {
        std::string other = store_name(digest, mode);
        if (other != name) DSI_CHECK(copy_in_store(store_, name, other, mode));
      }
    }
    partial_.clear();
    return store_.sync();
  }

 private:
  const Folder& store_;
  const std::vector<ManifestFile>& files_;
  Incoming& incoming_;
  std::vector<char> piece_ = std::vector<char>(kPiece);
  std::uint64_t at_ = 0;
  std::uint64_t known_ = 0;
  std::vector<std::string> partial_;  // Whole, and not yet under their names.
};

Result<void> assemble(const Prefix& prefix, const std::vector<ManifestFile>& files,
                      const std::map<std::string, std::uint64_t>& missing, Incoming& incoming,
                      Verified& verified) {
  DSI_TRY(const ChunkIndex* index, incoming.wait_for_index());
  DSI_TRY(std::vector<bool> chosen, choose(*index, missing));
  std::uint64_t bytes = incoming.unallocated();
  for (const auto& [digest, size] : missing) bytes += size;
  DSI_CHECK(prefix.check_space(bytes, missing.size() + 2));
  Assembler assembler(prefix.store(), files, incoming);
  for (std::size_t i = 0; i < index->objects.size(); ++i) {
    if (chosen[i]) {
      DSI_CHECK(assembler.unpack(index->objects[i]));
    } else {
      assembler.skip(index->objects[i]);
    }
  }
  return assembler.commit(verified);
}

}  // namespace

Result<void> receive_from_swarm(const Prefix& prefix, const std::vector<ManifestFile>& files,
                                const std::map<std::string, std::uint64_t>& missing,
                                const protocol::SwarmRequest& request, Wire& wire,
                                Verified& verified) {
  Exchange* exchange = wire.exchange();
  if (exchange == nullptr) return fail("the head speaks of a swarm and never said \"listen\"");
  DSI_TRY(std::shared_ptr<Incoming> incoming, Incoming::open(prefix.root(), request));
  protocol::Joined joined{bitmap_in_digits(incoming->have())};
  exchange->join(incoming);
  Result<void> assembled = [&]() -> Result<void> {
    if (!wire.send("joined", joined)) return fail("the head left");
    return assemble(prefix, files, missing, *incoming, verified);
  }();
  if (!assembled) {
    exchange->leave();
    return assembled;
  }
  if (!wire.send("complete", nullptr)) return fail("the head left");
  return {};
}

}  // namespace dsi::agent
