"""async_io beside fio and, where it is there, beside DeepSpeed's op. Rates are medians.

    python3 async_io_bench.py BUILD [--folder .] [--size 512] [--rounds 5] [--peer async_io_op.so]

With fio: the same engine, block and depth, O_DIRECT, the same file, overwritten in place; the op's
core as a C++ program. With DeepSpeed: both through Python in this process, the handle at its
defaults, and 10,000 small files, each a new one. Everything of one row is measured in turns, so
that a busy neighbour disturbs all alike. CPU is the process's seconds a GiB, the kernel's threads
for it included, where the system counts them so.
"""

import argparse
import ctypes
import glob
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import tempfile
import time

GIB = 1 << 30


def module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def fio(mode, file, size, block, depth, engine):
    names = {"posix": "psync"}
    result = subprocess.run(
        ["fio", "--name=bench", f"--filename={file}", f"--rw={mode}", f"--bs={block}",
         f"--iodepth={depth}", f"--ioengine={names.get(engine, engine)}", "--direct=1",
         f"--size={size}", "--randrepeat=1", "--thread", "--output-format=json"],
        stdout=subprocess.PIPE, check=True)
    job = json.loads(result.stdout)["jobs"][0]
    side = job["write" if mode.endswith("write") else "read"]
    seconds = side["runtime"] / 1000
    if side["bw_bytes"]:
        seconds = side["io_bytes"] / side["bw_bytes"]
    return seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000


def ours(program, mode, file, size, block, depth, engine):
    out = subprocess.run([program, mode, file, str(size), str(block), str(depth), engine],
                         stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout.split()
    return float(out[0]), float(out[1])


def in_turns(functions, rounds):
    """Median seconds and CPU seconds of each; who is first changes from round to round."""
    taken = {name: [] for name in functions}
    names = list(functions)
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            taken[name].append(functions[name]())
    return {name: tuple(statistics.median(column) for column in zip(*rows))
            for name, rows in taken.items()}


def row(label, unit, amount, result, ours_name, peer):
    (mine, my_cpu), (theirs, their_cpu) = result[ours_name], result[peer]
    print(f"{label:<34}{amount / mine:>10.0f} {amount / theirs:>10.0f} {unit:<8}"
          f"{theirs / mine:>6.2f}x", end="")
    return my_cpu, their_cpu


def beside_fio(program, folder, size, rounds):
    print(f"{'with fio':<34}{'ds':>10} {'fio':>10} {'':<8}{'':>7}{'ds':>8} {'fio':>6} CPU s/GiB")
    file = os.path.join(folder, "file")
    with open(file, "wb") as target:
        for _ in range(size >> 20):
            target.write(os.urandom(1 << 20))
        os.fsync(target.fileno())
    for engine in ("io_uring", "libaio"):
        for mode, block, depth, bytes_ in (("read", 1 << 20, 32, size), ("write", 1 << 20, 32, size),
                                           ("randread", 4096, 64, size // 8),
                                           ("randwrite", 4096, 64, size // 8)):
            shape = (mode, file, bytes_, block, depth, engine)
            result = in_turns({"ds": lambda: ours(program, *shape), "fio": lambda: fio(*shape)},
                              rounds)
            cpu = row(f"{engine} {mode} {block >> 10}K depth {depth}", "MiB/s", bytes_ / (1 << 20),
                      result, "ds", "fio")
            print(f"{cpu[0] * GIB / bytes_:>8.2f} {cpu[1] * GIB / bytes_:>6.2f}", flush=True)
    os.remove(file)


def beside_peer(build, peer_file, folder, size, rounds):
    import torch
    for library in glob.glob(build + "/ds_async_io/libds_async_io.so"):
        torch.ops.load_library(library)
    modules = {
        "ds": module("async_io", pathlib.Path(__file__).resolve().parents[1] /
                     "python/ds_ops/deepspeed/async_io.py"),
        "DeepSpeed": module("async_io_op", peer_file),
    }
    handles = {name: made.aio_handle() for name, made in modules.items()}
    file = os.path.join(folder, "file")
    x = torch.zeros(size, dtype=torch.uint8)
    locked = {name: handle.new_cpu_locked_tensor(size, x) for name, handle in handles.items()}

    def measure(function):
        cpu, start = cpu_seconds(), time.perf_counter()
        function()
        return time.perf_counter() - start, cpu_seconds() - cpu

    print(f"\n{'with DeepSpeed, defaults':<34}{'ds':>10} {'DeepSpeed':>10} {'':<8}{'':>7}"
          f"{'ds':>8} {'peer':>6} CPU s/GiB")
    for kind, tensors in (("tensor", {name: x for name in handles}), ("locked tensor", locked)):
        for mode in ("write", "read"):
            def one(name):
                function = getattr(handles[name], "sync_p" + mode)
                return lambda: measure(lambda: function(tensors[name], file))
            result = in_turns({name: one(name) for name in handles}, rounds)
            cpu = row(f"{mode} {kind}", "MiB/s", size / (1 << 20), result, "ds", "DeepSpeed")
            print(f"{cpu[0] * GIB / size:>8.2f} {cpu[1] * GIB / size:>6.2f}", flush=True)
    os.remove(file)

    count = 10_000
    small = [torch.full((4096,), i % 251, dtype=torch.uint8) for i in range(count)]
    for form in ("async", "sync"):
        for mode in ("write", "read"):
            def many(name):
                at = os.path.join(folder, f"small-{name}")

                def run():
                    if mode == "write":
                        shutil.rmtree(at, ignore_errors=True)
                        os.mkdir(at)
                    function = getattr(handles[name], f"{form}_p{mode}")

                    def body():
                        # The peer opens a file when it is asked to and keeps it open, so that
                        # more at once run out of descriptors.
                        for begin in range(0, count, 500):
                            for i in range(begin, begin + 500):
                                function(small[i], f"{at}/{i}")
                            if form == "async":
                                handles[name].wait()
                    return measure(body)
                return run
            result = in_turns({name: many(name) for name in handles}, max(3, rounds // 2))
            cpu = row(f"{form} {mode} 10,000 files of 4K", "files/s", count, result, "ds",
                      "DeepSpeed")
            print(f"{cpu[0]:>8.2f} {cpu[1]:>6.2f} CPU s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder of kernels/")
    parser.add_argument("--folder", default=".", help="where the files are made; a disk")
    parser.add_argument("--size", type=int, default=512, help="MiB of the large file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="DeepSpeed's async_io_op, built for this Python and torch")
    parser.add_argument("--peer-pin-memory", help="its pin_memory_op, which newer releases need")
    parser.add_argument("--skip-fio", action="store_true")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ds-aio-bench-", dir=arguments.folder)
    try:
        program = os.path.join(arguments.build, "bench", "ds_async_io_bench")
        if not arguments.skip_fio:
            beside_fio(program, folder, arguments.size << 20, arguments.rounds)
        if arguments.peer:
            if arguments.peer_pin_memory:
                import torch  # The module's symbols come from it.
                module("pin_memory_op", arguments.peer_pin_memory)
                ctypes.CDLL(arguments.peer_pin_memory, mode=ctypes.RTLD_GLOBAL)
            beside_peer(arguments.build, arguments.peer, folder, arguments.size << 20,
                        arguments.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
