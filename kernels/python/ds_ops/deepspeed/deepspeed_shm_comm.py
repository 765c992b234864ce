"""The functions of deepspeed.ops.comm.deepspeed_shm_comm_op, of its current and earlier releases.

After initialize, torch.ops.deepspeed.inference_all_reduce and inference_all_reduce_ are there, if
all ranks are on one host; if not they are not, and DeepSpeed asks torch.distributed instead.
"""

import os
import re

import torch

_ds = torch.ops.ds
_group = None
_initialized = False


def _name(size, rank):
    """A name that all ranks have now and no other group has, or None if they are not on one host.

    With torch.distributed rank 0 makes it, and all say where they are. Without, the launcher's
    variables have both: LOCAL_SIZE, MASTER_ADDR and MASTER_PORT.
    """
    if size == 1:
        return _ds.shm_comm_new_name()
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and \
            distributed.get_world_size() == size:
        said = [None] * size
        distributed.all_gather_object(said, (rank, _ds.shm_comm_host(), _ds.shm_comm_new_name()))
        said.sort()
        return said[0][2] if all(host == said[0][1] for _, host, _ in said) else None
    if os.environ.get("LOCAL_SIZE") != str(size):
        return None
    where = os.environ.get("MASTER_ADDR", "") + "-" + os.environ.get("MASTER_PORT", "")
    return "deepspeed-" + re.sub(r"[^0-9A-Za-z._-]", "_", where)[:80]


def initialize(size, rank):
    """Every rank calls it; the first call counts, as there."""
    global _group, _initialized
    if _initialized:
        return
    name = _name(size, rank)
    if name is not None:
        _group = _ds.shm_comm_open(name, rank, size)
        _ds.shm_comm_serve_deepspeed(_group)
    _initialized = True


def vector_kernel_level():
    """There, 0 to 2 for the types that the processor can reduce; here any processor can all."""
    return 2


def inference_all_reduce_op_fallback_p(tensor):
    """True if torch.distributed must do it."""
    return _group is None
