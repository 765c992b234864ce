#pragma once

// What the head and the agent on a node say to each other.
//
// The head runs a command on the node (deploy.cc, "bootstrap") that ends in `exec <agent> serve
// <nonce> <prefix>`. A login shell may have printed anything before; the agent's first bytes are
//
//   DSI1 <nonce>\n
//
// and everything up to and including that line is noise to the head. From there on both sides send
// frames: a 4-byte big-endian length n, a type byte, n bytes of payload.
//
//   'J'  one JSON object, UTF-8, with a "type"
//   'D'  bytes of what the last "file" or "index" message announced; of a file: one zstd stream
//   'C'  a chunk of the swarm: its number, 4 bytes big-endian, then its bytes
//
// clang-format off
//   agent                                     head
//   hello {agent, facts}                    →
//                                           ←   look {torch_folders}              (before an install)
//   looked {facts}                          →
//                                           ←   python {python, package}          (only for a package)
//   python {executable, version, ...}       →
//                                           ←   settle {}                         (if it lies in a folder of its own)
//   settled {}                              →
//                                           ←   install {run, manifest, strict, ...}, D
//   need {digests, bytes}                   →      (this and the next only if something is to be sent)
//                                           ←   file {digest, size, wire_size}, D, D, ... for each need
//                                           ←   commit {}
//                                           ←   or, instead of files and commit, a swarm, see below
//   stage {stage: "staged"|"probed"|"switched"} →  (each as it is reached; for the transcript)
//   stage {stage: "waiting"}                →      (for another host of this run that shares the prefix)
//   stage {stage: "installing"}             →      (of a package, now and then: pip takes its time)
//   stage {stage: "busy", what}             →      (now and then: processes are waited for)
//   stage {stage: "note", what, help}       →      (after the switch: something was not tidied up)
//   result {result, from, to, ops, error?}  →
// clang-format on
//
// With other hosts (distribute/swarm.h) the bytes come from everywhere. "listen" may come at any
// time after "hello", also before "install":
//
// clang-format off
//                                           ←   listen {self, key, ports, rate}
//   listening {port, addresses, error}      →      (port 0: it cannot, and error says why)
//                                           ←   swarm {index_digest, index_size}  (the answer to "need")
//   joined {have}                           →      (chunks that an earlier run left here)
//                                           ←   index {size}, D, D, ...           (to who has no parent but the head)
//                                           ←   follow {stripe, parent, port, addresses}
//                                           ←   C, C, ...                         (stripes whose parent is the head)
//   have {counts, received, sent}           →      (now and then, while something arrives)
//   fault {peer, stripe, kind, detail}      →      (a parent that does not do its duty; the head names another)
//   complete {}                             →      (every file is whole and in the store)
//                                           ←   dismiss {}                        (nobody needs this node any more)
// clang-format on
//
// From "listen" to "dismiss" the head says "ping" every few seconds, whatever else it says: a head
// that has not been heard of for kHeadSilence is gone, even if no packet ever says so.
//
// A node serves others from "joined" to "dismiss", also while it stages, probes and switches, and
// after its result. All its ports close with "dismiss" or with the end of its standard input. After
// "dismiss" the head may be silent, and may say "listen" again.
//
// "report", "rollback", "uninstall" and "hold" are answered with "stage" and "result". After a
// result the agent waits for the next request; end of file on its standard input makes it clean up
// and leave, before the switch without switching: a head keeps the stream open until it has its
// result. The agent changes nothing on the node before it is told to: "look" and "python" only
// read. An agent that was brought to look lies in a folder of its own, which goes with it; "settle"
// puts it into the store, before whatever changes the prefix.
//
// A release with packages goes into a Python environment. The requests then carry the interpreter
// (`python`, PythonFacts::executable); everything else is the same, and an op's row is what a
// process of that interpreter said when it imported the op's module.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi::protocol {

inline constexpr int kVersion = 4;
inline constexpr char kGreeting[] = "DSI1 ";  // Followed by the nonce and a newline.
inline constexpr std::size_t kMaxJsonFrame = 64u << 20;
inline constexpr std::size_t kMaxDataFrame = 256u << 10;
inline constexpr int kZstdLevel = 3;

// What the node is; all that a plan and a check before the build need. Empty: could not be found
// out.
struct Facts {
  std::string host_name;
  std::string arch;       // uname -m
  std::string kernel;     // uname -r
  std::string cpu_level;  // base/cpu_level.h; only an agent says it.
  std::string user;
  bool root = false;
  std::string prefix;            // Absolute, after defaults: /opt/ds-ops for root, else
                                 // $HOME/.local/share/ds-ops.
  std::string current;           // Release id that `current` points to; empty if there is none.
  std::string previous;          // The one that `rollback` would go back to.
  std::uint64_t free_bytes = 0;  // Where the prefix is or would be.
  std::string held;              // to_text(Hold); empty: it is not held.
};

struct Hello {
  int version = 0;
  std::string agent;  // SHA-256 of the agent's own file.
  Facts facts;
};

// What is this node? Changes nothing on it.
struct LookRequest {
  std::vector<std::string> torch_folders;  // Where libtorch may be, before the node's own guesses.
};

struct Looked {
  std::string facts;  // What ds-facts would print: one JSON object, see orchestrator/node_facts.h.
  std::string error;  // Why there is none.
};

struct Settled {
  std::string error;  // Empty: the agent is in the store.
  std::string help;
};

// Which Python is there, and what can be installed into it? Changes nothing on the node.
struct PythonRequest {
  std::string python;   // A path; empty: what a login of this user would use.
  std::string package;  // Normalised name; PythonFacts::current and so on are about this one.
};

struct PythonFacts {
  std::string executable;         // Absolute, as the environment names it (a venv's is a link).
  std::string version;            // "3.11.2"
  std::string prefix;             // sys.prefix: the environment.
  std::string site;               // Where a wheel with compiled parts goes (platlib).
  std::string found_by;           // "given", or "login": which of them named the executable.
  std::vector<std::string> tags;  // That this interpreter accepts, the best first.
  std::string pip;                // Version; empty: it has no pip.
  std::string torch;              // "2.11.0+cu130"; empty: it has none.
  std::string torch_path;
  std::string torch_cuda;  // "13.0"; empty: compiled without.
  bool torch_cxx11_abi = false;
  // Highest symbol versions that a module imported there would find: "2.36", "3.4.30", "1.3.13".
  std::string glibc;
  std::string glibcxx;
  std::string cxxabi;
  bool writable = false;
  std::string not_writable;      // Why not: read-only, whose it is, EXTERNALLY-MANAGED.
  std::uint64_t free_bytes = 0;  // Where `site` is.
  std::map<std::string, std::string> installed;   // Every distribution: normalised name, version.
  std::vector<std::string> compute_capabilities;  // Of this node's GPUs: "9.0".
  // Of the package asked for: the release that is in the environment, and what rollback would go
  // back to (a release id, or "deepspeed 0.14.0" for what something else had installed); empty:
  // none.
  std::string current;
  std::string previous;
  bool interrupted = false;  // An install was cut off; the next request puts the old tree back.
  std::string held;          // As Facts::held, of this environment.
  Error error;  // No interpreter was found, or it does not run: then the rest is empty.
};

// What a change spares.
struct Care {
  // Processes that have files of the release that is left: "proceed" changes it all the same,
  // "skip" does not, "wait" waits for them up to busy_limit_s.
  std::string busy = "proceed";
  int busy_limit_s = 0;
  bool ignore_holds = false;  // A hold keeps nothing from this run.
};

// Somebody wants the node to keep the release that it has. In hold.json of the prefix, where every
// head sees it, as one line.
struct Hold {
  std::string by;      // "user@head"
  std::string time;    // 2026-11-30T09:05:57Z
  std::string run;     // Id of the run that set it.
  std::string reason;  // Free text; may be empty.
};
// "since 2026-11-30T09:05:57Z by alice@head: the paper's numbers are measured here"
std::string to_text(const Hold& hold);
// Of the text of hold.json; a text that is none holds all the same, and says so.
Hold parse_hold(std::string_view text);

struct InstallRequest {
  std::string run;                         // Id of the run, for state.json and the lock.
  std::string by;                          // "user@head", for the same.
  std::string manifest;                    // The exact text of manifest.json; or
  std::uint64_t packed_manifest = 0;       // one 'D' frame of so many bytes follows, a zstd stream.
  bool strict = false;                     // Do not switch unless every op is ok.
  std::vector<std::string> torch_folders;  // Where libtorch may be, before the node's own guesses.
  int probe_timeout_s = 60;                // For one op.
  int lock_timeout_s = 30;                 // How long to wait for another run.
  // Of a release with packages:
  std::string python;    // PythonFacts::executable.
  bool drop_in = false;  // Put the release's op modules into the package, under its names.
  int pip_timeout_s = 600;
  int switch_timeout_s = 900;  // From the decision that it shall be done to its end.
  Care care{};
};

struct ReportRequest {
  std::vector<std::string> torch_folders;
  int probe_timeout_s = 60;
  // A package in a Python environment, here and below; both empty: the ops in the prefix.
  std::string package{};
  std::string python{};
};

struct RollbackRequest {
  std::string run;
  std::string by;
  std::vector<std::string> torch_folders;
  int probe_timeout_s = 60;
  int lock_timeout_s = 30;
  std::string package{};
  std::string python{};
  Care care{};
  std::string to{};  // A release that is in the prefix; empty: the one before.
};

// "hold": sets or ends a hold. Answered like the others; the result is held or unheld.
struct HoldRequest {
  std::string run;
  std::string by;
  bool hold = true;
  std::string reason{};
  int lock_timeout_s = 30;
  std::string package{};
  std::string python{};
};

struct UninstallRequest {
  std::string run;
  std::string by;
  int lock_timeout_s = 30;
  std::string package{};
  std::string python{};
  Care care{};
};

struct Need {
  std::vector<std::string> digests;  // SHA-256 of the files that are not in the node's store.
  std::uint64_t bytes = 0;           // Their sizes added up.
  // For some of them: the digest of a whole file in the store that is an older version (it has the
  // same path in the current release), so that a patch would do.
  std::map<std::string, std::string> bases;
};

struct FileHeader {
  std::string digest;
  std::uint64_t size = 0;       // Of the file.
  std::uint64_t wire_size = 0;  // Of the zstd stream that follows in 'D' frames.
  std::string base;             // Digest of the file that the stream is a patch to; empty: none.
};

// ---- The swarm

struct ListenRequest {
  std::uint32_t self = 0;  // Number of this host in the run; others know it by that.
  std::string key;         // 32 bytes in hexadecimal digits, new in each run.
  std::string ports;       // "A-B"; empty: any; "none": nobody is there to be served.
  std::uint64_t rate = 0;  // Bytes a second that this node may send to others; 0: no limit.
};

struct Listening {
  std::uint16_t port = 0;              // 0: no port could be opened.
  std::vector<std::string> addresses;  // The likeliest first: the one that the head came by.
  std::string error;
};

struct SwarmRequest {
  std::string index_digest;      // SHA-256 of the encoded ChunkIndex (distribute/index.h).
  std::uint64_t index_size = 0;  // Its length in bytes.
};

struct Joined {
  std::string have;  // A bitmap of the chunks that are already here, in hexadecimal digits: chunk
                     // 8i+j is bit j of byte i. Empty: none.
};

inline constexpr std::chrono::seconds kPingEvery{4};
inline constexpr std::chrono::seconds kHeadSilence{20};

inline constexpr std::int64_t kHeadIsParent = -1;
// From now on this stripe's chunks come from this parent; who sent them before stops to.
struct Follow {
  std::uint32_t stripe = 0;
  std::int64_t parent = kHeadIsParent;  // Number of the host in the run.
  std::uint16_t port = 0;
  std::vector<std::string> addresses;
};

struct Have {
  std::vector<std::uint32_t> counts;  // Verified chunks of each stripe.
  std::uint64_t received = 0;         // Bytes of chunks from other nodes so far.
  std::uint64_t sent = 0;             // To them.
};

struct PeerFault {
  std::int64_t peer = 0;
  std::uint32_t stripe = 0;
  std::string kind;  // unreachable, refused (wrong key), closed, silent, corrupt.
  std::string detail;
};

// ok, wrong, crash, missing, incompatible, damaged, skipped, not-built: see report.h. The detail of
// a package's op names what ds_report says where it says something else.
struct OpRow {
  std::string op;
  std::string status;
  std::string device;
  std::string detail;
  friend bool operator==(const OpRow&, const OpRow&) = default;
};

// A process that has files of a release: mapped, open, as its program or as its working folder.
struct BusyProcess {
  int pid = 0;
  std::string user;     // Name, or number.
  std::string command;  // How its command line begins.
  std::string release;  // Whose files; of a package its name.
  friend bool operator==(const BusyProcess&, const BusyProcess&) = default;
};

struct HostResult {
  // installed, up-to-date, repaired, rolled-back, uninstalled, reported, held, unheld, failed;
  // busy: nothing was changed, because of `processes`. What a hold keeps from being changed is
  // held, too.
  std::string result;
  std::string from;  // Release id before; empty: none.
  std::string to;    // Release id now; empty: none.
  std::vector<OpRow> ops;
  Error error;  // If failed, busy or held; if reported, damage that no op's row tells of.
  // Who still has files of a release that is not, or will not be, the current one.
  std::vector<BusyProcess> processes{};
  // All that the prefix has afterwards, the current one first.
  std::vector<std::string> releases{};
};

// JSON in both directions, by nlohmann's convention. Unknown keys are ignored, missing ones throw
// json::exception, which read_message turns into an Error.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Facts, host_name, arch, kernel, cpu_level, user, root, prefix,
                                   current, previous, free_bytes, held)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, version, agent, facts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LookRequest, torch_folders)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Looked, facts, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Settled, error, help)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PythonRequest, python, package)
void to_json(nlohmann::json& j, const PythonFacts& facts);
void from_json(const nlohmann::json& j, PythonFacts& facts);
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Care, busy, busy_limit_s, ignore_holds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BusyProcess, pid, user, command, release)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InstallRequest, run, by, manifest, packed_manifest, strict,
                                   torch_folders, probe_timeout_s, lock_timeout_s, python, drop_in,
                                   pip_timeout_s, switch_timeout_s, care)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReportRequest, torch_folders, probe_timeout_s, package, python)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RollbackRequest, run, by, torch_folders, probe_timeout_s,
                                   lock_timeout_s, package, python, care, to)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HoldRequest, run, by, hold, reason, lock_timeout_s, package,
                                   python)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(UninstallRequest, run, by, lock_timeout_s, package, python, care)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Need, digests, bytes, bases)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileHeader, digest, size, wire_size, base)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ListenRequest, self, key, ports, rate)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Listening, port, addresses, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SwarmRequest, index_digest, index_size)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Joined, have)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Follow, stripe, parent, port, addresses)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Have, counts, received, sent)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PeerFault, peer, stripe, kind, detail)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OpRow, op, status, device, detail)
void to_json(nlohmann::json& j, const HostResult& r);
void from_json(const nlohmann::json& j, HostResult& r);

// The bytes of one frame.
std::string json_frame(std::string_view type, nlohmann::json body);
std::string data_frame(std::string_view bytes);
std::string chunk_frame(std::uint32_t number, std::string_view bytes);

struct Frame {
  char type = 0;  // 'J', 'D' or 'C'.
  std::string payload;
};

// The number and the bytes of a 'C' frame.
struct ChunkView {
  std::uint32_t number = 0;
  std::string_view bytes;
};
Result<ChunkView> read_chunk(const Frame& frame);

// Finds frames in a stream that arrives in pieces. Pure: no I/O.
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // A frame, nothing yet (needs more bytes), or an error for a type or length that cannot be.
  Result<bool> next(Frame& frame);

 private:
  std::string buffer_;
  std::size_t start_ = 0;
};

struct Message {
  std::string type;
  nlohmann::json body;
};
Result<Message> read_message(const Frame& frame);

// Body as T, or an error that names the message.
template <typename T>
Result<T> body_as(const Message& message) {
  try {
    return message.body.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail("the message \"{}\" is malformed: {}", message.type, e.what());
  }
}

}  // namespace dsi::protocol
