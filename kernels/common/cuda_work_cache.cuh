#pragma once

// Keeps work lists in device memory, so that a step over the tensors of the step before copies
// nothing. Host code only.
//
// An entry belongs to a device and a stream: what is launched on one stream is in order, so an
// event after its last launch says when the entry may be thrown away. A step that is being captured
// into a CUDA graph gets an entry of its own, because the graph may be replayed on any stream,
// beside others; it lives as long as the graph and what was made of it.

#include <atomic>
#include <cstring>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_host.cuh"

namespace ds {

class CudaEvent {
 public:
  CudaEvent() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "while making an event");
  }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Copies to new device memory and waits for it, on a stream of its own, so that neither a capture
// nor work that is under way is disturbed.
inline DeviceMemory upload(const void* data, std::size_t size) {
  DeviceMemory memory(size);
  if (size == 0) return memory;
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "while making a stream");
  cudaError_t status = cudaMemcpyAsync(memory.data(), data, size, cudaMemcpyHostToDevice, stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  check_cuda(status, "while copying the work list to the device");
  return memory;
}

// `Key` is compared with ==; `Value` is what was made of it, device memory included. A value is
// made again if the key, the device or the stream differs; the last few are kept.
template <class Key, class Value>
class WorkCache {
 public:
  // `make(key, similar)` gives the std::unique_ptr<Value>; `similar` is the value last used on that
  // device, or null, whose parts may serve again. `use(value)` launches. Both run under a lock.
  template <class Make, class Use>
  void run(int device, cudaStream_t stream, Key key, const Make& make, const Use& use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    check_cuda(
        cudaStreamGetCaptureInfo(stream, &capture, nullptr, &graph, nullptr, nullptr, nullptr),
        "while asking whether the stream is being captured");
    {
      // Even to ask whether an event is over would break a capture.
      const UncapturedScope uncaptured;
      drop_finished();
    }
    const bool capturing = capture == cudaStreamCaptureStatusActive;
    Entry* entry = capturing ? nullptr : find(device, stream, key);
    if (entry == nullptr) {
      const UncapturedScope uncaptured;
      const Value* similar = nullptr;
      for (const Entry& other : entries_) {
        if (other.device == device) similar = other.value.get();
      }
      Entry made;
      made.device = device;
      made.stream = stream;
      made.value = make(key, similar);
      made.key = std::move(key);
      made.done = std::make_unique<CudaEvent>();
      if (capturing) made.in_graph = own_by(graph);
      entries_.push_back(std::move(made));
      entry = &entries_.back();
    }
    use(*entry->value);
    if (!capturing) {
      check_cuda(cudaEventRecord(entry->done->get(), stream), "while recording an event");
    }
  }

 private:
  struct Entry {
    int device = 0;
    cudaStream_t stream = nullptr;
    Key key;
    std::unique_ptr<Value> value;
    std::unique_ptr<CudaEvent> done;  // After the last launch.
    std::shared_ptr<std::atomic<bool>>
        in_graph;  // Not null: captured; false once the graph is gone.
  };
  static constexpr std::size_t kKept = 16;

  // Moves it to the end of the list, which is in order of use.
  Entry* find(int device, cudaStream_t stream, const Key& key) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->in_graph == nullptr && entry->device == device && entry->stream == stream &&
          entry->key == key) {
        entries_.splice(entries_.end(), entries_, entry);
        return &entries_.back();
      }
    }
    return nullptr;
  }

  // What no launch and no graph can use any more, beyond the last few.
  void drop_finished() {
    std::size_t kept = 0;
    for (const Entry& entry : entries_) kept += entry.in_graph == nullptr;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      bool drop = false;
      if (entry->in_graph != nullptr) {
        drop = !entry->in_graph->load();
      } else if (kept >= kKept) {
        drop = cudaEventQuery(entry->done->get()) == cudaSuccess;
        if (drop) --kept;
      }
      entry = drop ? entries_.erase(entry) : std::next(entry);
    }
    cudaGetLastError();  // cudaErrorNotReady is no error.
  }

  // A flag that turns false when the graph, and every executable made of it, is destroyed.
  static std::shared_ptr<std::atomic<bool>> own_by(cudaGraph_t graph) {
    auto alive = std::make_shared<std::atomic<bool>>(true);
    auto owned = std::make_unique<std::shared_ptr<std::atomic<bool>>>(alive);
    cudaUserObject_t object = nullptr;
    const auto destroy = [](void* data) {
      const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> flag(
          static_cast<std::shared_ptr<std::atomic<bool>>*>(data));
      (*flag)->store(false);
    };
    check_cuda(
        cudaUserObjectCreate(&object, owned.get(), destroy, 1, cudaUserObjectNoDestructorSync),
        "while tying a work list to a graph");
    (void)owned.release();
    check_cuda(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
               "while tying a work list to a graph");
    return alive;
  }

  std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace ds
