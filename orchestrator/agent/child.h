#pragma once

// A program run in a process group of its own, whose end is watched from one thread.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi::agent {

struct ChildSpec {
  std::vector<std::string> argv;         // argv[0] is a path, or is looked up in PATH.
  std::vector<std::string> environment;  // NAME=value, instead of the same names of ours.
  unsigned long cpu_seconds = 0;         // 0: no limit.
  int input = -1;                        // Its standard input; -1: /dev/null.
  // A session of its own: no terminal, so that an interactive shell cannot stop for one.
  bool new_session = false;
  // Called in the process instead of starting a program. It is the fork of one with threads: no
  // libc that takes a lock, no memory that is given back. The answer's descriptor is 3.
  std::function<void()> instead = nullptr;
};

// The agent's ends of the two pipes to a process that tries something, and what came through them.
class Output {
 public:
  // `out` and `answer` are the other ends, above descriptor 9.
  static Result<Output> make(UniqueFd& out, UniqueFd& answer);

  int out_fd() const { return out_.get(); }
  int answer_fd() const { return answer_.get(); }
  // Reads what has come, without waiting; keeps the last 4 KiB of output, the first MiB of
  // answer.
  void drain();
  const std::string& out() const { return output_; }
  const std::string& answer() const { return answers_; }

 private:
  UniqueFd out_;
  UniqueFd answer_;
  std::string output_;
  std::string answers_;
};

// The folder is /, no core is written, and the group dies with the agent. Not to be moved while it
// runs anything: it kills the group when it goes.
class Child {
 public:
  static Result<Child> start(const ChildSpec& spec);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  Output& output() { return output_; }
  int out_fd() const { return output_.out_fd(); }  // Standard output and error.
  void drain() { output_.drain(); }
  const std::string& out() const { return output_.out(); }

  // waitpid's status, once it has ended. Does not wait.
  std::optional<int> ended();
  void kill_group();
  void signal(int number);  // To the process alone.

 private:
  Child() = default;
  pid_t pid_ = -1;  // -1: reaped.
  pid_t group_ = -1;
  Output output_;
};

// What came of a program that was run to its end.
struct Ran {
  bool timed_out = false;  // It was killed.
  int status = 0;          // waitpid's.
  std::string out;         // The last 4 KiB of standard output and error.
  std::string answer;      // What came by descriptor 3.
};
Result<Ran> run_child(const ChildSpec& spec, std::chrono::seconds time);

}  // namespace dsi::agent
