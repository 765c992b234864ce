"""The class of deepspeed.ops.pin_memory.pin_memory_op."""

import torch

from .async_io import _raise

_ds = torch.ops.ds


class pin_handle:
    """Tensors in memory that is never swapped out. All handles share what there is.

    A tensor that is freed here is only unlocked: its memory stays valid for as long as somebody has
    the tensor, and is given back after that.
    """

    def new_cpu_locked_tensor(self, num_elem, example_tensor):
        try:
            return _ds.async_io_new_locked(num_elem, example_tensor)
        except RuntimeError as error:
            _raise(error)

    def free_cpu_locked_tensor(self, locked_tensor):
        return _ds.async_io_free_locked(locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address):
        return _ds.async_io_free_locked_at(address)

    def is_pinned(self, buffer):
        return _ds.async_io_is_locked(buffer) or (torch.cuda.is_available() and buffer.is_pinned())
