"""The fp_quantizer through torch: torch.ops.ds.fp_quantize and its relatives, on the CPU and on CUDA
where both are there."""

import os
import unittest

import torch

torch.ops.load_library(os.environ["DS_OPS_BINARY_DIR"] + "/ds_fp_quantizer/libds_fp_quantizer.so")
ds = torch.ops.ds
HAVE = torch.cuda.is_available() and torch._C._dispatch_has_kernel_for_dispatch_key(
    "ds::fp_quantize", "CUDA")

LARGEST = {(12, 7): 510, (8, 3): 480, (8, 2): 114688, (6, 2): 28, (4, 1): 6}
FORMATS = ((12, 7), (8, 3), (8, 2), (6, 2), (4, 1))


class Functions:
    """What holds on every device."""

    def setUp(self):
        torch.manual_seed(0)

    def test_every_format_comes_back_within_half_an_ulp(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(37, 512, device=self.device).to(dtype)
            for bits, mantissa in FORMATS:
                rows = ds.fp_quantize(x, 512, bits, mantissa)
                self.assertEqual(rows.shape, (37, 512 * bits // 8 + 4))
                back = torch.full_like(x, float("nan"))
                ds.fp_dequantize_(rows, back, 512, bits, mantissa)
                scale = x.float().abs().amax(1, keepdim=True) / LARGEST[bits, mantissa]
                exponent_bits = bits - 1 - mantissa
                smallest_ulp = scale * 2.0 ** (2 - 2 ** (exponent_bits - 1) - mantissa)
                half_ulp = torch.maximum(x.float().abs() * 2.0 ** -mantissa, smallest_ulp) / 2
                error = (back.float() - x.float()).abs()
                rounding = x.float().abs() * (2.0 ** -8 if dtype == torch.bfloat16 else 2.0 ** -10)
                self.assertTrue(bool((error <= half_ulp * 1.001 + rounding).all()), (bits, dtype))

    def test_scales_are_those_of_the_rows(self):
        x = torch.randn(37, 512, device=self.device, dtype=torch.bfloat16)
        rows = ds.fp_quantize(x, 512)
        want = x.float().abs().amax(1, keepdim=True) / 480
        self.assertTrue(torch.allclose(ds.fp_scales(rows, 512), want, rtol=1e-6, atol=0))

    def test_selected_slabs_are_those_of_the_whole(self):
        x = torch.randn(10, 4, 512, device=self.device, dtype=torch.bfloat16)
        rows = ds.fp_quantize(x, 512, 6, 2)
        whole = torch.empty_like(x)
        ds.fp_dequantize_(rows, whole, 512, 6, 2)
        indexes = torch.tensor([7, 0, 7], device=self.device, dtype=torch.int32)
        some = torch.empty(3, 4, 512, device=self.device, dtype=torch.bfloat16)
        ds.fp_selective_dequantize_(rows, indexes, some, 512, 6, 2)
        self.assertTrue(torch.equal(some, whole[indexes.long()]))

    def test_stochastic_rounding_follows_its_seed_and_is_right_on_average(self):
        x = torch.full((64, 512), 0.3, device=self.device, dtype=torch.float32)
        x[:, 0] = 6.0
        sums = torch.zeros_like(x)
        for seed in range(8):
            rows = ds.fp_quantize(x, 512, 4, 1, True, seed)
            self.assertTrue(torch.equal(rows, ds.fp_quantize(x, 512, 4, 1, True, seed)))
            back = torch.empty_like(x)
            ds.fp_dequantize_(rows, back, 512, 4, 1)
            sums += back
        self.assertAlmostEqual((sums[:, 1:] / 8).mean().item(), 0.3, delta=0.003)

    def test_randomness_can_come_from_the_device(self):
        x = torch.randn(8, 512, device=self.device, dtype=torch.bfloat16)
        state = torch.tensor([5, 9], device=self.device, dtype=torch.int64)
        self.assertTrue(torch.equal(ds.fp_quantize(x, 512, 8, 3, True, 0, 0, state),
                                    ds.fp_quantize(x, 512, 8, 3, True, 5, 9)))

    def test_what_does_not_fit_is_refused(self):
        x = torch.randn(10, 10, device=self.device)
        with self.assertRaisesRegex(RuntimeError, "do not make groups of 7"):
            ds.fp_quantize(x, 7)
        with self.assertRaisesRegex(RuntimeError, "does not end on a byte"):
            ds.fp_quantize(x, 10, 6, 2)
        with self.assertRaisesRegex(RuntimeError, "no format of 8 bits with 5"):
            ds.fp_quantize(x, 10, 8, 5)
        rows = ds.fp_quantize(x, 10)
        with self.assertRaisesRegex(RuntimeError, "not contiguous"):
            ds.fp_dequantize_(rows, x.t(), 10)
        with self.assertRaisesRegex(RuntimeError, "rows of 10 codes for an output"):
            ds.fp_dequantize_(rows[:5], x, 10)

    def test_meta_gives_the_shapes(self):
        meta = torch.empty(1 << 20, 512, device="meta", dtype=torch.bfloat16)
        self.assertEqual(ds.fp_quantize(meta, 512, 4, 1).shape, (1 << 20, 260))

    @unittest.skipUnless(hasattr(torch, "compile"), "this torch does not compile")
    def test_compiled_it_gives_the_same(self):
        x = torch.randn(64, 512, device=self.device, dtype=torch.bfloat16)

        def there_and_back(t):
            q = ds.fp_quantize(t * 2, 512)
            out = torch.empty_like(t)
            ds.fp_dequantize_(q, out, 512)
            return out / 2
        # On the CPU what a graph makes of the op, not what a compiler makes of the rest.
        backend = {"cpu": "aot_eager", "cuda": "inductor"}[self.device]
        compiled = torch.compile(there_and_back, fullgraph=True, backend=backend)
        self.assertTrue(torch.equal(compiled(x), there_and_back(x)))


class OnCpu(Functions, unittest.TestCase):
    device = "cpu"


@unittest.skipUnless(HAVE, "no CUDA device, or no code for it")
class OnCuda(Functions, unittest.TestCase):
    device = "cuda"

    def test_works_in_a_graph(self):
        x = torch.randn(64, 512, device=self.device, dtype=torch.bfloat16)
        want = ds.fp_quantize(x, 512)
        static = torch.zeros_like(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows = ds.fp_quantize(static, 512)
        static.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(rows, want))


if __name__ == "__main__":
    unittest.main()
