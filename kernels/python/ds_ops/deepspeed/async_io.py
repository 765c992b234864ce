"""The class and functions of deepspeed.ops.aio.async_io_op.

Any size, offset and number of threads is right here; nothing has to be divisible by anything. A
failure is an OSError with its errno and file name, where DeepSpeed prints a line and returns -1 or
asserts; what fails in the background is raised by wait().
"""

import os
import re

import torch

_ds = torch.ops.ds
_DIRECT_ALIGNMENT = 512


def _call(function, buffer, file, *arguments):
    try:
        function(buffer, file, *arguments)
    except RuntimeError as error:
        _raise(error, file)


def _raise(error, file=None):
    text = str(error)
    found = re.search(r" \[errno (\d+)\]", text)
    if found is None:
        raise error
    name = re.search(r' of "(.*?)"(: |$)| open "(.*?)"', text)
    if not isinstance(file, str):
        file = (name[1] or name[3]) if name else None
    raise OSError(int(found[1]), text[:found.start()], file) from None


def _is_async(arguments, keywords):
    """pread and pwrite have an argument named async, which only a dictionary can pass by name."""
    names = ("validate", "async", "file_offset")
    values = dict(zip(names, arguments))
    for name, value in keywords.items():
        if name not in names or name in values:
            raise TypeError(f"unexpected argument {name}")
        values[name] = value
    if len(arguments) > len(names) or "validate" not in values or "async" not in values:
        raise TypeError("the arguments are buffer, filename, validate, async, file_offset=0")
    return bool(values["async"]), int(values.get("file_offset", 0)), bool(values["validate"])


class aio_handle:
    """See DeepSpeed's; single_submit is kept, and operations always overlap."""

    def __init__(self, block_size=1024 * 1024, queue_depth=128, single_submit=False,
                 overlap_events=False, intra_op_parallelism=1):
        self._block_size = block_size
        self._queue_depth = queue_depth
        self._single_submit = bool(single_submit)
        self._overlap_events = bool(overlap_events)
        self._threads = intra_op_parallelism
        try:
            self._io = torch.classes.ds.AsyncIo(block_size, queue_depth, intra_op_parallelism,
                                                "auto", True, self._single_submit)
        except RuntimeError as error:
            _raise(error)

    def get_block_size(self):
        return self._block_size

    def get_queue_depth(self):
        return self._queue_depth

    def get_single_submit(self):
        return self._single_submit

    def get_overlap_events(self):
        return self._overlap_events

    def get_intra_op_parallelism(self):
        return self._threads

    def get_alignment(self):
        """What callers pad to. Nothing here needs it."""
        return self._threads * _DIRECT_ALIGNMENT

    def get_engine(self):
        """io_uring, libaio or posix: what the kernel granted. Not of DeepSpeed."""
        return self._io.engine()

    def read(self, buffer, filename, validate, file_offset=0):
        _call(self._io.read_, buffer, os.fspath(filename), file_offset, bool(validate))
        return 0

    def write(self, buffer, filename, validate, file_offset=0):
        _call(self._io.write, buffer, os.fspath(filename), file_offset, bool(validate))
        return 0

    def pread(self, buffer, filename, *arguments, **keywords):
        is_async, offset, validate = _is_async(arguments, keywords)
        _call(self._io.submit_read_, buffer, os.fspath(filename), offset, validate)
        return 0 if is_async else self.wait()

    def pwrite(self, buffer, filename, *arguments, **keywords):
        is_async, offset, validate = _is_async(arguments, keywords)
        _call(self._io.submit_write, buffer, os.fspath(filename), offset, validate)
        return 0 if is_async else self.wait()

    # As DeepSpeed's, the synchronous forms finish and count what else is pending.
    def sync_pread(self, buffer, filename, file_offset=0):
        _call(self._io.submit_read_, buffer, os.fspath(filename), file_offset)
        return self.wait()

    def sync_pwrite(self, buffer, filename, file_offset=0):
        _call(self._io.submit_write, buffer, os.fspath(filename), file_offset)
        return self.wait()

    def async_pread(self, buffer, filename, file_offset=0):
        _call(self._io.submit_read_, buffer, os.fspath(filename), file_offset)
        return 0

    def async_pwrite(self, buffer, filename=None, file_offset=0, *, fd=None):
        """To a file name or, as an integer, to a descriptor; it may be closed at once."""
        target = filename if fd is None else fd
        if isinstance(target, int):
            _call(self._io.submit_write_fd, buffer, target, file_offset)
        else:
            _call(self._io.submit_write, buffer, os.fspath(target), file_offset)
        return 0

    def wait(self):
        try:
            return self._io.wait()
        except RuntimeError as error:
            _raise(error)

    def new_cpu_locked_tensor(self, num_elem, example_tenosr):
        try:
            return _ds.async_io_new_locked(num_elem, example_tenosr)
        except RuntimeError as error:
            _raise(error)

    def free_cpu_locked_tensor(self, tensor):
        return _ds.async_io_free_locked(tensor)

    def is_pinned(self, tensor):
        return _ds.async_io_is_locked(tensor) or (torch.cuda.is_available() and tensor.is_pinned())


def aio_read(buffer, filename, block_size, queue_depth, single_submit, overlap_events, validate):
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).read(
        buffer, filename, validate)


def aio_write(buffer, filename, block_size, queue_depth, single_submit, overlap_events, validate):
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(
        buffer, filename, validate)


def deepspeed_memcpy(dest, src):
    """Copies the bytes; both are contiguous and of one size."""
    if not (dest.is_contiguous() and src.is_contiguous()):
        raise ValueError("deepspeed_memcpy: both tensors must be contiguous")
    if dest.numel() * dest.element_size() != src.numel() * src.element_size():
        raise ValueError("deepspeed_memcpy: the tensors have different sizes in bytes")
    dest.detach().reshape(-1).view(torch.uint8).copy_(src.detach().reshape(-1).view(torch.uint8))
    return 0
