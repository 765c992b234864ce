"""torch.ops.ds.ccl_comm_* between processes, and the module with DeepSpeed's names, used as
deepspeed/comm/ccl.py uses it. Through shared memory; ccl_comm_test.cc has oneCCL, too."""

import enum
import io
import logging
import os
import unittest

import torch

from ranks import load_op, module, run_ranks

BUILT = load_op("ccl_comm")
ds = torch.ops.ds
os.environ["DS_CCL_BACKEND"] = "shm"


class ReduceOp(enum.Enum):
    """As in deepspeed/comm/reduce_op.py."""
    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    AVG = 7


@unittest.skipUnless(BUILT, "the op is not built")
class CclComm(unittest.TestCase):
    def run_ranks(self, size, body):
        """body(rank, share) in a process each; share(data) gives all what the first rank has."""
        pipes = [os.pipe() for _ in range(size)]

        def share(rank, data):
            """From the lowest rank that has some to all others."""
            if any(data):
                for other in range(size):
                    if other != rank:
                        os.write(pipes[other][1], bytes(data))
                return torch.tensor(data).to(torch.uint8)
            got = b""
            while len(got) < len(data):
                got += os.read(pipes[rank][0], len(data) - len(got))
            return torch.tensor(list(got)).to(torch.uint8)

        run_ranks(self, size, lambda rank: body(rank, lambda data: share(rank, data)))
        for ends in pipes:
            for end in ends:
                os.close(end)

    def test_the_ops(self):
        def body(rank, share):
            made = share(list(ds.ccl_comm_new_id()) if rank == 0 else [0] * 4608)
            group = ds.ccl_comm_open(made.tolist(), rank, 2, timeout=100.0)
            self.assertEqual((ds.ccl_comm_rank(group), ds.ccl_comm_size(group)), (rank, 2))
            self.assertEqual(ds.ccl_comm_backend(group), "shared memory")
            self.assertEqual(ds.ccl_comm_why_not_oneccl(), "DS_CCL_BACKEND is shm")
            x = torch.arange(12.0).view(3, 4).t() + rank  # Not contiguous.
            ds.ccl_comm_all_reduce_(x, group)
            self.assertTrue(torch.equal(x, torch.arange(12.0).view(3, 4).t() * 2 + 1))
            ds.ccl_comm_all_reduce_(x, group, "max")
            parts = ds.ccl_comm_all_gather(torch.tensor([rank, 7]), group)
            self.assertEqual(parts.tolist(), [[0, 7], [1, 7]])
            y = torch.tensor(float(rank))
            ds.ccl_comm_broadcast_(y, 1, group)
            self.assertEqual(y.item(), 1.0)
            meta = torch.empty(5, device="meta")
            ds.ccl_comm_all_reduce_(meta, group)
            self.assertEqual(ds.ccl_comm_all_gather(meta, group).shape, (2, 5))
            ds.ccl_comm_barrier(group)
            ds.ccl_comm_close(group)
        self.run_ranks(2, body)

    def test_what_does_not_fit_is_refused(self):
        group = ds.ccl_comm_open(ds.ccl_comm_new_id(), 0, 1)
        x = torch.ones(3)
        for text, call in (("are no id", lambda: ds.ccl_comm_open([1, 2], 0, 1)),
                           ("rank 1 of 1", lambda: ds.ccl_comm_open(ds.ccl_comm_new_id(), 1, 1)),
                           ("no group 77", lambda: ds.ccl_comm_all_reduce_(x, 77)),
                           ("sum, product, min or max",
                            lambda: ds.ccl_comm_all_reduce_(x, group, "avg")),
                           ("from rank 3 of 1", lambda: ds.ccl_comm_broadcast_(x, 3, group))):
            with self.assertRaisesRegex((RuntimeError, ValueError), text):
                call()
        ds.ccl_comm_close(group)

    def test_the_module_has_the_names_of_DeepSpeed(self):
        def body(rank, share):
            said = io.StringIO()
            logging.getLogger().addHandler(logging.StreamHandler(said))
            ccl = module("deepspeed_ccl_comm")
            with self.assertRaisesRegex(RuntimeError, "initialize comes first"):
                ccl.barrier([], False)
            kvs = share(ccl.get_kvs_addr(rank))
            ccl.initialize(3, rank, kvs)
            ccl.initialize(3, rank, kvs)
            self.assertEqual(said.getvalue().count("shared memory, not oneCCL"), int(rank == 0))
            self.assertEqual((ccl.get_rank(), ccl.get_world_size()), (rank, 3))
            world = [0, 1, 2]
            for op, want in ((ReduceOp.SUM, 6), (ReduceOp.PRODUCT, 6), (ReduceOp.MIN, 1),
                             (ReduceOp.MAX, 3)):
                for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64,
                              torch.int32, torch.int64):
                    x = torch.full((5,), rank + 1, dtype=dtype)
                    ccl.all_reduce(x, op, world, False)
                    self.assertEqual(x.tolist(), [want] * 5)
            flags = torch.tensor([rank == 1, False])
            ccl.all_reduce(flags, ReduceOp.SUM, world, True)
            self.assertEqual(flags.tolist(), [True, False])
            x = torch.full((5,), float(rank))
            ccl.inference_all_reduce(x, ReduceOp.SUM)
            self.assertEqual(x.tolist(), [3.0] * 5)
            ccl.all_reduce_caching(x, ReduceOp.SUM, "name", world, False)
            self.assertEqual(x.tolist(), [9.0] * 5)
            for op in (ReduceOp.AVG, ReduceOp.BAND):
                with self.assertRaisesRegex(RuntimeError, "SUM, PRODUCT, MIN or MAX"):
                    ccl.all_reduce(x, op, world, False)
            x = torch.tensor([rank])
            ccl.broadcast(x, 2, world, False)
            self.assertEqual(x.item(), 2)
            with self.assertRaisesRegex(RuntimeError, "no group of the ranks"):
                ccl.barrier([1, 2], False)
            sub = share(ccl.get_sub_kvs_addr(rank == 1))
            if rank > 0:
                ccl.initialize_sub_comm(2, [1, 2].index(rank), sub, [1, 2])
                x = torch.tensor([float(rank)])
                ccl.all_reduce(x, ReduceOp.SUM, [1, 2], False)
                self.assertEqual(x.item(), 3.0)
                ccl.barrier([1, 2], False)
            for name in ccl.get_available_coll():
                self.assertTrue(callable(getattr(ccl, name)))
            ccl.barrier(world, False)
        self.run_ranks(3, body)


if __name__ == "__main__":
    unittest.main()
