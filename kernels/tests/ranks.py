"""For the tests of collectives: a process for each rank, and the modules with DeepSpeed's names."""

import importlib.util
import os
import pathlib
import signal
import sys
import traceback

import torch

torch.set_num_threads(1)  # An OpenMP team does not survive fork().


def load_op(name):
    """Loads an op's library; False if it is not built."""
    library = f"{os.environ['DS_OPS_BINARY_DIR']}/ds_{name}/libds_{name}.so"
    if not os.path.exists(library):
        return False
    torch.ops.load_library(library)
    return True


def module(name):
    """ds_ops.deepspeed.<name>, from the source tree."""
    folder = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def run_ranks(case, size, body, killed=()):
    """body(rank) in a process each, which must end without an exception; those in `killed` must die
    of SIGKILL. `case` is the unittest.TestCase."""
    sys.stdout.flush()
    sys.stderr.flush()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                body(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    for rank, pid in enumerate(pids):
        status = os.waitpid(pid, 0)[1]
        if rank in killed:
            case.assertEqual(os.WTERMSIG(status), signal.SIGKILL)
        else:
            case.assertEqual(status, 0, f"rank {rank}")
