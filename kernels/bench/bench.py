"""The CPU optimizers beside torch's and DeepSpeed's, and beside a plain copy.

    bench.py BUILD [--sizes 65536,134217728] [--tensors N] [--threads N] [--json F] [--markdown F]

BUILD is the build folder of kernels/, or an installed prefix, for the torch of this Python. What is
installed decides the peers: torch's fused and foreach optimizers, and with DeepSpeed its cpu_adam,
cpu_adagrad and cpu_lion as far as they were built with it (DS_BUILD_CPU_ADAM=1 and so on). A row is
measured in turns, so that a busy neighbour disturbs all alike; figures are medians. "of copy" is the time that a copy of the
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
import importlib.util
import json
import os
import random
import statistics
import time

import torch

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
DTYPES = {"f32": F32, "bf16": BF16, "f16": F16}
SCALE = 1024.0


def measure(functions, seconds):
    """Median seconds of each function, called in turns for about `seconds` each. In another order in
    each round, and once more before it is timed: what a cache holds is left by the one before."""
    once = {}
    for name, function in functions.items():
        function()
        start = time.perf_counter()
        function()
        once[name] = time.perf_counter() - start
    rounds = max(5, min(200, int(seconds * len(functions) / sum(once.values()))))
    inner = {name: max(1, int(2e-4 / max(t, 1e-7))) for name, t in once.items()}
    times = {name: [] for name in functions}
    order, rng = list(functions.items()), random.Random(1)
    for _ in range(rounds):
        rng.shuffle(order)
        for name, function in order:
            function()
            start = time.perf_counter()
            for _ in range(inner[name]):
                function()
            times[name].append((time.perf_counter() - start) / inner[name])
    return {name: statistics.median(t) for name, t in times.items()}


class Problem:
    """`count` tensors of `size` elements and what belongs to them; the peers share them, as all
    write the same numbers."""

    def __init__(self, size, count, dtype, mixed):
        def make(value, kind):
            return [torch.full((size,), value, dtype=kind) for _ in range(count)]

        self.mixed = mixed
        self.p = make(1.0, dtype)
        self.g = make(0.5, BF16 if mixed else dtype)
        self.m = make(0.0, dtype)
        self.v = make(0.0, dtype)
        if mixed:
            self.wide = make(0.0, dtype)
            self.copy = make(0.0, BF16)

    def in_passes(self, step):
        """A peer's step on f32 gradients, with what it lacks before and after."""
        if not self.mixed:
            return step

        def run():
            torch._foreach_copy_(self.wide, self.g)
            torch._foreach_mul_(self.wide, 1 / SCALE)
            step()
            torch._foreach_copy_(self.copy, self.p)
        return run

    @property
    def peer_grads(self):
        return self.wide if self.mixed else self.g


def torch_peers(make, problem):
    peers = {}
    for name, options in (("torch foreach", {"foreach": True}), ("torch fused", {"fused": True})):
        params = [torch.nn.Parameter(p) for p in problem.p]
        for p, g in zip(params, problem.peer_grads):
            p.grad = g
        try:
            optimizer = make(params, options)
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


def drop_in(op):
    """Our module of that name: ds_ops/deepspeed/cpu_<op>.py of this source tree."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                        f"python/ds_ops/deepspeed/cpu_{op}.py")
    spec = importlib.util.spec_from_file_location(f"drop_in_{op}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Of each op: what DeepSpeed's create_ and _update take between the id and the tensors.
DEEPSPEED_NUMBERS = {
    "adam": ((1e-3, 0.9, 0.999, 1e-8, 0.01, True, False),
             (10, 1e-3, 0.9, 0.999, 1e-8, 0.01, True)),
    "adagrad": ((1e-2, 1e-10, 0.0, False), (10, 1e-2, 1e-10, 0.0)),
    "lion": ((1e-4, 0.9, 0.99, 0.01, False), (10, 1e-4, 0.9, 0.99, 0.01)),
}


def by_deepspeeds_names(module, op, x):
    """A step by DeepSpeed's functions, a tensor a call, as DeepSpeed's own classes do it."""
    create, numbers = DEEPSPEED_NUMBERS[op]
    getattr(module, f"create_{op}")(0, *create)
    update = getattr(module, f"{op}_update")
    states = {"adam": (x.m, x.v), "adagrad": (x.v,), "lion": (x.m,)}[op]
    tensors = list(zip(x.p, x.peer_grads, *states))

    def run():
        for each in tensors:
            update(0, *numbers, *each)
    return run


def row_functions(op, x, peer):
    p, g, m, v = x.p, x.g, x.m, x.v
    extra = {"grad_scale": SCALE} if x.mixed else {}
    copies = (x.copy,) if x.mixed else ()
    # By its name: looked for among the overloads, it costs 5 us a call.
    overload = "copies" if x.mixed else "default"
    ours = getattr(getattr(torch.ops.ds, f"cpu_{op}_step"), overload)
    functions = {}
    if op == "adam":
        functions["list"] = lambda: ours(p, g, m, v, *copies, step=10, lr=1e-3,
                                         weight_decay=0.01, **extra)
        functions.update(torch_peers(
            lambda ps, o: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.01, **o), x))
    elif op == "adagrad":
        functions["list"] = lambda: ours(p, g, v, *copies, lr=1e-2, **extra)
        functions.update(torch_peers(lambda ps, o: torch.optim.Adagrad(ps, lr=1e-2, **o), x))
    else:
        functions["list"] = lambda: ours(p, g, m, *copies, lr=1e-4, weight_decay=0.01, **extra)
    if not x.mixed:
        functions["drop-in"] = by_deepspeeds_names(drop_in(op), op, x)
    if peer:
        functions["deepspeed"] = x.in_passes(by_deepspeeds_names(peer, op, x))
    return functions


def rows(sizes, count, seconds, types):
    for op in ("adam", "adagrad", "lion"):
        peer = deepspeed_op(op)
        for kind in types:
            mixed = kind == "mixed"
            dtype = F32 if mixed else DTYPES[kind]
            width = 4 if dtype == F32 else 2
            arrays = 2 * (3 if op == "adam" else 2)  # Read and written.
            moved = arrays * width + (2 + 2 if mixed else width)
            for size in sizes:
                x = Problem(size, count, dtype, mixed)
                functions = row_functions(op, x, peer)
                source = torch.ones(size * count * moved // 8, dtype=F32)
                target = torch.empty_like(source)
                times = measure({"copy": lambda: target.copy_(source), **functions}, seconds)
                yield {"op": op, "types": kind, "elements": size, "tensors": count, "bytes": moved,
                       "seconds": times, "of_copy": times["copy"] / times["list"],
                       "over": {ours: {n: t / times[ours] for n, t in times.items()}
                                for ours in ("list", "drop-in") if ours in times}}


def markdown(results):
    lines = ["| op | types | tensors | elements | ms | of copy | torch fused | torch foreach "
             "| DeepSpeed / list | DeepSpeed / drop-in |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for r in results:
        def ratio(ours, peer):
            value = r["over"].get(ours, {}).get(peer)
            return "" if value is None else f"{value:.2f}"

        lines.append(f"| {r['op']} | {r['types']} | {r['tensors']} | {r['elements']:,} "
                     f"| {r['seconds']['list'] * 1e3:.3f} | {r['of_copy']:.2f} "
                     f"| {ratio('list', 'torch fused')} | {ratio('list', 'torch foreach')} "
                     f"| {ratio('list', 'deepspeed')} | {ratio('drop-in', 'deepspeed')} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder of kernels/, or an installed prefix")
    parser.add_argument("--sizes", default="65536,134217728", help="elements of the cases")
    parser.add_argument("--tensors", type=int, default=1, help="how many tensors of that size")
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
    for row in rows([int(n) for n in arguments.sizes.split(",")], arguments.tensors,
                    arguments.seconds, arguments.types.split(",")):
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
