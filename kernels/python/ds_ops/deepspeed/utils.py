"""The functions of deepspeed.ops.utils_op, of its current and of its earlier releases."""

import torch

_ds = torch.ops.ds


def flatten(tensors):
    return _ds.flatten(list(tensors))


def unflatten(flat, tensors):
    return list(_ds.unflatten(flat, list(tensors)))


def cast_to_byte_tensor(src_tensor):
    """A tensor's memory as uint8, or that of each of a list."""
    if isinstance(src_tensor, torch.Tensor):
        return _ds.byte_view(src_tensor)
    return [_ds.byte_view(tensor) for tensor in src_tensor]
