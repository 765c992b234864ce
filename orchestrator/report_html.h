#pragma once

#include <filesystem>
#include <string>

#include "orchestrator/report.h"

namespace dsi {

// The report as one HTML page that needs nothing else: the matrix with filters, the reason of each
// cell on hover, and what changed since `before` (null: there is nothing to compare with). What the
// page shows follows from its address (#q=node[01-20]&bad=1), so that a link shows a view.
std::string report_html(const RunReport& report, const RunReport* before);

// The same in `file`, compared with the newest earlier record in `state` of any of its hosts.
Result<void> write_page(const std::filesystem::path& file, const RunReport& report,
                        const std::filesystem::path& state);

}  // namespace dsi
