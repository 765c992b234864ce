#!/usr/bin/env python3
"""How close the GPU ops come to what the memory allows. Builds nothing: it loads op libraries.

  tests/bench/gpu/bench.py BUILD [--only REGEX] [--peers REGEX] [--deepspeed FOLDER]
                           [--json FILE] [--markdown FILE]

BUILD holds the ops: a build folder of kernels/ (BUILD/ds_*/libds_*.so) or an installed release
(BUILD/lib/libds_*.so). Any machine with a GPU and a torch will do. FOLDER holds DeepSpeed's own
modules, as compile_time.py leaves them: its kernels are then peers, too.

First the bandwidth of a device-to-device copy, bytes read plus bytes written; a row's floor is its
bytes over that. Then every row: the median of several runs on random data that no cache holds.
Modules rows_*.py beside this file register rows; see Row.
"""

import argparse
import glob
import importlib
import importlib.util
import json
import os
import pathlib
import re
import statistics
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent


class Row:
    """One function at one size.

    name   what the table says; unique
    op     the op library that it needs: "fused_adam"
    bytes  the fewest that it must move: each input read once, each output written once
    make   make() -> list of callables, each on an input set of its own; together they must exceed
           the L2 cache several times. Called once; what it allocates is freed after the row.
    peers  name -> such a make; whatever a peer raises is its result
    graph  True: the calls are captured into CUDA graphs, for what is launched faster than the host
           can (many tensors, tiny kernels)
    note   a word on how the bytes are counted
    """

    def __init__(self, name, op, bytes, make, peers=None, graph=False, note=""):
        self.name, self.op, self.bytes, self.make = name, op, bytes, make
        self.peers, self.graph, self.note = peers or {}, graph, note


ROWS = []
DEEPSPEED = {}


def deepspeed(op):
    """DeepSpeed's own module of an op; an error, which becomes a cell of the table, without it."""
    if op not in DEEPSPEED:
        raise LookupError("not built")
    name = f"deepspeed_{op}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DEEPSPEED[op])
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def row(*args, **kwargs):
    ROWS.append(Row(*args, **kwargs))


def l2_bytes():
    return torch.cuda.get_device_properties(0).L2_cache_size


def sets_for(bytes_each, at_least=3):
    """How many input sets of a size make sure that a run finds nothing in the cache."""
    return max(at_least, min(64, 4 * l2_bytes() // max(1, bytes_each) + 1))


def capture(calls):
    stream = torch.cuda.Stream()
    graphs = []
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        graphs.append(graph)
    return [graph.replay for graph in graphs]


def milliseconds(calls, runs=15):
    """Median time of a call on the device, over `runs` at least and every input set."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    calls[0]()
    end.record()
    torch.cuda.synchronize()
    rough = start.elapsed_time(end)
    # Short kernels are timed several to a pair of events, or the events' own time counts too.
    burst = max(1, min(len(calls) * 4, int(0.5 / max(rough, 1e-3))))
    runs = max(5, min(runs, int(1500 / max(rough * burst, 1e-3))))
    times, at = [], 0
    for _ in range(runs):
        # The device sleeps while the host queues the calls, so that none waits for its launch.
        torch.cuda._sleep(2_000_000)
        start.record()
        for _ in range(burst):
            calls[at % len(calls)]()
            at += 1
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / burst)
    return statistics.median(times), min(times), max(times)


def copy_bandwidth():
    """Bytes a second, read plus written, of copies of 2 GiB: the median of several."""
    size = min(2 << 30, torch.cuda.mem_get_info()[0] // 8)
    source = [torch.randint(-128, 127, (size,), dtype=torch.int8, device="cuda") for _ in range(2)]
    target = torch.empty_like(source[0])
    middle, _, _ = milliseconds([lambda s=s: target.copy_(s) for s in source], runs=21)
    return 2 * size / middle * 1e3


def measure(make, graph):
    calls = make()
    if graph:
        calls = capture(calls)
    result = milliseconds(calls)
    del calls
    torch.cuda.empty_cache()
    return result


def markdown(report):
    """The table: DeepSpeed in a column of its own, torch's several ways in one."""
    after = report.get("copy_bandwidth_after")
    lines = [
        f"{report['device']}, CUDA {report['cuda']}, torch {report['torch']}; copy bandwidth "
        f"{report['copy_bandwidth'] / 1e12:.3f} TB/s before"
        + (f" and {after / 1e12:.3f} after" if after else "") + "; medians.", "",
        "| function | ms | MB | floor ms | × floor | deepspeed × floor | torch × floor |",
        "|" + "---|" * 7]

    def cell(name, value):
        text = f"{value['ratio']:.2f}" if "ratio" in value else value["error"][:40]
        return f"{name} {text}".strip()
    for r in report["rows"]:
        theirs = r["peers"].get("deepspeed")
        torchs = [cell(name.replace("torch", "").strip(), value)
                  for name, value in r["peers"].items() if name != "deepspeed"]
        lines.append("| " + " | ".join(
            [r["name"], f"{r['ms']:.4f}", f"{r['bytes'] / 1e6:.1f}", f"{r['floor_ms']:.4f}",
             f"{r['ratio']:.3f}", cell("", theirs) if theirs else "", ", ".join(torchs)]) + " |")
    return "\n".join(lines) + "\n"


def write(report, options):
    table = markdown(report)
    for path, content in ((options.json, json.dumps(report, indent=1) + "\n"),
                          (options.markdown, table)):
        if path:
            pathlib.Path(path).write_text(content, encoding="utf-8")
    return table


def libraries(build):
    """The op libraries of a build folder or a release, by op."""
    paths = sorted(glob.glob(build + "/ds_*/libds_*.so") + glob.glob(build + "/lib/libds_*.so"))
    return {os.path.basename(path)[len("libds_"):-len(".so")]: path for path in paths}


def load(build):
    for path in libraries(build).values():
        torch.ops.load_library(path)


def rows(build, only):
    """The rows whose op is there and whose name matches."""
    sys.path.insert(0, str(HERE))
    for module in sorted(HERE.glob("rows_*.py")):
        importlib.import_module(module.stem)
    return [r for r in ROWS if r.op in libraries(build) and re.search(only, r.name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--only", default="", help="rows whose name matches")
    parser.add_argument("--peers", default=".", help="peers whose name matches; '^$': none")
    parser.add_argument("--deepspeed", default="", help="folder of DeepSpeed's own modules")
    parser.add_argument("--json", help="write all numbers there")
    parser.add_argument("--markdown", help="write the table there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench: torch sees no GPU")

    load(options.build)
    for module in glob.glob(options.deepspeed + "/deepspeed_*.so") if options.deepspeed else []:
        DEEPSPEED[pathlib.Path(module).stem[len("deepspeed_"):]] = module
    # The modules import this one under its own name, and must find these ROWS.
    sys.modules["bench"] = sys.modules[__name__]
    torch.manual_seed(0)

    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.3f} TB/s", flush=True)
    properties = torch.cuda.get_device_properties(0)
    report = {"device": properties.name, "torch": torch.__version__, "rows": [],
              "cuda": torch.version.cuda, "copy_bandwidth": bandwidth}
    for r in rows(options.build, options.only):
        floor = r.bytes / bandwidth * 1e3
        middle, low, high = measure(r.make, r.graph)
        result = {"name": r.name, "op": r.op, "bytes": r.bytes, "floor_ms": floor, "ms": middle,
                  "ms_min": low, "ms_max": high, "ratio": middle / floor, "note": r.note,
                  "peers": {}}
        text = f"{r.name:<58} {middle:9.4f} ms  {result['ratio']:.3f}"
        for name, make in r.peers.items():
            if not re.search(options.peers, name):
                continue
            try:
                ms, _, _ = measure(make, False)
                result["peers"][name] = {"ms": ms, "ratio": ms / floor}
                text += f"  {name} {ms / floor:.2f}"
            except LookupError:  # Not there to be measured.
                pass
            except Exception as error:  # A peer that cannot is a result.
                result["peers"][name] = {"error": f"{type(error).__name__}: {error}"}
                text += f"  {name}: {type(error).__name__}"
            torch.cuda.empty_cache()
        report["rows"].append(result)
        print(text, flush=True)
        write(report, options)  # What there is, should a later row take the process along.
    report["copy_bandwidth_after"] = copy_bandwidth()
    print("\n" + write(report, options))


if __name__ == "__main__":
    main()
