"""torch.ops.ds.shm_comm_* between processes, and the module with DeepSpeed's names."""

import os
import signal
import tempfile
import unittest

import torch

from ranks import load_op, module, run_ranks

BUILT = load_op("shm_comm")
ds = torch.ops.ds

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8,
          torch.int32, torch.int64)


def numbers(rank, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + rank)
    return (torch.randn(shape, generator=generator) * 50).to(dtype)


def added(parts):
    """In order of ranks, 16-bit types in float and rounded once."""
    wide = torch.float32 if parts[0].dtype in (torch.float16, torch.bfloat16) else parts[0].dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    return total.to(parts[0].dtype)


@unittest.skipUnless(BUILT, "the op is not built")
class ShmComm(unittest.TestCase):
    def with_group(self, size, body, **options):
        name = ds.shm_comm_new_name()

        def run(rank):
            group = ds.shm_comm_open(name, rank, size, timeout=100.0)
            self.assertEqual((ds.shm_comm_rank(group), ds.shm_comm_size(group)), (rank, size))
            body(rank, group)
            ds.shm_comm_close(group)
        run_ranks(self, size, run, **options)

    def test_all_reduce_of_every_dtype(self):
        def body(rank, group):
            for dtype in DTYPES:
                for count in (0, 1, 33, 1000, 200_001):
                    parts = [numbers(r, count, dtype=dtype) for r in range(3)]
                    mine = parts[rank].clone()
                    ds.shm_comm_all_reduce_(mine, group)
                    self.assertTrue(torch.equal(mine, added(parts)), (dtype, count))
        self.with_group(3, body)

    def test_all_reduce_leaves_its_argument_alone_unless_its_name_ends_in_an_underscore(self):
        def body(rank, group):
            mine = numbers(rank, 4, 5)
            total = ds.shm_comm_all_reduce(mine, group)
            self.assertTrue(torch.equal(mine, numbers(rank, 4, 5)))
            self.assertTrue(torch.equal(total, added([numbers(r, 4, 5) for r in range(2)])))
            self.assertTrue(total.is_contiguous())
            for op, want in (("min", torch.minimum), ("max", torch.maximum),
                             ("product", torch.mul)):
                got = ds.shm_comm_all_reduce(mine, group, op)
                self.assertTrue(torch.equal(got, want(numbers(0, 4, 5), numbers(1, 4, 5))))
            flags = torch.tensor([False, False, True, True]), torch.tensor([False, True] * 2)
            self.assertTrue(torch.equal(ds.shm_comm_all_reduce(flags[rank], group),
                                        flags[0] | flags[1]))
            self.assertTrue(torch.equal(ds.shm_comm_all_reduce(flags[rank], group, "product"),
                                        flags[0] & flags[1]))
        self.with_group(2, body)

    def test_what_is_not_contiguous_gets_the_result_too(self):
        def body(rank, group):
            want = added([numbers(r, 30, 40) for r in range(2)])
            # Laid out differently on each rank.
            mine = numbers(rank, 30, 40) if rank == 0 else numbers(rank, 30, 40).t().contiguous().t()
            ds.shm_comm_all_reduce_(mine, group)
            self.assertTrue(torch.equal(mine, want))
            wide = torch.zeros(60, 80)
            wide[::2, 1::2] = numbers(rank, 30, 40)
            ds.shm_comm_all_reduce_(wide[::2, 1::2], group)
            self.assertTrue(torch.equal(wide[::2, 1::2], want))
            self.assertEqual(wide[1::2].abs().sum(), 0)
            negated = torch.complex(torch.zeros(30, 40), -numbers(rank, 30, 40)).conj().imag
            self.assertTrue(negated.is_neg())
            ds.shm_comm_all_reduce_(negated, group)
            self.assertTrue(torch.equal(negated, want))
            strided = torch.zeros(8, 2)[:, 0]
            strided.fill_(rank + 5)
            ds.shm_comm_broadcast_(strided, 1, group)
            self.assertTrue(torch.equal(strided, torch.full((8,), 6.0)))
        self.with_group(2, body)

    def test_all_gather_and_broadcast_and_barrier(self):
        def body(rank, group):
            for shape in ((), (0,), (3, 5), (70_001,)):
                for dtype in DTYPES + (torch.bool, torch.complex64):
                    parts = [numbers(r, *shape, dtype=dtype) for r in range(3)]
                    got = ds.shm_comm_all_gather(parts[rank], group)
                    self.assertTrue(torch.equal(got, torch.stack(parts)), (shape, dtype))
                    mine = parts[rank].clone()
                    ds.shm_comm_broadcast_(mine, 2, group)
                    self.assertTrue(torch.equal(mine, parts[2]))
            ds.shm_comm_barrier(group)
        self.with_group(3, body)

    def test_a_rank_that_dies_is_an_error(self):
        def body(rank, group):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with self.assertRaisesRegex(RuntimeError, r"rank 1 .* has died: .* \[errno 104\]"):
                while True:
                    ds.shm_comm_all_reduce_(torch.ones(10), group)
        self.with_group(2, body, killed=(1,))

    def test_what_does_not_fit_is_refused_before_anything_is_sent(self):
        group = ds.shm_comm_open(ds.shm_comm_new_name(), 0, 1)
        x = torch.ones(3)
        for text, call in (
                ("no reduction of ComplexFloat",
                 lambda: ds.shm_comm_all_reduce_(x.to(torch.complex64), group)),
                ("it can be sum, product, min or max",
                 lambda: ds.shm_comm_all_reduce_(x, group, "mean")),
                ("dense tensors", lambda: ds.shm_comm_all_reduce_(x.to_sparse(), group)),
                ("more than one element|single memory location",
                 lambda: ds.shm_comm_all_reduce_(x[:1].expand(3), group)),
                ("from rank 1 of 1", lambda: ds.shm_comm_broadcast_(x, 1, group)),
                ("no group 987654", lambda: ds.shm_comm_all_reduce_(x, 987654)),
                ("no group 987654", lambda: ds.shm_comm_close(987654)),
                ("rank 2 of 2", lambda: ds.shm_comm_open("a", 2, 2)),
                ("rank .* of 2", lambda: ds.shm_comm_open("a", 1 << 40, 2)),
                ("is no name", lambda: ds.shm_comm_open("a/b", 0, 1)),
                ("time limit", lambda: ds.shm_comm_open("a", 0, 1, timeout=0.0)),
                ("rank 0 has not come", lambda: ds.shm_comm_open("a", 1, 2, timeout=0.05))):
            with self.assertRaisesRegex((RuntimeError, ValueError), text):
                call()
        self.assertTrue(torch.equal(ds.shm_comm_all_reduce(x, group), x))
        ds.shm_comm_close(group)
        with self.assertRaisesRegex((RuntimeError, ValueError), "no group"):
            ds.shm_comm_barrier(group)

    def test_autograd_notices_that_a_tensor_changed(self):
        group = ds.shm_comm_open(ds.shm_comm_new_name(), 0, 1)
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        z = (y * y).sum()
        ds.shm_comm_all_reduce_(y, group)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            z.backward()
        ds.shm_comm_close(group)

    def test_fake_and_meta_tensors_have_the_shapes_and_send_nothing(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        def body(rank, group):
            def check(device):
                x = torch.empty(4, 5, device=device, dtype=torch.bfloat16)
                ds.shm_comm_all_reduce_(x, group)
                ds.shm_comm_broadcast_(x, 0, group)
                total, all_of_them = ds.shm_comm_all_reduce(x, group), ds.shm_comm_all_gather(x, group)
                self.assertEqual((total.shape, total.dtype), (x.shape, x.dtype))
                self.assertEqual((all_of_them.shape, all_of_them.dtype), ((2, 4, 5), x.dtype))
            if rank == 0:  # The other rank does not take part.
                check("meta")
                with FakeTensorMode():
                    check("cpu")
            ds.shm_comm_barrier(group)
        self.with_group(2, body)

    def test_a_graph_of_it_sends_what_it_is_given(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        def body(rank, group):
            graph = make_fx(lambda x: ds.shm_comm_all_reduce(x, group) + 1)(torch.ones(3))
            got = graph(torch.full((3,), float(rank)))
            self.assertTrue(torch.equal(got, torch.full((3,), 2.0)))
        self.with_group(2, body)


@unittest.skipUnless(BUILT, "the op is not built")
class DeepSpeed(unittest.TestCase):
    def use(self, rank, size):
        """As deepspeed/comm/torch.py does."""
        shm = module("deepspeed_shm_comm")
        self.assertFalse(hasattr(torch.ops.deepspeed, "inference_all_reduce_"))
        shm.initialize(size, rank)
        shm.initialize(size, rank)
        self.assertEqual(shm.vector_kernel_level(), 2)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
            self.assertFalse(shm.inference_all_reduce_op_fallback_p(torch.ones(1, dtype=dtype)))
            parts = [numbers(r, 3, 7, dtype=dtype) for r in range(size)]
            mine = parts[rank].clone()
            got = torch.ops.deepspeed.inference_all_reduce_(mine)
            self.assertEqual(got.data_ptr(), mine.data_ptr())
            self.assertTrue(torch.equal(mine, added(parts)))
            got = torch.ops.deepspeed.inference_all_reduce(parts[rank])
            self.assertTrue(torch.equal(got, added(parts)))
            # There, the result of such a tensor is lost.
            mine = parts[rank].t().contiguous().t()
            torch.ops.deepspeed.inference_all_reduce_(mine)
            self.assertTrue(torch.equal(mine, added(parts)))
        fake = torch.ops.deepspeed.inference_all_reduce(torch.empty(3, device="meta"))
        self.assertEqual(fake.shape, (3,))

    def test_with_the_variables_of_a_launcher(self):
        def body(rank):
            os.environ.update(LOCAL_SIZE="2", MASTER_ADDR="::1", MASTER_PORT=str(os.getppid()))
            self.use(rank, 2)
        run_ranks(self, 2, body)

    def in_distributed(self, body):
        with tempfile.TemporaryDirectory() as folder:
            def run(rank):
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
                body(rank)
            run_ranks(self, 2, run)

    def test_with_torch_distributed(self):
        self.in_distributed(lambda rank: self.use(rank, 2))

    def test_ranks_on_several_hosts_are_left_to_torch_distributed(self):
        def body(rank):
            shm = module("deepspeed_shm_comm")

            class Elsewhere:
                shm_comm_new_name = staticmethod(ds.shm_comm_new_name)

                @staticmethod
                def shm_comm_host():
                    return f"host {rank}"
            shm._ds = Elsewhere
            shm.initialize(2, rank)
            self.assertFalse(hasattr(torch.ops.deepspeed, "inference_all_reduce_"))
            self.assertTrue(shm.inference_all_reduce_op_fallback_p(torch.ones(1)))
        self.in_distributed(body)

    def test_a_program_without_mutation_has_the_same_result(self):
        def body(rank):
            os.environ.update(LOCAL_SIZE="2", MASTER_ADDR="a", MASTER_PORT=str(os.getppid()))
            module("deepspeed_shm_comm").initialize(2, rank)
            x = torch.full((4,), float(rank + 1))
            functional = torch._to_functional_tensor(x)
            torch._enable_functionalization(reapply_views=True)
            try:
                result = torch.ops.deepspeed.inference_all_reduce_(functional) * 2
            finally:
                torch._disable_functionalization()
            torch._sync(result)
            self.assertTrue(torch.equal(torch._from_functional_tensor(result), torch.full((4,), 6.0)))
        run_ranks(self, 2, body)


if __name__ == "__main__":
    unittest.main()
