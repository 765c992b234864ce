"""All-reduce between processes of this host: shm_comm beside torch.distributed's gloo and, where its
source is there, beside DeepSpeed's shm op. Microseconds a call, medians over rounds; with --best the
best round, which on a machine that others use is the one that was least disturbed.

    python3 shm_comm_bench.py BUILD [--ranks 2] [--rounds 31] [--best] [--dtype float32]
                              [--deepspeed SOURCE]

Every rank is a process. One round of a size measures each of them once, in turns, so that a busy
neighbour disturbs all alike; a measurement is the time of a loop of calls on one tensor, over the
slowest rank. DeepSpeed's op is compiled from SOURCE/csrc/cpu/comm with the flags of its builder.
"""

import argparse
import os
import pathlib
import socket
import statistics
import sys
import time

import torch

SIZES = [8, 64, 512, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20,
         64 << 20]


def compile_deepspeed(source):
    from torch.utils.cpp_extension import load
    folder = pathlib.Path(source) / "csrc" / "cpu"
    # The flags of op_builder/cpu/comm.py and builder.py.
    return load(name="deepspeed_shm_comm", sources=[str(folder / "comm" / "shm_interface.cpp"),
                                                    str(folder / "comm" / "shm.cpp")],
                extra_include_paths=[str(folder / "includes")],
                extra_cflags=["-O2", "-fopenmp", "-march=native"])


def rank_main(rank, arguments, name, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      LOCAL_SIZE=str(arguments.ranks))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=arguments.ranks)
    torch.ops.load_library(f"{arguments.build}/ds_shm_comm/libds_shm_comm.so")
    group = torch.ops.ds.shm_comm_open(name, rank, arguments.ranks, timeout=300.0)
    ours = torch.ops.ds.shm_comm_all_reduce_
    calls = {"shm_comm": lambda x: ours(x, group), "gloo": torch.distributed.all_reduce}
    if arguments.deepspeed:
        compile_deepspeed(arguments.deepspeed).initialize(arguments.ranks, rank)
        calls["deepspeed"] = torch.ops.deepspeed.inference_all_reduce_
    names = list(calls)
    dtype = getattr(torch, arguments.dtype)
    for size in SIZES:
        tensor = torch.zeros(size // torch.empty(0, dtype=dtype).element_size(), dtype=dtype)
        loops = max(1, min(200, (1 << 20) // size))
        taken = {one: [] for one in names}
        for turn in range(arguments.rounds + 1):
            for one in names[turn % len(names):] + names[:turn % len(names)]:
                call = calls[one]
                torch.ops.ds.shm_comm_barrier(group)
                start = time.perf_counter()
                for _ in range(loops):
                    call(tensor)
                micros = torch.tensor([(time.perf_counter() - start) / loops * 1e6])
                slowest = torch.ops.ds.shm_comm_all_reduce(micros, group, "max").item()
                if turn > 0:  # The first touches the memory.
                    taken[one].append(slowest)
        if rank == 0:
            choose = min if arguments.best else statistics.median
            row = {one: choose(values) for one, values in taken.items()}
            print(f"{size:>10}" + "".join(f"{row[one]:>14.2f}" for one in names) +
                  "".join(f"{row[one] / row['shm_comm']:>10.2f}x" for one in names[1:]), flush=True)
        torch.ops.ds.shm_comm_barrier(group)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--deepspeed", help="its source tree")
    arguments = parser.parse_args()
    if arguments.deepspeed:
        compile_deepspeed(arguments.deepspeed)  # Once, before there are ranks.
    torch.ops.load_library(f"{arguments.build}/ds_shm_comm/libds_shm_comm.so")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = torch.ops.ds.shm_comm_new_name()
    columns = ["shm_comm", "gloo"] + (["deepspeed"] if arguments.deepspeed else [])
    print(f"{arguments.ranks} ranks, {arguments.dtype}, µs a call, "
          f"{'best' if arguments.best else 'median'} of {arguments.rounds}")
    print(f"{'bytes':>10}" + "".join(f"{one:>14}" for one in columns) +
          "".join(f"{'/ ' + one:>11}" for one in columns[1:]), flush=True)
    pids = []
    for rank in range(arguments.ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                rank_main(rank, arguments, name, port)
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {error}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                os._exit(code)
        pids.append(pid)
    sys.exit(max(os.waitpid(pid, 0)[1] for pid in pids) != 0)


if __name__ == "__main__":
    main()
