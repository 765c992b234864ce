#!/usr/bin/env python3
"""Why a row of bench.py takes what it takes: each of its kernels once, under the counters of Nsight
Compute.

  tests/bench/gpu/counters.py BUILD [--only REGEX] [--markdown FILE]

BUILD is what bench.py takes; ncu must be on the PATH, and may need the right to read counters.
Clocks are left as they are. Of each kernel: how busy the memory was, of the bytes that moved how
many were written, what share of reads the L2 answered, in what share of cycles a scheduler issued
an instruction, the busiest of the units that instructions wait for, how full the multiprocessors
were, and for what an instruction waited longest (cycles between two issues of a warp, by Nsight
Compute's names).
"""

import argparse
import collections
import csv
import io
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TIME = "gpu__time_duration.sum"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2 = "lts__t_sector_op_read_hit_rate.pct"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
PIPES = {name: f"sm__inst_executed_pipe_{name}.avg.pct_of_peak_sustained_active"
         for name in ("alu", "fma", "fp16", "lsu", "xu")}
STALLS = {name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
          for name in ("long_scoreboard", "short_scoreboard", "barrier", "membar", "wait",
                       "math_pipe_throttle", "lg_throttle", "mio_throttle", "not_selected",
                       "drain")}
METRICS = [TIME, DRAM, READ, WRITTEN, L2, ISSUED, WARPS, *PIPES.values(), *STALLS.values()]
ROW = "counters, row: "
LAUNCHES_AT_MOST = 4  # Of a row: the ones that take longest.


def run_rows(build, only):
    """In the process that is looked at: one call of each row, in a range of the row's name."""
    import torch
    import bench
    bench.load(build)
    for row in bench.rows(build, only):
        call = row.make()[0]
        call()
        print(ROW + row.name, flush=True)
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(row.name)
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        torch.cuda.nvtx.range_pop()
        del call
        torch.cuda.empty_cache()


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def launches(output):
    """[(row, kernel, {metric: value in its base unit})]: of ncu's CSV with one line a launch."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        sys.exit("counters: ncu gave no table: " + "\n".join(lines[-8:]))
    names = sorted((line[len(ROW):] for line in lines if line.startswith(ROW)), key=len)
    found = []
    for entry in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if not entry.get("ID"):  # The line of units.
            continue
        text = " ".join(value for value in entry.values() if isinstance(value, str))
        row = next((name for name in reversed(names) if name in text), "?")
        found.append((row, entry["Kernel Name"],
                      {metric: number(entry.get(metric) or "") for metric in METRICS}))
    return found


def table(found):
    of_row = collections.OrderedDict()
    for row, kernel, values in found:
        of_row.setdefault(row, []).append((kernel, values))
    lines = ["| function | kernel | µs | DRAM busy | MB read + written | L2 hits | issuing | "
             "busiest unit | warps | waits for |", "|" + "---|" * 10]
    for row, kernels in of_row.items():
        for kernel, v in sorted(kernels, key=lambda k: -k[1][TIME])[:LAUNCHES_AT_MOST]:
            unit = max(PIPES, key=lambda name: v[PIPES[name]])
            waits = sorted(STALLS, key=lambda name: -v[STALLS[name]])[:2]
            kernel = re.sub(r"\(.*|^void |ds::|<unnamed>::|\(anonymous namespace\)::", "", kernel)
            lines.append("| " + " | ".join(
                [row, f"`{kernel[:40]}`", f"{v[TIME] / 1e3:.1f}", f"{v[DRAM]:.0f} %",
                 f"{v[READ] / 1e6:.0f} + {v[WRITTEN] / 1e6:.0f}", f"{v[L2]:.0f} %",
                 f"{v[ISSUED]:.0f} %", f"{unit} {v[PIPES[unit]]:.0f} %", f"{v[WARPS]:.0f} %",
                 ", ".join(f"{name} {v[STALLS[name]]:.1f}" for name in waits)]) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--only", default="", help="rows whose name matches")
    parser.add_argument("--markdown", help="write the table there")
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if options.rows:
        run_rows(options.build, options.only)
        return
    if not shutil.which("ncu"):
        sys.exit("counters: there is no ncu (Nsight Compute) on the PATH")
    done = subprocess.run(
        ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--nvtx", "--csv",
         "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS),
         sys.executable, __file__, options.build, "--only", options.only, "--rows"],
        stdout=subprocess.PIPE, universal_newlines=True, check=False)
    if done.returncode != 0:
        sys.exit("counters: ncu failed: " + "\n".join(done.stdout.splitlines()[-8:]))
    text = table(launches(done.stdout))
    if options.markdown:
        pathlib.Path(options.markdown).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
