"""The quantizer through torch: torch.ops.ds.quantize and its relatives, on the CPU and on CUDA where
both are there."""

import os
import unittest

import torch

torch.ops.load_library(os.environ["DS_OPS_BINARY_DIR"] + "/ds_quantizer/libds_quantizer.so")
ds = torch.ops.ds
HAVE = torch.cuda.is_available() and torch._C._dispatch_has_kernel_for_dispatch_key(
    "ds::quantize", "CUDA")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unpacked(codes):
    """int4 codes as int8: the first of two in the upper half."""
    return torch.stack((codes >> 4, (codes << 4) >> 4), dim=-1).flatten(-2)


class Functions:
    """What holds on every device."""

    def setUp(self):
        torch.manual_seed(0)

    def test_every_type_agrees_with_torch_arithmetic(self):
        for dtype in DTYPES:
            for bits in (8, 4):
                x = torch.randn(16, 512, device=self.device).to(dtype)
                codes, params = ds.quantize(x, 16, bits, True)
                most = x.float().abs().amax(1, keepdim=True)
                scale = 2.0 ** (bits - 1) / most
                want = (x.float() * scale).round().clamp(-2 ** (bits - 1), 2 ** (bits - 1) - 1)
                self.assertEqual(codes.dtype, torch.int8)
                got = codes if bits == 8 else unpacked(codes)
                self.assertTrue(torch.equal(got.float(), want))
                self.assertTrue(torch.equal(params, 1 / scale))
                back = ds.dequantize(codes, params, 16, bits, True, dtype)
                self.assertTrue(torch.equal(back, (want * params).to(dtype)))
                fake = x.clone()
                ds.fake_quantize_(fake, 16, bits, True)
                self.assertTrue(torch.equal(fake, back))

    def test_asymmetric_codes_come_back(self):
        x = torch.rand(8, 256, device=self.device, dtype=torch.float16) + 3
        codes, params = ds.quantize(x, 8, 8, False)
        self.assertEqual(params.shape, (8, 2))
        back = ds.dequantize(codes, params, 8, 8, False)
        self.assertLess((back - x).abs().max().item(), 0.01)

    def test_a_swizzled_reduction_is_the_sum(self):
        x = torch.randn(8, 4096, device=self.device, dtype=torch.float16)
        codes, scales = ds.swizzle_quant(x, 64, 8, True, 1, 1, 8)
        out, out_scales = ds.quantized_reduction(codes, scales, 64, 4, 8, True, 8)
        back = ds.dequantize(out, out_scales, 4, 8, True, torch.float32)
        self.assertLess((back - x.float().sum(0)).abs().max().item(), 0.2)
        error = torch.zeros(4096, device=self.device, dtype=torch.float16)
        again, _ = ds.loco_quantized_reduction(codes, scales, error, 0.5, 64, 4, 8, True, 8)
        self.assertTrue(torch.equal(again, out))
        self.assertGreater(error.abs().max().item(), 0)
        feedback = torch.zeros_like(x)
        same, _ = ds.loco_swizzle_quant(x, feedback, 0.5, 64, 8, True, 1, 1, 8)
        self.assertTrue(torch.equal(same, codes))

    def test_what_is_not_contiguous_is_read_in_order_and_never_written(self):
        x = torch.randn(64, 64, device=self.device)
        a = ds.quantize(x.t(), 64)
        b = ds.quantize(x.t().contiguous(), 64)
        self.assertTrue(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]))
        with self.assertRaisesRegex(RuntimeError, "not contiguous"):
            ds.fake_quantize_(x.t(), 64)

    def test_what_does_not_fit_is_refused(self):
        x = torch.randn(10, 10, device=self.device)
        with self.assertRaisesRegex(RuntimeError, "do not make 3 groups of equal size"):
            ds.quantize(x, 3)
        with self.assertRaisesRegex(RuntimeError, "bits must be 8 or 4"):
            ds.quantize(x, 10, 6)
        with self.assertRaisesRegex((RuntimeError, ValueError), "even"):
            ds.quantize(x, 20, 4)
        with self.assertRaisesRegex(RuntimeError, "float32, float16 or bfloat16"):
            ds.quantize(x.double(), 10)
        with self.assertRaisesRegex(RuntimeError, "equal partitions"):
            ds.swizzle_quant(x, 10, 8, True, 1, 2, 4)

    def test_groups_larger_than_any_peer_takes(self):
        x = torch.randn(1, 3_000_001, device=self.device)
        ds.fake_quantize_(x, 1)
        self.assertLessEqual(len(x.unique()), 256)

    def test_empty_tensors(self):
        codes, params = ds.quantize(torch.empty(0, 8, device=self.device), 0)
        self.assertEqual((codes.numel(), params.numel()), (0, 0))

    def test_int_to_half(self):
        codes = torch.randint(0, 256, (4, 32), device=self.device, dtype=torch.uint8)
        scale = torch.rand(4, device=self.device).half() + 1
        low = torch.randn(4, device=self.device).half()
        got = ds.dequantize_int_to_half(codes, scale, low, 4, 32, 8)
        # By way of float, where the CPU has no division of halves.
        want = (codes.float() / scale.float()[:, None]).half().float() + low.float()[:, None]
        self.assertTrue(torch.equal(got, want.half()))
        nibbles = torch.stack((codes >> 4, codes & 15), -1).flatten(-2)
        got = ds.dequantize_int_to_half(codes, scale, low, 4, 64, 4)
        want = (nibbles.float() / scale.float()[:, None]).half().float() + low.float()[:, None]
        self.assertTrue(torch.equal(got, want.half()))

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch does not compile")
    def test_compiled_it_gives_the_same(self):
        x = torch.randn(64, 512, device=self.device, dtype=torch.float16)

        def there_and_back(t):
            q, p = ds.quantize(t * 2, 64)
            return ds.dequantize(q, p, 64) / 2
        # On the CPU what a graph makes of the op, not what a compiler makes of the rest.
        backend = {"cpu": "aot_eager", "cuda": "inductor"}[self.device]
        compiled = torch.compile(there_and_back, fullgraph=True, backend=backend)
        self.assertTrue(torch.equal(compiled(x), there_and_back(x)))

    def test_meta_gives_the_shapes(self):
        x = torch.empty(1 << 20, 1 << 20, device="meta", dtype=torch.bfloat16)
        codes, params = ds.quantize(x, 1 << 20, 4, False)
        self.assertEqual(codes.shape, (1 << 20, 1 << 19))
        self.assertEqual(params.shape, (1 << 20, 2))
        self.assertEqual(ds.dequantize(codes, params, 1 << 20, 4, False).shape, x.shape)


class OnCpu(Functions, unittest.TestCase):
    device = "cpu"


@unittest.skipUnless(HAVE, "no CUDA device, or no code for it")
class OnCuda(Functions, unittest.TestCase):
    device = "cuda"

    def test_runs_on_the_current_stream(self):
        x = torch.randn(1 << 22, device=self.device)
        want = ds.quantize(x, 1 << 10)[0]
        stream = torch.cuda.Stream()
        y = torch.empty_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            y.copy_(x)
            got = ds.quantize(y, 1 << 10)[0]
        stream.synchronize()
        self.assertTrue(torch.equal(got, want))

    def test_works_in_a_graph(self):
        x = torch.randn(64, 512, device=self.device, dtype=torch.float16)
        want = ds.quantize(x, 64)
        graph = torch.cuda.CUDAGraph()
        static = torch.zeros_like(x)
        ds.quantize(static, 64)
        with torch.cuda.graph(graph):
            codes, params = ds.quantize(static, 64)
        static.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(codes, want[0]) and torch.equal(params, want[1]))


if __name__ == "__main__":
    unittest.main()
