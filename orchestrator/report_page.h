#pragma once

#include <string_view>

namespace dsi {

// report_page.html as the build found it.
extern const std::string_view kReportPage;

}  // namespace dsi
