#pragma once

#include <string>

#include "orchestrator/report.h"

namespace dsi {

// What came out, in the text format that Prometheus' node exporter reads from a file
// (https://prometheus.io/docs/instrumenting/exposition_formats/):
//   ds_install_hosts{command,result}            hosts with that result
//   ds_install_host_well{host,release}          1 installed and as it should be, 0 not
//   ds_install_op_ok{host,op,device}            1 ok, 0 anything else
//   ds_install_run_exit_code{command,run}
//   ds_install_run_seconds{command}
//   ds_install_run_end_timestamp_seconds{command}  `end`, seconds since 1970
std::string metrics_text(const RunReport& report, std::int64_t end);

}  // namespace dsi
