#include "orchestrator/adapters/curl_webhook.h"

#include <curl/curl.h>

#include <memory>

namespace dsi {
namespace {

// What a webhook answers is of no use, and may be long.
std::size_t pass_over(char*, std::size_t size, std::size_t count, void*) {
  return size * count;
}

}  // namespace

CurlWebhook::CurlWebhook() {
  static const CURLcode kReady = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)kReady;
}

Result<void> CurlWebhook::post(const std::string& url, const std::string& json,
                               std::chrono::seconds limit) {
  std::unique_ptr<CURL, void (*)(CURL*)> curl(::curl_easy_init(), ::curl_easy_cleanup);
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
      ::curl_slist_append(nullptr, "Content-Type: application/json"), ::curl_slist_free_all);
  if (!curl || !headers) return fail("no memory for a request");
  ::curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  ::curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, json.c_str());
  ::curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  ::curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  ::curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "ds-install");
  ::curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, pass_over);
  ::curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);  // There are other threads.
  ::curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, static_cast<long>(limit.count()));
  const CURLcode code = ::curl_easy_perform(curl.get());
  // Not its error buffer: that quotes what it was given.
  if (code == CURLE_OPERATION_TIMEDOUT) return fail("no answer within {} s", limit.count());
  if (code != CURLE_OK) return fail("{}", ::curl_easy_strerror(code));
  long status = 0;
  ::curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status < 200 || status > 299) return fail("it answers with status {}", status);
  return {};
}

}  // namespace dsi
