"""The functions of deepspeed.ops.comm.deepspeed_ccl_comm_op.

Through oneCCL where rank 0 has one that works, else through shared memory, for ranks of one host;
rank 0 says so once. Calls are done when they return, as there, whatever async_op is.
"""

import logging

import torch

_ds = torch.ops.ds
_groups = {}  # Of the world's ranks; () is the world.
_rank = _size = -1


_ID_BYTES = 4608  # kCclIdBytes


def get_kvs_addr(rank):
    """On every rank as many numbers: DeepSpeed broadcasts those of rank 0 over those of the others."""
    return get_sub_kvs_addr(rank == 0)


def get_sub_kvs_addr(first):
    return list(_ds.ccl_comm_new_id()) if first else [0] * _ID_BYTES


def _open(size, rank, kvs_data):
    return _ds.ccl_comm_open(kvs_data.tolist(), rank, size)


def initialize(size, rank, kvs_data):
    """The first call counts, as there."""
    global _rank, _size
    if () in _groups:
        return
    _groups[()] = _open(size, rank, kvs_data)
    _rank, _size = rank, size
    if rank == 0 and _ds.ccl_comm_backend(_groups[()]) == "shared memory":
        logging.getLogger(__name__).warning("ccl_comm goes through shared memory, not oneCCL: %s",
                                            _ds.ccl_comm_why_not_oneccl())


def initialize_sub_comm(size, rank, kvs_data, ranks):
    _groups[tuple(ranks)] = _open(size, rank, kvs_data)


def get_rank(group=0):
    return _rank


def get_world_size(group=0):
    return _size


def _group_of(ranks):
    if () not in _groups:
        raise RuntimeError("ccl_comm: initialize comes first")
    key = tuple(ranks or ())
    if key in _groups:
        return _groups[key]
    if key == tuple(range(_size)):
        return _groups[()]
    raise RuntimeError(f"ccl_comm: there is no group of the ranks {list(key)}; "
                       f"initialize_sub_comm makes it")


def _name_of(op):
    """Of deepspeed.comm.ReduceOp."""
    name = getattr(op, "name", str(op)).lower()
    if name not in ("sum", "product", "min", "max"):
        raise RuntimeError(f"ccl_comm: the reduction is {op}; it can be SUM, PRODUCT, MIN or MAX")
    return name


def broadcast(data, src, group, async_op):
    """`src` counts in the group."""
    _ds.ccl_comm_broadcast_(data, src, _group_of(group))


def all_reduce(data, op, group, async_op):
    _ds.ccl_comm_all_reduce_(data, _group_of(group), _name_of(op))


def all_reduce_caching(data, op, match_id, group, async_op):
    all_reduce(data, op, group, async_op)


def inference_all_reduce(data, op):
    all_reduce(data, op, (), False)


def barrier(group, async_op):
    _ds.ccl_comm_barrier(_group_of(group))


def get_available_coll():
    return ["broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier"]
