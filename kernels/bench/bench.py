"""Time per step of the CPU optimizers, beside torch doing the same and beside a plain copy.

    python3 bench.py BUILD [--size 33554432] [--threads N] [--seconds 0.4]

Everything of one row is measured in turns, so that a busy neighbour disturbs all alike; the figure
is the median. "floor" is the time that a copy takes for the bytes that the step has to move (each
array read once and each written one written once); the ratio to it says what is left to gain.
"""

import argparse
import glob
import statistics
import time

import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


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


def torch_peers(make, size, dtype):
    """torch's optimizer, foreach and (where this torch has it for the CPU) fused."""
    peers = {}
    for name, options in (("foreach", {"foreach": True}), ("fused", {"fused": True})):
        p = torch.nn.Parameter(torch.ones(size, dtype=dtype))
        p.grad = torch.full((size,), 0.5, dtype=dtype)
        try:
            optimizer = make([p], options)
            optimizer.step()
        except (RuntimeError, TypeError, ValueError):
            continue
        peers[name] = optimizer.step
    return peers


def rows(sizes, seconds):
    ds = torch.ops.ds
    for op in ("cpu_adam", "cpu_adagrad", "cpu_lion"):
        for dtype_name, dtype in DTYPES.items():
            for size in sizes:
                width = torch.tensor([], dtype=dtype).element_size()
                p = [torch.ones(size, dtype=dtype)]
                g = [torch.full((size,), 0.5, dtype=dtype)]
                # torch keeps its state in the parameter's type; so do we, to compare alike.
                m = [torch.zeros(size, dtype=dtype)]
                v = [torch.zeros(size, dtype=dtype)]
                if op == "cpu_adam":
                    step = lambda: ds.cpu_adam_step(p, g, m, v, step=10, lr=1e-3, weight_decay=0.01)
                    make = lambda ps, o: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.01, **o)
                    moved = 7 * width
                elif op == "cpu_adagrad":
                    step = lambda: ds.cpu_adagrad_step(p, g, v, lr=1e-2)
                    make = lambda ps, o: torch.optim.Adagrad(ps, lr=1e-2, **o)
                    moved = 5 * width
                else:
                    step = lambda: ds.cpu_lion_step(p, g, m, lr=1e-4, weight_decay=0.01)
                    make = None
                    moved = 5 * width
                # The copy reads and writes as many bytes as the step moves.
                source = torch.ones(size * moved // 8, dtype=torch.float32)
                target = torch.empty_like(source)
                functions = {"copy": lambda: target.copy_(source), "ds": step}
                if make:
                    functions.update(torch_peers(make, size, dtype))
                result = measure(functions, seconds)
                yield op, dtype_name, size, moved, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder of kernels/, or an installed prefix")
    parser.add_argument("--size", type=int, default=1 << 25, help="elements of the large case")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.4, help="per measured function")
    arguments = parser.parse_args()
    for pattern in ("/ds_*/libds_*.so", "/kernels/ds_*/libds_*.so", "/lib/libds_*.so"):
        for library in sorted(glob.glob(arguments.build + pattern)):
            torch.ops.load_library(library)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; microseconds a step, "
          f"median; state in the parameter's type")
    print(f"{'op':<12}{'type':<5}{'elements':>10} {'bytes/el':>8} {'ds':>10} {'ds/floor':>9} "
          f"{'foreach':>10} {'fused':>10} {'best torch/ds':>14} {'copy GB/s':>10}")
    for op, dtype, size, moved, result in rows((1 << 16, arguments.size), arguments.seconds):
        peers = [result[name] for name in ("foreach", "fused") if name in result]
        ratio = f"{min(peers) / result['ds']:.2f}" if peers else "-"
        cell = lambda name: f"{result[name] * 1e6:.1f}" if name in result else "-"
        print(f"{op:<12}{dtype:<5}{size:>10} {moved:>8} {cell('ds'):>10} "
              f"{result['ds'] / result['copy']:>9.2f} {cell('foreach'):>10} {cell('fused'):>10} "
              f"{ratio:>14} "
              f"{size * moved / result['copy'] / 1e9:>10.1f}", flush=True)


if __name__ == "__main__":
    main()
