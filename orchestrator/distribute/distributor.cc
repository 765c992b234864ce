#include "orchestrator/distribute/distributor.h"

#include <algorithm>

namespace dsi::distribute {

using namespace std::chrono_literals;

namespace {

// For how long those who are ready wait for others who have not said yet what they need. Trees that
// are made knowing everybody are better, but who comes later gets a place as well.
constexpr auto kPatience = 400ms;
constexpr auto kTick = 100ms;

}  // namespace

Distributor::Distributor(const Payload& payload, WireFiles& files, const ContentCache& cache)
    : payload_(payload), files_(files), cache_(cache) {
  ticker_ = std::jthread([this](std::stop_token stop) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, stop, kTick, [&] { return stop.stop_requested(); })) {
      for (auto& [objects, swarm] : swarms_) {
        if (swarm) (*swarm)->tick();
      }
    }
  });
}

Distributor::~Distributor() = default;

void Distributor::expect(std::size_t hosts) {
  std::lock_guard lock(mutex_);
  outstanding_ += hosts;
}

void Distributor::has_spoken(PeerId peer) {
  if (spoken_.insert(peer).second && outstanding_ > 0) --outstanding_;
}

void Distributor::excuse(PeerId peer) {
  {
    std::lock_guard lock(mutex_);
    has_spoken(peer);
  }
  changed_.notify_all();
}

Result<ObjectFile> Distributor::object_for(const std::string& digest, const protocol::Need& need) {
  auto base = need.bases.find(digest);
  if (base != need.bases.end()) {
    if (auto old = cache_.find(base->second)) {
      DSI_TRY(WireFiles::Compressed patch, files_.get(digest, base->second, *old));
      if (!patch.path.empty()) {
        return ObjectFile{{digest, base->second, patch.size, patch.wire_size}, patch.path};
      }
    }
  }
  DSI_TRY(WireFiles::Compressed whole, files_.get(digest));
  return ObjectFile{{digest, "", whole.size, whole.wire_size}, whole.path};
}

Result<Distributor::Objects> Distributor::objects_for(const protocol::Need& need) {
  Objects objects;
  for (const std::string& digest : need.digests) {
    DSI_TRY(ObjectFile object, object_for(digest, need));
    objects.emplace_back(digest, object.object.base);
  }
  // The order is part of the stream: the same for everybody and in every run.
  std::sort(objects.begin(), objects.end());
  return objects;
}

Result<Swarm*> Distributor::make_swarm(const Objects& objects, std::size_t hosts) {
  auto at = swarms_.find(objects);
  if (at == swarms_.end()) {
    auto made = [&]() -> Result<std::unique_ptr<Swarm>> {
      std::vector<ObjectFile> files;
      for (const auto& [digest, base] : objects) {
        protocol::Need need;
        if (!base.empty()) need.bases[digest] = base;
        DSI_TRY(ObjectFile object, object_for(digest, need));
        files.push_back(std::move(object));
      }
      return Swarm::make(files, hosts);
    }();
    at = swarms_.emplace(objects, std::move(made)).first;
  }
  if (!at->second) return tl::unexpected<Error>(at->second.error());
  return at->second->get();
}

// Makes the swarms of all who have applied so far.
void Distributor::begin() {
  begun_ = true;
  std::map<Objects, std::size_t> sizes;
  for (const Applicant& one : applicants_) ++sizes[one.objects];
  for (const Applicant& one : applicants_) {
    if (auto swarm = make_swarm(one.objects, sizes[one.objects])) {
      (*swarm)->enroll(one.peer, one.listening);
    }
  }
}

Result<Swarm*> Distributor::enroll(PeerId peer, const protocol::Need& need,
                                   const protocol::Listening& listening, std::stop_token stop) {
  DSI_TRY(Objects objects, objects_for(need));
  std::unique_lock lock(mutex_);
  has_spoken(peer);
  bool late = begun_;
  applicants_.push_back({peer, listening, objects});
  last_application_ = Deadline::Clock::now();
  changed_.notify_all();
  while (!begun_) {
    if (stop.stop_requested()) return fail("interrupted; the host keeps what it had");
    if (outstanding_ == 0 || Deadline::Clock::now() - last_application_ >= kPatience) {
      begin();
      changed_.notify_all();
      break;
    }
    changed_.wait_until(lock, stop, last_application_ + kPatience,
                        [&] { return begun_ || outstanding_ == 0; });
  }
  DSI_TRY(Swarm * swarm, make_swarm(objects, 1));
  if (late) swarm->enroll(peer, listening);
  return swarm;
}

bool Distributor::complete(bool begin_nothing) const {
  std::lock_guard lock(mutex_);
  if (outstanding_ > 0 && !begin_nothing) return false;
  return std::all_of(swarms_.begin(), swarms_.end(),
                     [](const auto& row) { return !row.second || (*row.second)->complete(); });
}

std::uint64_t Distributor::bytes_done() const {
  std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [objects, swarm] : swarms_) bytes += swarm ? (*swarm)->bytes_done() : 0;
  return bytes;
}

std::uint64_t Distributor::bytes_wanted() const {
  std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [objects, swarm] : swarms_) bytes += swarm ? (*swarm)->bytes_wanted() : 0;
  return bytes;
}

std::vector<SwarmStory> Distributor::stories() const {
  std::lock_guard lock(mutex_);
  std::vector<SwarmStory> stories;
  for (const auto& [objects, swarm] : swarms_) {
    if (swarm) stories.push_back((*swarm)->story());
  }
  return stories;
}

std::vector<Remark> Distributor::take_remarks() {
  std::lock_guard lock(mutex_);
  std::vector<Remark> remarks;
  for (const auto& [objects, swarm] : swarms_) {
    if (!swarm) continue;
    for (Remark& remark : (*swarm)->take_remarks()) remarks.push_back(std::move(remark));
  }
  return remarks;
}

}  // namespace dsi::distribute
