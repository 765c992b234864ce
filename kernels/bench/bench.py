"""The CPU optimizers beside torch's and DeepSpeed's, and beside a plain copy.

    bench.py BUILD [--sizes 65536,134217728] [--threads N] [--json F] [--markdown F]

BUILD is the build folder of kernels/, or an installed prefix, for the torch of this Python. What is
installed decides the peers: torch's fused and foreach optimizers, and with DeepSpeed its cpu_adam,
cpu_adagrad and cpu_lion as far as they were built with it (DS_BUILD_CPU_ADAM=1 and so on). A row is measured in turns, so that
a busy neighbour disturbs all alike; figures are medians. "of copy" is the time that a copy of the
bytes takes that a step has to move (each array read once, each written one written once) over the
step's.

"drop-in" is the function that stands where DeepSpeed has its own, called as DeepSpeed calls it, a
tensor a call; "list" is torch.ops.ds' own, which takes all tensors in one call. There are --tensors of
them, each of the named size.

In the rows "mixed", gradients are bf16 and scaled, parameters and states f32, and the new parameters
are wanted in bf16, too; the peers do that in passes: widen and unscale, step, narrow.
"""

import argparse
import glob
import importlib
import json
import os
import statistics
import time

import torch

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
DTYPES = {"f32": F32, "bf16": BF16, "f16": F16}
SCALE = 1024.0


def measure(functions, seconds):
    """Median seconds of each function, called in turns for about `seconds` each."""
    once = {}
    for name, function in functions.items():
        function()
        start = time.perf_counter()
        function()
        once[name] = time.perf_counter() - start
    rounds = max(5, min(200, int(seconds * len(functions) / sum(once.values()))))
    inner = {name: max(1, int(2e-4 / max(t, 1e-7))) for name, t in once.items()}
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(inner[name]):
                function()
            times[name].append((time.perf_counter() - start) / inner[name])
    return {name: statistics.median(t) for name, t in times.items()}


class Problem:
    """One tensor and what belongs to it; shared by the peers, which all write the same numbers."""

    def __init__(self, size, dtype, mixed):
        self.mixed = mixed
        self.p = torch.ones(size, dtype=dtype)
        self.g = torch.full((size,), 0.5, dtype=BF16 if mixed else dtype)
        self.m = torch.zeros(size, dtype=dtype)
        self.v = torch.zeros(size, dtype=dtype)
        if mixed:
            self.wide = torch.empty(size, dtype=dtype)
            self.copy = torch.empty(size, dtype=BF16)

    def in_passes(self, step):
        """A peer's step on f32 gradients, with what it lacks before and after."""
        if not self.mixed:
            return step

        def run():
            self.wide.copy_(self.g)
            self.wide.mul_(1 / SCALE)
            step()
            self.copy.copy_(self.p)
        return run

    @property
    def peer_grad(self):
        return self.wide if self.mixed else self.g


def torch_peers(make, problem):
    peers = {}
    for name, options in (("torch foreach", {"foreach": True}), ("torch fused", {"fused": True})):
        p = torch.nn.Parameter(problem.p)
        p.grad = problem.peer_grad
        try:
            optimizer = make([p], options)
            optimizer.step()
        except (RuntimeError, TypeError, ValueError):
            continue
        peers[name] = problem.in_passes(optimizer.step)
    return peers


def deepspeed_op(op):
    """DeepSpeed's module of the op, or None."""
    try:
        return importlib.import_module(f"deepspeed.ops.{op}.cpu_{op}_op")
    except ImportError as error:
        print(f"no peer from DeepSpeed: {error}")
        return None


def row_functions(op, x, peer):
    ds = torch.ops.ds
    lists = [[t] for t in (x.p, x.g, x.m, x.v)]
    p, g, m, v = lists
    extra = {"grad_scale": SCALE} if x.mixed else {}
    copies = ([x.copy],) if x.mixed else ()
    functions = {}
    if op == "adam":
        functions["ds"] = lambda: ds.fused_adam_step(p, g, m, v, *(copies or ([],)), step=10,
                                                     lr=1e-3, weight_decay=0.01, **extra)
        functions.update(torch_peers(
            lambda ps, o: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.01, **o), x))
        if peer:
            peer.create_adam(0, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, False)
            functions["deepspeed"] = x.in_passes(lambda: peer.adam_update(
                0, 10, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, x.p, x.peer_grad, x.m, x.v))
    elif op == "adagrad":
        functions["ds"] = lambda: ds.cpu_adagrad_step(p, g, v, *copies, lr=1e-2, **extra)
        functions.update(torch_peers(lambda ps, o: torch.optim.Adagrad(ps, lr=1e-2, **o), x))
        if peer:
            peer.create_adagrad(0, 1e-2, 1e-10, 0.0, False)
            functions["deepspeed"] = x.in_passes(lambda: peer.adagrad_update(
                0, 10, 1e-2, 1e-10, 0.0, x.p, x.peer_grad, x.v))
    else:
        functions["ds"] = lambda: ds.cpu_lion_step(p, g, m, *copies, lr=1e-4, weight_decay=0.01,
                                                   **extra)
        if peer:
            peer.create_lion(0, 1e-4, 0.9, 0.99, 0.01, False)
            functions["deepspeed"] = x.in_passes(lambda: peer.lion_update(
                0, 10, 1e-4, 0.9, 0.99, 0.01, x.p, x.peer_grad, x.m))
    return functions


def rows(sizes, seconds, types):
    for op in ("adam", "adagrad", "lion"):
        peer = deepspeed_op(op)
        for kind in types:
            mixed = kind == "mixed"
            dtype = F32 if mixed else DTYPES[kind]
            width = 4 if dtype == F32 else 2
            arrays = 2 * (3 if op == "adam" else 2)  # Read and written.
            moved = arrays * width + (2 + 2 if mixed else width)
            for size in sizes:
                x = Problem(size, dtype, mixed)
                functions = row_functions(op, x, peer)
                source = torch.ones(size * moved // 8, dtype=F32)
                target = torch.empty_like(source)
                times = measure({"copy": lambda: target.copy_(source), **functions}, seconds)
                peers = {n: t for n, t in times.items() if n not in ("ds", "copy")}
                yield {"op": op, "types": kind, "elements": size, "bytes": moved, "seconds": times,
                       "of_copy": times["copy"] / times["ds"],
                       "times_faster_than": {n: t / times["ds"] for n, t in peers.items()}}


def markdown(results):
    lines = ["| op | types | elements | ms | of copy | torch fused | torch foreach | DeepSpeed |",
             "|---|---|---|---|---|---|---|---|"]
    for r in results:
        ratio = lambda n: f"{r['times_faster_than'][n]:.2f}" if n in r["times_faster_than"] else ""
        lines.append(f"| {r['op']} | {r['types']} | {r['elements']} | {r['seconds']['ds'] * 1e3:.3f} "
                     f"| {r['of_copy']:.2f} | {ratio('torch fused')} | {ratio('torch foreach')} "
                     f"| {ratio('deepspeed')} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder of kernels/, or an installed prefix")
    parser.add_argument("--sizes", default="65536,134217728", help="elements of the cases")
    parser.add_argument("--types", default="f32,bf16,mixed", help="of f32, bf16, f16, mixed")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.4, help="per measured function")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    arguments = parser.parse_args()
    for pattern in ("/ds_*/libds_*.so", "/kernels/ds_*/libds_*.so", "/lib/libds_*.so"):
        for library in sorted(glob.glob(arguments.build + pattern)):
            torch.ops.load_library(library)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load "
          f"{os.getloadavg()[0]:.1f}; peers' columns: their time over ours")
    results = []
    for row in rows([int(n) for n in arguments.sizes.split(",")], arguments.seconds,
                    arguments.types.split(",")):
        results.append(row)
        print(markdown([row]).splitlines()[-1], flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)
    if arguments.markdown:
        with open(arguments.markdown, "w") as file:
            file.write(markdown(results))


if __name__ == "__main__":
    main()
