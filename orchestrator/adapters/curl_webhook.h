#pragma once

#include "orchestrator/ports/webhook.h"

namespace dsi {

class CurlWebhook : public Webhook {
 public:
  CurlWebhook();
  Result<void> post(const std::string& url, const std::string& json,
                    std::chrono::seconds limit) override;
};

}  // namespace dsi
