#pragma once

#include <chrono>
#include <string>

#include "orchestrator/base/result.h"

namespace dsi {

// Sends to a URL. Thread-safe.
class Webhook {
 public:
  virtual ~Webhook() = default;

  // POST of `json` to an http or https URL; an answer of 2xx is a success. No redirect is followed.
  // An error names neither the URL nor any part of it but the host and the port.
  virtual Result<void> post(const std::string& url, const std::string& json,
                            std::chrono::seconds limit) = 0;
};

}  // namespace dsi
