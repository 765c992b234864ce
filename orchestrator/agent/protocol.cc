#include "orchestrator/agent/protocol.h"

namespace dsi::protocol {

using nlohmann::json;

std::string to_text(const Hold& hold) {
  std::string text = "since " + (hold.time.empty() ? "an unknown time" : hold.time);
  if (!hold.by.empty()) text += " by " + hold.by;
  return text + (hold.reason.empty() ? "" : ": " + hold.reason);
}

Hold parse_hold(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return {"", "", "", "its hold.json cannot be read"};
  auto word = [&](const char* key) {
    auto at = object.find(key);
    return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  return {word("by"), word("time"), word("run"), word("reason")};
}

void to_json(json& j, const HostResult& r) {
  j = {{"result", r.result}, {"from", r.from}, {"to", r.to}, {"ops", r.ops}};
  if (!r.error.what.empty()) j["error"] = {{"what", r.error.what}, {"help", r.error.help}};
  if (!r.processes.empty()) j["processes"] = r.processes;
  if (!r.releases.empty()) j["releases"] = r.releases;
}

void from_json(const json& j, HostResult& r) {
  j.at("result").get_to(r.result);
  j.at("from").get_to(r.from);
  j.at("to").get_to(r.to);
  j.at("ops").get_to(r.ops);
  if (j.contains("error")) {
    j.at("error").at("what").get_to(r.error.what);
    j.at("error").at("help").get_to(r.error.help);
  }
  if (j.contains("processes")) j.at("processes").get_to(r.processes);
  if (j.contains("releases")) j.at("releases").get_to(r.releases);
}

// Far more members than one line of the macro would be readable with, and the facts script writes
// the same object: what it leaves out is empty.
void to_json(json& j, const PythonFacts& f) {
  j = {{"executable", f.executable},
       {"version", f.version},
       {"prefix", f.prefix},
       {"site", f.site},
       {"found_by", f.found_by},
       {"tags", f.tags},
       {"pip", f.pip},
       {"torch", f.torch},
       {"torch_path", f.torch_path},
       {"torch_cuda", f.torch_cuda},
       {"torch_cxx11_abi", f.torch_cxx11_abi},
       {"glibc", f.glibc},
       {"glibcxx", f.glibcxx},
       {"cxxabi", f.cxxabi},
       {"writable", f.writable},
       {"not_writable", f.not_writable},
       {"free_bytes", f.free_bytes},
       {"installed", f.installed},
       {"compute_capabilities", f.compute_capabilities},
       {"current", f.current},
       {"previous", f.previous},
       {"interrupted", f.interrupted},
       {"held", f.held}};
  if (!f.error.what.empty()) j["error"] = {{"what", f.error.what}, {"help", f.error.help}};
}

void from_json(const json& j, PythonFacts& f) {
  const PythonFacts none;
  f.executable = j.value("executable", none.executable);
  f.version = j.value("version", none.version);
  f.prefix = j.value("prefix", none.prefix);
  f.site = j.value("site", none.site);
  f.found_by = j.value("found_by", none.found_by);
  f.tags = j.value("tags", none.tags);
  f.pip = j.value("pip", none.pip);
  f.torch = j.value("torch", none.torch);
  f.torch_path = j.value("torch_path", none.torch_path);
  f.torch_cuda = j.value("torch_cuda", none.torch_cuda);
  f.torch_cxx11_abi = j.value("torch_cxx11_abi", none.torch_cxx11_abi);
  f.glibc = j.value("glibc", none.glibc);
  f.glibcxx = j.value("glibcxx", none.glibcxx);
  f.cxxabi = j.value("cxxabi", none.cxxabi);
  f.writable = j.value("writable", none.writable);
  f.not_writable = j.value("not_writable", none.not_writable);
  f.free_bytes = j.value("free_bytes", none.free_bytes);
  f.installed = j.value("installed", none.installed);
  f.compute_capabilities = j.value("compute_capabilities", none.compute_capabilities);
  f.current = j.value("current", none.current);
  f.previous = j.value("previous", none.previous);
  f.interrupted = j.value("interrupted", none.interrupted);
  f.held = j.value("held", none.held);
  if (j.contains("error")) {
    j.at("error").at("what").get_to(f.error.what);
    j.at("error").at("help").get_to(f.error.help);
  }
}

namespace {

std::string frame(char type, std::string_view payload) {
  auto n = static_cast<std::uint32_t>(payload.size());
  std::string bytes;
  bytes.reserve(5 + payload.size());
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>((n >> shift) & 0xff);
  bytes += type;
  bytes += payload;
  return bytes;
}

}  // namespace

std::string json_frame(std::string_view type, json body) {
  if (body.is_null()) body = json::object();
  body["type"] = type;
  // Host names, paths and error texts come from the node's system in any encoding.
  return frame('J', body.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string data_frame(std::string_view bytes) {
  return frame('D', bytes);
}

std::string chunk_frame(std::uint32_t number, std::string_view bytes) {
  std::string payload;
  payload.reserve(4 + bytes.size());
  for (int shift = 24; shift >= 0; shift -= 8) {
    payload += static_cast<char>((number >> shift) & 0xff);
  }
  payload += bytes;
  return frame('C', payload);
}

Result<ChunkView> read_chunk(const Frame& frame) {
  if (frame.type != 'C' || frame.payload.size() < 4) return fail("a chunk was expected");
  ChunkView chunk;
  for (std::size_t i = 0; i < 4; ++i) {
    chunk.number = chunk.number << 8 | static_cast<unsigned char>(frame.payload[i]);
  }
  chunk.bytes = std::string_view(frame.payload).substr(4);
  return chunk;
}

Result<bool> FrameReader::next(Frame& out) {
  if (buffer_.size() - start_ < 5) return false;
  std::uint32_t n = 0;
  for (std::size_t i = 0; i < 4; ++i) n = n << 8 | static_cast<unsigned char>(buffer_[start_ + i]);
  char type = buffer_[start_ + 4];
  bool known = type == 'J' || type == 'D' || type == 'C';
  if (!known || n > (type == 'J' ? kMaxJsonFrame : kMaxDataFrame)) {
    return fail("the stream is out of step: a frame of type {:#04x} with {} bytes",
                static_cast<unsigned char>(type), n);
  }
  if (buffer_.size() - start_ - 5 < n) return false;
  out.type = type;
  out.payload.assign(buffer_, start_ + 5, n);
  start_ += 5 + n;
  // Give the memory of what was read back now and then, not at each frame.
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  } else if (start_ > (1u << 20)) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  return true;
}

Result<Message> read_message(const Frame& frame) {
  if (frame.type != 'J') return fail("a message was expected, data came");
  try {
    json body = json::parse(frame.payload);
    std::string type = body.at("type").get<std::string>();
    return Message{std::move(type), std::move(body)};
  } catch (const json::exception& e) {
    return fail("a message is malformed: {}", e.what());
  }
}

}  // namespace dsi::protocol
