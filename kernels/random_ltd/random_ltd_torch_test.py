"""random_ltd through torch, on the CPU and on CUDA where both are there: layouts, autograd,
torch.compile, graphs, streams, errors."""

import glob
import os
import unittest

import torch

for library in glob.glob(os.environ["DS_OPS_BINARY_DIR"] + "/ds_random_ltd/libds_*.so"):
    torch.ops.load_library(library)
ds = torch.ops.ds

HAVE = torch.cuda.is_available() and torch._C._dispatch_has_kernel_for_dispatch_key(
    "ds::token_gather", "CUDA")
N, S, R, C = 3, 50, 20, 24
# On the CPU what is compared is what a graph makes of the op, not what a compiler makes of the rest.
BACKEND = {"cpu": "aot_eager", "cuda": "inductor"}


def spread(idx, batch_first):
    """The indices as torch.gather wants them."""
    wide = (idx if batch_first else idx.t()).long()
    return wide[:, :, None].expand(-1, -1, C)


class Functions:
    """What holds on every device."""

    def setUp(self):
        torch.manual_seed(0)

    def indices(self, rows=N, tokens=S, kept=R):
        picked = torch.stack([torch.randperm(tokens)[:kept] for _ in range(rows)])
        return picked.sort(dim=1).values.int().to(self.device)

    def activations(self, batch_first, tokens=S, dtype=torch.float32):
        shape = (N, tokens, C) if batch_first else (tokens, N, C)
        return torch.randn(shape, device=self.device).to(dtype)

    def test_ids_are_sorted_in_place_at_any_length(self):
        for tokens, kept in ((4096, 2048), (4097, 4000), (100000, 70000)):
            ids = torch.stack([torch.randperm(tokens, device=self.device)[:kept] for _ in range(6)])
            ids = ids.int().view(3, 2, kept)
            want = ids.sort(dim=-1).values
            self.assertIsNone(ds.token_sort_(ids, tokens))
            self.assertTrue(torch.equal(ids, want))

    def test_gather_and_scatter_are_those_of_torch_in_every_dtype_and_layout(self):
        for batch_first in (True, False):
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.float64):
                x, idx = self.activations(batch_first, dtype=dtype), self.indices()
                dim, where = (1 if batch_first else 0), spread(idx, batch_first)
                got = ds.token_gather(x, idx, batch_first)
                self.assertTrue(torch.equal(got, x.gather(dim, where)))
                layer = self.activations(batch_first, R, dtype)
                want = x.scatter(dim, where, layer)
                self.assertTrue(torch.equal(ds.token_scatter(x, layer, idx, batch_first), want))
                version = x._version
                ds.token_scatter_(x, layer, idx, batch_first)
                self.assertTrue(torch.equal(x, want))
                self.assertGreater(x._version, version)

    def test_strided_activations_are_read_and_written_where_they_lie(self):
        wide, idx = torch.randn(N, 2 * S, C, device=self.device), self.indices()
        x, dense = wide[:, ::2], wide[:, ::2].contiguous()
        self.assertTrue(torch.equal(ds.token_gather(x, idx, True),
                                    ds.token_gather(dense, idx, True)))
        turned = dense.transpose(0, 1)  # [S, N, C], not contiguous.
        self.assertTrue(torch.equal(ds.token_gather(turned, idx, False),
                                    ds.token_gather(dense, idx, True).transpose(0, 1)))
        layer = self.activations(True, R)
        between = wide[:, 1::2].clone()
        want = ds.token_scatter(dense, layer, idx, True)
        ds.token_scatter_(x, layer, idx, True)
        self.assertTrue(torch.equal(x, want))
        self.assertTrue(torch.equal(wide[:, 1::2], between))

    def test_gradients_are_those_of_torch(self):
        for batch_first in (True, False):
            idx = self.indices()
            dim, where = (1 if batch_first else 0), spread(idx, batch_first)
            x, layer = self.activations(batch_first), self.activations(batch_first, R)
            weight = self.activations(batch_first, R)
            all_weight = self.activations(batch_first)

            def grads(gather, scatter):
                a, b = x.clone().requires_grad_(), layer.clone().requires_grad_()
                kept = gather(a)
                ((scatter(a * 2, b * kept) * all_weight).sum() + (kept * weight).sum()).backward()
                return a.grad, b.grad
            want = grads(lambda a: a.gather(dim, where),
                         lambda a, b: a.scatter(dim, where, b))
            functional = grads(lambda a: ds.token_gather(a, idx, batch_first),
                               lambda a, b: ds.token_scatter(a, b, idx, batch_first))

            def in_place(a, b):
                ds.token_scatter_(a, b, idx, batch_first)
                return a
            for got in (functional,
                        grads(lambda a: ds.token_gather(a, idx, batch_first), in_place)):
                torch.testing.assert_close(got, want)

    def test_masks_of_each_layer_follow_its_own_indices(self):
        layers = 4
        idx = torch.stack([self.indices() for _ in range(layers)])
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.bool):
            mask = torch.randn(N, 1, S, S, device=self.device).to(dtype)
            got = ds.mask_gather_bert(mask, idx)
            self.assertEqual(got.shape, (layers, N, 1, R, R))
            for layer in range(layers):
                for n in range(N):
                    rows = idx[layer, n].long()
                    self.assertTrue(torch.equal(got[layer, n, 0], mask[n, 0][rows][:, rows]))
            self.assertTrue(torch.equal(ds.mask_gather_gpt(mask, R), mask[:, :, :R, :R]))

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch does not compile")
    def test_compiled_it_gives_the_same(self):
        x, layer, idx = self.activations(True), self.activations(True, R), self.indices()

        def f(x, layer, idx):
            kept = ds.token_gather(x * 2, idx, True)
            return ds.token_scatter(x, kept + layer, idx, True) + 1
        want = f(x, layer, idx)
        compiled = torch.compile(f, fullgraph=True, backend=BACKEND[self.device])
        torch.testing.assert_close(compiled(x, layer, idx), want)
        a = x.clone().requires_grad_()
        b = x.clone().requires_grad_()
        f(a, layer, idx).square().sum().backward()
        compiled(b, layer, idx).square().sum().backward()
        torch.testing.assert_close(b.grad, a.grad)

        def in_place(x, layer, idx, ids):
            y = x + 1
            ds.token_scatter_(y, layer, idx, True)
            ids = ids + 0
            ds.token_sort_(ids, S)
            return y, ids
        ids = idx.flip(1).contiguous()
        with torch.no_grad():
            got = torch.compile(in_place, fullgraph=True,
                                backend=BACKEND[self.device])(x, layer, idx, ids)
            torch.testing.assert_close(got, in_place(x, layer, idx, ids))
        self.assertTrue(torch.equal(got[1], idx))

    def test_what_does_not_fit_is_refused(self):
        def meta(*shape, dtype=torch.float32):
            return torch.empty(shape, dtype=dtype, device="meta")
        x, idx = meta(N, S, C), meta(N, R, dtype=torch.int32)
        self.assertEqual(ds.token_gather(x, idx, True).shape, (N, R, C))
        self.assertEqual(ds.token_gather(meta(S, N, C), idx, False).shape, (R, N, C))
        with self.assertRaisesRegex(RuntimeError, "indices must be int32"):
            ds.token_gather(x, meta(N, R, dtype=torch.int64), True)
        with self.assertRaisesRegex(RuntimeError, "indices for 3 sequences and activations of 50"):
            ds.token_gather(x, idx, False)
        with self.assertRaisesRegex(RuntimeError, "kept tokens of all_activations"):
            ds.token_scatter(x, meta(N, R + 1, C), idx, True)
        with self.assertRaisesRegex(RuntimeError, "device and dtype"):
            ds.token_scatter_(x, meta(N, R, C, dtype=torch.float16), idx, True)
        with self.assertRaisesRegex(RuntimeError, "channels of all_activations are not dense"):
            ds.token_scatter_(meta(N, C, S).transpose(1, 2), meta(N, R, C), idx, True)
        with self.assertRaisesRegex(RuntimeError, "not contiguous"):
            ds.token_sort_(meta(R, N, dtype=torch.int32).t(), S)
        with self.assertRaisesRegex(RuntimeError, r"mask must be \[N, 1, S, S\]"):
            ds.mask_gather_bert(meta(N, 1, S, R), meta(2, N, R, dtype=torch.int32))
        with self.assertRaisesRegex(RuntimeError, "sequences and a mask of 3"):
            ds.mask_gather_bert(meta(N, 1, S, S), meta(2, 4, R, dtype=torch.int32))
        with self.assertRaisesRegex(RuntimeError, "the first 51 of 50"):
            ds.mask_gather_gpt(meta(N, 1, S, S), 51)


class OnCpu(Functions, unittest.TestCase):
    device = "cpu"


@unittest.skipUnless(HAVE, "no CUDA device, or no code for it")
class OnCuda(Functions, unittest.TestCase):
    device = "cuda"

    def test_captured_it_gives_the_same(self):
        x, layer, idx = self.activations(True), self.activations(True, R), self.indices()

        def f(x, layer, idx):
            kept = ds.token_gather(x * 2, idx, True)
            return ds.token_scatter(x, kept + layer, idx, True) + 1
        f(x, layer, idx)
        ids = idx.flip(1).contiguous()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = f(x, layer, idx)
            ds.token_sort_(ids, S)
        x.add_(1)
        graph.replay()
        torch.testing.assert_close(out, f(x, layer, idx))
        self.assertTrue(torch.equal(ids, idx))

    def test_the_current_stream_is_used(self):
        x, idx = torch.randn(N, 4096, 1024, device=self.device), self.indices(tokens=4096, kept=2000)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.fill_(3)
            got = ds.token_gather(x, idx, True)
        stream.synchronize()
        self.assertTrue(bool((got == 3).all()))


if __name__ == "__main__":
    unittest.main()
