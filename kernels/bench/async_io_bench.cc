// One measurement of async_io, for async_io_bench.py, which sets it beside others:
//
//   ds_async_io_bench read|write|randread|randwrite FILE BYTES BLOCK DEPTH ENGINE
//
// prints the seconds, the CPU seconds (with those that the kernel's threads for this process took)
// and the engine. The file is there, as large as BYTES, and overwritten in place. Sequential is one
// operation over all of it; random is one operation a block, each block once, in a random order.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "async_io.h"

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int run(char** arguments) {
  const std::string mode = arguments[1];
  const std::int64_t bytes = std::atoll(arguments[3]);
  ds::AsyncIoOptions options;
  options.block_size = std::atoll(arguments[4]);
  options.queue_depth = std::atoi(arguments[5]);
  options.engine = ds::async_io_engine_named(arguments[6]);
  const ds::AsyncIoPtr io(ds::async_io_open(options));

  ds::AsyncIoRequest request;
  request.path = arguments[2];
  request.write = mode == "write" || mode == "randwrite";
  const bool random = mode == "randread" || mode == "randwrite";
  // As much memory as fio uses, a buffer for each operation in flight, does not do for one
  // operation over the whole file: it has memory for all of it, like a tensor.
  auto* const memory = static_cast<char*>(ds::async_io_lock_memory(bytes));
  std::fill(memory, memory + bytes, 'x');

  const double cpu = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  if (random) {
    std::vector<std::int64_t> blocks(static_cast<std::size_t>(bytes / options.block_size));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(1));
    // fio's memory: a buffer for each operation in flight, so that as much of it is in the caches.
    // What is written from a buffer or read into it does not matter here.
    const std::int64_t depth = options.queue_depth;
    std::int64_t next = 0;
    for (std::int64_t block : blocks) {
      request.offset = block * options.block_size;
      request.size = options.block_size;
      request.data = memory + (next++ % depth) * options.block_size;
      ds::async_io_submit(*io, request);
    }
  } else {
    request.size = bytes;
    request.data = memory;
    ds::async_io_submit(*io, request);
  }
  ds::async_io_wait(*io);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%.6f %.6f %s\n", took.count(), cpu_seconds() - cpu,
              ds::async_io_engine_name(ds::async_io_engine(*io)));
  ds::async_io_unmap_memory(memory);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) {
    std::fprintf(stderr, "usage: %s read|write|randread|randwrite FILE BYTES BLOCK DEPTH ENGINE\n",
                 arguments[0]);
    return 2;
  }
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
