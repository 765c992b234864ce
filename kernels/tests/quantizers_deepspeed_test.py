"""The modules with DeepSpeed's names, used as DeepSpeed uses them."""

import importlib.util
import os
import pathlib
import unittest

import torch

LIBRARIES = [os.environ["DS_OPS_BINARY_DIR"] + f"/ds_{op}/libds_{op}.so"
             for op in ("quantizer", "fp_quantizer")]
BUILT = all(map(os.path.exists, LIBRARIES))
if BUILT:
    for library in LIBRARIES:
        torch.ops.load_library(library)


def module(name):
    folder = pathlib.Path(__file__).resolve().parents[1] / "python" / "ds_ops" / "deepspeed"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


quantizer, fp_quantizer = module("quantizer"), module("fp_quantizer")


HAVE = BUILT and torch.cuda.is_available() and torch._C._dispatch_has_kernel_for_dispatch_key(
    "ds::quantize", "CUDA")


class DeepSpeedNames:
    def setUp(self):
        torch.manual_seed(0)

    def test_weights_there_and_back(self):
        x = torch.randn(64, 512, device=self.device, dtype=torch.float16)
        for bits, bound in ((8, 0.02), (4, 0.35)):
            for kind in (quantizer.Symmetric, quantizer.Asymmetric):
                q, params = quantizer.quantize(x, 64, bits, kind)
                half = quantizer.dequantize(q, params, 64, bits, kind)
                full = quantizer.dequantize_fp32(q, params, 64, bits, kind)
                self.assertEqual((half.dtype, full.dtype), (torch.float16, torch.float32))
                # The largest code is one less than the largest value needs.
                self.assertLess((half - x).abs().max().item(), 2 * bound)
                self.assertLess((half - x).abs().float().median().item(), bound / 2)
                self.assertTrue(torch.equal(full.half(), half))

    def test_fake_quantization_is_in_place_and_returns_its_argument(self):
        for name in ("ds_quantize", "ds_sr_quantize", "ds_quantize_asym", "ds_sr_quantize_asym"):
            for suffix, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
                x = torch.rand(16, 256, device=self.device).to(dtype) + 10
                before = x.clone()
                y = getattr(quantizer, f"{name}_{suffix}")(x, 16, 4)
                self.assertEqual(y.data_ptr(), x.data_ptr())
                self.assertFalse(torch.equal(x, before))
                # The asymmetric ones, the stochastic one too, keep what the symmetric ones lose.
                error = (x - before).abs().max().item()
                self.assertLess(error, 0.08 if "asym" in name else 1.4, name)

    def test_two_stochastic_calls_differ(self):
        x = torch.rand(16, 256, device=self.device)
        a, b = (quantizer.ds_sr_quantize_fp32(x.clone(), 16, 4) for _ in range(2))
        self.assertFalse(torch.equal(a, b))

    def test_a_gradient_reduction_over_one_node(self):
        devices, size = 8, 4096
        grads = torch.randn(devices, size, device=self.device, dtype=torch.float16)
        kind = quantizer.Symmetric
        codes, scales = quantizer.swizzle_quant(grads, 64, 4, kind, 1, 1, devices)
        total, total_scales = quantizer.quantized_reduction(codes, scales, 64, 8, 4, kind, devices)
        out = quantizer.dequantize(total, total_scales, 8, 4, kind)
        self.assertEqual(out.numel(), size)
        self.assertLess((out.float() - grads.float().sum(0)).abs().mean().item(), 1.0)
        error = torch.zeros_like(grads)
        quantizer.loco_swizzle_quant(grads, error, 0.1, 64, 4, kind, 1, 1, devices)
        self.assertGreater(error.abs().max().item(), 0)
        error = torch.zeros(size, device=self.device, dtype=torch.float16)
        quantizer.loco_quantized_reduction(codes, scales, error, 0.1, 64, 8, 4, kind, devices)
        self.assertGreater(error.abs().max().item(), 0)

    def test_int_to_half(self):
        codes = torch.randint(0, 256, (4, 32), device=self.device, dtype=torch.uint8)
        one = torch.ones(4, device=self.device).half()
        got = quantizer.dequantize_int8_to_half_experimental(codes, one, one, 4, 32)
        self.assertTrue(torch.equal(got, codes.half() + 1))
        got = quantizer.dequantize_int4_to_half_experimental(codes, one, one, 4, 64)
        self.assertTrue(torch.equal(got[:, ::2], (codes >> 4).half() + 1))

    def test_fp_formats_as_its_python_class_calls_them(self):
        x = torch.randn(4, 8, 512, device=self.device, dtype=torch.bfloat16)
        for bits, mantissa, bound in ((8, 3, 0.4), (8, 2, 0.7), (12, 4, 0.04), (6, 2, 0.7),
                                      (4, 1, 1.6)):
            rows = torch.ones(32, 512 * bits // 8 + 4, dtype=torch.uint8, device=self.device)
            self.assertIs(fp_quantizer.quantize(rows, x, 512, True, bits, mantissa), rows)
            out = torch.empty_like(x)
            fp_quantizer.dequantize(out, rows, 512, mantissa, bits - mantissa - 1)
            self.assertLess((out - x).abs().max().item(), bound, (bits, mantissa))
            indexes = torch.tensor([3, 1], device=self.device, dtype=torch.int32)
            some = torch.empty(2, 8, 512, device=self.device, dtype=torch.bfloat16)
            fp_quantizer.selective_dequantize(some, rows, indexes, 512, mantissa,
                                              bits - mantissa - 1)
            self.assertTrue(torch.equal(some, out[indexes.long()]))
            scales = rows[:, -4:].contiguous()
            got = fp_quantizer.get_scales(scales, 32)
            self.assertEqual(got.shape, (32, 1))
            self.assertEqual(got.data_ptr(), scales.data_ptr())
            self.assertTrue(torch.equal(got, scales.view(torch.float32)))


@unittest.skipUnless(BUILT, "the ops are not built")
class OnCpu(DeepSpeedNames, unittest.TestCase):
    device = "cpu"


@unittest.skipUnless(HAVE, "no CUDA device, or no code for it")
class OnCuda(DeepSpeedNames, unittest.TestCase):
    device = "cuda"


if __name__ == "__main__":
    unittest.main()
