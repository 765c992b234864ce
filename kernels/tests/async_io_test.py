"""torch.classes.ds.AsyncIo, torch.ops.ds.async_io_* and the modules with DeepSpeed's names."""

import errno
import fcntl
import gc
import importlib
import importlib.util
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest

import torch

LIBRARY = os.environ["DS_OPS_BINARY_DIR"] + "/ds_async_io/libds_async_io.so"
BUILT = os.path.exists(LIBRARY)
if BUILT:
    torch.ops.load_library(LIBRARY)
ds = torch.ops.ds


def module(name):
    """Of the folder as a package of its own: ds_ops itself wants to be installed."""
    package = "ds_ops_deepspeed"
    if package not in sys.modules:
        folder = pathlib.Path(os.environ["DS_KERNELS_DIR"]) / "python" / "ds_ops" / "deepspeed"
        spec = importlib.util.spec_from_file_location(package, folder / "__init__.py",
                                                      submodule_search_locations=[str(folder)])
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


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
        # Who opens a file that is leased to another waits until it is given up, or 45 seconds.
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGIO, before)
        with open(self.file(), "wb"):
            pass
        lease = os.open(self.file(), os.O_RDONLY)
        self.addCleanup(os.close, lease)
        try:
            fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            self.skipTest(f"no leases on this file system: {error}")
        about_to_wait = threading.Event()
        given_up = []

        def give_up():
            about_to_wait.wait()
            time.sleep(0.05)
            given_up.append(True)
            fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        io = torch.classes.ds.AsyncIo(4096, 1, 1, "posix")
        io.submit_write(torch.zeros(10), self.file())
        thread = threading.Thread(target=give_up)
        thread.start()
        about_to_wait.set()
        self.assertEqual(io.wait(), 1)
        self.assertTrue(given_up, "wait() kept the other thread from running")
        thread.join()

    def test_a_failed_read_leaves_its_tensor_and_the_others_arrive(self):
        io = torch.classes.ds.AsyncIo()
        x = torch.randn(40, 30)
        io.write(x, self.file())
        kept, whole = torch.full((40, 60), 7.0), torch.zeros(40, 60)
        one = torch.zeros(1)
        version = whole._version
        io.submit_read_(kept[:, ::2], self.file("none"))
        io.submit_read_(one.expand(1200), self.file())  # Which torch refuses to copy to.
        io.submit_read_(whole[:, ::2], self.file())
        with self.assertRaisesRegex(RuntimeError, "No such file"):
            io.wait()
        self.assertTrue(torch.equal(kept, torch.full((40, 60), 7.0)))
        self.assertTrue(torch.equal(whole[:, ::2], x))
        self.assertGreater(whole._version, version)
        io.submit_read_(one.expand(1200), self.file())
        io.submit_read_(whole[:, 1::2], self.file())
        with self.assertRaisesRegex(RuntimeError, "single memory location"):
            io.wait()
        self.assertTrue(torch.equal(whole[:, 1::2], x))
        self.assertEqual(io.wait(), 0)

    def test_fake_and_meta_tensors_touch_no_file_and_lock_nothing(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        x = torch.randn(100)
        ds.async_io_write(x, self.file())

        def trace(like):
            ds.async_io_write(like, self.file(), offset=0)
            ds.async_io_write(like, self.file("new"), offset=0)
            ds.async_io_read_(like, self.file("none"), offset=0)
            self.assertFalse(ds.async_io_is_locked(like))
            self.assertFalse(ds.async_io_free_locked(like))
            locked = ds.async_io_new_locked(1 << 50, like)
            self.assertEqual((locked.shape, locked.dtype), ((1 << 50,), like.dtype))

        for options in ({}, {"requires_grad": True}):
            with FakeTensorMode():
                trace(torch.zeros(50, **options))
            trace(torch.zeros(50, device="meta", **options))
        self.assertEqual(self.content(), self.raw(x))
        self.assertEqual(os.listdir(self.dir), ["f"])

    def test_a_child_of_fork_reads_and_writes_too(self):
        x = torch.randn(500_000)  # More than a block: by a thread.
        y = torch.zeros_like(x)
        ds.async_io_write(x, self.file())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                ds.async_io_read_(y, self.file())
                ds.async_io_write(y, self.file("child"))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.content("child"), self.raw(x))
        ds.async_io_read_(y, self.file("child"))
        self.assertTrue(torch.equal(x, y))

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

    def test_the_synchronous_forms_finish_and_count_what_is_pending(self):
        handle = self.aio.aio_handle(4096, 4)
        x = torch.randn(100_003)
        handle.sync_pwrite(x, self.file())
        y, z = torch.zeros(2, 100_003)
        for now in (lambda: handle.sync_pread(z, self.file()),
                    lambda: handle.pread(z, self.file(), False, False),
                    lambda: handle.sync_pwrite(x, self.file("g")),
                    lambda: handle.pwrite(x, self.file("g"), True, False)):
            y.zero_()
            handle.async_pread(y, self.file())
            handle.async_pwrite(x, self.file("h"))
            self.assertEqual(now(), 3)
            self.assertTrue(torch.equal(x, y))
            self.assertEqual(self.content("h"), self.raw(x))
            self.assertEqual(handle.wait(), 0)
        self.assertTrue(torch.equal(x, z))
        self.assertEqual(self.content("g"), self.raw(x))

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
        for lock in (handle.new_cpu_locked_tensor, pins.new_cpu_locked_tensor):
            with self.assertRaises(OSError) as raised:
                lock(1 << 60, x)
            self.assertEqual(raised.exception.errno, errno.ENOMEM)

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
