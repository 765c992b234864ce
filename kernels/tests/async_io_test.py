"""torch.classes.ds.AsyncIo, torch.ops.ds.async_io_* and the modules with DeepSpeed's names."""

import errno
import gc
import importlib.util
import os
import pathlib
import random
import shutil
import tempfile
import threading
import time
import unittest

import torch

LIBRARY = os.environ["DS_OPS_BINARY_DIR"] + "/ds_async_io/libds_async_io.so"
BUILT = os.path.exists(LIBRARY)
if BUILT:
    torch.ops.load_library(LIBRARY)
ds = torch.ops.ds


def module(name):
    folder = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def engines():
    for name in ("io_uring", "libaio", "posix"):
        try:
            torch.classes.ds.AsyncIo(4096, 4, 1, name)
            yield name
        except RuntimeError:
            pass


@unittest.skipUnless(BUILT, "the op is not built")
class InFolder(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        # The working folder is on a disk; /tmp may be in memory.
        self.dir = tempfile.mkdtemp(prefix="ds-aio-", dir=".")
        self.addCleanup(shutil.rmtree, self.dir)

    def file(self, name="f"):
        return os.path.join(self.dir, name)

    def content(self, name="f"):
        with open(self.file(name), "rb") as file:
            return file.read()

    def raw(self, tensor):
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Clean(InFolder):
    def test_tensors_of_every_dtype_and_shape_come_back(self):
        for engine in engines():
            io = torch.classes.ds.AsyncIo(65536, 8, 2, engine)
            self.assertEqual(io.engine(), engine)
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool):
                for shape in ((), (0,), (1,), (3, 5), (70_001,), (513, 512)):
                    x = (torch.randn(shape) * 100).to(dtype)
                    if os.path.exists(self.file()):
                        os.remove(self.file())
                    io.write(x, self.file(), 0)
                    self.assertEqual(self.content(), self.raw(x) if x.numel() else b"")
                    y = torch.zeros_like(x)
                    io.read_(y, self.file())
                    self.assertTrue(torch.equal(x, y))

    def test_parts_of_a_file_at_random_offsets_agree_with_plain_reads(self):
        rng = random.Random(1)
        for engine in engines():
            io = torch.classes.ds.AsyncIo(8192, 4, 2, engine)
            image = bytearray(os.urandom(300_000))
            with open(self.file(), "wb") as file:
                file.write(image)
            for _ in range(20):
                kept = []
                for _ in range(8):
                    begin = rng.randrange(250_000)
                    x = torch.randint(0, 256, (rng.choice([1, 500, 4096, 50_000]),),
                                      dtype=torch.uint8)
                    kept.append((begin, x))
                    io.submit_write(x, self.file(), begin)
                    self.assertEqual(io.wait(), 1)
                    image[begin:begin + x.numel()] = x.numpy().tobytes()
                self.assertEqual(self.content(), bytes(image))
                outs = []
                for _ in range(8):
                    begin = rng.randrange(200_000)
                    out = torch.zeros(rng.randrange(100_000), dtype=torch.uint8)
                    io.submit_read_(out, self.file(), begin)
                    outs.append((begin, out))
                self.assertEqual(io.wait(), 8)
                for begin, out in outs:
                    self.assertEqual(out.numpy().tobytes(), bytes(image[begin:begin + out.numel()]))

    def test_what_is_not_contiguous_is_written_in_order_and_read_into(self):
        io = torch.classes.ds.AsyncIo()
        x = torch.randn(40, 30)
        io.write(x.t(), self.file())
        self.assertEqual(self.content(), self.raw(x.t()))
        for read, wait in ((io.read_, lambda: None), (io.submit_read_, io.wait)):
            y = torch.zeros(40, 60)
            read(y[:, ::2].t(), self.file())
            wait()
            self.assertTrue(torch.equal(y[:, ::2], x))
            self.assertEqual(y[:, 1::2].abs().sum().item(), 0)

    def test_the_functions_need_no_object(self):
        x = torch.randn(1000)
        ds.async_io_write(x, self.file(), offset=8)
        self.assertEqual(ds.async_io_file_size(self.file()), 4008)
        y = torch.zeros(500)
        version = y._version
        ds.async_io_read_(y, self.file(), offset=8 + 2000)
        self.assertTrue(torch.equal(y, x[500:]))
        self.assertGreater(y._version, version)

    def test_a_tensor_in_flight_needs_no_other_owner(self):
        io = torch.classes.ds.AsyncIo(4096, 2)
        for i in range(50):
            io.submit_write(torch.full((50_000,), float(i)), self.file(str(i)))
            gc.collect()
        self.assertEqual(io.wait(), 50)
        for i in range(50):
            self.assertEqual(self.content(str(i)), self.raw(torch.full((50_000,), float(i))))

    def test_other_Python_threads_run_while_one_waits(self):
        io = torch.classes.ds.AsyncIo(4096, 1, 1, "posix")
        x = torch.zeros(20_000_000, dtype=torch.uint8)
        io.submit_write(x, self.file())
        ended = threading.Event()
        turns = []

        def count():
            while not ended.is_set():
                turns.append(time.monotonic())
                time.sleep(0)

        thread = threading.Thread(target=count)
        thread.start()
        begin = time.monotonic()
        io.wait()
        end = time.monotonic()
        ended.set()
        thread.join()
        self.assertTrue(any(begin < turn < end for turn in turns))

    def test_failures_name_operation_file_offset_and_reason(self):
        io = torch.classes.ds.AsyncIo()
        x = torch.zeros(100)
        with self.assertRaisesRegex(RuntimeError, r"cannot open \".*none\".*No such file.*errno 2"):
            io.read_(x, self.file("none"))
        io.write(x, self.file())
        io.submit_read_(x, self.file(), 1)
        with self.assertRaisesRegex(RuntimeError, r"400 bytes at offset 1 of .*ends at byte 400"):
            io.wait()
        self.assertEqual(io.wait(), 0)
        with self.assertRaisesRegex(RuntimeError, "sparse"):
            io.write(torch.eye(3).to_sparse(), self.file())
        for arguments in ((0,), (4096, 0), (4096, 1, 0), (4096, 1, 1, "magic")):
            with self.assertRaises((RuntimeError, ValueError)):
                torch.classes.ds.AsyncIo(*arguments)

    def test_locked_tensors_are_locked_and_stay_valid_after_they_are_freed(self):
        like = torch.zeros(1, dtype=torch.bfloat16)
        x = ds.async_io_new_locked(10_000, like)
        self.assertEqual((x.dtype, x.shape), (torch.bfloat16, (10_000,)))
        self.assertTrue(ds.async_io_is_locked(x))
        self.assertTrue(ds.async_io_is_locked(x[500:]))
        self.assertFalse(ds.async_io_is_locked(torch.zeros(3)))
        x.fill_(3)
        ds.async_io_write(x, self.file())
        self.assertEqual(self.content(), self.raw(x))
        self.assertTrue(ds.async_io_free_locked(x))
        self.assertFalse(ds.async_io_free_locked(x))
        self.assertFalse(ds.async_io_is_locked(x))
        self.assertEqual(x.float().sum().item(), 30_000)


class AsDeepSpeed(InFolder):
    def setUp(self):
        super().setUp()
        self.aio = module("async_io")

    def test_the_handle_has_the_defaults_and_getters(self):
        handle = self.aio.aio_handle()
        self.assertEqual(
            (handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(),
             handle.get_overlap_events(), handle.get_intra_op_parallelism()),
            (1024 * 1024, 128, False, False, 1))
        handle = self.aio.aio_handle(block_size=4096, queue_depth=3, single_submit=True,
                                     overlap_events=True, intra_op_parallelism=2)
        self.assertEqual(
            (handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(),
             handle.get_overlap_events(), handle.get_intra_op_parallelism(),
             handle.get_alignment()), (4096, 3, True, True, 2, 1024))
        self.assertIn(handle.get_engine(), ("io_uring", "libaio", "posix"))

    def test_every_form_of_read_and_write_returns_what_DeepSpeed_returns(self):
        for single in (False, True):
            for threads in (1, 2, 3):
                handle = self.aio.aio_handle(65536, 4, single, True, threads)
                x = torch.randn(100_003)
                y = torch.zeros_like(x)
                self.assertEqual(handle.sync_pwrite(x, self.file()), 1)
                self.assertEqual(handle.sync_pread(y, self.file()), 1)
                self.assertTrue(torch.equal(x, y))
                self.assertEqual(handle.write(x + 1, self.file(), False), 0)
                self.assertEqual(handle.read(y, self.file(), True), 0)
                self.assertTrue(torch.equal(x + 1, y))
                self.assertEqual(handle.pwrite(x, self.file(), True, False), 1)
                self.assertEqual(handle.pread(y, self.file(), True, False, 0), 1)
                self.assertTrue(torch.equal(x, y))
                self.assertEqual(handle.pwrite(x + 2, self.file("g"), True, True, 4), 0)
                self.assertEqual(handle.async_pwrite(x + 3, self.file("h")), 0)
                self.assertEqual(handle.wait(), 2)
                z = torch.zeros_like(x)
                self.assertEqual(handle.async_pread(y, self.file("h"), 0), 0)
                self.assertEqual(
                    handle.pread(z, self.file("g"), file_offset=4,
                                 **{"validate": True, "async": True}), 0)
                self.assertEqual(handle.wait(), 2)
                self.assertTrue(torch.equal(x + 3, y))
                self.assertTrue(torch.equal(x + 2, z))

    def test_a_descriptor_is_written_at_offsets(self):
        handle = self.aio.aio_handle()
        fd = os.open(self.file(), os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        x = torch.randn(10_000)
        self.assertEqual(handle.async_pwrite(x, fd, 0), 0)
        self.assertEqual(handle.async_pwrite(x, fd=fd, file_offset=40_000), 0)
        os.close(fd)
        self.assertEqual(handle.wait(), 2)
        self.assertEqual(self.content(), self.raw(x) * 2)
        with self.assertRaises(OSError) as raised:
            handle.async_pwrite(x, fd)
        self.assertEqual(raised.exception.errno, errno.EBADF)

    def test_locked_tensors(self):
        handle = self.aio.aio_handle()
        pins = module("pin_memory").pin_handle()
        x = handle.new_cpu_locked_tensor(5000, example_tenosr=torch.empty(0, dtype=torch.float16))
        self.assertEqual((x.numel(), x.dtype), (5000, torch.float16))
        self.assertTrue(handle.is_pinned(x) and pins.is_pinned(x))
        x.fill_(2)
        handle.sync_pwrite(x, self.file())
        y = pins.new_cpu_locked_tensor(5000, x)
        handle.sync_pread(y, self.file())
        self.assertTrue(torch.equal(x, y))
        self.assertTrue(handle.free_cpu_locked_tensor(x))
        self.assertFalse(handle.free_cpu_locked_tensor(x))
        self.assertTrue(pins.free_cpu_locked_tensor_by_ptr(y.data_ptr()))
        self.assertFalse(pins.free_cpu_locked_tensor(y))
        self.assertFalse(handle.is_pinned(y))

    def test_failures_are_OSError_with_errno_and_file(self):
        handle = self.aio.aio_handle()
        x = torch.zeros(100)
        with self.assertRaises(FileNotFoundError) as raised:
            handle.sync_pread(x, self.file("none"))
        self.assertEqual(raised.exception.filename, self.file("none"))
        handle.async_pread(x, self.file("none"))
        with self.assertRaises(FileNotFoundError) as raised:
            handle.wait()
        self.assertEqual(raised.exception.filename, self.file("none"))
        handle.sync_pwrite(x, self.file())
        with self.assertRaises(OSError) as raised:
            handle.sync_pread(torch.zeros(101), self.file())
        self.assertEqual(raised.exception.errno, errno.ENODATA)
        with self.assertRaises(TypeError):
            handle.pread(x, self.file(), False)

    def test_the_functions_read_write_and_copy(self):
        x = torch.randn(12_345)
        y = torch.zeros_like(x)
        self.assertEqual(self.aio.aio_write(x, self.file(), 4096, 8, False, True, True), 0)
        self.assertEqual(self.aio.aio_read(y, self.file(), 4096, 8, True, False, True), 0)
        self.assertTrue(torch.equal(x, y))
        self.assertEqual(self.aio.deepspeed_memcpy(y, x + 1), 0)
        self.assertTrue(torch.equal(x + 1, y))
        with self.assertRaises(ValueError):
            self.aio.deepspeed_memcpy(y, x[1:])

    def test_a_thousand_files_at_once_and_a_file_of_no_bytes(self):
        handle = self.aio.aio_handle()
        xs = [torch.full((i,), float(i)) for i in range(1000)]
        for i, x in enumerate(xs):
            handle.async_pwrite(x, self.file(str(i)))
        self.assertEqual(handle.wait(), 1000)
        ys = [torch.zeros_like(x) for x in xs]
        for i, y in enumerate(ys):
            handle.async_pread(y, self.file(str(i)))
        self.assertEqual(handle.wait(), 1000)
        self.assertTrue(all(map(torch.equal, xs, ys)))
        self.assertEqual(self.content("0"), b"")


if __name__ == "__main__":
    unittest.main()
